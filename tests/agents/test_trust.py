"""Which directories the user trusts, and what is held on to of what they start (SPEC section 13)."""

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from subagent_server.agents.formats import load_agent_file
from subagent_server.run.errors import BadArgument
from subagent_server.settings import Settings, read_settings
from subagent_server.verbs.trust_check import (
    Coverage,
    Pin,
    TrustNotKept,
    coverage,
    differences,
    forget,
    pins_of_agent,
    read_trust_file,
    trust,
)
from tests.agents.conftest import WriteFile

COVERED = Coverage(Path("/p"), agents=[], pins={}, changes=[], is_trusted=False)
PLAIN = "---\nname: a\ndescription: Does a.\n{}\n---\nBody."


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Where trust is kept, in a directory that is not there yet."""
    return tmp_path / "config" / "subagent" / "trust.json"


@pytest.fixture
def user(file: Path) -> Settings:
    """The settings of the user whose file that is."""
    return read_settings(environment={"XDG_CONFIG_HOME": str(file.parents[1])}, cwd=Path("/"))


def test_a_directory_is_trusted_until_it_is_forgotten_and_the_file_is_its_users_alone(
    file: Path, user: Settings
) -> None:
    before = os.umask(0)
    try:
        trust(user, COVERED)
    finally:
        os.umask(before)
    assert list(read_trust_file(file).projects) == ["/p"] and read_trust_file(file).trouble is None
    assert [oct(path.stat().st_mode & 0o777) for path in (file.parent, file)] == ["0o700", "0o600"]
    assert forget(user, Path("/p")) and not forget(user, Path("/p"))
    assert read_trust_file(file).projects == {}


def a_link(file: Path) -> None:
    file.rename(file.with_name("elsewhere"))
    file.symlink_to("elsewhere")


def a_linked_directory(file: Path) -> None:
    file.parent.rename(file.parent.with_name("elsewhere"))
    file.parent.symlink_to("elsewhere")


def a_fifo(file: Path) -> None:
    """Put a FIFO in the file's place, which nobody writes to."""
    file.unlink()
    os.mkfifo(file, 0o600)


def not_a_directory(file: Path) -> None:
    """Put a file where the configuration directory should be."""
    for path in (file, file.with_name("trust.lock")):
        path.unlink()
    file.parent.rmdir()
    file.parent.write_text("", encoding="utf-8")


SPOILT: dict[str, Callable[[Path], object]] = {
    "a link": a_link,
    "a link to its directory": a_linked_directory,
    "a FIFO": a_fifo,
    "a directory that others may enter": lambda file: file.parent.chmod(0o755),
    "of two names": lambda file: file.with_name("second").hardlink_to(file),
    "not JSON": lambda file: file.write_text("{", encoding="utf-8"),
    "deep": lambda file: file.write_text("[" * 100_000, encoding="utf-8"),
    "of a later version": lambda file: file.write_text('{"version": 2, "projects": {}}', encoding="utf-8"),
    "not a mapping": lambda file: file.write_text("[1]", encoding="utf-8"),
    "too large": lambda file: os.truncate(file, 9 << 20),
    "no directory": not_a_directory,
}


@pytest.mark.parametrize("what", SPOILT)
def test_a_file_that_is_odd_is_trust_in_nothing_with_one_sentence_and_is_not_written_over(
    file: Path, user: Settings, what: str
) -> None:
    trust(user, COVERED)
    SPOILT[what](file)
    trusted = read_trust_file(file)
    assert trusted.projects == {} and trusted.trouble is not None
    assert str(file) in trusted.trouble and trusted.trouble.endswith("then trust again.")
    assert len(trusted.trouble) < len(str(file)) + 200
    with pytest.raises(TrustNotKept):
        trust(user, COVERED)


