"""`subagent tools`: what an agent in code mode reads of its tools."""

from tests.cli.command import Cli
from tests.helpers.mcp_servers import scripted

ONE = {"type": "object", "properties": {"id": {"type": "integer"}}, "required": ["id"]}
GET = {"name": "get-issue", "description": "Gets an issue.\x1b[31m", "inputSchema": ONE}
GITHUB = scripted(GET, "close", "merge", stderr=["ready"])
GITLAB = scripted("close")
STUB = 'def get_issue(*, id: int) -> Text:\n    """Gets an issue.\\x1b[31m"""\n'
REST = "# --- gitlab ---\ndef close(**others: Any) -> Text:\n    ...\n"


def test_the_functions_are_printed_as_the_model_reads_them_without_excluded_tools(cli: Cli) -> None:
    cli.have_boxes()
    code_mode = {"enabled": True, "excludedTools": ["mcp__github__close", "merge"]}
    cli.agent("worker", mcpServers={"github": GITHUB, "gitlab": GITLAB}, codeMode=code_mode)
    done = cli("tools", "worker")
    assert done.returncode == 0, done.stderr
    assert (
        done.stdout == f"# Call each with its server: github.get_issue(...)\n# --- github ---\n{STUB}{REST}"
    )
    assert done.stderr == "Ordinary tools: close, merge\n"
    found = cli.json("tools", "worker")
    assert found["text"] + "\n" == done.stdout and found["ordinaryTools"] == ["close", "merge"]
    assert found["functions"][0]["parameters"] == [{"name": "id", "key": "id", "required": True}]
    assert cli("tools", "worker", "github.get_issue").stdout == f"# github\n{STUB}"
    assert cli("tools", "worker", "gitlab").stdout == "gitlab.close(...)\n"
    known = "functions and servers here are github.get_issue, gitlab"
    cli.leaves_with(2, known, "tools", "worker", "github.get_isue")


def test_a_large_set_is_an_index_and_one_flag_prints_it_whole(cli: Cli) -> None:
    cli.agent(
        "worker", mcpServers={"github": GITHUB}, codeMode={"stubCharacters": 50, "excludedTools": ["x"]}
    )
    done = cli("tools", "worker")
    assert "# github (3): get_issue, close, merge" in done.stdout and "def " not in done.stdout
    assert "Code mode is off" in done.stderr and "excludedTools names 'x'" in done.stderr
    assert STUB in cli("tools", "worker", "--whole").stdout


def test_what_cannot_be_shown_is_one_sentence_and_an_exit_code(cli: Cli) -> None:
    cli.agent("empty")
    cli.agent("broken", mcpServers={"bad": scripted(stderr=["no licence"], exit=4)})
    cli.agent("clash", mcpServers={"a": scripted("get-x", "get_x")}, codeMode=True)
    for words, code, said in (
        (["nobody"], 3, "There is no agent 'nobody'"),
        (["empty"], 0, "empty has no MCP tools that a program could call"),
        (["broken"], 6, "The MCP server bad ended with exit code 4; it said: no licence."),
        (
            ["clash"],
            2,
            "the tools 'get-x' and 'get_x' both become get_x (server 'a'). Keep 'get_x' an ordinary",
        ),
        (["empty", "x", "--whole"], 2, "give one of them"),
    ):
        done = cli("tools", *words)
        assert (done.returncode, done.stdout) == (code, "") and said in done.stderr, done.stderr


def test_servers_of_a_directory_that_is_not_trusted_are_not_started(cli: Cli) -> None:
    cli.trusts = False
    cli.agent("worker", mcpServers={"github": {"command": "touch", "args": [f"{cli.home}/started"]}})
    cli.leaves_with(2, "subagent trust", "tools", "worker")
    assert not (cli.home / "started").exists()
