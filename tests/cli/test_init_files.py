"""`subagent init` keeps every byte of a file except its own entry."""

import json
import tomllib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from subagent_server.cli.clients import json_config, toml_config
from subagent_server.cli.clients.config_errors import NotEditable
from tests.cli.command import Cli

ENTRY = {"command": "subagent", "args": ["serve", "--role", "parent"], "env": {"A": "b"}}
TABLE = {"command": "subagent", "args": ["serve"], "required": True, "tool_timeout_sec": 300}

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
    "other line ends": '{\r\n  "mcpServers": {\r\n    "a": {}\r\n  }\r\n}\r\n',
    "letters and numbers": '{\n  "ä€😀": "\\u00e4\\ud83d",\n  "n": [1.0, 1e5, 12345678901234567890]\n}\n',
    "the key twice": '{"mcpServers": {"a": {}}, "mcpServers": {"b": {}}}',
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
    "odd characters": "a = \"\\u00e4\u2028ä\"\nb = '''\n[mcp_servers.subagents]\n'''\n",
}


@pytest.mark.parametrize("text", JSON_FILES.values(), ids=list(JSON_FILES))
def test_json_gets_one_more_server_and_keeps_every_byte(text: str) -> None:
    changed = json_config.with_entry(text, "subagents", ENTRY)
    before = json.loads(text) if text.strip() else {}
    servers = {**before.get("mcpServers", {}), "subagents": ENTRY}
    assert json.loads(changed) == {**before, "mcpServers": servers}
    assert list(json.loads(changed)["mcpServers"])[-1] == "subagents"
    assert changed.count("\r\n") == changed.count("\n") or "\r" not in text
    assert not text.strip() or is_whole_within(text, changed)
    assert json_config.with_entry(changed, "subagents", ENTRY) == changed


LISTS = {
    **JSON_FILES,
    "empty list": '{"permissions": {"allow": [ ]}, "z": 1}',
    "on one line": '{"permissions": {"allow": ["a", ["b"] ], "deny": []}}',
    "on lines": '{\n\t"permissions": {\n\t\t"allow": [\n\t\t\t"a",\n\t\t\t"]"\n\t\t]\n\t}\n}\n',
    "on lines, other line ends": '{\r\n "permissions": {\r\n  "allow": [\r\n   "a"\r\n  ]\r\n }\r\n}\r\n',
    "no list yet": '{\n  "permissions": {\n    "deny": ["a"]\n  }\n}',
    "the list twice": '{"permissions": {"allow": ["a"], "allow": ["b"]}}',
}


@pytest.mark.parametrize("text", LISTS.values(), ids=list(LISTS))
def test_a_json_list_gets_one_more_text_and_every_byte_is_kept(text: str) -> None:
    changed = json_config.with_listed(text, ("permissions", "allow"), "x")
    expected = json.loads(text) if text.strip() else {}
    expected.setdefault("permissions", {}).setdefault("allow", []).append("x")
    assert json.loads(changed) == expected
    assert changed.count("\r\n") == changed.count("\n") or "\r" not in text
    assert not text.strip() or "[ ]" in text or is_whole_within(text, changed)
    assert json_config.with_listed(changed, ("permissions", "allow"), "x") == changed


@pytest.mark.parametrize("text", TOML_FILES.values(), ids=list(TOML_FILES))
def test_toml_gets_one_more_table_and_keeps_every_byte(text: str) -> None:
    changed = toml_config.with_entry(text, "subagents", TABLE)
    assert changed.startswith(text)
    assert tomllib.loads(changed)["mcp_servers"]["subagents"] == TABLE
    assert changed.count("\r\n") == changed.count("\n") or "\r" not in text
    assert toml_config.with_entry(changed, "subagents", TABLE) == changed


@pytest.mark.parametrize("text", JSON_FILES.values(), ids=list(JSON_FILES))
def test_json_without_the_server_is_again_as_it_was(text: str) -> None:
    changed = json_config.without_entry(json_config.with_entry(text, "subagents", ENTRY), "subagents")
    before = json.loads(text) if text.strip() else {}
    if before.get("mcpServers"):
        assert changed == text
    else:
        assert json.loads(changed) == {key: value for key, value in before.items() if key != "mcpServers"}
    assert json_config.holds_nothing(changed) is (
        not before or (list(before) == ["mcpServers"] and not before["mcpServers"])
    )


