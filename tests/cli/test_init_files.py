"""`subagent init` keeps the keys and their order, foreign entries and the comments of a client's file."""

import json
import stat
import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from subagent_server.cli import client_files
from subagent_server.cli.client_files import (
    Change,
    NotEditable,
    plan,
    plan_permissions,
    plan_removal,
    plan_withdrawal,
    write,
)
from subagent_server.cli.clients import CLIENTS, Client, ClientDirectories, ClientPermissions
from subagent_server.run.durable import prepare
from subagent_server.run.errors import HostError
from subagent_server.run.files import Entry, NotPlain
from subagent_server.sandbox.file_watch import OwnWrites
from tests.cli.command import Cli
from tests.helpers.scale import times

ENTRY = {"command": "subagent", "args": ["serve", "--role", "parent"], "env": {"A": "b"}}
TABLE = {"command": "subagent", "args": ["serve"], "required": True, "tool_timeout_sec": 300}
JSON_CLIENT, TOML_CLIENT = CLIENTS["cursor"], CLIENTS["codex"]

JSON_FILES = {
    "empty": "",
    "blank": " \n",
    "an empty object": "{}",
    "no servers": '{\n  "theme": "dark"\n}\n',
    "no servers yet": '{\n  "mcpServers": {},\n  "theme": "dark"\n}\n',
    "others, two spaces": '{\n  "mcpServers": {\n    "a": {"command": "x", "args": ["1", "2"]}\n  }\n}\n',
    "others, four spaces": '{\n    "mcpServers": {\n        "a": {\n            "b": 1\n        }\n    }\n}',
    "tabs": '{\n\t"mcpServers": {\n\t\t"a": {}\n\t},\n\t"z": [1,\n 2]\n}\n',
    "one line": '{"mcpServers":{"a":{"command":"x"}},"b":1}',
    "one line, empty": '{"mcpServers":{}}',
    "four spaces": '{\n    "a": [\n        1\n    ]\n}\n',
    "a tab": '{\n\t"a": 1\n}',
    "some on one line": '{\n  "mcpServers": { "a": {"args": ["-y", "x"]} },\n  "b": [1 , 2],"c" : {}}\n',
    "other line ends": '{\r\n  "mcpServers": {\r\n    "a": {}\r\n  }\r\n}\r\n',
    "letters and numbers": '{\n  "ä€😀": "\\u00e4",\n  "n": [1.0, 1e999, 12345678901234567890]\n}\n',
    "half a character": '{\n  "history": ["a long text \\ud83d", "\\udc80"]\n}\n',
    "our name elsewhere": '{\n  "x": {"mcpServers": {"subagents": 1}, "subagents": 2},\n  "y": "mcpServers"}',
}
TOML_FILES = {
    "empty": "",
    "remarks": "# mine\n\n  # and mine\n",
    "no line end": 'model = "o3"  # best',
    "others": '[mcp_servers.a]\ncommand = "x" # why\nargs = [\n  1,\n  "[mcp_servers.subagents]",\n]\n[t]\n',
    "dotted": 'mcp_servers.a.command = "x"\n[tui]\ny = 2\n',
    "other line ends": 'a = 1\r\n\r\n[b]\r\nc = """\r\nx\r\n"""\r\n',
    "arrays of tables": "[[p]]\na = 1\n[[p]]\na = 2\n[p.q]\nb = 3\n",
    "an empty table": "[mcp_servers]\n",
    "odd characters": "a = \"\\u00e4\u2028ä\"\nb = '''\n[mcp_servers.subagents]\n'''\n",
}


