"""`subagent doctor`: what is wrong with agent files, and with the files of runs."""

import gzip
import json
import os

import pytest

from subagent_server.run.records import PayloadInfo
from tests.cli.command import FAILED, Cli, asked
from tests.helpers.files import write_program
from tests.helpers.processes import Child
from tests.helpers.state_files import counted_state_files
from tests.helpers.truth import examine_all

# -- nodes


def test_a_node_that_does_not_answer_is_named_with_the_reason_alone(
    cli: Cli, tmp_path_factory: pytest.TempPathFactory
) -> None:
    tools = tmp_path_factory.mktemp("tools")  # outside of where runs work
    write_program(tools / "ssh", "#!/bin/sh\necho 'No route.' >&2; exit 255\n")
    done = cli("--launcher", "ssh:build7", "doctor", "--nodes", env={"PATH": f"{tools}:{os.environ['PATH']}"})
    assert (done.returncode, done.stdout) == (1, "build7: No route.\n")


# -- agent files


def test_agents_without_faults_exit_with_0(cli: Cli) -> None:
    cli.agent("reviewer")
    done = cli("doctor")
    assert (done.returncode, done.stdout) == (0, "")
    assert done.stderr.endswith("\n1 agent checked: nothing is wrong.\n")


def test_a_bubblewrap_that_a_run_may_have_put_here_is_not_started(cli: Cli) -> None:
    program, ran = cli.home / "bwrap", cli.home / "ran"
    write_program(program, f"#!/bin/sh\ntouch {ran}\n")
    said = cli("doctor", env={"SUBAGENT_BWRAP": str(program)}).stderr
    assert "a run can write it" in said and not ran.exists()


def test_it_names_the_directory_of_the_warm_process_and_why_starts_are_plain_if_they_are(cli: Cli) -> None:
    place = cli.home / "warm"
    own = {"SUBAGENT_RUNTIME_DIR": str(place)}
    assert f"Warm start: {place}: the next start is plain" in cli("doctor", env=own).stderr
    assert not place.exists(), "looking does not make it"
    place.mkdir(mode=0o755)
    assert f"{place}: starts are plain: {place} is not private" in cli("doctor", env=own).stderr
    found = cli.json("doctor", env={**own, "SUBAGENT_WARM": "0"})
    assert found["warmStart"] == "starts are plain: SUBAGENT_WARM is 0"


def test_a_state_directory_in_which_no_run_can_be_noted_is_a_finding(cli: Cli) -> None:
    shared, file, linked, missing = (cli.home / name for name in ("shared", "file", "linked", "missing"))
    (shared / "subagent").mkdir(parents=True)
    (shared / "subagent").chmod(0o755)
    file.touch()
    linked.mkdir()
    (linked / "subagent").symlink_to(cli.home)
    unusable = "cannot be made or written"
    for home, why in ((shared, "is not private"), (file, unusable), (linked, unusable)):
        done = cli("doctor", env={"XDG_STATE_HOME": str(home)})
        assert (done.returncode, f"{home}/subagent {why}" in done.stdout) == (1, True), done
    assert cli("doctor", env={"XDG_STATE_HOME": str(missing)}).returncode == 0
    assert not missing.exists(), "looking does not make it"


def test_each_unusable_file_is_listed_with_its_line_and_reason(cli: Cli) -> None:
    cli.agent("reviewer")
    (cli.home / "agents" / "broken.md").write_bytes(b"---\nname: broken\n---\nHall\xf6chen.\n")
    done = cli("doctor")
    assert done.returncode == 1
    assert done.stdout.startswith("agents/broken.md:4: error: ")
    assert done.stdout.count("\n") == 1


def test_remarks_are_listed_and_exit_with_0(cli: Cli) -> None:
    cli.agent("reviewer", favouriteColour="blue")
    (cli.home / "agents" / "README.md").write_text("# About these agents\n", encoding="utf-8")
    done = cli("doctor")
    assert done.returncode == 0
    assert "warning" in done.stdout and "skipped" in done.stdout
    assert done.stderr.endswith("\n1 agent checked: 1 warning.\n")


