"""The page in a real browser: people see what runs, and answer."""

import json
import os
import re
import shutil
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest
from playwright.sync_api import APIResponse, FloatRect, Page, Route, expect

from tests.browser.conftest import OpenPage
from tests.extensions.flows.place import DONE, body, flow
from tests.helpers.mcp_servers import scripted
from tests.helpers.planted import planted
from tests.helpers.processes import REPOSITORY
from tests.helpers.stored import make_stored
from tests.helpers.turns import asks, call, calls, says, shell, use
from tests.helpers.world import World
from tests.worktrees.repository import Repository

PICTURES = REPOSITORY / "docs" / "pictures"
HOSTILE = (
    "<script>alert(1)</script><img src=x onerror=alert(1)> [x](javascript:alert(1)) "
    "![p](https://evil.example/p.png) a\u200db \u0645\u06cc\u200c\u062e \x1b[31mred\x1b[0m\a "
    "\u202egnp.exe\u200b \x00"
)


def link(world: World) -> str:
    """Return a link as `subagent page` prints it."""
    return str(json.loads(world.cli("page", "--json").stdout)["link"])


def forget(world: World, stored: list[str]) -> None:
    """Remove stored runs before the world is checked: they have no more than lists show."""
    for name in stored:
        shutil.rmtree(world.home / "runs" / name)


def picture(page: Page, name: str, height: int = 400) -> None:
    """Take a picture for the documents, if pictures are wanted (`PICTURES=1 make test-browser`).

    It ends above what names directories of this machine, such as the last lines of a log.
    """
    if os.environ.get("PICTURES"):
        PICTURES.mkdir(exist_ok=True)
        size = page.viewport_size
        assert size is not None
        clip: FloatRect = {"x": 0, "y": 0, "width": size["width"], "height": height}
        page.screenshot(path=PICTURES / f"{name}.png", clip=clip)


def test_a_question_is_answered_by_a_click_and_the_run_completes(world: World, open_page: OpenPage) -> None:
    world.agent("releaser")
    world.play(
        asks("Merge into **main** or into `release`?", "main", "release"),
        says("# Merged\n\nInto **main**.\n\n- [x](https://example.org)\n\n```diff\n-old\n+new\n```"),
    )
    with world.http_server(), open_page(link(world)) as page:
        expect(page.get_by_text("No runs yet")).to_be_visible()
        run_id = world.start(agent="releaser", label="the release")
        line = page.locator(".needs a.run")
        expect(line).to_contain_text("the release")
        picture(page, "page-runs")
        line.click()
        expect(page.locator(".card.asks")).to_contain_text("Merge into **main**")
        expect(page.locator(".log")).to_contain_text("? q1:")
        picture(page, "page-question", height=345)
        page.get_by_role("button", name="release", exact=True).click()
        expect(page.locator(".figures")).to_contain_text("completed")
        expect(page.locator(".card.asks")).to_have_count(0)
        expect(page.locator(".log")).to_contain_text("✔ completed")
        page.get_by_role("link", name="Result").click()
        expect(page.locator(".prose strong")).to_have_text("main")
        expect(page.locator(".prose pre .good")).to_have_text("+new")
        picture(page, "page-result")
        page.get_by_role("link", name="Conversation").click()
        expect(page.locator(".message summary").first).to_contain_text("ask_parent")
        page.locator(".message summary").first.click()
        expect(page.locator(".message pre").first).to_contain_text("Merge into")
        picture(page, "page-conversation", height=440)
        page.get_by_role("link", name="Costs").click()
        expect(page.locator(".costs").first).to_contain_text("releaser")
        expect(page.get_by_role("heading", level=1)).to_have_text("Costs")
        picture(page, "page-costs", height=330)
        assert world.meta(run_id).messages[0].answer_content == "release"