def without(data: dict[str, Any], outer: str, inner: str) -> dict[str, Any]:
    """Return `data` without a key of one of its objects, and without that object if it holds nothing else."""
    left = {key: value for key, value in data.get(outer, {}).items() if key != inner}
    rest = {key: value for key, value in data.items() if key != outer}
    return {**rest, outer: left} if left else rest


@pytest.mark.parametrize("text", LISTS.values(), ids=list(LISTS))
def test_a_json_list_without_the_text_is_again_as_it_was(text: str) -> None:
    path = ("permissions", "allow")
    changed = json_config.without_listed(json_config.with_listed(text, path, "x"), path, "x")
    before = json.loads(text) if text.strip() else {}
    if before.get("permissions", {}).get("allow"):
        assert changed == text
    else:
        assert json.loads(changed) == without(before, "permissions", "allow")


@pytest.mark.parametrize("text", TOML_FILES.values(), ids=list(TOML_FILES))
def test_toml_without_the_server_is_again_as_it_was_whatever_came_behind(text: str) -> None:
    changed = toml_config.with_entry(text, "subagents", TABLE)
    assert toml_config.without_entry(changed, "subagents") == text
    for behind in ("# mine\n", "\n# of t\n[t9]\na = 1\n", '[mcp_servers.subagents.env]\nA = "b"\n[t9]\n'):
        rest = behind.replace('[mcp_servers.subagents.env]\nA = "b"\n', "")
        line_end = "" if text.endswith("\n") or not text else "\n"
        assert toml_config.without_entry(changed + behind, "subagents") == text + line_end + rest


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ('{"mcpServers": {"s": {"a": 1}, "t": {}}}', '{"mcpServers": {"t": {}}}'),
        ('{"mcpServers": {"r": {}, "s": 1 , "t": {}}}', '{"mcpServers": {"r": {} , "t": {}}}'),
        ('{ "mcpServers": {"s": {}}, "a": [ ] }', '{ "a": [ ] }'),
    ],
)
def test_a_server_that_was_moved_is_taken_out_from_where_it_is(text: str, left: str) -> None:
    assert json_config.without_entry(text, "s") == left


def test_new_members_are_laid_out_as_the_others_are() -> None:
    tabs = json_config.with_entry(JSON_FILES["tabs"], "s", {"command": "c"})
    assert '\t\t"a": {},\n\t\t"s": {\n\t\t\t"command": "c"\n\t\t}\n\t},' in tabs
    assert json_config.with_entry(JSON_FILES["one line"], "s", {"command": "c"}) == (
        '{"mcpServers":{"a":{"command":"x"}, "s": {"command": "c"}},"b":1}'
    )
    assert json_config.with_entry("{}\n", "s", {"command": "c"}) == (
        '{\n  "mcpServers": {\n    "s": {\n      "command": "c"\n    }\n  }\n}\n'
    )


def test_a_replaced_json_entry_stays_where_it_was() -> None:
    text = '{\n  "mcpServers": {\n    "s": {"url": "x"},\n    "t": {}\n  }\n}\n'
    assert json_config.with_entry(text, "s", {"command": "c"}) == text.replace(
        '{"url": "x"}', '{\n      "command": "c"\n    }'
    )


