"""Markdown agent files as people have them."""

from collections.abc import Callable
from pathlib import Path

import pytest

from subagent_server.agents.formats import load_agent_file
from subagent_server.agents.yaml_reader import AgentFileError, NotAnAgent

WriteFile = Callable[[str, str | bytes], Path]


def front(keys: str, body: str = "You help.") -> str:
    return f"---\n{keys}\n---\n{body}\n"


def test_a_plain_file_gives_its_keys_and_its_body_as_the_prompt(write: WriteFile) -> None:
    agent = load_agent_file(
        write(
            "helper.md",
            front(
                "name: helper\ndescription: Helps out.\ntools: Read, Grep\nmodel: sonnet",
                "\n# Role\n\nHelp ${WHO}.",
            ),
        )
    )
    assert (agent.name, agent.description, agent.model) == ("helper", "Helps out.", "sonnet")
    assert agent.tools == ["Read", "Grep"]
    assert agent.system_prompt == "# Role\n\nHelp ${WHO}."
    assert agent.source == (agent.source and agent.source.absolute())
    assert agent.faults == agent.warnings == []


DIALOGUE = """\
<example>
Context: The user has written a parser.
user: "Is this fine: yes or no?"
assistant: "Let me look: I start the checker."
<commentary>
because: code was written
</commentary>
</example>"""


@pytest.mark.parametrize(
    ("keys", "description"),
    [
        pytest.param("description: Use it when: the tests fail", "Use it when: the tests fail", id="colon"),
        pytest.param(
            f"description: Use it so. Examples:\n\n{DIALOGUE}",
            f"Use it so. Examples:\n\n{DIALOGUE}",
            id="dialogue",
        ),
        pytest.param(
            f"description: Use it. {DIALOGUE}", f"Use it. {DIALOGUE}", id="dialogue-on-the-first-line"
        ),
        pytest.param(
            "description: Use it when: \\n\\n<example>\\nuser: 'x'\\n</example>",
            "Use it when: \n\n<example>\nuser: 'x'\n</example>",
            id="escaped-line-ends",
        ),
        pytest.param(
            "description: Fine until\\nhere", "Fine until\nhere", id="escaped-line-end-in-valid-yaml"
        ),
        pytest.param('description: "Say "hello" to: them"', 'Say "hello" to: them', id="quotes-in-quotes"),
        pytest.param('description: "One:\\\\n\\\\ntwo"', "One:\n\ntwo", id="line-ends-escaped-twice"),
        pytest.param("description: |\n  a\\nb\n  c", "a\\nb\nc", id="a-block-has-line-ends-of-its-own"),
        pytest.param("description: 'It's there: see'", "It's there: see", id="apostrophe-in-quotes"),
        pytest.param("description: |\n  One: two\n  three", "One: two\nthree", id="block"),
        pytest.param("description: >-\n  one\n  two", "one two", id="folded"),
        pytest.param("description: @home is: here", "@home is: here", id="reserved-character"),
        pytest.param("description: [draft] looks: around", "[draft] looks: around", id="bracket"),
        pytest.param("description: 100% of `that`: all", "100% of `that`: all", id="backticks"),
        pytest.param(
            "description:\n  Use it when: it rains\n  Then: go",
            "Use it when: it rains\nThen: go",
            id="mapping-lookalike",
        ),
        pytest.param("description:\n  - one\n  - two", "- one\n- two", id="list"),
        pytest.param("description: Prüft ✅ auch: 日本語", "Prüft ✅ auch: 日本語", id="unicode"),
        pytest.param("description: 2026-01-02", "2026-01-02", id="date"),
    ],
)
def test_a_description_is_the_text_that_was_written(write: WriteFile, keys: str, description: str) -> None:
    agent = load_agent_file(
        write("a.md", front(f"name: a\n{keys}\ntools: Read, Bash\nmodel: opus\ncolor: red"))
    )
    assert agent.description == description
    assert agent.tools == ["Read", "Bash"]
    assert agent.model == "opus"
    assert agent.unknown == {"color": "red"}
    assert agent.faults == []
    assert len(agent.warnings) == 1
    assert "color" in agent.warnings[0]


@pytest.mark.parametrize(
    ("written", "tools"),
    [
        ("Read, Grep, Bash", ["Read", "Grep", "Bash"]),
        ("Read,Grep , Bash,", ["Read", "Grep", "Bash"]),
        ("Read Grep", ["Read", "Grep"]),
        ("[Read, 'Grep']", ["Read", "Grep"]),
        ("\n  - Read\n  - Grep", ["Read", "Grep"]),
        ("\n- Read\n- Grep", ["Read", "Grep"]),
        ("\n\t- Read\n\t- Grep", ["Read", "Grep"]),
        ('"Read, Grep"', ["Read", "Grep"]),
        ('["Read", "Grep"', ["Read", "Grep"]),
        ("Bash(git diff:*, git log:*), Read", ["Bash(git diff:*, git log:*)", "Read"]),
        ("mcp__gh__search, mcp__gh", ["mcp__gh__search", "mcp__gh"]),
        ("Read, Read", ["Read"]),
        ("[]", []),
        ("none", []),
        ("", []),
        ("*", None),
        ('"*"', None),
        ("['*']", None),
        ("All tools", None),
    ],
)
def test_tools_may_be_written_in_every_usual_way(
    write: WriteFile, written: str, tools: list[str] | None
) -> None:
    assert (
        load_agent_file(write("a.md", front(f"name: a\ndescription: b: c\ntools: {written}"))).tools == tools
    )
    assert load_agent_file(write("b.md", front(f"name: a\ndescription: b\ntools: {written}"))).tools == tools