def test_programs_files_and_the_log_of_a_run_are_shown(world: World, open_page: OpenPage) -> None:
    world.agent("buyer", mcpServers={"shop": scripted("price")}, codeMode=True)
    code = 'teas = ["assam", "sencha"]\nprint(len(teas), "to ask for")\n[price(tea=tea) for tea in teas]\n'
    world.play(
        call("execute_python_code", code=code, executionTimeout=30),
        shell("seq -f 'invoice %g' 20000"),
        says("Sencha is the cheapest."),
    )
    world.completed_run("Which tea is the cheapest?", "buyer", label="tea")
    with world.http_server(), open_page(link(world)) as page:
        page.locator("a.run").click()
        expect(page.locator(".log")).to_contain_text("✔ completed")
        expect(page.locator(".figures")).to_contain_text("completed")
        expect(page.get_by_role("link", name="Programs")).to_be_visible()
        picture(page, "page-log", height=330)
        page.get_by_role("link", name="Programs").click()
        expect(page.locator(".part")).to_contain_text("2 to ask for")
        expect(page.locator(".part")).to_contain_text("price(tea=tea)")
        picture(page, "page-programs", height=420)
        page.get_by_role("link", name="Files").click()
        page.locator(".files button").first.click()
        expect(page.locator(".files pre")).to_contain_text("invoice 2")
        expect(page.locator(".files")).to_contain_text("characters more are in the file")
        picture(page, "page-files", height=330)


def test_what_runs_say_is_shown_as_text_and_does_nothing(world: World, open_page: OpenPage) -> None:
    world.agent("mean", prompt="x")
    world.play(shell(f"printf %s '{HOSTILE[:-2]}'"), asks(HOSTILE, HOSTILE), says(HOSTILE))
    run_id = world.start_asking(HOSTILE[:-2], "mean", label=HOSTILE[:100])
    with world.http_server(), open_page(link(world)) as page:
        page.locator("a.run").click()
        expect(page.locator(".card.asks .text")).to_contain_text("<script>alert(1)</script>")
        expect(page.locator(".log")).to_contain_text("onerror=alert(1)")
        world.reply(run_id, "go")
        expect(page.locator(".figures")).to_contain_text("completed")
        for part in ("Result", "Conversation", "Task"):
            page.get_by_role("link", name=part).click()
            expect(page.locator(".part")).to_contain_text("alert(1)")
            text = str(page.evaluate("document.title + document.documentElement.outerHTML"))
            assert "a⟨U+200D⟩b \u0645\u06cc\u200c\u062e" in text, part
            assert not {"\u202e", "\u200b", "\x1b", "\a"} & set(text), part
            assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), part
        assert page.locator("main script, main img, main iframe").count() == 0
        assert page.locator('a[href^="javascript" i]').count() == 0


def test_long_lines_and_very_many_events_stay_quick(world: World, open_page: OpenPage) -> None:
    run_id = world.asking_run(asks("Go on?"), says("done"))
    event = {"type": "text", "at": "2026-01-01T00:00:00.000Z", "text": "<b>" + "x" * 100}
    first = len(world.events(run_id)) + 1
    world.abandoned.add(run_id)  # its own events would not follow these
    with Path(world.paths(run_id).events.path).open("a", encoding="utf-8") as journal:
        journal.write("".join(json.dumps({"seq": first + at, **event}) + "\n" for at in range(50_000)))
    with Path(world.paths(run_id).log.path).open("a", encoding="utf-8") as log:
        log.write("".join(f"12:00:00 → call {number}\n" for number in range(50_000)))
        log.write("x" * 10_000_000 + "\n12:00:01 the last line\n")
    with world.http_server(), open_page(link(world)) as page:
        page.locator("a.run").click()
        expect(page.locator(".log")).to_contain_text("the last line")
        expect(page.get_by_text("Earlier lines are in the file")).to_be_visible()
        assert page.locator(".lines div").count() <= 2_000
        page.keyboard.press("2")
        expect(page.locator(".part")).to_contain_text("no result yet")
        page.keyboard.press("1")
        expect(page.locator(".log")).to_contain_text("the last line")
        assert page.locator(".log").evaluate(
            "log => log.scrollHeight - log.scrollTop - log.clientHeight < 40"
        )
        page.keyboard.press("Escape")
        expect(page.locator("a.run")).to_be_visible()


def test_a_double_click_starts_one_run(world: World, open_page: OpenPage) -> None:
    world.agent_saying(says("done"))
    run_id = world.completed_run()
    with world.http_server(), open_page(link(world)) as page:
        page.locator("a.run").click()
        sent: list[str] = []
        page.on("request", lambda each: sent.append(each.url) if each.method == "POST" else None)
        page.get_by_role("button", name="Run again").dblclick()
        expect(page).not_to_have_url(re.compile(run_id))
        assert len(sent) == 1


