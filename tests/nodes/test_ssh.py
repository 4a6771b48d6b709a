"""Runs on hosts of `ssh`, which is real: the host, its server and the way to it may fail."""

from tests.helpers.files import write_program
from tests.helpers.turns import asks, says
from tests.helpers.world import World
from tests.nodes.conftest import lost, over
from tests.nodes.ssh_hosts import SshHosts


def test_a_run_outlives_the_server_of_its_host(on_host: World, hosts: SshHosts) -> None:
    world = on_host
    run_id = world.asking_run(asks("Which colour?"), says("Blue it is."))
    hosts.end_server("h1")
    code, message = world.failed(world.start())
    assert code == "launch_failed" and "`ssh h1 ls " in message and "refused" in message
    world.reply(run_id, "blue")
    assert world.completed(run_id) == "Blue it is."
    over(world, run_id)
    hosts.power_off("h1")
    hosts.up("h1")


def test_a_run_of_a_host_that_is_gone_is_lost_and_continued_on_another(
    on_host: World, hosts: SshHosts
) -> None:
    world = on_host
    run_id = world.asking_run(asks("Which colour?"), says("Blue it is."))
    hosts.power_off("h1")
    lost(world, run_id)
    done = world.cli("--launcher", "ssh:h2", "continue", run_id, "--detach", "--json")
    assert done.returncode == 0, done.stderr
    again = max(world.store.run_ids())
    assert world.completed(again) == "Blue it is."  # it is told that no answer came
    assert world.look(again).node == "h2"
    over(world, again)
    hosts.up("h1")


def test_a_host_without_the_runs_is_named(on_host: World, hosts: SshHosts) -> None:
    world = on_host
    world.agent()
    hosts.up("h3", without=world.work)
    done = world.cli("--launcher", "ssh:h3", "doctor", "--nodes")
    assert done.returncode == 1 and f"h3: {world.work} is not there" in done.stdout, done.stdout + done.stderr
    world.environment["SUBAGENT_LAUNCHER"] = "ssh:h3"
    sub = world.work / "sub"
    sub.mkdir()
    code, message = world.failed(world.start(cwd=str(sub)))
    assert (code, message) == ("config", f"On h3: cwd {sub} cannot be entered: No such file or directory.")
    hosts.power_off("h3")
    hosts.up("h3", without=world.home)
    code, message = world.failed(world.start())
    assert code == "launch_failed" and "h3" in message
    world.environment["SUBAGENT_LAUNCHER"] = "ssh:nowhere.invalid"
    code, message = world.failed(world.start())
    assert code == "launch_failed" and "nowhere.invalid" in message


def test_a_host_without_the_program_of_an_agent_is_named(on_host: World, hosts: SshHosts) -> None:
    world = on_host
    tools = world.home / "tools"
    tools.mkdir()
    program = write_program(tools / "agent", "#!/bin/sh\necho Done.\n")
    world.agent(prompt="", runner="command", command=str(program))
    assert world.completed(world.start()) == "Done."
    hosts.up("h4", without=tools)
    world.environment["SUBAGENT_LAUNCHER"] = "ssh:h4"
    run_id = world.start()
    code, message = world.failed(run_id)
    assert code == "config" and message.startswith("On h4: ") and str(program) in message
    over(world, run_id)
    hosts.power_off("h4")