def test_without_a_tools_key_the_agent_has_every_tool(write: WriteFile) -> None:
    assert load_agent_file(write("a.md", front("name: a\ndescription: b"))).tools is None


def test_an_empty_tools_key_gives_no_tool_and_a_warning(write: WriteFile) -> None:
    agent = load_agent_file(write("a.md", front("name: a\ndescription: b\ntools:")))
    assert agent.tools == []
    assert "tools" in agent.warnings[0]


@pytest.mark.parametrize("name", ["123", "true", "yes", "no", "2026-01-02", "1e3", "0x10", "~x", "a b"])
def test_a_name_is_text_whatever_yaml_would_make_of_it(write: WriteFile, name: str) -> None:
    agent = load_agent_file(write("file.md", front(f"name: {name}\ndescription: d")))
    assert agent.name == name


@pytest.mark.parametrize(
    "keys", ["description: d", "name:\ndescription: d", 'name: ""\ndescription: d', "name: ~\ndescription: d"]
)
def test_a_missing_name_is_the_stem_of_the_file(write: WriteFile, keys: str) -> None:
    assert load_agent_file(write("deep/finder.md", front(keys))).name == "finder"


@pytest.mark.parametrize("keys", ["", "title: Plan", "date: 2026-01-02\ntags: [a]", "name:\ndescription: ~"])
def test_a_document_with_neither_name_nor_description_is_not_an_agent(write: WriteFile, keys: str) -> None:
    with pytest.raises(NotAnAgent, match="neither name nor description"):
        load_agent_file(write("plan.md", front(keys)))


@pytest.mark.parametrize("fence", ["---", "-----", "--- end", "---x"])
def test_front_matter_ends_at_the_first_line_that_begins_with_three_dashes(
    write: WriteFile, fence: str
) -> None:
    agent = load_agent_file(write("a.md", f"---\nname: a\ndescription: d\n{fence}\nYou help.\n---\nMore.\n"))
    assert (agent.description, agent.system_prompt) == ("d", "You help.\n---\nMore.")


def test_front_matter_that_is_too_long_is_refused_with_its_line(write: WriteFile) -> None:
    with pytest.raises(AgentFileError, match=r"a\.md, line 2, .*front matter is longer than 128 KiB"):
        load_agent_file(write("a.md", front("k: v\n" * 40_000)))


def test_a_very_long_description_is_a_warning(write: WriteFile) -> None:
    agent = load_agent_file(write("a.md", front(f"name: a\ndescription: {'x' * 20_001}")))
    assert agent.warnings == ["the description has 20,001 characters, and every client reads it: shorten it"]


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
def test_line_ends_byte_order_marks_and_blanks_do_not_matter(write: WriteFile, end: str, mark: bytes) -> None:
    text = end.join(["---  ", "name: a  ", "description: d\t", "--- \t", "", "First", "", "Second", ""])
    agent = load_agent_file(write("x.md", mark + text.encode()))
    assert (agent.name, agent.description, agent.system_prompt) == ("a", "d", "First\n\nSecond")


def test_blank_lines_may_come_before_the_front_matter(write: WriteFile) -> None:
    assert load_agent_file(write("x.md", "\n\n" + front("name: a"))).name == "a"


def test_the_body_keeps_its_rules_quotes_and_indentation(write: WriteFile) -> None:
    body = '    indented: "code"\n\n---\n\nname: not a key\n---\n$HOME ${HOME} {{ x }}'
    assert load_agent_file(write("x.md", front("name: a", body))).system_prompt == body


@pytest.mark.parametrize("key", ["maxTurns", "max_turns", "max-turns", "MaxTurns", "MAX_TURNS", '"maxTurns"'])
def test_keys_may_be_spelled_in_every_case(write: WriteFile, key: str) -> None:
    assert load_agent_file(write("a.md", front(f"Name: a\nDescription: d\n{key}: 7"))).limits.max_turns == 7
    assert (
        load_agent_file(write("b.md", front(f"Name: a\nDescription: d: e\n{key}: 7"))).limits.max_turns == 7
    )


def test_unknown_keys_are_kept_and_named_in_one_warning(write: WriteFile) -> None:
    keys = "color: blue\nversion: 1.0\nflavours:\n  Stop: [1, yes, null, 2.5]"
    agent = load_agent_file(write("a.md", front(f"name: a\ndescription: d\n{keys}")))
    assert agent.unknown == {
        "color": "blue",
        "version": 1.0,
        "flavours": {"Stop": [1, "yes", None, 2.5]},
    }
    assert len(agent.warnings) == 1
    assert all(key in agent.warnings[0] for key in agent.unknown)
    assert agent.faults == []