SEEN = """state => {
    Object.defineProperty(document, "visibilityState", { value: state, configurable: true });
    document.dispatchEvent(new Event("visibilitychange"));
}"""


def test_a_page_comes_back_to_the_same_server_without_a_new_link(world: World, open_page: OpenPage) -> None:
    world.agent_saying(asks("Now?", "yes"), says("done"))
    with world.http_server(), open_page(link(world)) as page:
        expect(page.get_by_text("No runs yet")).to_be_visible()
        page.evaluate(SEEN, "hidden")  # it has no connection then, as on a computer that sleeps
        run_id = world.start_asking()
        with page.expect_response("**/page/server") as proved:
            page.evaluate(SEEN, "visible")
        assert "authorization" not in proved.value.request.all_headers()
        expect(page.locator(".needs a.run")).to_be_visible()
        expect(page.locator("#connection")).to_be_empty()
        page.locator(".needs a.run").click()
        page.get_by_role("button", name="yes").click()
        expect(page.locator(".figures")).to_contain_text("completed")
        assert world.completed(run_id) == "done"


def test_a_connection_that_is_silent_for_too_long_is_made_anew(world: World, open_page: OpenPage) -> None:
    world.agent()
    with world.http_server() as server, open_page(link(world)) as page:
        expect(page.get_by_text("No runs yet")).to_be_visible()
        page.clock.install()
        page.reload()
        expect(page.get_by_text("No runs yet")).to_be_visible()
        os.kill(server.pid, signal.SIGSTOP)  # as a machine or a network that has gone without a word
        page.clock.fast_forward(41_000)
        expect(page.locator("#connection")).to_contain_text("The server is away")
        os.kill(server.pid, signal.SIGCONT)
        expect(page.locator("#connection")).to_be_empty()


def test_what_others_do_with_a_run_appears_where_it_is_shown(world: World, open_page: OpenPage) -> None:
    run_id = world.asking_run(asks("Now?"), says("done"))
    with world.http_server() as server, open_page(link(world)) as page:
        page.locator(".needs a.run").click()
        page.get_by_label("Your answer").fill("a long answer")
        assert world.cli("reply", run_id, "yes").returncode == 0
        expect(page.locator("#told")).to_contain_text("was answered elsewhere")
        for _ in range(2):
            page.get_by_role("button", name="Continue").first.click()
        expect(page.get_by_label("What it should do next")).to_have_count(1)
        assert world.cli("rm", run_id).returncode == 0
        expect(page.locator("#told")).to_have_text("The run was removed.")
        server.kill()
        page.get_by_role("button", name="Run again").click()
        expect(page.locator("#told")).to_contain_text("The server does not answer")


def test_an_answer_that_comes_after_a_later_one_changes_nothing(world: World, open_page: OpenPage) -> None:
    run_id = world.asking_run(asks("Now?"), says("It is done."))
    late: list[tuple[Route, APIResponse]] = []

    def keep_first(route: Route) -> None:
        if late:
            route.continue_()
        else:
            late.append((route, route.fetch()))

    with world.http_server(), open_page(link(world)) as page:
        page.route(f"**/page/runs/{run_id}", keep_first)
        page.locator(".needs a.run").click()
        expect(page.locator(".card.asks")).to_have_count(1)
        assert world.cli("reply", run_id, "yes").returncode == 0
        page.get_by_role("link", name="Result").click()
        expect(page.locator(".prose")).to_have_text("It is done.")
        route, answer = late[0]
        with page.expect_response(f"**/page/runs/{run_id}"):
            route.fulfill(response=answer)
        page.wait_for_timeout(500)
        expect(page.locator(".prose")).to_have_text("It is done.")
        expect(page.locator(".card.asks")).to_have_count(0)