def test_a_replaced_toml_table_stays_where_it_was_and_takes_its_sub_tables_along() -> None:
    before = '# top\n[mcp_servers.a]\ncommand = "a"\n\n# ours\n'
    own = '[mcp_servers . "subagents"] # odd\na = """\n[x]\n# y\n"""\n[mcp_servers.subagents.env]\nA = "b"\n'
    after = "\n# about b\n[mcp_servers.b]\ncommand = 'b'\n"
    changed = toml_config.with_entry(before + own + after, "subagents", TABLE)
    header, settings = own.partition("\n")[0], toml_config.snippet("subagents", TABLE).partition("\n")[2]
    assert changed == f"{before}{header}\n{settings}{after}"
    in_crlf = toml_config.with_entry((before + own + after).replace("\n", "\r\n"), "subagents", TABLE)
    assert in_crlf == changed.replace("\n", "\r\n")


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ('[mcp_servers.subagents]\ncommand = "x"\n# of t\n\n[t]\n', "# of t\n\n[t]\n"),
        ('[t]\na = 1\n[mcp_servers.subagents]\ncommand = "x"\n# last', "# last"),
    ],
)
def test_what_stands_behind_a_replaced_toml_table_is_kept(text: str, left: str) -> None:
    changed = toml_config.with_entry(text, "subagents", TABLE)
    assert left in changed
    wanted = tomllib.loads(text)
    wanted["mcp_servers"]["subagents"] = TABLE
    assert tomllib.loads(changed) == wanted


@pytest.mark.parametrize(
    "text",
    [
        *('{"a": 1,}', '{"a": 1} // why', "/* c */ {}", "[]", "1", '{"mcpServers": []}', '{"a": NaN}'),
        *("{", '{"a": 1}}', "[" * 100_000, '{"mcpServers": {"a": {}}, // mine\n}'),
    ],
)
def test_json_that_is_not_strict_or_has_no_room_for_servers_is_refused(text: str) -> None:
    with pytest.raises(NotEditable):
        json_config.with_entry(text, "subagents", ENTRY)


@pytest.mark.parametrize(
    "text",
    [
        *("a = ", "[a", "mcp_servers = 1\n", 'mcp_servers = {a = {command = "x"}}\n', "a = 1\na = 2\n"),
        "[mcp_servers.subagents]\nx = 1\n# of t\n[t]\na = 1 # one\n[mcp_servers.subagents.env]\ny = 2\n",
        "[mcp_servers.subagents.env]\nx = 1\n# of t\n[t]\n",
        *("[[mcp_servers]]\nx = 1\n", "a = " + "[" * 100_000, 'mcp_servers.subagents.command = "x"\n'),
    ],
)
def test_toml_that_is_broken_or_cannot_be_added_to_is_refused(text: str) -> None:
    with pytest.raises(NotEditable):
        toml_config.with_entry(text, "subagents", TABLE)


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=10,
)
_SERVERS = st.dictionaries(st.sampled_from(["a", "b", "subagents"]), _JSON, max_size=3)
_INDENT = st.sampled_from([None, 0, 1, 2, 4, "\t"])


@given(st.dictionaries(st.text(max_size=4), _JSON, max_size=3), st.none() | _SERVERS, _INDENT)
def test_any_json_is_equal_except_for_the_entry(
    data: dict[str, object], servers: dict[str, object] | None, indent: int | str | None
) -> None:
    whole = data | ({} if servers is None else {"mcpServers": servers})
    changed = json_config.with_entry(json.dumps(whole, indent=indent), "subagents", ENTRY)
    assert json.loads(changed) == {**whole, "mcpServers": {**(servers or {}), "subagents": ENTRY}}


@pytest.mark.parametrize(
    ("client", "name", "content"),
    [
        ("claude", ".mcp.json", b'{\n  "mcpServers": {},\n  // mine\n}\n'),
        ("claude", ".mcp.json", b'{"mcpServers": {"subagents": {"command": "x"}}'),
        ("cursor", ".cursor/mcp.json", b"\xff\xfe{}"),
        ("codex", "home/.codex/config.toml", b"model = \n"),
        ("codex", "home/.codex/config.toml", b'mcp_servers = {a = {command = "x"}}\n'),
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
    for client in ("claude", "cursor"):
        done = cli("init", client, "--yes")
        assert done.returncode == 6 and done.stderr.count("\n") == 1


def is_whole_within(part: str, whole: str) -> bool:
    """Whether `whole` is `part` with something put in at one place."""
    ahead = next((n for n, (a, b) in enumerate(zip(part, whole, strict=False)) if a != b), len(part))
    return whole.endswith(part[ahead:])
