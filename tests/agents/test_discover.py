"""Which agents a set of directories gives, and that no file vanishes without a word."""

import os
import re
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest

from subagent_server.agents.discover import Catalog, discover
from subagent_server.agents.formats import LoadedFile, load_file
from subagent_server.run.errors import UnknownAgent
from tests.agents.conftest import WriteFile


def agent(name: str | None = None, more: str = "") -> str:
    named = f"name: {name}\n" if name else ""
    return f"---\n{named}description: d\n{more}---\nYou help.\n"


def listed(catalog: Catalog, *kinds: str) -> list[tuple[str, str]]:
    found: Sequence[tuple[str, str]] = [(p.kind, p.path.name) for p in catalog.problems]
    return [pair for pair in found if not kinds or pair[0] in kinds]


def test_agents_come_from_all_levels_in_alphabetical_order(write: WriteFile, tmp_path: Path) -> None:
    write("zeta.md", agent())
    write("team/deep/er/alpha.MD", agent())
    write("team/mid.md", agent("middle"))
    catalog = discover([tmp_path])
    assert list(catalog.agents) == ["alpha", "middle", "zeta"]
    assert catalog.problems == []


def test_an_agent_is_found_by_its_name_and_by_its_tool(write: WriteFile, tmp_path: Path) -> None:
    write("a.md", agent("Code Reviewer"))
    catalog = discover([tmp_path])
    found = catalog.find("Code Reviewer")
    assert found is not None
    assert found.tool_name == "run_code_reviewer"
    assert catalog.find("run_code_reviewer") is found
    assert catalog.require("run_code_reviewer") is found
    assert catalog.find("code reviewer") is None


def test_an_unknown_agent_is_refused_with_the_reason_its_file_has(write: WriteFile, tmp_path: Path) -> None:
    write("broken.md", "---\nname: broken\n")
    write("good.md", agent())
    with pytest.raises(UnknownAgent, match=r"broken\.md: its front matter has no end.*good"):
        discover([tmp_path]).require("broken")
    write("other.cpe.yaml", "subagent: 3\n")
    with pytest.raises(UnknownAgent, match=r"other\.cpe\.yaml: 'subagent:' must be a mapping"):
        discover([tmp_path]).require("other")
    with pytest.raises(UnknownAgent, match="good"):
        discover([tmp_path]).require("nobody")


def test_every_file_that_is_no_agent_is_listed_and_the_others_load(write: WriteFile, tmp_path: Path) -> None:
    write("good.md", agent())
    write("README.md", "# These are our agents\n")
    write("open.md", "---\nname: x\n")
    write("latin.md", b"---\nname: x\n---\n\xe9")
    write("broken.yaml", "a: [\n")
    write("compose.yml", "services: {}\n")
    write(".draft.md", agent())
    write(".git/hooks.md", agent())
    write("notes.txt", "not by its name an agent")
    catalog = discover([tmp_path])
    assert list(catalog.agents) == ["good"]
    assert listed(catalog) == [
        ("skipped", ".draft.md"),
        ("skipped", ".git"),
        ("skipped", "README.md"),
        ("error", "broken.yaml"),
        ("skipped", "compose.yml"),
        ("error", "latin.md"),
        ("error", "open.md"),
    ]
    assert {p.path.name: p.line for p in catalog.problems if p.kind == "error"} == {
        "broken.yaml": 2,
        "latin.md": 4,
        "open.md": 1,
    }


def test_of_two_files_of_one_name_in_one_tree_the_first_path_loads(write: WriteFile, tmp_path: Path) -> None:
    write("b/same.md", agent("same", "maxTurns: 2\n"))
    write("a.md", agent("same", "maxTurns: 1\n"))
    write("c.yaml", "subagent: {name: same, description: d}\n")
    write("other.md", agent())
    catalog = discover([tmp_path])
    assert list(catalog.agents) == ["other", "same"]
    assert catalog.agents["same"].source == tmp_path / "a.md"
    duplicates = [p for p in catalog.problems if p.kind == "duplicate"]
    assert [p.path for p in duplicates] == [tmp_path / "b" / "same.md", tmp_path / "c.yaml"]
    assert all("a.md has the name same too: rename one" in p.reason and p.agent == "same" for p in duplicates)


