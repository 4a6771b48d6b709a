"""`grep` and `glob` of a run, from the call of its model to the end of ripgrep."""

from tests.helpers.turns import calls, says, tool_results, use
from tests.helpers.world import World


def test_a_run_does_not_find_the_runs_of_its_server(world: World) -> None:
    world.agent(cwd=str(world.home), prompt="Nobody needs the word mirabelle.")
    (world.work / "notes.md").write_text("mirabelle\n", encoding="utf-8")
    uses = [
        use("grep", pattern="mirabelle", includeIgnored=True),
        use("glob", pattern="**/*.json", includeIgnored=True),
        use("grep", pattern="mirabelle", path="runs"),
    ]
    simulator = world.play(calls(*uses), says("Done."))
    world.completed(world.start("Find the word mirabelle."))
    grep, glob, refused = tool_results(simulator.requests[1].body)
    assert grep.split("\n") == ["agents/worker.md", "work/notes.md"]
    assert "runs/" not in glob
    assert "holds the runs of the server" in refused