class ClientFile:
    """A file of a client, changed as `init` plans it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.permissions = ClientPermissions(self.of, {("permissions", "allow"): "x"}, {("env", "T"): "1"})

    def of(self, _: ClientDirectories) -> Path:
        return self.path

    def put(self, text: str) -> None:
        self.path.write_text(text, encoding="utf-8", newline="")

    def text(self) -> str:
        return self.path.read_bytes().decode()

    def make(self, change: Change) -> str:
        if change.after is None:
            self.path.unlink()
            return ""
        self.path.write_bytes(change.after)
        return self.text()

    def with_entry(self, text: str, client: Client, entry: dict[str, Any]) -> str:
        self.put(text)
        changed = self.make(plan(client, self.path, entry, private=True))
        assert not plan(client, self.path, entry, private=True).is_needed
        return changed


@pytest.fixture
def file(tmp_path: Path) -> ClientFile:
    return ClientFile(tmp_path / "config")


@pytest.mark.parametrize("text", JSON_FILES.values(), ids=list(JSON_FILES))
def test_json_gets_one_more_server_last_and_is_again_as_it_was_without(file: ClientFile, text: str) -> None:
    changed = file.with_entry(text, JSON_CLIENT, ENTRY)
    before = json.loads(text) if text.strip() else {}
    servers = {**before.get("mcpServers", {}), "subagents": ENTRY}
    assert list(json.loads(changed)["mcpServers"].items()) == list(servers.items())
    assert list(json.loads(changed)) == list({**before, "mcpServers": {}})
    assert changed.count("\r\n") == changed.count("\n") or "\r" not in text
    removed = file.make(plan_removal(JSON_CLIENT, file.path))
    if before.get("mcpServers") == {}:
        assert json.loads(removed or "{}") == {key: before[key] for key in before if key != "mcpServers"}
    else:
        assert removed == (text if before else "")


SETTINGS = [
    '{"permissions": {"allow": ["a"]}}',
    '{\n "permissions": {"allow": ["b" , "a", "a"], "deny": []},\n  "z": [1, 2]\n}',
    '{"env": {"A": "b"}, "z": []}',
    "{}",
]


@pytest.mark.parametrize("text", SETTINGS)
def test_settings_are_added_and_taken_out_again(file: ClientFile, text: str) -> None:
    file.put(text)
    changed = json.loads(file.make(plan_permissions(file.path, file.permissions)))
    assert changed["permissions"]["allow"][-1] == "x" and changed["env"]["T"] == "1"
    assert not plan_permissions(file.path, file.permissions).is_needed
    left = file.make(plan_withdrawal(file.path, file.permissions))
    assert left == ("" if text == "{}" else text)


@pytest.mark.parametrize("text", TOML_FILES.values(), ids=list(TOML_FILES))
def test_toml_gets_one_more_table_and_is_again_as_it_was_without(file: ClientFile, text: str) -> None:
    changed = file.with_entry(text, TOML_CLIENT, TABLE)
    assert changed.startswith(text)
    assert tomllib.loads(changed)["mcp_servers"]["subagents"] == TABLE
    assert changed.count("\r\n") == changed.count("\n") or "\r" not in text
    for behind in ("", "# mine\n", "\n# of t\n[t9]\na = 1\n", '[mcp_servers.subagents.env]\nA = "b"\n[t9]\n'):
        file.put(changed + behind)
        rest = behind.replace('[mcp_servers.subagents.env]\nA = "b"\n', "")
        removed = file.make(plan_removal(TOML_CLIENT, file.path))
        assert removed.strip() == (text + ("" if text.endswith("\n") else "\n" * bool(text)) + rest).strip()
        assert behind or removed == text


def test_a_replaced_toml_table_stays_where_it_was_and_takes_its_sub_tables_along(file: ClientFile) -> None:
    before = '# top\n[mcp_servers.a]\ncommand = "a"\n\n# ours\n'
    own = '[mcp_servers . "subagents"] # odd\na = """\nx\n# y\n"""\n[mcp_servers.subagents.env]\nA = "b"\n'
    after = "\n# about b\n[mcp_servers.b]\ncommand = 'b'\n"
    changed = file.with_entry(before + own + after, TOML_CLIENT, TABLE)
    assert changed.startswith(f"{before}[mcp_servers.subagents]\n") and changed.endswith(f"300\n{after}")
    in_crlf = file.with_entry((before + own + after).replace("\n", "\r\n"), TOML_CLIENT, TABLE)
    assert in_crlf == changed.replace("\n", "\r\n")


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ('[mcp_servers.subagents]\ncommand = "x"\n# of t\n\n[t]\n', "# of t\n\n[t]\n"),
        ('[t]\na = 1\n[mcp_servers.subagents]\ncommand = "x"\n# last', "# last"),
        ("[mcp_servers.subagents]\nx = 1\n# of t\n[t]\na = 1 # one\n", "# of t\n[t]\na = 1 # one\n"),
    ],
)
def test_what_stands_behind_a_replaced_toml_table_is_kept(file: ClientFile, text: str, left: str) -> None:
    changed = file.with_entry(text, TOML_CLIENT, TABLE)
    assert changed.endswith(left)
    wanted = tomllib.loads(text)
    wanted["mcp_servers"]["subagents"] = TABLE
    assert tomllib.loads(changed) == wanted


@pytest.mark.parametrize(
    "text",
    [
        *('{"a": 1,}', '{"a": 1} // why', "/* c */ {}", "[]", "1", '{"mcpServers": []}', '{"a": NaN}'),
        *("{", '{"a": 1}}', "[" * 100_000, '{"mcpServers": {"a": {}}, // mine\n}'),
        '{"mcpServers": {"a": {}}, "mcpServers": {"b": {}}}',
    ],
)
def test_json_that_is_not_strict_or_has_no_room_for_servers_is_refused(file: ClientFile, text: str) -> None:
    with pytest.raises(NotEditable):
        file.with_entry(text, JSON_CLIENT, ENTRY)
    assert file.text() == text


@pytest.mark.parametrize(
    "text",
    [
        *("a = ", "[a", "mcp_servers = 1\n", 'mcp_servers = {a = {command = "x"}}\n', "a = 1\na = 2\n"),
        *("[[mcp_servers]]\nx = 1\n", "a = " + "[" * 100_000, "a = " + "9" * 5_000),
        'mcp_servers.subagents.command = "x"\n',
    ],
)
def test_toml_that_is_broken_or_cannot_be_added_to_is_refused(file: ClientFile, text: str) -> None:
    with pytest.raises(NotEditable):
        file.with_entry(text, TOML_CLIENT, TABLE)
    assert file.text() == text


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=10,
)
_SERVERS = st.dictionaries(st.sampled_from(["a", "b", "subagents"]), _JSON, max_size=3)
_INDENT = st.sampled_from([None, 0, 1, 2, 4, "\t"])


