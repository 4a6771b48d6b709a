"""The stderr of an MCP server or a program: all of it in a file of the run, its first lines in the log.

Servers of older protocols complain at length of the first message of a newer one. So what a server prints
before its handshake is over is in the file, and in the error if it cannot be used. Control characters
are made visible in the file, because people read it on a terminal.
"""

import codecs
import re
from collections.abc import Callable

from subagent_server.run.errors import visible
from subagent_server.run.files import Directory
from subagent_server.run.secrets import Masker

KEPT_BYTES = 16 << 20
LOGGED_LINES = 200
"""How many lines of one server go into the log of its run; the others are in the file alone."""
_COLOURS = re.compile(rb"\x1b\[[0-9;]*m")
"""What many programs write in a pipe too. A secret in pieces would not be masked."""
_TAIL = 4_000
_LONGEST_LINE = 2_000
_LONGEST_PENDING = 1 << 16


class ServerLog:
    """Stores the stderr of one server, across its restart. `report` receives each line for the log."""

    def __init__(
        self, server: str, directory: Directory | None, masker: Masker, report: Callable[[str], None]
    ) -> None:
        self._masker = masker
        self._report = report
        self._file = directory.entry(f"{_file_name(server)}.log") if directory is not None else None
        self._decoder = codecs.getincrementaldecoder("utf-8")("backslashreplace")
        self._written = 0
        self._reported = 0
        self._is_quiet = True
        self._unmasked = b""
        self._line = b""
        self._tail = ""

    @property
    def tail(self) -> str:
        """The last output of the server, with secrets masked; empty if there is none."""
        self.flush()
        return self._tail.strip()[-600:]

    def forget(self) -> None:
        """Clear `tail` and report nothing, before the server is started."""
        self._tail = ""
        self._is_quiet = True

    def handshake_over(self) -> None:
        """Report what it prints from here on, and clear `tail`: it is about the handshake."""
        self.flush()
        self._tail = ""
        self._is_quiet = False

    def write(self, chunk: bytes) -> None:
        """Take the next bytes. Whole lines are reported at once: a person may be waiting for them."""
        pending = _COLOURS.sub(b"", self._unmasked + chunk)
        end = self._masker.settled(pending, pending.rfind(b"\n") + 1)
        lines, _ = self._masker.stream(pending[:end], last=True)
        self._take(lines)
        self._unmasked = pending[end:]
        if len(self._unmasked) > _LONGEST_PENDING:
            masked, self._unmasked = self._masker.stream(self._unmasked)
            self._take(masked)

    def say(self, line: str, *, always: bool = False) -> None:
        """Take a line about the server; with `always`, as for a log message of the protocol, report it."""
        self._take(self._masker.text(line).encode("utf-8", "replace") + b"\n", always=always)

    def flush(self) -> None:
        """Report a line that has no end yet."""
        masked, self._unmasked = self._masker.stream(self._unmasked, last=True)
        self._take(masked)
        if self._line:
            self._take(b"\n")

    def _take(self, data: bytes, *, always: bool = False) -> None:
        if not data:
            return
        self._store(data)
        *lines, self._line = (self._line + data).split(b"\n")
        self._line = self._line[-_LONGEST_LINE:]
        for raw in lines:
            line = raw.decode("utf-8", "replace").rstrip("\r")[:_LONGEST_LINE]
            self._tail = f"{self._tail}\n{line}"[-_TAIL:]
            if line.strip() and (always or not self._is_quiet):
                self._report_line(line)

    def _report_line(self, line: str) -> None:
        self._reported += 1
        if self._reported <= LOGGED_LINES:
            self._report(line)
        elif self._reported == LOGGED_LINES + 1:
            where = f"what it says from here on is in {self._file}" if self._file else "it says more"
            self._report(f"({where})")

    def _store(self, data: bytes) -> None:
        """Append to the file. A disk that refuses costs the file, never the run."""
        room = KEPT_BYTES - self._written
        if self._file is None or room <= 0:
            return
        text = self._decoder.decode(data).replace("\r\n", "\n")
        try:
            self._file.directory.make()
            with self._file.appender() as file:
                self._written += file.write(visible(text, "\n\t").encode()[:room])
        except OSError as error:
            self._file = None
            self._report(f"(what it says cannot be kept: {error.strerror or error})")


def _file_name(server: str) -> str:
    safe = re.sub(r"[^A-Za-z0-9_-]", "_", server)[:60] or "server"
    return safe if safe == server else f"{safe}-{sum(map(ord, server)) % 1000:03d}"
