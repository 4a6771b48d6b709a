"""`subagent show --markdown`: the page of a CI job, on which no text of a model is more than a quotation."""

import pytest
from markdown_it import MarkdownIt
from markdown_it.token import Token

from subagent_server.run import transitions
from subagent_server.run.processes import now
from subagent_server.run.records import Failure
from tests.cli.command import Cli, asked

HOSTILE = "\n".join(
    [
        "# Forged",
        "```",
        "## All checks passed",
        "````text",
        "<img src=x onerror=alert(1)> <!-- [link](https://example.org) ![i](https://example.org/i.png)",
        "</code></pre> ``[a](b)`` `` ` `` @everyone &lt; | a | b |",
        "\x1b[2J\u202e ~~~",
        "~~~",
        "---",
        "`" * 40,
    ]
)


def tokens(markdown: str) -> list[Token]:
    """Return all tokens of a text, those inside of lines too."""
    found: list[Token] = []
    for token in MarkdownIt("commonmark").enable(["table", "strikethrough"]).parse(markdown):
        found += [token, *(token.children or [])]
    return found


def test_how_it_ended_what_it_cost_and_the_result_are_on_the_page(cli: Cli) -> None:
    run_id = cli.completed("aaaaaa", text="All good.", label="nightly")
    page = cli("show", run_id, "--markdown").stdout
    assert page.startswith("### ✔ completed: `")
    assert f"- run: `{run_id}`" in page and "- label: `nightly`" in page and "- usage: `" in page
    assert page.endswith("```text\nAll good.\n```\n")


def test_what_quotes_nothing_is_not_shown_as_markdown(cli: Cli) -> None:
    for way in ("--transcript", "--diff", "--code", "--restore=x"):
        cli.leaves_with(2, "exclude each other", "show", "@last", "--markdown", way)


def test_an_output_is_a_block_of_json(cli: Cli) -> None:
    run_id = cli.completed("aaaaaa", output={"cause": HOSTILE})
    blocks = [token for token in tokens(cli("show", run_id, "--markdown").stdout) if token.type == "fence"]
    assert [block.info for block in blocks] == ["json"] and '"cause"' in blocks[0].content


@pytest.mark.parametrize("where", ["result", "label", "question", "answer", "error", "reason"])
def test_no_text_forges_a_heading_a_link_or_html(cli: Cli, where: str) -> None:
    question: list[transitions.RunEvent] = [asked(HOSTILE)] if where == "question" else []
    if where == "answer":
        question = [asked("Which?"), transitions.ReplyGiven(message_id="q1", answer=HOSTILE)]
    label = {"label": HOSTILE[:200]} if where == "label" else {}
    if where == "result":
        run_id = cli.completed("aaaaaa", text=HOSTILE)
    else:
        run_id = cli.made("aaaaaa", *question, **label)
        ends: dict[str, transitions.RunEvent] = {
            "error": transitions.RunFailed(
                failure=Failure(code="agent_error", message=HOSTILE, hint=HOSTILE)
            ),
            "reason": transitions.StopRequested(reason=HOSTILE),
        }
        cli.store.update(run_id, ends.get(where, transitions.StopRequested()), now())
    page = cli("show", run_id, "--markdown").stdout
    found = tokens(page)
    kinds = [token.type for token in found]
    assert kinds.count("heading_open") == 1 and "Forged" in page
    forbidden = {"link_open", "image", "html_block", "html_inline", "table_open", "hr", "s_open"}
    assert forbidden.isdisjoint(kinds) and "\x1b" not in page and "\u202e" not in page
    plain = "".join(token.content for token in found if token.type == "text")
    assert "Forged" not in plain and "@" not in plain
