"""The working copy that runs of a test start from."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

from subagent_server.run import transitions
from subagent_server.run.agent_definition import AgentDefinition
from subagent_server.run.journal import RunJournal
from subagent_server.run.processes import now
from subagent_server.run.records import RunResult
from subagent_server.run.states import Status, make_run_id
from subagent_server.verbs.run_worktree import new_worktree, prepare_worktree
from tests.helpers.repositories import git
from tests.helpers.runs import STARTED, start_run
from tests.helpers.turns import says, shell
from tests.helpers.wait import wait_for
from tests.helpers.world import BOUND, World

WORK = "echo mine >> shared.txt; echo new > new.txt"
"""What a run does that changes a file and adds one."""


class Repository:
    """A repository with one commit, whose agent `worker` gets worktrees."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.top = world.work
        git("init", "--quiet", "--initial-branch=main", self.top)
        (self.top / "shared.txt").write_text("first\n", encoding="utf-8")
        (self.top / "deep").mkdir()
        (self.top / "deep" / "kept.txt").write_text("kept\n", encoding="utf-8")
        self.commit("first")
        world.agent(isolation="worktree")

    def git(self, *words: object) -> str:
        """Run git in the working copy and return its output without the last line's end."""
        return git("-C", self.top, *words).rstrip("\n")

    def commit(self, message: str) -> None:
        """Commit everything that is in the working copy."""
        self.git("add", "--all")
        self.git("commit", "--quiet", "-m", message)

    @property
    def head(self) -> str:
        """The commit of the working copy."""
        return self.git("rev-parse", "HEAD")

    def branches(self) -> list[str]:
        """Return the branches made for runs."""
        return self.git("for-each-ref", "--format=%(refname:short)", "refs/heads/subagent").split()

    def worktrees(self) -> list[str]:
        """Return the runs that have a worktree, by what they keep in the repository and beside it."""
        pins = self.git("for-each-ref", "--format=%(refname:lstrip=3)", "refs/subagent").split()
        there = (
            {path.name.partition(".")[0] for path in self.places.iterdir()} if self.places.exists() else ()
        )
        assert set(pins) == set(there), (pins, there)
        return pins

    @property
    def places(self) -> Path:
        """Where the worktrees of runs are."""
        return self.world.home / ".local" / "state" / "subagent" / "worktrees"

    def ran(self, command: str = WORK, **order: Any) -> str:
        """Let a run execute a command, and return its id when the run is over."""
        self.world.play(shell(command), says("Done."))
        run_id = self.world.start(**order)
        assert self.world.completed(run_id) == "Done."
        self.gone(run_id)
        return run_id

    def left(self, command: str = WORK, cwd: Path | None = None, *, settled: bool = True) -> str:
        """Return a run that is over, with what a command has left in its worktree; it never had a worker.

        If not `settled`, nobody has looked at it.
        """
        store, run_id = self.world.store, make_run_id(now(), os.urandom(6))
        store.make_root()
        worktree = new_worktree(self.world.service, AgentDefinition(name="worker"), cwd or self.top, run_id)
        meta = start_run(store, run_id, agent_name="worker", worktree=worktree)
        prepare_worktree(store, meta, {"sandbox": "none"}, {})
        place, run = Path(worktree.path, worktree.prefix), store.paths.run(run_id)
        subprocess.run(["bash", "-c", command], cwd=place, env=self.world.environment, check=False)
        for event, result in ((STARTED, None), (transitions.Finished(), RunResult(outcome=Status.COMPLETED))):
            store.update(run_id, event, now(), result=result)
        RunJournal(run).append("run_ended", now(), {"status": "completed"})
        run.exit.write(json.dumps({"workerStarted": True, "exitCode": 0, "treeGone": True}).encode())
        if settled:
            self.gone(run_id)
        return run_id

    def gone(self, run_id: str) -> None:
        """Return when nothing of the run lives any more, as a reader sees it."""
        wait_for(lambda: self.world.look(run_id).live is False, BOUND, f"the end of run {run_id}")

    def shown(self, run_id: str) -> dict[str, Any]:
        """Return the worktree of a run as its view has it."""
        view = json.loads(self.world.cli("show", run_id, "--json").stdout)
        worktree: dict[str, Any] = view["worktree"]
        return worktree

    def merge(self, run_id: str, *words: str, code: int = 0) -> str:
        """Merge a run, and return what the command prints."""
        done = self.world.cli("merge", run_id, *words)
        assert done.returncode == code, done.stderr
        return done.stdout if code == 0 else done.stderr

    def place(self, run_id: str) -> Path:
        """Return where the worktree of a run is, or was."""
        worktree = self.world.meta(run_id).worktree
        assert worktree is not None
        return Path(worktree.path)

    def store(self, run_id: str) -> Path:
        """Return the git directory of the worktree of a run."""
        return Path(f"{self.place(run_id)}.git")
