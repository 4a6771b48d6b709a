"""Small faults put into the package, one at a time: do the tests find them?

`python -m tests.mutants [WORD ...]`. `mutants.txt` holds the edits: `= FILE`, then for each mutant the lines
of a snippet that the file has once, after `- `, and what takes its place, after `+ `. Each mutant is tried
in a copy of the tree with an interpreter of its own, against the tests of `TESTS`; the checkout is never
changed. A mutant that a test finds is `killed`, with the name of that test; one whose tests fail without it,
too, is `unproven`; a snippet that the file has no longer, or twice, is `gone` and counts for nothing. With
words, only the mutants whose file or snippet has one of them are tried. The exit code is 1 if a mutant
survives or is unproven.
"""

import argparse
import subprocess
import sys
import sysconfig
import tempfile
import venv
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue

REPOSITORY = Path(__file__).resolve().parents[1]
TABLE = Path(__file__).with_name("mutants.txt")
SECONDS = 400
"""The bound of all tests of one mutant, for a machine that is busy with other things, too."""

TESTS: dict[str, str] = {
    "run/agent_definition.py": "run/test_tool_selection.py run/test_records.py agents/test_golden.py",
    "run/bounded_command.py": "run/test_bounded_command.py cli/test_hooks.py",
    "run/commands.py": "run/test_killable.py toolbox/test_final_answer.py agents/test_output_schemas.py",
    "run/confined_path.py": "toolbox/test_workspace_escapes.py toolbox/test_editor_edits.py "
    "verbs/test_places.py",
    "run/control_groups.py": "run/test_control_groups.py",
    "run/durable.py": "run/test_atomic.py run/test_journal.py run/test_full_disk.py run/test_log_format.py",
    "run/errors.py": "run/test_errors.py verbs/test_check_agent.py cli/test_exit_codes.py",
    "run/executed_files.py": "toolbox/test_executed_files.py sandbox/test_executed_changes.py",
    "run/files.py": "run/test_directory.py run/test_atomic.py run/test_locks.py run/test_paths.py",
    "run/history.py": "cli/test_show_markdown.py cli/test_show.py",
    "run/host_programs.py": "run/test_host_programs.py",
    "run/images.py": "toolbox/test_editor_view.py",
    "run/journal.py": "run/test_logs.py run/test_log_format.py run/test_journal.py cli/test_logs.py "
    "cli/test_ls.py",
    "run/locks.py": "run/test_locks.py run/test_exclusive.py",
    "run/paths.py": "run/test_paths.py run/test_root.py run/test_logs.py verbs/test_run_case.py "
    "cli/test_ls.py",
    "run/processes.py": "run/test_processes.py process/test_local.py",
    "run/records.py": "run/test_records.py cli/test_show.py worktrees/test_life_of_a_worktree.py",
    "run/schemas.py": "run/test_json_schema.py run/test_file_schemas.py verbs/test_next_calls.py",
    "run/secrets.py": "run/test_secrets.py",
    "run/states.py": "run/test_apply.py run/test_questions.py run/test_limits.py verbs/test_reply.py",
    "run/stderr.py": "run/test_stderr.py run/test_no_room.py",
    "run/store.py": "run/test_create.py run/test_update.py run/test_read.py run/test_migrate.py "
    "run/test_roll_forward.py run/test_store_agrees_with_model.py",
    "run/transitions.py": "run/test_apply.py run/test_questions.py run/test_limits.py run/test_update.py",
    "run/wake.py": "run/test_wake.py worker/test_sleeper.py",
    "run/watch.py": "run/test_watch.py",
    "process/cleanup.py": "cli/test_hooks.py process/test_local.py faults/test_leftovers.py "
    "end_to_end/test_continuing.py worktrees/test_settled_later.py",
    "process/launcher.py": "process/test_local.py",
    "process/marks.py": "cli/test_stop.py faults/test_leftovers.py faults/test_identities.py",
    "process/shim.py": "process/test_local.py end_to_end/test_stops.py end_to_end/test_admission.py "
    "faults/test_stop_races.py faults/test_kills.py",
    "process/slots.py": "cli/test_trees.py end_to_end/test_admission.py",
    "process/worker_process.py": "process/test_forked_worker.py process/test_local.py",
    "process/zygote_server.py": "process/zygote process/test_forked_worker.py process/test_local.py",
    "process/": "process/zygote process/test_local.py",
    "verbs/access.py": "verbs/test_access.py cli/test_access.py cli/test_show.py",
    "verbs/access_tokens.py": "http/test_tokens.py",
    "verbs/check_agent.py": "verbs/test_check_agent.py verbs/test_program_version.py cli/test_agents.py "
    "cli/test_scripted_runs.py",
    "verbs/check_status.py": "verbs/test_answer_size.py verbs/test_reply.py",
    "verbs/continue_run.py": "verbs/test_continued.py cli/test_continue.py end_to_end/test_continuing.py",
    "verbs/contract_agent.py": "tools",
    "verbs/end_run.py": "tools",
    "verbs/examine.py": "cli/test_doctor.py",
    "verbs/export_run.py": "cli/test_export.py end_to_end/test_exported_runs.py",
    "verbs/get_logs.py": "cli/test_logs.py verbs/test_answer_size.py",
    "verbs/own_settings.py": "cli/test_hooks.py",
    "verbs/inputs.py": "verbs/test_places.py verbs/test_start.py",
    "verbs/left_behind.py": "sandbox/test_left_behind.py",
    "verbs/list_runs.py": "cli/test_ls.py cli/test_stats.py cli/test_compare.py verbs/test_run_case.py "
    "server/test_wait_for_runs.py server/test_parents.py",
    "verbs/live_runs.py": "cli/test_agents.py cli/test_doctor.py verbs/test_program_version.py",
    "verbs/merge_run.py": "worktrees/test_life_of_a_worktree.py "
    "worktrees/test_asking_before_work_is_dropped.py",
    "verbs/new_agent.py": "cli/test_new.py",
    "verbs/page_data.py": "page",
    "verbs/questions.py": "verbs/test_reply.py cli/test_hooks.py worker/test_ask_parent.py",
    "verbs/reconcile.py": "verbs/test_run_case.py faults/test_leftovers.py end_to_end/test_worker_deaths.py "
    "end_to_end/test_stops.py end_to_end/test_children.py end_to_end/test_nesting.py "
    "faults/test_identities.py faults/test_kills.py faults/test_hung_workers.py",
    "verbs/remove.py": "cli/test_rm.py cli/test_prune.py faults/test_two_hosts.py",
    "verbs/run_worktree.py": "worktrees/test_life_of_a_worktree.py worktrees/test_settled_later.py",
    "verbs/service.py": "server/test_tool_list.py server/test_many_agents.py verbs/test_nesting.py "
    "cli/test_script.py cli/test_scripted_runs.py",
    "verbs/start.py": "verbs/test_start.py verbs/test_places.py verbs/test_nesting.py cli/test_hooks.py",
    "agents/known_names.py": "verbs/test_check_agent.py",
    "verbs/tree_limits.py": "verbs/test_nesting.py cli/test_trees.py",
    "verbs/trust_check.py": "cli/test_trust.py",
    "verbs/views.py": "cli/test_show.py cli/test_ls.py verbs/test_answer_size.py verbs/test_next_calls.py "
    "server/test_tool_list.py worktrees/test_life_of_a_worktree.py",
    "verbs/wait_for_runs.py": "cli/test_wait.py verbs/test_reply.py server/test_wait_for_runs.py "
    "server/test_tool_watch.py",
    "tools/": "server/test_tool_list.py server/test_many_agents.py server/test_bad_input.py "
    "verbs/test_reply.py verbs/test_answer_size.py tools/test_lifecycle_tools.py end_to_end/test_children.py",
}
"""What is run for a mutant: the entry of its file, or else of its room."""

