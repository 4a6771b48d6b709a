"""The calls of a flow in `show`, `ls --tree` and `export --html`."""

import json

from tests.cli.command import Cli


def test_phases_and_calls_are_drawn_with_state_cost_and_time(cli: Cli) -> None:
    parent = cli.completed("aaaaaa")
    child = cli.completed("bbbbbb", parent_run_id=parent)
    run = cli.store.paths.run(parent)
    request = json.loads(run.request.path.read_text(encoding="utf-8"))
    request["agent"]["runner"] = "flow"
    run.request.path.write_text(json.dumps(request), encoding="utf-8")
    call = {
        "type": "agent_call",
        "seq": 1,
        "at": "2026-11-22T09:30:15.417Z",
        "agent": "worker",
        "phase": "look",
    }
    events = [
        {**call, "state": "recorded", "label": "one", "calledRunId": "20260101-000000-000-cccccc"},
        {**call, "state": "new", "label": "<b>two</b>\x1b[31m", "calledRunId": child},
        {**call, "state": 3},
    ]
    run.events.path.write_text("".join(json.dumps(each) + "\n" for each in events), encoding="utf-8")
    (cli.store.paths.run(parent).directory / "children").mkdir(exist_ok=True)
    (cli.store.paths.run(parent).directory / "children" / child).touch()

    shown = cli("show", parent).stdout
    assert (
        "look: 1 recorded, 1 new" in shown and "new worker (<b>two</b>" in shown and "\x1b[31m" not in shown
    )
    assert "\nmodel     none (runner: flow)\n" in shown
    tree = cli("ls", "--tree").stdout
    assert "look: 1 recorded, 1 new" in tree and "new · " in tree
    assert cli("export", parent, "--html", "-o", "run.html").returncode == 0
    page = (cli.home / "run.html").read_text(encoding="utf-8")
    assert "<h2>Calls</h2>" in page and "&lt;b&gt;two" in page and "\x1b" not in page