def test_what_agents_have_in_common_stands_once_and_the_rest_by_file_faults_first(cli: Cli) -> None:
    cli.trusts = False
    assert cli("trust", "--remove", ".").returncode == 0
    for name in ("one", "two", "six"):
        cli.agent(name, favouriteColour="blue", maxTurns="many" if name == "two" else 5)
    done = cli("doctor", env={"ANTHROPIC_API_KEY": ""})
    key, trust, *rest = done.stdout.splitlines()
    assert key.startswith("3 agents: fault: ANTHROPIC_API_KEY is not set")
    assert trust.startswith("3 agents: warning: not trusted: each comes with ")
    assert [line.split(": ")[:2] for line in rest] == [
        ["agents/one.md:4", "warning"],
        ["agents/six.md:4", "warning"],
        ["agents/two.md:5", "fault"],
        ["agents/two.md:4", "warning"],
    ]
    assert done.stderr.endswith("3 agents checked: 4 findings, 6 warnings.\n")


def test_any_file_is_checked_and_a_missing_one_is_a_finding(cli: Cli) -> None:
    text = "---\nname: draft\ndescription: Drafts.\n{}---\nDraft.\n"
    files = {"draft.md": text.format("maxTurns: many\n"), "fine.md": text.format(""), "notes.md": "Notes.\n"}
    for name, content in files.items():
        (cli.home / name).write_text(content, encoding="utf-8")
    assert cli("doctor", str(cli.home / "fine.md")).returncode == 0
    for name, begins in (("draft.md", ""), ("notes.md", " error: "), ("missing.md", " error: ")):
        done = cli("doctor", name)
        assert done.returncode == 1 and done.stdout.startswith(f"{name}:{begins}")


def test_an_agent_may_be_named_and_a_name_that_is_none_is_refused_with_the_nearest(cli: Cli) -> None:
    cli.agent("worker")
    cli.agent("bounded", tools="Bash(git diff:*)")
    (cli.home / "agents" / "torn.yaml").write_text("subagent: 5\n", encoding="utf-8")
    (cli.home / "agents" / "notes.md").write_text("Notes.\n", encoding="utf-8")
    (cli.home / "agents" / "slash.md").write_text(
        "---\nname: team/b.md\ndescription: B.\n---\nB.\n", encoding="utf-8"
    )
    for name in ("worker", "team/b.md"):
        assert cli.json("doctor", name) == {"checked": 1, "problems": [], "servers": []}
    for name, reason in (("bounded", "Bash(git diff:*)"), ("torn", "agents/torn.yaml:")):
        done = cli("doctor", name)
        assert done.returncode == 1 and reason in done.stdout and len(done.stdout.splitlines()) == 1
    assert "notes.md: it has no front matter" in cli("doctor", "notes").stderr
    for name in ("workr", "\x1b[2J", "a" * 300, ""):
        done = cli("doctor", name)
        assert done.returncode == 3 and done.stderr.startswith("subagent: There is no agent ")
        assert done.stderr.count("\n") == 1 and ("worker" in done.stderr) and "\x1b" not in done.stderr


# -- runs


def test_runs_without_faults_exit_with_0(cli: Cli) -> None:
    cli.completed("aaaaaa")
    cli.made("bbbbbb", FAILED)
    (cli.store.paths.root / "20261122-093015-417-zzzzzz").mkdir()  # a start that never was
    with cli.living("cccccc", asked()):
        done = cli("doctor", "--runs")
    assert (done.returncode, done.stdout) == (0, "")
    assert done.stderr == "4 runs checked: nothing is wrong.\n"


def test_each_finding_is_a_line_with_the_run_it_is_about(cli: Cli) -> None:
    run_id = cli.completed("aaaaaa")
    healthy = cli.completed("bbbbbb")
    run = cli.store.paths.run(run_id)
    run.result.unlink()
    done = cli("doctor", "--runs")
    assert done.returncode == 1
    assert done.stdout == f"{run_id}: it is completed without a result.json\n"
    assert done.stderr == "2 runs checked: 1 finding.\n"
    assert cli("doctor", "--runs", healthy).returncode == 0
    assert cli("doctor", "--runs", "aaaaaa").returncode == 1


@pytest.mark.parametrize("name", ["run.meta.json", "result.json", "request.json", "shim.json"])
def test_a_file_that_cannot_be_read_is_a_finding_and_the_others_are_checked(cli: Cli, name: str) -> None:
    broken, healthy = cli.completed("aaaaaa"), cli.completed("bbbbbb")
    (cli.store.paths.run(broken).directory / name).write_text("[" * 60_000, encoding="utf-8")
    found = cli.json("doctor", "--runs", code=1)
    assert found["checked"] == 2
    assert {finding["runId"] for finding in found["findings"]} == {broken}
    assert healthy not in json.dumps(found["findings"])
    assert cli.json("doctor", "--runs", broken, code=1)["findings"] == found["findings"]