_VERDICTS = ("killed", "survived", "unproven", "gone")


@dataclass(frozen=True)
class Mutant:
    """One edit: in `file`, which is named below the package, `snippet` becomes `replacement`."""

    file: str
    snippet: str
    replacement: str

    def __str__(self) -> str:
        before, after = (text.splitlines()[0].strip() for text in (self.snippet, self.replacement))
        return f"{self.file}: {before} => {after}"

    @property
    def tests(self) -> list[str]:
        """The tests that are run, by their paths."""
        named = TESTS.get(self.file) or TESTS[self.file.partition("/")[0] + "/"]
        return [f"tests/{name}" for name in named.split()]


def read_table(text: str) -> Iterator[Mutant]:
    """Yield the mutants of a table."""
    file = ""
    for block in text.split("\n\n"):
        lines = block.splitlines()
        if lines and lines[0].startswith("= "):
            file = lines.pop(0)[2:]
        before, after = ("\n".join(line[2:] for line in lines if line.startswith(sign)) for sign in "-+")
        yield Mutant(file, before, after)


class Tree:
    """A copy of what git knows of the checkout, with an interpreter that imports the package from it."""

    def __init__(self, directory: Path) -> None:
        self._root = directory / "tree"
        self._root.mkdir()
        listed = subprocess.run(
            ["git", "ls-files", "-z", "-c", "-o", "--exclude-standard"],
            cwd=REPOSITORY,
            check=True,
            capture_output=True,
        ).stdout
        subprocess.run(
            ["tar", "-c", "--null", "-T-", "-f", directory / "t"], cwd=REPOSITORY, input=listed, check=True
        )
        subprocess.run(["tar", "-x", "-f", directory / "t"], cwd=self._root, check=True)
        if (REPOSITORY / ".cache").exists():
            (self._root / ".cache").symlink_to(REPOSITORY / ".cache")
        home = directory / "venv"
        # As links: a copied interpreter is one of an environment by whichever path it is started.
        venv.create(home, symlinks=True)
        self._without: dict[tuple[str, ...], str] = {}
        """How tests end where nothing is mutated."""
        self._python = home / "bin" / "python"
        packages = Path(sysconfig.get_path("purelib"))
        own = home / packages.relative_to(sys.prefix)
        (own / "tree.pth").write_text(f"{self._root}\n{packages}\n", encoding="utf-8")
        for program in Path(sys.prefix, "bin").iterdir():
            place = home / "bin" / program.name
            if program.name == "subagent":
                text = program.read_text(encoding="utf-8")
                place.write_text(text.replace(sys.prefix, str(home)), encoding="utf-8")
                place.chmod(0o755)
            elif not place.exists():
                place.symlink_to(program)

    def judge(self, mutant: Mutant) -> str:
        """Return `killed by TEST`, `survived`, or why nothing is known of the mutant."""
        path = self._root / "subagent_server" / mutant.file
        original = path.read_text(encoding="utf-8") if path.exists() else ""
        if original.count(mutant.snippet) != 1:
            return "gone"
        tests = [name for name in mutant.tests if (self._root / name).exists()]
        if tuple(tests) not in self._without:
            self._without[tuple(tests)] = self._run(tests)
        without = self._without[tuple(tests)]
        if without != "survived":
            return f"unproven, {without} without it, too:"
        path.write_text(original.replace(mutant.snippet, mutant.replacement), encoding="utf-8")
        try:
            return self._run(tests)
        finally:
            path.write_text(original, encoding="utf-8")

    def _run(self, tests: list[str]) -> str:
        if not tests:
            return "no tests"
        options = [
            "-x",
            "-n0",
            "-q",
            "-rfE",
            "-p",
            "no:cacheprovider",
            "--timeout=120",
            "-m",
            "not soak and not fuzz",
        ]
        with subprocess.Popen(
            [self._python, "-m", "pytest", *options, *tests],
            cwd=self._root,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            encoding="utf-8",
        ) as running:
            try:
                said = running.communicate(timeout=SECONDS)[0]
            except subprocess.TimeoutExpired:
                running.terminate()
                return f"survived {SECONDS} seconds"
        if running.returncode == 0:
            return "survived"
        found = [line for line in said.splitlines() if line.startswith(("FAILED", "ERROR"))]
        return "killed by " + (found[0].split()[1] if found else f"an exit with {running.returncode}")