@settings(max_examples=times(30, 100))
@given(st.dictionaries(st.text(max_size=4), _JSON, max_size=3), st.none() | _SERVERS, _INDENT)
def test_any_json_is_equal_except_for_the_entry(
    tmp_path_factory: pytest.TempPathFactory,
    data: dict[str, object],
    servers: dict[str, object] | None,
    indent: int | str | None,
) -> None:
    whole = data | ({} if servers is None else {"mcpServers": servers})
    file = ClientFile(tmp_path_factory.getbasetemp() / "any.json")
    changed = file.with_entry(json.dumps(whole, indent=indent), JSON_CLIENT, ENTRY)
    assert json.loads(changed) == {**whole, "mcpServers": {**(servers or {}), "subagents": ENTRY}}


@pytest.mark.parametrize(
    ("client", "name", "content"),
    [
        ("claude", ".mcp.json", b'{\n  "mcpServers": {},\n  // mine\n}\n'),
        ("cursor", ".cursor/mcp.json", b"\xff\xfe{}"),
        ("codex", "home/.codex/config.toml", b"model = \n"),
    ],
)
def test_a_file_that_cannot_be_changed_stays_as_it_is_and_the_entry_is_printed(
    cli: Cli, client: str, name: str, content: bytes
) -> None:
    cli.environment = {**cli.environment, "HOME": str(cli.home / "home"), "CODEX_HOME": ""}
    path = cli.home / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    done = cli("init", client, "--yes", "--force")
    assert done.returncode == 2
    assert done.stderr.startswith(f"subagent: {name} was left as it is, because it")
    assert done.stderr.count("\n") == 1 and "paste the above into it." in done.stderr
    pasted = tomllib.loads(done.stdout) if client == "codex" else json.loads(done.stdout)
    assert "subagents" in pasted["mcp_servers" if client == "codex" else "mcpServers"]
    assert cli.json("init", client, code=2)["state"] == "refused"
    assert path.read_bytes() == content


def test_a_file_with_a_byte_order_mark_keeps_it(cli: Cli) -> None:
    config = cli.home / ".mcp.json"
    config.write_bytes(b'\xef\xbb\xbf{"mcpServers": {}}')
    assert cli("init", "claude", "--yes").returncode == 0
    assert config.read_bytes().startswith(b"\xef\xbb\xbf{") and b"subagents" in config.read_bytes()
    assert "nothing to do" in cli("init", "claude").stderr


def test_a_file_that_cannot_be_read_or_made_is_reported_in_one_sentence(cli: Cli) -> None:
    (cli.home / ".mcp.json").mkdir()
    (cli.home / ".cursor").write_text("", encoding="utf-8")
    (cli.home / ".gemini").symlink_to(".gemini")
    for client in ("claude", "cursor", "gemini"):
        done = cli("init", client, "--scope", "project", "--yes")
        assert done.returncode == 6 and done.stderr.count("\n") == 1


def test_a_file_that_is_changed_while_a_person_looks_stays_so(file: ClientFile) -> None:
    file.put("{}")
    change = plan(JSON_CLIENT, file.path, ENTRY, private=True)
    file.put('{"mine": 1}')
    with pytest.raises(HostError, match="changed meanwhile"):
        write(change, OwnWrites(None))
    assert file.text() == '{"mine": 1}' and list(file.path.parent.iterdir()) == [file.path]


@pytest.mark.parametrize("kind", ["link", "second name"])
def test_a_run_gets_at_nothing_by_the_file_that_is_just_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    key, path = tmp_path / "key", tmp_path / "project/.mcp.json"
    key.touch(mode=0o600)

    def prepared(file: Entry, data: bytes) -> Entry:
        temporary = prepare(file, data)
        if kind == "link":
            temporary.path.unlink()
            temporary.path.symlink_to(key)
        else:
            (path.parent / "later").hardlink_to(temporary.path)
        return temporary

    monkeypatch.setattr(client_files, "prepare", prepared)
    with pytest.raises(NotPlain):
        write(plan(JSON_CLIENT, path, ENTRY, private=False), OwnWrites(None))
    assert stat.S_IMODE(key.stat().st_mode) == 0o600 and not path.exists()


def test_a_link_that_comes_while_a_person_looks_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "home").mkdir()
    change = plan(JSON_CLIENT, tmp_path / "project/.cursor/mcp.json", ENTRY, private=False)
    (tmp_path / "project").mkdir()
    (tmp_path / "project/.cursor").symlink_to(tmp_path / "home")
    with pytest.raises(HostError, match="changed meanwhile"):
        write(change, OwnWrites(None))
    assert not list((tmp_path / "home").iterdir())
