"""Everything that can go wrong, in three families by whose move is next.

`CallerError`: the caller can put the fault right. `RunError`: the run ended badly. `HostError`: the machine.
Each class has a stable `code`; each instance is one sentence that says what could not be done and what to do
next, the same for a tool caller, a terminal and the log. Standard library only: the shim imports this.
"""

import errno
import os
import re
import shlex
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import ClassVar

# -- Control characters made visible: they would move a cursor, colour a terminal or turn a line around.


OTHER_SPACES = (
    "\u00a0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a\u202f\u205f\u3000"
)
"""The spaces of other scripts (category Zs), which are harmless."""


_JOINERS = "\u200c\u200d"
"""They decide how letters of Persian or Hindi are drawn, and make one picture of several."""
_JOINED = (("\u0600", "\u0dff"), ("\u2190", "\u2bff"), ("\ufe0f", "\ufe0f"), ("\U0001f000", "\U0001faff"))
"""Arabic and the scripts of India, and pictures: the characters that a joiner is meant for."""


def visible(text: str, kept: str = "") -> str:
    r"""Return `text` with all that does not print as an escape such as `\x1b`, except what is in `kept`.

    A joiner is kept between two characters that it can join. Anywhere else it would only let two different
    words look the same.
    """
    if text.isprintable():
        return text
    return "".join(
        c if c.isprintable() or c in kept or joins(text, at) else c.encode("unicode_escape").decode("ascii")
        for at, c in enumerate(text)
    )


def joins(text: str, at: int) -> bool:
    """Whether the character there is a joiner between two characters that it can join."""
    around = text[max(at - 1, 0) : at] + text[at + 1 : at + 2]
    return (
        text[at] in _JOINERS
        and len(around) == 2
        and all(any(low <= c <= high for low, high in _JOINED) for c in around)
    )


MOST_NAMED = 20
MOST_NEAREST = 5
MAX_COMPARED = 80
_CURES = {
    os.strerror(code): cure
    for code, cure in (
        (errno.EMFILE, "raise `ulimit -n`"),
        (errno.EFBIG, "raise `ulimit -f`"),
        (errno.EACCES, "let yourself write there"),
        (errno.EPERM, "let yourself write there"),
        (errno.EROFS, "let it be written again"),
        (errno.ENOENT, "see whether it was removed meanwhile"),
    )
}
_KEPT = f"\n\t{OTHER_SPACES}"
MAX_SENTENCE_CHARACTERS = 4_000
"""Of an error: it may quote names and files of any length."""


def shorten(text: str, limit: int = 80) -> str:
    """Return `text` as a quoted literal of at most about `limit` characters, safe to show anywhere."""
    return repr(text if len(text) <= limit else text[: limit - 1] + "…")


COMMANDS = {
    "check_status": "`subagent show`",
    "wait_for_runs": "`subagent wait`",
    "list_runs": "`subagent ls`",
    "get_logs": "`subagent logs`",
    "reply_subagent": "`subagent reply`",
    "stop_run": "`subagent stop`",
    "continue_run": "`subagent continue`",
    "merge_run": "`subagent merge`",
}
"""The tools of parents, and the commands that do the same."""
_FOR_PEOPLE = {
    "run_<agent>": "`subagent run`",
    **COMMANDS,
    "storedAgent: true": "`--stored-agent`",
    "messageId": "MESSAGE",
    "`prompt`": "PROMPT",
    "`inputs`": "`--input`",
}
_NOT_FOR_PEOPLE = re.compile("|".join(rf"(?<!\w){re.escape(word)}(?!\w)" for word in _FOR_PEOPLE))


def with_commands(sentence: str) -> str:
    """Return a sentence for people, with commands and their arguments instead of tools and theirs."""
    return _NOT_FOR_PEOPLE.sub(lambda found: _FOR_PEOPLE[found[0]], sentence)


