"""System calls that fail on purpose: `strace` counts them at first, and spoils one in each later process.

strace spoils the n-th call of every process that it follows. So the program forks for each case, and each
child spends as many harmless calls first as make the one that is meant its n-th: one start of Python for all.
"""

import re
import shutil
import subprocess
import sys
import textwrap
from dataclasses import dataclass
from pathlib import Path

from tests.helpers.processes import REPOSITORY

STRACE = shutil.which("strace")
CALLS = ("openat", "write", "fsync", "renameat")
_LINE = re.compile(r"^(\d+) +(\w+)\((.*)\) += ")
_BOUND = 120.0
_ABOVE_START = 1_000
"""A start of Python opens some 450 files. A lower number would spoil that start, and no case would begin."""
_FORKING = """
    import os, sys
    from contextlib import suppress
    from pathlib import Path

    {setup}

    nowhere = os.open(os.devnull, os.O_WRONLY)
    harmless = {{
        "openat": lambda: os.close(os.open(os.devnull, os.O_RDONLY)),
        "write": lambda: os.write(nowhere, b"x"),
        "fsync": lambda: os.fsync(nowhere),
        "renameat": lambda: os.rename("a", "b", src_dir_fd=nowhere, dst_dir_fd=nowhere),
    }}
    call = sys.argv[1]
    for case in sys.argv[2:]:
        spent, _, path = case.partition(":")
        if os.fork() == 0:
            for _ in range(int(spent)):
                with suppress(OSError):
                    harmless[call]()
            said = attempt(Path(path))
            Path(path + ".said").write_text(said, encoding="utf-8")
            os._exit(0)
        assert os.wait()[1] == 0
"""


@dataclass(frozen=True)
class Program:
    """Something to attempt on a run. `setup` defines `attempt(path)`, which returns what there is to say."""

    setup: str

    def numbers(self, directory: Path) -> dict[str, list[int]]:
        """Attempt it on `directory`; return which calls of each kind concern it, counted from 1."""
        trace = directory.parent / "trace"
        self._run(["-y", "-o", str(trace), f"--trace={','.join(CALLS)}"], "write", [f"0:{directory}"])
        lines = [match.groups() for line in _lines(trace) if (match := _LINE.match(line))]
        child = lines[-1][0]  # the parent only forks and waits after its child has begun
        concerned: dict[str, list[int]] = {name: [] for name in CALLS}
        counts = dict.fromkeys(CALLS, 0)
        for process, name, about in lines:
            if process == child:
                counts[name] += 1
                if re.search(rf"{re.escape(str(directory))}[/>]", about) and _changes(name, about):
                    concerned[name].append(counts[name])
        return concerned

    def attempt(self, call: str, fault: str, cases: dict[Path, int]) -> dict[Path, str]:
        """Attempt it on each directory with its numbered call of kind `call` spoilt; return what was said."""
        last = _ABOVE_START + max(cases.values())
        options = ["-o", "/dev/null", f"--inject={call}:{fault}:when={last}"]
        self._run(options, call, [f"{last - number}:{path}" for path, number in cases.items()])
        return {path: path.with_name(f"{path.name}.said").read_text(encoding="utf-8") for path in cases}

    def _run(self, options: list[str], call: str, cases: list[str]) -> None:
        assert STRACE is not None
        code = textwrap.dedent(_FORKING).format(setup=textwrap.dedent(self.setup))
        done = subprocess.run(
            [STRACE, "-f", "-qq", *options, "--", sys.executable, "-c", code, call, *cases],
            env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(REPOSITORY)},
            capture_output=True,
            encoding="utf-8",
            timeout=_BOUND,
            check=False,
        )
        assert done.returncode == 0, done.stderr


def _lines(trace: Path) -> list[str]:
    return trace.read_text(encoding="utf-8", errors="replace").splitlines()


def _changes(name: str, about: str) -> bool:
    return name != "openat" or "O_CREAT" in about
