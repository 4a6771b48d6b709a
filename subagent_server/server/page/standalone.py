"""A run as one HTML file: to attach to a report, or to show somebody. It has no script and fetches nothing.

Every text of the run is masked once more and escaped. Tested in `tests/page/test_standalone.py`.
"""

import base64
import hashlib
import json
from collections.abc import Iterable, Iterator
from html import escape
from typing import Any

from subagent_server.run.errors import OTHER_SPACES, SubagentError, visible, with_commands
from subagent_server.run.journal import usage_line
from subagent_server.server.page.markdown import Node
from subagent_server.server.page.page_app import STATIC, RunPage
from subagent_server.verbs.access import Caller
from subagent_server.verbs.get_logs import MAX_LINES, get_logs
from subagent_server.verbs.inputs import masker_at_door
from subagent_server.verbs.service import Service

STYLE = STATIC / "style.css"
_CODE = '<pre class="code" tabindex="0">'
_LOG_PAGES = 50
"""How many pages of 1,000 lines the log has here at most; a line counts the rest."""


class StandalonePage:
    """The file of one run."""

    def __init__(self, service: Service, caller: Caller, run_id: str) -> None:
        self._service = service
        self._caller = caller
        self._run_id = run_id
        self._runs = RunPage(service, caller)
        self._masker = masker_at_door(service, run_id)

    async def html(self) -> str:
        """Return the file. Raises InvalidRunId, UnknownRun, UnreadableMeta, NotAllowed."""
        facts = await self._runs.facts(self._run_id)
        parts = [
            *self._head(facts),
            *self._questions(facts["questions"]),
            *self._section("Result", self._result(facts)),
            *self._section("Calls", [self._block(facts["calls"])] if facts["calls"] else []),
            *self._section("Changes", self._changes(facts)),
            *self._section("Task", self._task(facts["request"])),
            *self._section("Log", [self._block(self._log())]),
            *self._section("Conversation", self._conversation()),
            *self._section("Programs", self._programs()),
        ]
        # Whoever is sent the file opens it in a browser that is logged in elsewhere: nothing of it may run
        # or be fetched, so the policy allows its one style sheet, by its hash, and nothing else.
        style = STYLE.read_text("utf-8")
        digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
        return (
            '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
            f'<meta http-equiv="Content-Security-Policy" content="default-src \'none\'; '
            f"style-src 'sha256-{digest}'\">\n"
            '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
            f"<title>{self._text(facts['view']['agent'])} {escape(self._run_id)}</title>\n"
            f"<style>{style}</style>\n</head>\n<body>\n<main>\n"
            + "\n".join(parts)
            + "\n</main>\n</body>\n</html>\n"
        )

    def _text(self, text: Any) -> str:
        """Return a text of the run for HTML: masked, with control characters shown, escaped."""
        return escape(_visible(self._masker.text(str(text))))

    def _block(self, text: str) -> str:
        return f"{_CODE}{self._text(text)}</pre>"

    def _section(self, title: str, parts: Iterable[str]) -> Iterator[str]:
        inside = "\n".join(parts)
        if inside:
            yield f"<section>\n<h2>{title}</h2>\n{inside}\n</section>"

    def _head(self, facts: dict[str, Any]) -> Iterator[str]:
        view = facts["view"]
        label = f" · {self._text(view['label'])}" if "label" in view else ""
        yield f"<h1>{self._text(view['agent'])}{label}</h1>"
        shown = [
            view["status"],
            f"{view['elapsedSeconds']:.0f} s",
            usage_line(view["usage"]),
            f"began {facts['created'][:19].replace('T', ' ')} UTC",
            self._run_id,
        ]
        yield f'<p class="figures">{self._text("  ·  ".join(shown))}</p>'

    def _questions(self, questions: list[dict[str, Any]]) -> Iterator[str]:
        for each in questions:
            answer = each.get("answer")
            reply = "no answer" if answer is None else f"{each.get('answeredBy') or ''}: {answer}"
            yield (
                f'<section class="card asks"><p class="text">{self._text(each["question"])}</p>'
                f'<p class="text quiet">{self._text(reply)}</p></section>'
            )

    def _result(self, facts: dict[str, Any]) -> Iterator[str]:
        view = facts["view"]
        if "error" in view:
            error = view["error"]
            yield f'<p class="bad">{self._text(error["code"])}: {self._text(error["message"])}</p>'
        if "output" in view:
            yield self._block(json.dumps(view["output"], indent=2, ensure_ascii=False))
        if "result" in view:
            tree = facts["resultTree"]
            inside = self._block(view["result"]) if tree is None else self._elements(tree)
            yield f'<div class="prose">{inside}</div>'

    def _elements(self, nodes: list[Node]) -> str:
        """Return the elements of a tree, whose names `markdown.py` has chosen."""
        return "".join(self._text(each) if isinstance(each, str) else self._element(*each) for each in nodes)

    def _element(self, name: str, attribute: str | None, nodes: list[Node]) -> str:
        inside = self._elements(nodes)
        if name == "pre":
            if attribute in ("diff", "patch"):
                return self._patch("".join(each for each in nodes if isinstance(each, str)))
            return f"{_CODE}{inside}</pre>"
        if name == "a":
            return f'<a href="{self._text(attribute)}" rel="noopener noreferrer">{inside}</a>'
        return f"<{name}>" if name in ("br", "hr") else f"<{name}>{inside}</{name}>"

    def _changes(self, facts: dict[str, Any]) -> Iterator[str]:
        """Yield what the run has changed in its worktree, if it has one."""
        worktree = facts["view"].get("worktree")
        if worktree is None:
            return
        counts = [f"{worktree[name]} {name}" for name in ("commits", "files") if name in worktree]
        lines = [f"+{worktree['insertions']} -{worktree['deletions']}"] if "insertions" in worktree else []
        summary = "  ·  ".join([str(worktree.get("branch", "")), *counts, *lines])
        yield f'<p class="figures">{self._text(summary)}</p>'
        try:
            found = self._runs.changes(self._run_id)
        except SubagentError as error:
            yield f'<p class="bad">{self._text(with_commands(error.sentence))}</p>'
            return
        if found["diff"]:
            yield self._patch(found["diff"])
        if found["cut"]:
            yield f'<p class="quiet">The rest: subagent show {escape(self._run_id)} --diff</p>'

    def _patch(self, text: str) -> str:
        """Return a patch with its lines coloured."""
        # It is masked before it is split: a secret may have several lines.
        lines = (_patch_line(escape(_visible(line))) for line in self._masker.text(text).split("\n"))
        return f"{_CODE}{chr(10).join(lines)}</pre>"

    def _task(self, request: dict[str, Any]) -> Iterator[str]:
        yield self._block(request.get("prompt") or request.get("error") or "")

    def _log(self) -> str:
        pages, cursor = [], "0"
        for _ in range(_LOG_PAGES):
            page = get_logs(self._service, self._run_id, "log", cursor, MAX_LINES, self._caller)
            pages.append(page.text)
            cursor = page.cursor
            if page.at_end:
                return "\n".join(pages)
        return "\n".join([*pages, "… the rest is in the log of the run"])

    def _conversation(self) -> Iterator[str]:
        for message in self._runs.conversation(self._run_id)["messages"]:
            content = message.get("content")
            for block in content if isinstance(content, list) else [content]:
                yield self._message_block(block)

    def _message_block(self, block: Any) -> str:
        if isinstance(block, str):
            return f'<p class="text">{self._text(block)}</p>'
        if isinstance(block, dict) and block.get("type") == "text":
            return f'<p class="text">{self._text(block.get("text", ""))}</p>'
        title = block.get("name") or block.get("type") if isinstance(block, dict) else ""
        inside = self._block(json.dumps(block, indent=2, ensure_ascii=False))
        return f"<details><summary>{self._text(title)}</summary>{inside}</details>"

    def _programs(self) -> Iterator[str]:
        for program in self._runs.programs(self._run_id)["programs"]:
            yield f"<h3>Program {program['program']}</h3>"
            yield self._block(program["code"])
            yield self._block(program["output"])


def _patch_line(line: str) -> str:
    """Return an escaped line of a patch in the colour of its kind."""
    kind = "quiet" if line.startswith(("+++", "---", "@@")) else {"+": "good", "-": "bad"}.get(line[:1])
    return line if kind is None else f'<span class="{kind}">{line}</span>'


def _visible(text: str) -> str:
    """Return a text with escapes for what cannot be seen, or turns the direction of text."""
    return visible(text.replace("\r", ""), f"\n\t{OTHER_SPACES}")