def choices(what: str, wanted: str, known: Sequence[str]) -> str:
    """Return the names to use instead of a wanted one: all if they are few, else the nearest."""
    if len(known) <= MOST_NAMED:
        return f"the {what} here are {', '.join(known) or 'none'}"
    from difflib import get_close_matches  # slow to import, and the shim imports this module

    near = get_close_matches(wanted[:MAX_COMPARED], known, MOST_NEAREST, 0.4)
    if not near:
        return f"none of the {len(known):,} {what} here has a name like it"
    return f"the nearest of the {len(known):,} {what} here are {', '.join(near)}"


class SubagentError(Exception):
    """The base of every error of this product; never raised itself."""

    code: ClassVar[str] = "error"

    def __init__(self, sentence: str) -> None:
        if len(sentence) > MAX_SENTENCE_CHARACTERS:
            sentence = sentence[: MAX_SENTENCE_CHARACTERS - 2] + "…."
        self.sentence = visible(sentence, _KEPT)
        """Its sentence. Names in it may be anybody's: none of them moves a cursor or breaks an encoding."""
        super().__init__(self.sentence)


class CallerError(SubagentError):
    """The caller can put it right."""

    code = "bad_request"


class RunError(SubagentError):
    """A run ended badly; `code` is the code its meta file gets."""

    code = "agent_error"


class HostError(SubagentError):
    """The machine refused: disk, lock, process."""

    code = "environment"


class BadArgument(CallerError):
    """An argument cannot be used as it is; the sentence says which and how to fix it."""

    code = "bad_argument"


class InvalidRunId(CallerError):
    """A text that cannot be a run id."""

    code = "bad_run_id"

    def __init__(self, text: str) -> None:
        super().__init__(
            f"{shorten(text)} is not a run id: use an id as run_<agent> or list_runs gave it "
            "(at most 32 of a-z, 0-9 and '-')."
        )


class UnknownRun(CallerError):
    """No run has this id, prefix or name."""

    code = "unknown_run"

    def __init__(self, name: str, root: Path) -> None:
        super().__init__(f"There is no run {shorten(name)} in {root}: list_runs shows them.")


class AmbiguousRun(CallerError):
    """The typed id fits several runs."""

    code = "ambiguous_run"

    def __init__(self, prefix: str, matches: Iterable[str]) -> None:
        every = list(matches)
        shown = ", ".join([*every[:4], "..."] if len(every) > 4 else every)
        super().__init__(f"{shorten(prefix)} fits several run ids ({shown}): give more of one.")


class UnknownAgent(CallerError):
    """No agent of this name was loaded."""

    code = "unknown_agent"

    def __init__(self, name: str, known: Iterable[str], reason: str | None = None) -> None:
        self.reason = reason
        self.known = sorted(known)
        because = f" ({reason})" if reason else ""
        there = (
            choices("agents", name, self.known)
            if self.known
            else "no agents are here (directories above are not searched), and `subagent new NAME` writes one"
        )
        super().__init__(
            f"There is no agent {shorten(name)}{because}: {there}; "
            "`subagent agents` says why a file is missing."
        )


class IllegalTransition(CallerError):
    """The event is not legal in the status of the run; nothing was changed."""

    code = "wrong_state"

    def __init__(self, run_id: str, status: str, doing: str, possible: Sequence[str]) -> None:
        """Refuse the event `doing`, in words; `possible` are the words of the legal events."""
        if possible:
            *others, last = possible
            legal = f"{', '.join(others)} or {last}" if others else last
            todo = f"it can {legal}; check_status shows how far it is"
        else:
            todo = "it has ended; start a new run, or continue it with continue_run"
        super().__init__(f"Run {run_id} is {status}, so it cannot {doing}: {todo}.")


class UnknownMessage(CallerError):
    """The run has no question of this id."""

    code = "unknown_message"

    def __init__(self, run_id: str, message_id: str, open_ids: Iterable[str]) -> None:
        open_list = ", ".join(open_ids)
        todo = f"open are {open_list}" if open_list else "none is open"
        super().__init__(f"Run {run_id} has no question {shorten(message_id)}: {todo}.")


