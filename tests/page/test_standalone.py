"""`subagent export --html`: one file that shows a run as the page does, and does nothing else."""

import json
import re
from html.parser import HTMLParser

from tests.helpers.turns import asks, says, shell
from tests.helpers.world import World

HOSTILE = (
    "<script>x()</script><img src=x onerror=x()> \x1b[31m \u202e [x](javascript:x()) **bold** </pre></style>"
)
JOINED = "\u0645\u06cc\u200c\u062e \U0001f469\u200d\U0001f467"
"""Words and pictures whose joiners are no trick."""
SECRET = "sk-this-is-the-secret-of-the-test-0123456789"


class Elements(HTMLParser):
    """The names of the elements of a file, and their attributes."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.names: set[str] = set()
        self.attributes: set[tuple[str, str | None]] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note an element."""
        self.names.add(tag)
        self.attributes |= set(attrs)


def test_a_run_becomes_one_file_without_scripts_secrets_and_addresses(world: World) -> None:
    world.agent("worker", prompt="x")
    world.play(
        shell(f"echo '{HOSTILE[:40]}'"), asks(HOSTILE), says(f"{HOSTILE} a\u200db {JOINED}\n\n- {SECRET}")
    )
    run_id = world.start_asking(HOSTILE.replace("\x1b", ""), label=HOSTILE[:60].replace("\x1b", ""))
    world.reply(run_id, f"yes {HOSTILE}")
    world.completed(run_id)
    done = world.cli("export", run_id, "--html", "-o", "run.html", env={"MY_API_KEY": SECRET})
    assert done.returncode == 0 and "run.html is written" in done.stderr
    text = (world.work / "run.html").read_text(encoding="utf-8")
    found = Elements(text)
    assert not found.names & {"script", "img", "iframe", "link", "object", "form"}
    assert not any(name.startswith("on") for name, _ in found.attributes)
    assert ("tabindex", "0") in found.attributes  # the keyboard reaches what scrolls, as on the page
    assert re.search(r"turns, .*  ·  began 20\d\d-\d\d-\d\d \d\d:\d\d:\d\d UTC", text)
    assert not [value for _, value in found.attributes if value and "javascript:" in value]
    assert SECRET not in text and "\x1b" not in text and "\u202e" not in text
    assert f"a\\u200db {JOINED}" in text
    assert "<strong>bold</strong>" in text and "default-src 'none'" in text and "? q1:" in text
    again = world.cli("export", run_id, "--html", "-o", "run.html")
    assert again.returncode == 2 and "is there already" in again.stderr
    assert json.loads(world.cli("show", run_id, "--json").stdout)["status"] == "completed"
