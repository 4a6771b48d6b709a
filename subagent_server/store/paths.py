"""Where everything of a run lies. No other module builds a path under the runs root.

Standard library only: the shim imports this module.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from subagent_server.domain.ids import check_run_id


@dataclass(frozen=True)
class RunPaths:
    """The files of one run."""

    directory: Path

    @property
    def run_id(self) -> str:
        """The id of the run, which is the name of its directory."""
        return self.directory.name

    @property
    def request(self) -> Path:
        """What was asked; immutable."""
        return self.directory / "request.json"

    @property
    def inputs(self) -> Path:
        """Copies of the input files."""
        return self.directory / "inputs"

    @property
    def meta(self) -> Path:
        """The state."""
        return self.directory / "run.meta.json"

    @property
    def meta_lock(self) -> Path:
        """Held around every change of the state; never removed."""
        return self.directory / "run.meta.lock"

    @property
    def spare(self) -> Path:
        """Room on the disk that is kept for the end of the run, until it has ended."""
        return self.directory / "run.meta.spare"

    @property
    def result(self) -> Path:
        """How it ended, in the agent's words; written once."""
        return self.directory / "result.json"

    @property
    def payload(self) -> Path:
        """The payload of `update_status(completed)`, gzip-compressed."""
        return self.directory / "payload.gz"

    @property
    def events(self) -> Path:
        """The journal, one event a line."""
        return self.directory / "events.jsonl"

    @property
    def log(self) -> Path:
        """The journal for people."""
        return self.directory / "run.log"

    @property
    def transcript(self) -> Path:
        """The conversation with the model."""
        return self.directory / "transcript.jsonl"

    @property
    def live_lock(self) -> Path:
        """Held by the starter, then by the shim, as long as the run's tree may live."""
        return self.directory / "live.lock"

    @property
    def shim_claim(self) -> Path:
        """Made by the one shim of the run."""
        return self.directory / "shim.claim"

    @property
    def shim(self) -> Path:
        """Who the shim and the worker are."""
        return self.directory / "shim.json"

    @property
    def exit(self) -> Path:
        """How the worker ended, and whether its tree is gone."""
        return self.directory / "exit.json"

    @property
    def worker_out(self) -> Path:
        """What shim and worker print outside the journal."""
        return self.directory / "worker.out"

    @property
    def children(self) -> Path:
        """A mark for each run that this one started."""
        return self.directory / "children"

    @property
    def tree_lock(self) -> Path:
        """Of a run that no other started: held while one more below it is counted and published."""
        return self.directory / "tree.lock"

    @property
    def calls_lock(self) -> Path:
        """Of a run that no other started: held while a model call below it is admitted by its budget."""
        return self.directory / "calls.lock"

    @property
    def call_lock(self) -> Path:
        """Held by the worker of a run with a budget, or below one, while its model is called."""
        return self.directory / "call.lock"

    @property
    def outputs(self) -> Path:
        """Tool outputs that are too long for the model."""
        return self.directory / "outputs"

    @property
    def server_logs(self) -> Path:
        """What its MCP servers print, a file each."""
        return self.directory / "mcp"

    def wake(self, pid: int) -> Path:
        """The FIFO on which process `pid` waits for changes of this run."""
        return self.directory / f"wake.{pid}"

    def sleepers(self) -> list[Path]:
        """The FIFOs of all who wait for changes of this run."""
        return sorted(self.directory.glob("wake.*"))


@dataclass(frozen=True)
class RootPaths:
    """The runs root: run directories, and a few folders of ours whose names no run id can have."""

    root: Path

    @property
    def changes(self) -> Path:
        """A file for each run that may be live, touched at each of its changes."""
        return self.root / ".changes"

    @property
    def slots(self) -> Path:
        """Lock files of those who work at once."""
        return self.root / ".slots"

    @property
    def newest(self) -> Path:
        """The newest names in a large root: a cache, which may be deleted."""
        return self.root / ".index" / "newest.json"

    @property
    def index(self) -> Path:
        """What is known of the runs of a large root: a cache, which may be deleted."""
        return self.root / ".index" / "runs.sqlite3"

    @property
    def removed(self) -> Path:
        """Run directories that are being deleted."""
        return self.root / ".removed"

    @property
    def backoff(self) -> Path:
        """For each API and key that runs call: until when they spare it."""
        return self.root / ".backoff"

    @property
    def gitignore(self) -> Path:
        """Keeps runs out of the repository they stand in."""
        return self.root / ".gitignore"

    def run(self, run_id: str) -> RunPaths:
        """Return the paths of a run.

        Raises:
            InvalidRunId: checked here, before any path is built.
        """
        return RunPaths(self.root / check_run_id(run_id))

    def change_mark(self, run_id: str) -> Path:
        """The file that tells watchers of a change of this run."""
        return self.changes / check_run_id(run_id)

    def live_marks(self) -> Iterator[str]:
        """The ids of the runs that may be live."""
        try:
            yield from sorted(entry.name for entry in self.changes.iterdir())
        except FileNotFoundError:
            return


def root_of(run: RunPaths) -> RootPaths:
    """Return the root that holds a run directory."""
    return RootPaths(run.directory.parent)