@pytest.mark.parametrize(
    "left", [None, gzip.compress(b"{"), gzip.compress(b"{}")[:-9]], ids=["gone", "shorter", "torn"]
)
def test_a_payload_that_is_not_whole_is_a_finding(cli: Cli, left: bytes | None) -> None:
    run_id, payload = cli.completed("aaaaaa"), PayloadInfo(size=2, path="payload.gz")
    run = cli.store.paths.run(run_id)
    run.meta.path.write_bytes(cli.meta(run_id).model_copy(update={"payload": payload}).to_json())
    if left is not None:
        (run.directory / "payload.gz").write_bytes(left)
    ((_, what),) = [(each.run_id, each.what) for each in examine_all(cli.store, {})]
    assert "payload" in what


@pytest.mark.process
def test_what_runs_have_left_is_found_in_one_look_at_all_processes(cli: Cli) -> None:
    runs = [cli.completed(tail) for tail in ("aaaaaa", "bbbbbb", "cccccc")]
    assert not list(examine_all(cli.store, {})) and not cli.store.live_ids()
    with Child("print('there', flush=True); input()", environment={"SUBAGENT_RUN_ID": runs[1]}) as left:
        assert left.hear() == "there"  # the kernel shows no environment of a process that just begins
        with counted_state_files() as count:
            found = [(each.run_id, each.what) for each in examine_all(cli.store, {})]
    assert found == [(runs[1], f"it is over, and 1 of its processes live (pid {left.pid})")]
    assert count.processes == 2, "and one at the run with a process"
    assert count.reads == len(runs)


def test_a_secret_in_a_run_is_found_and_not_repeated(cli: Cli) -> None:
    secret = "hunter2-hunter2-hunter2"
    run_id = cli.completed("aaaaaa", text=f"The password is {secret}.")
    done = cli("doctor", "--runs", env={"DATABASE_PASSWORD": secret})
    assert done.returncode == 1
    assert f"{run_id}: result.json holds the value of DATABASE_PASSWORD\n" in done.stdout
    assert secret not in done.stdout


def test_runs_after_the_verb_names_a_run_and_before_it_the_root(cli: Cli) -> None:
    cli.store.paths.run(cli.completed("aaaaaa")).result.unlink()
    elsewhere = cli.home / "elsewhere"
    assert cli("--runs", str(elsewhere), "doctor", "--runs").returncode == 0
    assert cli("--runs", str(cli.store.paths.root), "doctor", "--runs").returncode == 1
    assert cli.json("doctor", "--runs", code=1)["checked"] == 1
    cli.leaves_with(2, "`subagent --runs runs doctor --runs`", "doctor", "--runs", "runs")


def test_where_each_mcp_server_works_and_why_is_said(cli: Cli) -> None:
    cli.have_boxes()
    outside, missing = {"command": "/usr/bin/true", "sandbox": False}, {"command": "no-such-program"}
    servers = {
        "a": {"command": "true"},
        "b": outside,
        "c": {"command": "true", "network": False},
        "d": missing,
    }
    cli.agent("one", mcpServers=servers)
    cli.agent("two", sandbox="none", mcpServers={"a": {"command": "true"}})
    cli.agent("three", mcpServers={"a": {"command": "sh", "args": ["server.sh"], "sandbox": False}})
    done = cli("doctor", "one")
    assert "MCP server a of one works in a box of its own (with the network).\n" in done.stderr
    assert "MCP server b of one works outside of every box (its entry says sandbox: false).\n" in done.stderr
    assert "MCP server c of one works in a box of its own (without the network).\n" in done.stderr
    assert "MCP server d" not in done.stderr and "The MCP server 'd' cannot be started" in done.stdout
    (found,) = cli.json("doctor", "two")["servers"]
    assert found["works"] == "unsandboxed" and "the agent file says sandbox: none" in found["why"]
    refused = cli("doctor", "three")
    assert refused.returncode == 1 and "cannot work outside of every box (sandbox: false)" in refused.stdout
    without = cli("doctor", "one", env={"SUBAGENT_BWRAP": "/nowhere/bwrap"})
    assert "MCP server a of one works without a box (SUBAGENT_BWRAP names" in without.stderr
    assert "mcpServers.c.network cannot be kept" in without.stdout