def test_a_page_sends_nothing_secret_to_who_takes_the_port_of_its_server(
    world: World, open_page: OpenPage
) -> None:
    world.agent()
    with world.http_server() as server:
        port = server.port
        opened = open_page(link(world))
        page = opened.__enter__()
        expect(page.get_by_text("No runs yet")).to_be_visible()
        session = json.loads(page.evaluate("localStorage.getItem('subagent-session')"))
        server.kill()
    try:
        with squatter(port) as heard:
            expect(page.locator("#connection")).to_contain_text("run `subagent page` again")
            page.keyboard.press("Escape")
            page.goto(f"http://127.0.0.1:{port}/#/costs")  # a press that asks the server for more
            expect(page.locator("main")).to_contain_text("subagent page")
        words = b"".join(heard).decode()
        assert session["knock"] in words
        assert session["secret"] not in words and session["proof"] not in words
        assert "authorization" not in words.lower()
        with world.http_server(port=port):
            page.goto(link(world))
            page.reload()
            expect(page.get_by_text("No runs yet")).to_be_visible()
    finally:
        opened.__exit__(None, None, None)


def test_a_typed_answer_outlives_the_server_and_goes_to_no_other(world: World, open_page: OpenPage) -> None:
    run_id = world.asking_run(asks("Now?"))
    with world.http_server() as server, open_page(link(world)) as page:
        page.locator(".needs a.run").click()
        page.get_by_label("Your answer").fill("a long answer")
        server.kill()
        with world.http_server(port=server.port):
            expect(page.locator("#connection")).to_contain_text("run `subagent page`")
            page.get_by_role("button", name="Answer").click()
            expect(page.locator("#told")).to_contain_text("run `subagent page`")
            expect(page.get_by_label("Your answer")).to_have_value("a long answer")
    assert world.meta(run_id).messages[0].answer_content is None


@contextmanager
def squatter(port: int) -> Iterator[list[bytes]]:
    """Listen in place of a server, answer everything with an object, and give what was heard."""
    heard: list[bytes] = []

    class Answer(BaseHTTPRequestHandler):
        def handle_one_request(self) -> None:
            heard.append(self.connection.recv(100_000))
            body = b'{"proof":"x","rows":[]}'
            head = f"HTTP/1.1 200 OK\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
            self.wfile.write(head.encode() + body)
            self.close_connection = True

    with ThreadingHTTPServer(("127.0.0.1", port), Answer) as listening:
        thread = Thread(target=listening.serve_forever, daemon=True)
        thread.start()
        try:
            yield heard
        finally:
            listening.shutdown()
            thread.join(60)


def test_a_tree_is_one_group_and_its_runs_lead_to_each_other(world: World, open_page: OpenPage) -> None:
    world.agent("boss", agents=["helper"])
    world.agent("helper")
    world.play(
        call("run_helper", prompt="dig", waitSeconds=60),
        call("wait_for_runs", waitSeconds=120),  # it leaves the question to a person
        says("all dug"),
        conversations=[{"when": {"prompt": "dig"}, "turns": [asks("Where?", "here"), says("dug")]}],
    )
    world.start("lead", agent="boss")
    with world.http_server(), open_page(link(world)) as page:
        lines = page.locator(".needs a.run")
        expect(lines).to_have_count(2)
        expect(page.locator("#group-needs")).to_have_text("Needs you 1")
        expect(lines.nth(0)).to_contain_text("boss")
        expect(lines.nth(1)).to_contain_text("helper")
        picture(page, "page-tree")
        lines.nth(1).click()
        expect(page.locator(".family a")).to_contain_text("boss")
        page.locator(".family a").evaluate("link => link.textContent += '_boss'.repeat(19)")
        page.set_viewport_size({"width": 420, "height": 720})
        assert page.evaluate("document.documentElement.scrollWidth") <= 420
        page.get_by_role("button", name="here").click()
        page.locator(".family a").click()
        expect(page.locator(".figures")).to_contain_text("completed")
        expect(page.locator(".family a")).to_contain_text("helper")


