"""A run as Markdown, for the page of a CI job.

What models, children and files say stands in code spans and fenced blocks, whose fence is longer than any
run of backticks inside. So it forges no heading, link, mention or HTML of the page.
"""

import json
import re
from collections.abc import Iterator

from subagent_server.cli.console.error_text import for_people
from subagent_server.cli.console.text import duration, escape_lines, look_of, moment, one_line
from subagent_server.domain.records import Message, RunMeta, RunResult
from subagent_server.domain.states import Status
from subagent_server.service.views import RunView
from subagent_server.store.log_format import usage_line

MAX_CHARACTERS = 60_000
"""Of a result: the page of a job takes 1 MiB in all, and a job may have many runs."""
_BACKTICKS = re.compile("`+")


def run_markdown(meta: RunMeta, view: RunView, result: RunResult | None) -> str:
    """Return how a run ended, what it cost, what it asked, and its result."""
    look = look_of(meta.status, meta.pending_questions, view.live)
    parts = [f"### {look.text}: {_span(meta.agent_name)}", "\n".join(_facts(meta, view))]
    if result is not None and result.has_output:
        parts.append(_block(json.dumps(result.output, ensure_ascii=False, indent=2), "json"))
    elif result is not None and result.text:
        parts.append(_block(result.text))
    return "\n\n".join(parts)


def _facts(meta: RunMeta, view: RunView) -> Iterator[str]:
    yield f"- run: {_span(meta.run_id)}"
    if meta.label:
        yield f"- label: {_span(meta.label)}"
    ended = f", ended {moment(meta.ended_at)}" if meta.ended_at else ""
    yield f"- time: {duration(view.elapsed_seconds)}{ended}"
    yield f"- usage: {_span(usage_line(view.usage))}"
    if view.with_descendants is not None:
        yield f"- with the runs that it started: {_span(usage_line(view.with_descendants))}"
    if meta.status is Status.STOPPED and view.summary:
        yield f"- why: {_span(view.summary)}"
    if view.error is not None:
        yield f"- error: {_span(view.error.code)} {_span(view.error.message)}"
        if view.error.hint:
            yield f"- hint: {_span(for_people(view.error.hint))}"
    for warning in view.warnings or []:
        yield f"- warning: {_span(warning)}"
    for message in meta.messages:
        yield f"- {_question(message)}"


def _question(message: Message) -> str:
    answer = message.answer_content
    told = (
        f"answer: {_span(answer)}" if answer is not None else message.message_status.value.replace("_", " ")
    )
    return f"asked: {_span(message.question_content)}, {told}"


def _span(text: str) -> str:
    """Return a text on one line as a code span."""
    line = one_line(text) or " "
    fence = "`" * (_longest(line) + 1)
    space = " " if "`" in line else ""
    return f"{fence}{space}{line}{space}{fence}"


def _block(text: str, language: str = "text") -> str:
    """Return a text as a fenced block, without its rest if it is very long."""
    rest = len(text) - MAX_CHARACTERS
    shown = escape_lines(text[:MAX_CHARACTERS])
    fence = "`" * max(3, _longest(shown) + 1)
    more = f"\n\n{rest:,} more characters are in `result.json` of the run." if rest > 0 else ""
    return f"{fence}{language}\n{shown}\n{fence}{more}"


def _longest(text: str) -> int:
    """Return the length of the longest run of backticks in a text."""
    return max(map(len, _BACKTICKS.findall(text)), default=0)