def test_two_files_of_the_same_agent_are_one_agent(write: WriteFile, tmp_path: Path) -> None:
    write("one/a.md", agent("same"))
    write("one/copy/a.md", agent("same"))
    write("two/b.md", agent("same"))
    write("two/c.md", agent("same") + "It does something else.")
    catalog = discover([tmp_path / "one", tmp_path / "two"])
    assert catalog.agents["same"].source == tmp_path / "one" / "a.md"
    assert [(p.kind, p.path) for p in catalog.problems] == [
        ("skipped", tmp_path / "one" / "copy" / "a.md"),
        ("skipped", tmp_path / "two" / "b.md"),
        ("shadowed", tmp_path / "two" / "c.md"),
    ]
    assert "it is the same agent as" in catalog.problems[0].reason


def test_across_directories_the_earlier_wins_and_shadows_the_later(write: WriteFile, tmp_path: Path) -> None:
    write("one/helper.md", agent())
    write("two/helper.md", agent(more="maxTurns: 2\n"))
    write("two/extra.md", agent())
    catalog = discover([tmp_path / "one", tmp_path / "two"])
    assert list(catalog.agents) == ["extra", "helper"]
    assert catalog.agents["helper"].source == tmp_path / "one" / "helper.md"
    assert [(p.kind, p.path) for p in catalog.problems] == [("shadowed", tmp_path / "two" / "helper.md")]
    turned = discover([tmp_path / "two", tmp_path / "one"])
    assert turned.agents["helper"].source == tmp_path / "two" / "helper.md"


def test_two_names_with_one_tool_both_load_and_the_second_tool_has_a_suffix(
    write: WriteFile, tmp_path: Path
) -> None:
    write("one/a.md", agent("code-review"))
    write("one/b.md", agent("Code Review"))
    write("two/c.md", agent("code_review"))
    catalog = discover([tmp_path / "one", tmp_path / "two"])
    assert catalog.agents["code-review"].tool_name == "run_code_review"
    others = [catalog.agents[name].tool_name for name in ("Code Review", "code_review")]
    assert all(re.fullmatch(r"run_code_review_[0-9a-f]{6}", tool) for tool in others)
    assert others[0] != others[1]
    assert listed(catalog) == [("warning", "b.md"), ("warning", "c.md")]
    assert f"its tool is {others[0]}: code-review has run_code_review" in catalog.problems[0].reason
    assert catalog.require(others[1]).name == "code_review"