def test_keys_move_filter_stop_and_the_address_keeps_the_filter(world: World, open_page: OpenPage) -> None:
    world.agent("sleeper")
    world.play(shell("sleep 600"))
    stored = make_stored(world.home / "runs", 500)
    run_id = world.start(agent="sleeper")
    world.until(run_id, lambda meta: meta.status.value == "running")
    with world.http_server(), open_page(link(world)) as page:
        expect(page.locator(".working a.run")).to_have_count(1)
        page.keyboard.press("/")
        page.keyboard.type("sleeper")
        expect(page.locator("a.run")).to_have_count(1)
        assert page.url.endswith("#/?q=sleeper")
        page.reload()
        expect(page.locator("#filter")).to_have_value("sleeper")
        expect(page.locator("a.run")).to_have_count(1)
        page.keyboard.press("j")
        page.keyboard.press("Enter")
        expect(page).to_have_url(re.compile(f"#/run/{run_id}$"))
        expect(page.locator(".figures")).to_contain_text("working")  # the address changes before the view
        page.keyboard.press("s")
        expect(page.locator("#sure")).to_contain_text("Stop sleeper")
        page.get_by_role("button", name="No").click()
        assert not world.meta(run_id).status.is_terminal
        page.keyboard.press("s")
        page.locator("#sure").get_by_role("button", name="Stop").click()
        expect(page.locator(".figures")).to_contain_text("stopped")
        page.keyboard.press("?")
        expect(page.locator("#keys")).to_contain_text("answer the question")
        page.keyboard.press("Escape")
        page.keyboard.press("Escape")
        expect(page.locator(f"a.run[href$='{run_id}']")).to_be_focused()
        expect(page).to_have_url(re.compile(r"#/\?q=sleeper$"))
        page.keyboard.press("Escape")
        expect(page).to_have_url(re.compile("#/$"))
    forget(world, stored)


@pytest.mark.parametrize(("width", "scheme"), [(420, "light"), (1280, "dark")])
def test_a_narrow_and_a_dark_screen_hide_nothing_beside_the_edge(
    world: World, open_page: OpenPage, width: int, scheme: str
) -> None:
    world.agent("reviewer")
    world.play(
        calls(use("bash", command="true"), text="I look."),
        asks("Which of " + "these " * 40 + "?", "a " * 60, "b"),
    )
    world.start_asking("word " * 100, "reviewer", label="a label")
    with world.http_server(), open_page(link(world), width, scheme) as page:
        line = page.locator("a.run")
        expect(line).to_be_visible()
        picture(page, f"page-runs-{width}-{scheme}")
        line.click()
        expect(page.locator(".card.asks")).to_be_visible()
        expect(page.locator(".log")).to_contain_text("? q1")
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        page.emulate_media(forced_colors="active")  # which shows transparent borders
        others = page.locator("nav a:not([aria-current])")
        assert others.evaluate_all(
            "all => all.every(each => getComputedStyle(each).borderBottomWidth === '0px')"
        )


def test_another_tab_of_the_browser_needs_no_second_link_and_another_browser_does(
    world: World, open_page: OpenPage
) -> None:
    world.agent()
    with world.http_server() as server, open_page(link(world)) as page:
        expect(page.get_by_text("No runs yet")).to_be_visible()
        other = page.context.new_page()
        other.goto(f"http://127.0.0.1:{server.port}/#/costs")
        expect(other.get_by_text("By agent")).to_be_visible()
        with open_page(f"http://127.0.0.1:{server.port}/") as stranger:
            expect(stranger.get_by_text("run `subagent page`").first).to_be_visible()


def test_the_calls_of_a_flow_are_listed_by_phase_while_it_works(world: World, open_page: OpenPage) -> None:
    lines = (
        "phase('look')\ngather(*[agents.worker.call(prompt=f'task {n}') for n in range(3)])\n"
        "phase('decide')\nagents.worker(prompt='task last', label='<b>last</b>')\nreturn 'Decided.'"
    )
    flow(world, body(lines), "council")
    world.play(
        asks("Yes?", "yes"), says("Yes."), conversations=[{"when": {"prompt": r"task \d"}, "turns": [DONE]}]
    )
    with world.http_server(), open_page(link(world)) as page:
        run_id = world.start("", "council")
        page.locator("a.run").filter(has_text="council").click()
        page.get_by_role("link", name="Calls").click()
        tab = page.locator(".part")
        expect(tab).to_contain_text("look: 3 new")
        expect(tab).to_contain_text("decide: 1 running")
        expect(tab).to_contain_text("worker (<b>last</b>)")
        world.asking(run_id)
        world.reply(run_id, "yes")
        expect(tab).to_contain_text("decide: 1 new")
        assert page.locator(".part b").count() == 0


