"""Git, called so that nothing of the repository is executed: neither its hooks nor programs that it names.

    git = harmless_git(os.environ, directory)
    git.run("name the commit", "rev-parse", "HEAD")

A repository is data: its configuration, its attributes and its hooks decide nothing here. So each call
overrides every key that names a program, those of filters, merge drivers and hooks by their names (callers of
`git diff` add `NO_PROGRAMS`).
Submodules are never entered, because git drops the overrides there. Files are as the repository stores them.
What is written is synced before git ends, so what was acknowledged outlives a power cut.
"""

import os
import signal
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import IO

from subagent_server.run.errors import HostError
from subagent_server.run.host_programs import NoHostProgram, system_program, user_program
from subagent_server.sandbox.readable import working_copies

GIT_SECONDS = 600.0
USAGE = 129
"""The exit code of git for words that it does not know."""
MOST_OUTPUT_BYTES = 64 << 20
_MOST_COMPLAINT = 600
_LAST_SECONDS = 2.0
"""For git to remove its locks after SIGTERM."""
_NOT_FOUND = 127
"""The exit code of setpriv(1) for a program that is gone."""
SEEN_BY_GIT = ("PATH", "HOME", "XDG_CONFIG_HOME", "USER", "LOGNAME", "TMPDIR")
"""The variables of the user that git outside of a box gets, and git in a box does not."""
LEADS_ELSEWHERE = (
    *("GIT_DIR", "GIT_COMMON_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_PREFIX"),
    *("GIT_OBJECT_DIRECTORY", "GIT_ALTERNATE_OBJECT_DIRECTORIES"),
)
"""The variables by which git works in another repository than that of its directory: its hooks have them."""
_ALWAYS = {
    "core.hooksPath": "/dev/null",
    "core.fsmonitor": "false",
    "core.pager": "cat",
    "core.editor": "false",
    "core.askPass": "",
    "diff.ignoreSubmodules": "dirty",
    "diff.orderFile": "/dev/null",  # a relative one is looked for where git is called
    "submodule.recurse": "false",
    "log.showSignature": "false",
    "merge.verifySignatures": "false",
    "merge.autoStash": "false",
    "gc.auto": "0",
    "maintenance.auto": "false",
    "advice.detachedHead": "false",
    "i18n.commitEncoding": "UTF-8",
    "i18n.logOutputEncoding": "UTF-8",
    "core.fsync": "committed,reference,index",  # by default git syncs packs, and no loose objects
    "core.fsyncMethod": "fsync",
    "core.packedRefsTimeout": "10000",  # many runs of one repository may end at the same moment
    "core.filesRefLockTimeout": "6000",  # longer than the lock of a killed git counts (`set_reference`)
    "reftable.lockTimeout": "6000",
}
_BY_DRIVER = {
    "filter": {"clean": "", "smudge": "", "process": "", "required": "false"},
    "merge": {"driver": "false"},  # a driver that fails leaves a conflict, an empty one would drop a side
    "hook": {"enabled": "false"},  # from git 2.54 on, a setting names hooks, whatever `core.hooksPath` is
}
NO_PROGRAMS = ("--no-ext-diff", "--no-textconv", "--no-color", "--ignore-submodules=dirty")
"""For every comparison: without it attributes may name programs that show a file."""
_SIGNERS = {"openpgp": "gpg", "x509": "gpgsm", "ssh": "ssh-keygen"}
_SEEN_BY_SIGNERS = {"GNUPGHOME", "GPG_TTY", "SSH_AUTH_SOCK", "XDG_RUNTIME_DIR"}
_TRUE = ("true", "yes", "on", "1", "")
NAMELESS = {"user.name": "subagent", "user.email": "subagent@localhost"}
"""Who commits where git does not know the user, as in a CI job."""


class GitFailed(HostError):
    """A command of git failed, could not be started, or took too long."""

    code = "git_failed"

    def __init__(self, doing: str, why: str) -> None:
        self.why = why.strip().rstrip(".") or "it does not say why"
        super().__init__(f"git could not {doing}: {self.why}.")