class MessageClosed(CallerError):
    """A question that takes no answer any more: answered otherwise, expired or cancelled."""

    code = "message_closed"


class TooManyQuestions(CallerError):
    """The run has as many questions as it may; nothing was changed."""

    code = "too_many_questions"

    def __init__(self, run_id: str, count: int, *, still_open: bool) -> None:
        if still_open:
            what = (
                f"{count} open questions, and more may not wait at once: wait for an answer, then ask again"
            )
        else:
            what = f"asked {count} questions, the maximum: decide the rest, and say so in the result"
        super().__init__(f"Run {run_id} has {what}.")


class NewerSchema(CallerError):
    """The meta file was written by a later version; it can be read but not changed here."""

    code = "newer_schema"

    def __init__(self, run_id: str, version: int, known: int) -> None:
        super().__init__(
            f"Run {run_id} was written by a later version (schema {version}, this one knows {known}): "
            "upgrade subagent-server to change it."
        )


class ForeignRoot(CallerError):
    """A runs root without proof of being the caller's: readable, but never changed."""

    code = "foreign_root"

    def __init__(self, root: Path, why: str) -> None:
        super().__init__(
            f"The runs root {root} {why}, so it can be read and nothing in it is changed: "
            f"`{adopting(root)}` makes it yours."
        )


class UnsafeRoot(ForeignRoot):
    """A runs root owned or writable by another user, which therefore cannot become the caller's as it is."""

    code = "unsafe_root"

    def __init__(self, root: Path, why: str) -> None:
        CallerError.__init__(
            self,
            f"The runs root {root} {why}, so it can be read and nothing in it is changed: "
            "name another with --runs.",
        )


def adopting(root: Path | str) -> str:
    """Return the command that makes a runs root the caller's."""
    return shlex.join(["subagent", "trust", "--runs", str(root)])


class RunRefused(RunError):
    """A run cannot continue, for a reason that has its own failure code."""

    def __init__(self, code: str, message: str, hint: str | None = None) -> None:
        super().__init__(message)
        self.failure_code = code
        self.hint = hint


class UnreadableMeta(HostError):
    """A `run.meta.json` that is missing, torn or not of the schema."""

    code = "unreadable_meta"

    def __init__(self, run_id: str, path: Path, why: str) -> None:
        super().__init__(
            f"The state of run {run_id} cannot be read ({path}: {why}): fix that, then try again; "
            "other runs are not affected."
        )


class StorageFailed(HostError):
    """The disk refused a write; what was there before is whole."""

    code = "storage"

    def __init__(self, path: Path, why: str) -> None:
        todo = _CURES.get(why, "free space or fix the disk")
        super().__init__(
            f"{path} could not be written ({why}); what was there is unchanged: {todo}, then try again."
        )


@contextmanager
def storing(path: Path) -> Iterator[None]:
    """Turn an error of the disk into one that names `path` as not written. Raises StorageFailed."""
    try:
        yield
    except OSError as error:
        raise StorageFailed(path, error.strerror or str(error)) from error


class NotDurable(StorageFailed):
    """The disk took a write but did not confirm that it survives a power cut; the new content is there."""

    def __init__(self, path: Path, why: str) -> None:
        HostError.__init__(
            self,
            f"{path} was written, but the disk does not confirm that it will last ({why}): "
            "fix the disk, then look again.",
        )


class NoRoom(HostError):
    """The machine has no room for memory, a process, a thread or an open file."""

    code = "no_room"


class LockTimeout(HostError):
    """Somebody held the lock of a run for longer than any sane writer does."""

    code = "lock_timeout"

    def __init__(self, path: Path, seconds: float) -> None:
        super().__init__(f"{path} was held by another process for {seconds:g} s: try again.")


class LaunchFailed(HostError):
    """The process of a run could not be started."""

    code = "launch_failed"