def test_the_changes_of_a_worktree_are_shown_file_by_file_as_text(world: World, open_page: OpenPage) -> None:
    repository = Repository(world)
    hostile = f"printf '%s\\n' '{HOSTILE[:-2]}' > '<b>x.txt'"
    lines = "printf 'first\\nsecond, by the run\\nthird\\n' > shared.txt"
    run_id = repository.ran(f"{lines}; printf 'def f():\\n    return 2\\n' > deep/made.py; {hostile}")
    with world.http_server(), open_page(link(world)) as page:
        page.locator("a.run").click()
        page.get_by_role("link", name="Changes").click()
        files = page.locator("details.file")
        expect(files).to_have_count(3)
        shared, strange = files.filter(has_text="shared.txt"), files.filter(has_text="<b>x.txt")
        expect(shared.locator(".good")).to_have_text(["+second, by the run", "+third"])
        expect(page.locator("dd").first).to_contain_text(f"subagent/worker-{run_id[-6:]}")
        expect(strange).to_contain_text("<script>alert(1)</script>")
        text = page.locator("body").inner_text()
        assert "\u202e" not in text and "\x1b" not in text
        assert page.locator("main script, main img").count() == 0
        strange.evaluate("file => file.remove()")  # not for the picture, nor where it was
        page.locator("dd").nth(1).evaluate("where => where.textContent = where.textContent.split(' ')[0]")
        picture(page, "page-changes", height=520)


def test_500_runs_alive_are_all_reached_and_the_older_ones_by_the_keys_alone(
    world: World, open_page: OpenPage
) -> None:
    stored = make_stored(world.runs, 510)
    with planted(world.runs, 500) as run_ids, world.http_server(), open_page(link(world)) as page:
        expect(page.locator("#group-working")).to_have_text("Working 500")
        expect(page.locator(".working a.run")).to_have_count(300)
        page.keyboard.press("m")
        expect(page.locator(".working a.run")).to_have_count(500)
        expect(page.locator("#group-done")).to_have_text("Done 500")
        page.keyboard.press("m")
        expect(page.locator(".done a.run")).to_have_count(500)
        page.keyboard.press("m")
        expect(page.locator("#group-done")).to_have_text("Done 510")
        expect(page.locator(".foot")).to_contain_text("10 found among 10 older runs")
        page.keyboard.press("/")
        page.keyboard.type(run_ids[250])
        expect(page.locator("a.run")).to_have_count(1)
        page.keyboard.press("Escape")
        page.keyboard.press("j")
        page.keyboard.press("Enter")
        expect(page.locator(".log")).to_contain_text("bash")
        with Path(world.paths(run_ids[250]).log.path).open("a", encoding="utf-8") as log:
            log.write("12:00:00 a line among many\n")
        expect(page.locator(".log")).to_contain_text("a line among many")
    forget(world, stored)


def test_older_runs_are_reached_when_all_that_were_shown_are_removed(
    world: World, open_page: OpenPage
) -> None:
    oldest, *shown = make_stored(world.runs, 501)
    with world.http_server(), open_page(link(world)) as page:
        expect(page.locator("#group-done")).to_have_text("Done 500")
        assert world.cli("rm", *shown).returncode == 0
        expect(page.locator("a.run")).to_have_count(0)
        page.get_by_role("button", name="Older runs").click()
        expect(page.locator("a.run")).to_have_count(1)
    shutil.rmtree(world.runs / oldest)  # it has no more than lists show


def test_what_is_open_and_has_the_focus_stays_while_a_run_works(world: World, open_page: OpenPage) -> None:
    run_id = world.asking_run(
        shell("seq -f 'invoice %g' 20000"), asks("Which?"), asks("How many?"), says("done")
    )
    with world.http_server(), open_page(link(world)) as page:
        page.locator("a.run").click()
        page.get_by_role("link", name="Conversation").press("Enter")
        tab = page.locator(".tabs a[aria-current]")
        expect(tab).to_have_text("Conversation")
        expect(tab).to_be_focused()
        page.locator(".message summary").first.click()
        tab.focus()
        world.reply(run_id, "a")
        expect(page.locator(".message summary")).to_have_count(5)
        expect(page.locator("details[open]")).to_have_count(1)
        expect(tab).to_be_focused()
        page.get_by_role("link", name="Files").click()
        page.locator(".files button").first.click()
        world.reply(run_id, "b")
        expect(page.locator(".figures")).to_contain_text("completed")
        expect(page.locator(".files pre")).to_contain_text("invoice 2")


