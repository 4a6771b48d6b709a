"""What the programs of a run reach in their box, as its model and a person see it."""

from tests.helpers.turns import says, shell, tool_results
from tests.helpers.world import World


def test_a_shell_in_a_box_writes_its_directory_and_sees_no_home_no_key_and_no_run(world: World) -> None:
    world.agent("boxed", sandbox="bwrap")
    (world.home / "canary.txt").write_text("CANARY", encoding="utf-8")
    commands = [
        "pwd; echo made > made.txt; cat made.txt",
        f"cat {world.home}/canary.txt; ls -A {world.home}; ls {world.runs}",
        "env | sort; cat /proc/*/environ | tr '\\0' '\\n' | grep -E 'KEY|TOKEN|SECRET|SUBAGENT'",
        "echo x > /etc/x; echo x > /usr/x; echo x > /x; echo x > /proc/sys/kernel/core_pattern",
        "touch /tmp/private; ls -A /tmp; cd /tmp",
        "pwd; kill $$",
        "pwd; ls -A /tmp",
    ]
    simulator = world.play(*(shell(command) for command in commands), says("Done."))
    run_id = world.start("Look.", agent="boxed")
    assert world.completed(run_id) == "Done."
    results = [tool_results(request.body)[0] for request in simulator.requests[1:]]
    for result in results:
        print(result, "\n----")
    assert results[0] == f"{world.work}\nmade"