def test_unknown_keys_are_kept_where_the_front_matter_is_no_yaml(write: WriteFile) -> None:
    agent = load_agent_file(
        write("a.md", front("name: a\ndescription: b: c\nflavour: mint\nflavours:\n  Stop: [1]"))
    )
    assert agent.description == "b: c"
    assert agent.unknown == {"flavour": "mint", "flavours": {"Stop": [1]}}


def test_a_nested_block_is_read_beside_a_description_that_is_no_yaml(write: WriteFile) -> None:
    keys = (
        "name: a\ndescription: b: c\nmcpServers:\n  gh:\n    command: gh-mcp\n    args: [--x, 1]\nmodel: opus"
    )
    agent = load_agent_file(write("a.md", front(keys)))
    assert agent.mcp_servers["gh"].args == ["--x", "1"]
    assert agent.model == "opus"


def test_a_nested_block_that_cannot_be_read_is_a_fault_with_its_line(write: WriteFile) -> None:
    path = write("a.md", front("name: a\ndescription: b: c\nmcpServers:\n  gh:\n   - x\n  y\nmodel: opus"))
    agent = load_agent_file(path)
    assert agent.model == "opus"
    assert len(agent.faults) == 1
    assert agent.faults[0].startswith("mcpServers cannot be read")


@pytest.mark.parametrize(
    "text", ["", "# Notes\n\nname: x\n", "\n\ntext\n---\nname: a\n---\n", "----\nname: a\n----\n"]
)
def test_a_file_without_front_matter_is_no_agent(write: WriteFile, text: str) -> None:
    with pytest.raises(NotAnAgent, match="no front matter"):
        load_agent_file(write("README.md", text))


@pytest.mark.parametrize(
    ("content", "line", "reason"),
    [
        pytest.param("---\nname: a\n\nYou are.\n", 1, "no end", id="not-closed"),
        pytest.param("---", 1, "no end", id="only-an-opening"),
        pytest.param("---\nJust: prose, and\nmore of it\n---\nx", 3, "cannot be understood", id="prose"),
        pytest.param("---\n- one\n- two\n---\nx", 2, "key: value", id="a-list"),
        pytest.param("---\n{a: b\n---\nx", None, "cannot be understood", id="broken-flow"),
        pytest.param(b"---\nname: a\n---\nGr\xfc\xdfe\n", 4, "UTF-8", id="latin-1"),
        pytest.param("---\nname: a\n---\n".encode("utf-16"), 1, "UTF-16", id="utf-16"),
        pytest.param("---\nname: a\n---\n\0", 4, "NUL", id="nul"),
    ],
)
def test_what_cannot_be_understood_is_refused_with_file_line_and_reason(
    write: WriteFile, content: str | bytes, line: int | None, reason: str
) -> None:
    path = write("bad.md", content)
    with pytest.raises(AgentFileError) as caught:
        load_agent_file(path)
    assert caught.value.path == path
    assert reason in caught.value.reason
    assert line is None or caught.value.line == line
    assert str(path) in caught.value.sentence
    assert "\n" not in caught.value.sentence


def test_a_byte_that_is_no_utf8_is_named_by_its_place_in_the_file(write: WriteFile) -> None:
    with pytest.raises(AgentFileError, match=r"byte 8 \(0xff\)") as caught:
        load_agent_file(write("bad.md", b"\xef\xbb\xbf---\nx\xff"))
    assert caught.value.line == 2


def test_a_missing_file_says_so(tmp_path: Path) -> None:
    with pytest.raises(AgentFileError, match="no such file"):
        load_agent_file(tmp_path / "nothing.md")


@pytest.mark.parametrize(
    "text", ["name: a\ndescription: d\n---\nx", "\nDescription: d\n# c\ntools:\n  - Read\n---\nx"]
)
def test_front_matter_without_its_first_line_is_an_error(write: WriteFile, text: str) -> None:
    with pytest.raises(AgentFileError, match="put a line '---' before its keys") as caught:
        load_agent_file(write("a.md", text))
    assert not isinstance(caught.value, NotAnAgent)


@pytest.mark.parametrize(
    "text", ["name: a list\n\n---\nx", "name: x\nSome prose.\n---\n", "names: x\n---\n", "name: x\n"]
)
def test_notes_that_begin_like_keys_are_no_agent(write: WriteFile, text: str) -> None:
    with pytest.raises(NotAnAgent):
        load_agent_file(write("a.md", text))


def test_a_placeholder_that_nothing_replaces_is_a_warning(write: WriteFile) -> None:
    agent = load_agent_file(write("a.md", front("name: a\ndescription: d", "Look at $ARGUMENTS.")))
    assert len(agent.warnings) == 1 and "$ARGUMENTS" in agent.warnings[0]