def test_the_chosen_run_stays_in_sight_and_chosen_where_its_group_changes(
    world: World, open_page: OpenPage
) -> None:
    run_id = world.asking_run(asks("Which?"), says("done"))
    stored = make_stored(world.home / "runs", 60)
    with world.http_server(), open_page(link(world)) as page:
        expect(page.locator("a.run")).to_have_count(61)
        for key in "j" * 45 + "k" * 35:
            page.keyboard.press(key)
        assert page.evaluate(
            "document.activeElement.getBoundingClientRect().top"
            ">= document.getElementById('bar').getBoundingClientRect().bottom"
        )
        page.locator(".needs a.run").focus()
        world.reply(run_id, "this")
        expect(page.locator(f".done a.run[href$='{run_id}']")).to_be_focused()
        page.get_by_role("link", name="Costs").click()
        page.locator("a.skip").press("Enter")
        expect(page.locator("#main")).to_be_focused()
        assert page.url.endswith("#/costs")
        table = page.get_by_role("group", name="Table").first
        expect(table).to_be_visible()  # the costs come later than their view
        page.keyboard.press("Tab")
        expect(table).to_be_focused()
    forget(world, stored)


def test_a_log_is_in_the_local_time_of_its_beginning(world: World, open_page: OpenPage) -> None:
    [run_id] = make_stored(world.home / "runs", 1)
    first = "00:30:00 ▶ reviewer started (opus) in /x, 2026-10-25 (times in UTC)"  # summer time ends at 01:00
    Path(world.paths(run_id).log.path).write_text(f"{first}\n00:30:01 I look.\n", encoding="utf-8")
    with world.http_server(), open_page(link(world)) as page:
        devtools = page.context.new_cdp_session(page)
        devtools.send("Emulation.setTimezoneOverride", {"timezoneId": "Europe/Berlin"})
        page.locator("a.run").click()
        expect(page.locator(".lines")).to_contain_text("02:30:01 I look.")
    forget(world, [run_id])


def test_a_question_is_answered_by_the_keys_alone(world: World, open_page: OpenPage) -> None:
    world.agent("releaser")
    world.play(asks("Merge?", "yes", "no"), says("done"))
    run_id = world.start_asking(agent="releaser")
    with world.http_server() as server, open_page(link(world), 420, "dark") as page:
        expect(page.locator(".needs a.run")).to_be_visible()
        page.keyboard.press("j")
        page.keyboard.press("Enter")
        expect(page.locator(".card.asks")).to_be_visible()
        picture(page, "page-question-420-dark", height=420)
        page.get_by_label("Your answer").press("y")
        for _ in range(2):
            page.keyboard.press("Escape")
        page.locator(".needs a.run").click()
        expect(page.get_by_label("Your answer")).to_have_value("y")
        page.keyboard.press("a")
        page.keyboard.type("es, but wait")
        expect(page.get_by_label("Your answer")).to_have_value("yes, but wait")
        page.keyboard.press("Shift+Tab")
        expect(page.get_by_role("button", name="no", exact=True)).to_be_focused()
        page.keyboard.press("Enter")
        expect(page.locator(".figures")).to_contain_text("completed")
        page.keyboard.press("2")
        expect(page.locator(".prose")).to_have_text("done")
        page.keyboard.press("4")
        expect(page.locator(".tabs a[aria-current]")).to_have_text("Task")
        page.keyboard.press("Escape")
        expect(page.locator(".done a.run")).to_be_visible()
        page.goto(f"http://127.0.0.1:{server.port}/#/run/%E0%A4%A/%")
        expect(page.locator(".done a.run")).to_be_visible()
    assert world.meta(run_id).messages[0].answer_content == "no"