@dataclass(frozen=True)
class Git:
    """A way to call git in one directory, with these variables, which hold the overrides."""

    program: str
    directory: Path
    variables: Mapping[str, str]
    settings: Mapping[str, str] = field(default_factory=dict)
    """The configuration that git finds here, the last value of each key."""
    of_user: Mapping[str, str] = field(default_factory=dict)
    """The part of it that is in no file of the repository: programs that it names may be started."""
    seconds: float = GIT_SECONDS
    """How long a command may take."""

    def at(self, directory: Path, **variables: str) -> "Git":
        """Return the same for another directory of the repository, with more variables."""
        return replace(self, directory=directory, variables={**self.variables, **variables})

    def run(self, doing: str, *words: str, stdin: bytes | int = b"") -> bytes:
        """Return the output of a command; `doing` completes the sentence of its failure.

        Raises:
            GitFailed.
        """
        code, output, complaint = self.tried(doing, *words, stdin=stdin)
        if code:
            raise GitFailed(doing, complaint)
        return output

    def line(self, doing: str, *words: str) -> str:
        """Return the only line of the output of a command. Raises GitFailed."""
        return os.fsdecode(self.run(doing, *words)).rstrip("\n")

    def names(self, doing: str, *words: str) -> list[str]:
        """Return the names in the output of a command with `-z`. Raises GitFailed."""
        return [name for name in os.fsdecode(self.run(doing, *words)).split("\0") if name]

    def commit(self, name: str) -> str | None:
        """Return the commit of that name, or None if there is none. Raises GitFailed."""
        words = ("rev-parse", "--verify", "--quiet", "--end-of-options", f"{name}^{{commit}}")
        code, output, complaint = self.tried("read a name", *words)
        if code > 1:  # the repository cannot be read
            raise GitFailed("read a name", complaint)
        return None if code else output.decode("ascii", "replace").strip()

    def is_ancestor(self, commit: str, of: str) -> bool:
        """Whether a commit is in the history of another. Raises GitFailed."""
        return not self.tried("compare commits", "merge-base", "--is-ancestor", commit, of)[0]

    def tried(
        self,
        doing: str,
        *words: str,
        stdin: bytes | int = b"",
        finishes: bool = False,
        holds: Sequence[int] = (),
    ) -> tuple[int, bytes, str]:
        """Return exit code, output and complaint of a command, which dies with this thread.

        `stdin` is its input, or the descriptor that it reads. One that `finishes` is done whatever becomes of
        this process: half a merge in the working copy of a person is worse than all of it. It `holds`
        descriptors of locks open as long as it works.

        Raises:
            GitFailed: it could not be started, took too long, printed too much, or was killed. An exit code
                for "no" (there is no such commit) must not be that of a git that was kept from looking.
        """
        before = () if finishes else _ending_with_parent()
        with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as complaint:
            try:
                with (
                    subprocess.Popen(
                        [*before, self.program, "--no-pager", "--literal-pathspecs", *words],
                        cwd=self.directory,
                        env=dict(self.variables),
                        stdin=stdin if isinstance(stdin, int) else subprocess.PIPE,
                        stdout=output,
                        stderr=complaint,
                        pass_fds=holds,
                        start_new_session=finishes,  # else Ctrl-C ends it, too
                    ) as done,
                    _ended(done, finishes=finishes),
                ):
                    done.communicate(None if isinstance(stdin, int) else stdin, timeout=self.seconds)
            except (OSError, subprocess.SubprocessError) as error:
                why = f"it took more than {self.seconds:g} s"
                if isinstance(error, OSError):
                    why = f"{os.fsdecode(error.filename or self.program)}: {error.strerror}"
                raise GitFailed(doing, why) from error
            if done.returncode < 0:
                raise GitFailed(doing, f"it was ended by {signal.Signals(-done.returncode).name}")
            output.seek(0)
            if done.returncode == _NOT_FOUND:
                raise GitFailed(doing, sentence_of(complaint))
            printed = output.read(MOST_OUTPUT_BYTES + 1)
            if len(printed) > MOST_OUTPUT_BYTES:
                raise GitFailed(doing, f"it says more than {MOST_OUTPUT_BYTES >> 20} MiB")
            return done.returncode, printed, sentence_of(complaint)


def harmless_git(
    environment: Mapping[str, str], directory: Path, *, seconds: float = GIT_SECONDS, **more: str
) -> Git:
    """Return git for a directory, with every program overridden that the configuration there names.

    `seconds` bounds each command, also the one that reads the configuration. `more` are variables of each,
    such as GIT_DIR: another one could be found by that command alone, as in a `.git` within a `.git`.

    Raises:
        GitFailed: there is no git, it cannot read its configuration, or is too old for the overrides.
    """
    try:
        program = system_program("git", environment.get("PATH"), working_copies(directory, environment))
    except NoHostProgram as error:
        raise GitFailed("be started", error.why) from error
    variables = {name: environment[name] for name in SEEN_BY_GIT if name in environment}
    variables |= {"LC_ALL": "C", "GIT_TERMINAL_PROMPT": "0", "GIT_OPTIONAL_LOCKS": "0", **more}
    variables |= {"GIT_ALLOW_PROTOCOL": "none", "GIT_NO_LAZY_FETCH": "1", "GIT_MERGE_AUTOEDIT": "no"}
    plain = Git(str(program), directory, variables | _overrides(_ALWAYS), seconds=seconds)
    code, output, complaint = plain.tried("read its configuration", "config", "--list", "-z", "--show-scope")
    if code and code != USAGE:
        raise GitFailed("read its configuration", complaint)
    listed = iter(os.fsdecode(output).split("\0")[:-1])
    settings, of_user = dict[str, str](), dict[str, str]()
    for scope, entry in zip(listed, listed, strict=False):
        key, _, value = entry.partition("\n")
        settings[key] = value
        if scope in ("system", "global"):
            of_user[key] = value
    if code or settings.get("core.hookspath") != _ALWAYS["core.hooksPath"]:  # it knows no GIT_CONFIG_COUNT
        raise GitFailed("be kept from the programs of a repository", "it takes git 2.31 or later")
    found = _ALWAYS | _of_drivers(settings)
    return replace(plain, variables=variables | _overrides(found), settings=settings, of_user=of_user)


