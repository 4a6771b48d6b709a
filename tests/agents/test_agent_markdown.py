"""Markdown agent files as people have them."""

import pytest

from subagent_server.agents.formats import load_agent_file
from subagent_server.agents.yaml_reader import AgentFileError, NotAnAgent
from tests.agents.conftest import WriteFile


def front(keys: str, body: str = "You help.") -> str:
    return f"---\n{keys}\n---\n{body}\n"


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


@pytest.mark.parametrize(
    "text", ["", "# Notes\n\nname: x\n", "\n\ntext\n---\nname: a\n---\n", "----\nname: a\n----\n"]
)
def test_a_file_without_front_matter_is_no_agent(write: WriteFile, text: str) -> None:
    with pytest.raises(NotAnAgent, match="no front matter"):
        load_agent_file(write("README.md", text))


@pytest.mark.parametrize(
    ("content", "line", "reason"),
    [
        pytest.param(b"---\nname: a\n---\nGr\xfc\xdfe\n", 4, "byte 18 (0xfc) is not UTF-8", id="latin-1"),
        pytest.param("---\nname: a\n---\n".encode("utf-16"), 1, "UTF-16", id="utf-16"),
        pytest.param("---\nname: a\n---\n\0", 4, "NUL", id="nul"),
    ],
)
def test_what_cannot_be_understood_is_refused_with_file_line_and_reason(
    write: WriteFile, content: str | bytes, line: int, reason: str
) -> None:
    path = write("bad.md", content)
    with pytest.raises(AgentFileError) as caught:
        load_agent_file(path)
    assert caught.value.path == path
    assert reason in caught.value.reason and caught.value.line == line
    assert str(path) in caught.value.sentence
    assert "\n" not in caught.value.sentence


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
