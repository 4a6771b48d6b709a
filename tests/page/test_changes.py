"""What a run has changed in its worktree, on the page and in the file of `export --html`."""

import html

from tests.helpers.turns import says
from tests.helpers.world import World
from tests.page.test_access import entered, get
from tests.page.test_standalone import Elements
from tests.worktrees.repository import Repository

HOSTILE = "<img src=x onerror=x()>"
SECRET = "sk-this-is-the-secret-of-the-test-0123456789"


def test_a_patch_is_data_and_has_its_bound_and_in_a_file_no_secret(world: World) -> None:
    repository = Repository(world)
    large = "seq -f 'line %0100.0f' 5000 > z-large.txt"
    write = f"printf '%s\\n' '{HOSTILE}' '\x1b\u202e' {SECRET} > '{HOSTILE}.txt'"
    run_id = repository.ran(f"{write}; rm deep/kept.txt; {large}")
    world.agent("plain")
    with world.http_server() as server:
        secret = entered(world, server)

        def ask(run_id: str) -> tuple[int, dict[str, object]]:
            answer = get(server, f"/page/runs/{run_id}/changes", secret)
            return answer.status, answer.json

        status, found = ask(run_id)
        patch = str(found["diff"])
        assert status == 200 and found["cut"] is True and patch.endswith("\n") and len(patch) <= 400_000
        assert f"+{HOSTILE}\n" in patch and "-kept\n" in patch
        unchanged = repository.ran("true")
        assert ask(unchanged) == (200, {"diff": "", "cut": False})
        world.play(says("No."))
        without = world.completed_run(agent="plain")
        status, found = ask(without)
        assert status == 400 and "no worktree of its own" in str(found["error"])
    assert world.cli("export", run_id, "--html", "-o", "run.html", env={"MY_API_KEY": SECRET}).returncode == 0
    text = (world.work / "run.html").read_text(encoding="utf-8")
    (world.work / "run.html").unlink()
    assert not Elements(text).names & {"script", "img"} and SECRET not in text
    assert f'<span class="good">+{html.escape(HOSTILE)}</span>' in text
    assert '<span class="bad">-kept</span>' in text and "\x1b" not in text and "\u202e" not in text
    assert f"subagent show {run_id} --diff" in text and f"subagent/worker-{run_id[-6:]}" in text