def _of_drivers(settings: Mapping[str, str]) -> dict[str, str]:
    """Return overrides for each filter, merge driver, hook and option of a merge in a configuration."""
    found: dict[str, str] = {}
    for key in settings:
        section, _, rest = key.partition(".")
        name, dot, _ = rest.rpartition(".")
        if dot and section in _BY_DRIVER:
            found |= {f"{section}.{name}.{last}": value for last, value in _BY_DRIVER[section].items()}
        elif section == "branch" and key.endswith(".mergeoptions"):
            found[key] = ""  # `--squash` would move no branch, and `-s ours` would drop the work
    return found


def _overrides(settings: Mapping[str, str], others: int = 0) -> dict[str, str]:
    """Return settings as variables of git, which are stronger than all its files, after so many others."""
    variables = {"GIT_CONFIG_COUNT": str(others + len(settings))}
    for number, (key, value) in enumerate(settings.items(), others):
        variables |= {f"GIT_CONFIG_KEY_{number}": key, f"GIT_CONFIG_VALUE_{number}": value}
    return variables


def identity_of(git: Git) -> dict[str, str]:
    """Return the variables by which a commit has the user as git knows him, or a fixed name."""
    name, address = (git.settings.get(key) or value for key, value in NAMELESS.items())
    return {
        f"GIT_{role}_{key}": value
        for role in ("AUTHOR", "COMMITTER")
        for key, value in (("NAME", name), ("EMAIL", address))
    }


def signing(git: Git, environment: Mapping[str, str]) -> Git | None:
    """Return git that signs commits as the user does (`commit-tree -S`), or None if he does not.

    The repository may set the key and the form; the program is the one of the user's own files, else that of
    the system, and it lies where no run writes.

    Raises:
        GitFailed: there is no such program.
    """
    if git.settings.get("commit.gpgsign", "false").lower() not in _TRUE:
        return None
    form = git.settings.get("gpg.format", "openpgp")
    if form not in _SIGNERS:
        raise GitFailed("sign a commit", f"it does not know gpg.format {form[:40]}")
    key = f"gpg.{form}.program"
    written = working_copies(git.directory, environment)
    named = git.of_user.get(key) or (git.of_user.get("gpg.program") if form == "openpgp" else None)
    try:
        if named is None:
            program = system_program(_SIGNERS[form], environment.get("PATH"), written)
        else:
            program = user_program(
                os.path.expanduser(named),  # noqa: PTH111 - a name without a directory stays one
                environment.get("PATH"),
                written,
            )
    except NoHostProgram as error:
        why = f"the program {named or _SIGNERS[form]} cannot be used: {error.why}"
        raise GitFailed("sign a commit", why) from error
    ours = {key: str(program), "gpg.ssh.defaultKeyCommand": git.of_user.get("gpg.ssh.defaultkeycommand", "")}
    number = int(git.variables["GIT_CONFIG_COUNT"])
    more = _overrides(ours, number) | {
        name: environment[name] for name in _SEEN_BY_SIGNERS & set(environment)
    }
    return git.at(git.directory, **more)


def sentence_of(complaint: IO[bytes]) -> str:
    """Return what git has complained of in a file, as a part of one sentence, without its advice."""
    complaint.seek(0)
    lines = complaint.read(_MOST_COMPLAINT).decode("utf-8", "replace").strip().splitlines()
    printed = (line.strip().removeprefix("fatal: ").removeprefix("error: ") for line in lines)
    return " ".join(line for line in printed if not line.startswith(("Please ", "Aborting", "hint: ")))


@contextmanager
def _ended(process: "subprocess.Popen[bytes]", *, finishes: bool) -> Iterator[None]:
    """End git if the block fails, unless this process is ended itself and git `finishes`."""
    try:
        yield
    except BaseException as error:
        if isinstance(error, Exception) or not finishes:
            process.terminate()
            with suppress(subprocess.TimeoutExpired):
                process.wait(_LAST_SECONDS)
            process.kill()
            process.wait()
        raise


@cache
def _ending_with_parent() -> tuple[str, ...]:
    """Return the words before a command that end it with the thread that starts it.

    By SIGTERM, at which git removes its locks: after SIGKILL they stay in the repository of a person. Python
    can ask for that between fork and execve alone, where no code is safe if there are other threads, and its
    fork copies the page tables of the whole process (9 ms for a program, not 2, at 128 MiB). Empty where
    there is no setpriv of util-linux 2.33 or later: there, git finishes what it was started for.
    """
    try:
        program = str(system_program("setpriv", None, ()))
        words = (program, "--pdeathsig", "TERM", "--")
        probe = [*words, program, "--version"]
        subprocess.run(probe, stdin=subprocess.DEVNULL, capture_output=True, check=True, timeout=GIT_SECONDS)
    except (NoHostProgram, OSError, subprocess.SubprocessError):
        return ()
    return words


def joined(names: Sequence[str]) -> bytes:
    """Return names as a command of git with `-z --stdin` reads them."""
    return b"".join(os.fsencode(name) + b"\0" for name in names)