def main() -> int:
    """Try the mutants, say how each ended, and count."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.mutants", description="Do the tests find small faults?"
    )
    parser.add_argument("words", nargs="*", metavar="WORD", help="try only mutants with one of these words")
    parser.add_argument("-n", type=int, default=2, help="how many at a time")
    options = parser.parse_args()
    mutants = list(read_table(TABLE.read_text(encoding="utf-8")))
    chosen = [
        each for each in mutants if not options.words or any(word in str(each) for word in options.words)
    ]
    with tempfile.TemporaryDirectory(prefix="subagent-mutants-") as place:
        trees: SimpleQueue[Tree] = SimpleQueue()
        for number in range(options.n):
            directory = Path(place, str(number))
            directory.mkdir()
            trees.put(Tree(directory))

        def judge(mutant: Mutant) -> str:
            tree = trees.get()
            try:
                verdict = tree.judge(mutant)
            finally:
                trees.put(tree)
            print(f"{verdict:20} {mutant}", flush=True)
            return verdict

        with ThreadPoolExecutor(options.n) as pool:
            verdicts = list(pool.map(judge, chosen))
    ends = {word: sum(v.startswith(word) for v in verdicts) for word in _VERDICTS}
    print(f"{len(verdicts)} mutants: " + ", ".join(f"{number} {word}" for word, number in ends.items()))
    return min(ends["survived"] + ends["unproven"], 1)


if __name__ == "__main__":
    sys.exit(main())