PINNED = {
    "command": ("runner: command\ncommand: make", "runner: command\ncommand: sh"),
    "args": ("args: [a]", "args: [b]"),
    "env.A": ("env: {A: x}", "env: {A: y}"),
    "baseUrl": ("baseUrl: https://a.example", "baseUrl: https://b.example"),
    "apiKeyEnv": ("apiKeyEnv: A_KEY", "apiKeyEnv: B_KEY"),
    "sandbox": ("sandbox: auto", "sandbox: none"),
    "sandbox of a program": ("runner: claude\nsandbox: bwrap", "runner: claude"),
    "sandbox of a shell": ("sandbox: bwrap", "sandbox: auto"),
    "sandboxWrite": ("sandboxWrite: [notes]", "sandboxWrite: [notes, .git]"),
    "codeMode.python": ("codeMode: {enabled: true}", "codeMode: {enabled: true, python: ./p}"),
    "placement.on": ("placement: {cpus: 2}", "placement: {cpus: 2, on: 'ssh:elsewhere'}"),
    "mcpServers.s.command": ("mcpServers: {s: {command: a}}", "mcpServers: {s: {command: b}}"),
    "mcpServers.s.url": (
        "mcpServers: {s: {type: http, url: 'https://a'}}",
        "mcpServers: {s: {type: http, url: 'https://b'}}",
    ),
    "mcpServers.s.headers.H": (
        "mcpServers: {s: {type: http, url: 'https://a', headers: {H: a}}}",
        "mcpServers: {s: {type: http, url: 'https://a', headers: {H: b}}}",
    ),
    "cwd": ("cwd: src", "cwd: ../elsewhere"),
    "systemPromptPath": ("systemPromptPath: inside.md", "systemPromptPath: /etc/hostname"),
    "outputSchemaPath": ("outputSchemaPath: inside.json", "outputSchemaPath: ../../outside.json"),
}


def pins(write: WriteFile, project: Path, keys: str) -> dict[str, Pin]:
    """Return what is pinned of an agent of a project with these keys."""
    return pins_of_agent(load_agent_file(write("p/agents/a.md", PLAIN.format(keys))), project)


@pytest.mark.parametrize("key", PINNED)
def test_what_starts_a_program_sends_a_key_elsewhere_or_leads_outside_is_pinned(
    write: WriteFile, tmp_path: Path, key: str
) -> None:
    old, new = (pins(write, tmp_path / "p", keys) for keys in PINNED[key])
    assert {line.split(": ")[1] for line in differences("agent a", old, new)} == {key.split(" of ")[0]}


def test_prompt_tools_and_limits_are_not_pinned(write: WriteFile, tmp_path: Path) -> None:
    keys = "tools: Bash, Write\nmodel: opus\nlimits: {maxTurns: 3}\nagents: [b]\ncwd: src"
    assert pins(write, tmp_path / "p", keys) == {}


def test_a_link_that_leads_out_of_the_directory_is_pinned_with_where_it_leads(
    write: WriteFile, tmp_path: Path
) -> None:
    secret = write("secret.md", "not for models")
    path = write("p/agents/a.md", PLAIN.format("systemPromptPath: prompt.md"))
    (path.parent / "prompt.md").symlink_to(secret)
    (tmp_path / "p" / "agents" / "b.md").symlink_to(write("b.md", PLAIN.format("")))
    (tmp_path / "alias").symlink_to("p")
    for project in (tmp_path / "p", tmp_path / "alias"):
        first, second = (
            pins_of_agent(load_agent_file(project / "agents" / name), project) for name in ("a.md", "b.md")
        )
        assert first["systemPromptPath"].shown == str(secret) and set(first) == {"systemPromptPath"}
        assert second["file"].shown == str(tmp_path / "b.md")


def test_a_secret_is_masked_in_what_is_kept_and_a_change_of_it_is_a_difference(
    write: WriteFile, tmp_path: Path
) -> None:
    old, new = (
        pins(write, tmp_path / "p", f"env: {{MY_TOKEN: the-{which}-one}}") for which in ("first", "other")
    )
    assert "the-first-one" not in json.dumps([pin.to_json().decode() for pin in old.values()])
    (line,) = differences("agent a", old, new)
    assert line == "~ agent a: env.MY_TOKEN: *** (what is hidden here has changed)"


def test_names_alone_may_be_too_much_to_show(write: WriteFile, tmp_path: Path) -> None:
    for number in range(200):
        write(f"agents/{number:0220}.md", "---\ndescription: d\n---\n")
    settings = read_settings(environment={"HOME": str(tmp_path / "home")}, cwd=tmp_path)
    assert coverage(settings, tmp_path).too_much is not None


def test_a_directory_whose_name_json_cannot_hold_is_not_trusted_under_another(tmp_path: Path) -> None:
    (tmp_path / "\udcff").mkdir()
    settings = read_settings(environment={"HOME": str(tmp_path / "home")}, cwd=tmp_path)
    with pytest.raises(BadArgument, match=r"udcff cannot be trusted"):
        coverage(settings, Path("\udcff"))