def test_a_file_at_which_reading_itself_fails_takes_no_other_file_down(
    write: WriteFile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def load(path: Path) -> LoadedFile:
        if path.stem == "strange":
            raise TypeError("object of type 'NoneType' has no len()")
        return load_file(path)

    monkeypatch.setattr("subagent_server.agents.discover.load_file", load)
    write("good.md", agent())
    write("strange.md", agent())
    catalog = discover([tmp_path])
    assert list(catalog.agents) == ["good"]
    assert listed(catalog) == [("error", "strange.md")]
    assert "reading it failed (TypeError: " in catalog.problems[0].reason


def test_a_faulty_agent_is_loaded_and_listed(write: WriteFile, tmp_path: Path) -> None:
    write("a.md", agent("a", "maxTurns: many\ncolor: red\n"))
    catalog = discover([tmp_path])
    assert len(catalog.agents["a"].faults) == 1
    assert [(p.kind, p.line) for p in catalog.problems] == [("fault", 4), ("warning", 5)]


def test_a_missing_an_empty_and_a_wrong_directory_are_no_exception(write: WriteFile, tmp_path: Path) -> None:
    file = write("file.md", agent())
    (tmp_path / "empty").mkdir()
    catalog = discover([tmp_path / "gone", tmp_path / "empty", file])
    assert catalog.agents == {}
    assert listed(catalog) == [("warning", "gone"), ("error", "file.md")]
    assert discover([]) == Catalog()


def test_loops_of_links_end(write: WriteFile, tmp_path: Path) -> None:
    write("tree/a.md", agent())
    (tmp_path / "tree" / "loop").symlink_to(tmp_path / "tree")
    (tmp_path / "tree" / "self.md").symlink_to("self.md")
    (tmp_path / "tree" / "gone.md").symlink_to("nowhere.md")
    catalog = discover([tmp_path / "tree"])
    assert list(catalog.agents) == ["a"]
    assert listed(catalog) == [("error", "gone.md"), ("skipped", "loop"), ("error", "self.md")]


def test_behind_a_link_that_leads_out_only_the_files_are_read_and_the_listing_says_so(
    write: WriteFile, tmp_path: Path
) -> None:
    write("elsewhere/a.md", agent())
    write("elsewhere/deep/b.md", agent())
    write("tree/inside/deep/c.md", agent())
    (tmp_path / "tree" / "again").symlink_to("inside")
    (tmp_path / "tree" / "link").symlink_to(tmp_path / "elsewhere")
    catalog = discover([tmp_path / "tree"])
    assert list(catalog.agents) == ["a", "c"]
    assert listed(catalog) == [("skipped", "inside"), ("skipped", "link")]
    assert "its sub-directories are not" in catalog.problems[1].reason


def test_a_tree_whose_names_take_too_long_is_read_in_part_and_reported(
    write: WriteFile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write("a.md", agent())
    monkeypatch.setattr("subagent_server.agents.discover.MAX_SECONDS", -1.0)
    catalog = discover([tmp_path])
    assert listed(catalog) == [("error", tmp_path.name)]
    assert "the rest is not read" in catalog.problems[0].reason


def test_reading_files_takes_none_of_the_time_for_their_names(
    write: WriteFile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    moments = [0.0]

    def slow(path: Path) -> LoadedFile:
        moments[0] += 10.0
        return load_file(path)

    monkeypatch.setattr("subagent_server.agents.discover.load_file", slow)
    monkeypatch.setattr("subagent_server.agents.discover.time", SimpleNamespace(monotonic=lambda: moments[0]))
    for name in ("a", "b", "c"):
        write(f"{name}.md", agent(name))
    assert list(discover([tmp_path]).agents) == ["a", "b", "c"]


def test_one_file_under_two_names_is_one_agent(write: WriteFile, tmp_path: Path) -> None:
    original = write("a.md", agent("one"))
    (tmp_path / "b.md").symlink_to(original)
    os.link(original, tmp_path / "c.md")
    catalog = discover([tmp_path, tmp_path])
    assert list(catalog.agents) == ["one"]
    assert {kind for kind, _ in listed(catalog)} == {"skipped"}


def test_pipes_and_directories_named_like_agents_do_not_hang(write: WriteFile, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.md")
    write("dir.md/inner.md", agent())
    catalog = discover([tmp_path])
    assert list(catalog.agents) == ["inner"]
    assert [(p.path.name, p.reason) for p in catalog.problems] == [("pipe.md", "it is not a regular file")]


def test_a_file_name_that_is_no_text_is_listed(tmp_path: Path) -> None:
    Path(os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9.md")).write_text(agent(), encoding="utf-8")
    catalog = discover([tmp_path])
    assert catalog.agents == {}
    assert [(p.kind, "UTF-8" in p.reason) for p in catalog.problems] == [("error", True)]


def test_a_tree_that_is_too_large_is_read_in_part_and_reported(
    write: WriteFile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("subagent_server.agents.discover.MAX_ENTRIES", 20)
    for name in ("a", "b", "c"):
        for number in range(8):
            write(f"{name}/{number}.txt", "")
    write("d.md", agent())
    catalog = discover([tmp_path])
    assert listed(catalog) == [("error", tmp_path.name)]
    assert "more than 20 entries" in catalog.problems[0].reason


def test_agent_files_of_other_kinds_are_listed_as_skipped(write: WriteFile, tmp_path: Path) -> None:
    write("cx.toml", 'name = "cx"\nsandbox_mode = "read-only"')
    write("rule.mdc", "---\ndescription: d\n---\nx")
    assert [(p.path.name, p.kind) for p in discover([tmp_path]).problems] == [
        ("cx.toml", "skipped"),
        ("rule.mdc", "skipped"),
    ]
