"""Reading what a run has left in its worktree, whose files and store are data.

Git works on them in a fresh box without a network, in a git directory that is made for this once. Its
output reaches the repository as a stream of objects, which is checked apart from the objects of the user
before any of it is kept. Without a box this is done only where the run itself had none.
"""

import os
import re
import signal
import subprocess
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from subagent_server.run.confined_path import printable
from subagent_server.run.files import Directory, held_open, opened_writable, remove_tree
from subagent_server.run.host_programs import SYSTEM_DIRECTORIES
from subagent_server.run.records import Worktree, WorktreeState
from subagent_server.sandbox.box import Rules, build_box
from subagent_server.sandbox.readable import BoxRefused
from subagent_server.sandbox.verify import start_bounded
from subagent_server.worktrees.git import (
    MOST_OUTPUT_BYTES,
    NO_PROGRAMS,
    SEEN_BY_GIT,
    Git,
    GitFailed,
    identity_of,
    sentence_of,
)
from subagent_server.worktrees.store_of_run import (
    borrowed_objects,
    store_of,
    sync_directories,
    worktree_mounts,
    write_store,
)

MAX_PACK_BYTES = 4 << 30
"""How much a run may commit."""
_MOST_MEMORY = "2g"
"""For one object, so that a small pack cannot expand to an endless one."""
_LOOK_SECONDS = 60.0
"""The bound of a look that changes nothing, which a run could otherwise block for ever."""
MOST_NAMED = 200
"""How many files of each kind that no commit can hold are named: there may be too many to list."""
_MOST_HEADER = 5 << 20
_BY_A_SIGNAL = 129
"""From here on an exit code means that a program was ended, as by a reader that has had enough.

With 128 git itself reports that it failed.
"""
_COMMIT = re.compile(r"[0-9a-f]{40}([0-9a-f]{24})?")
_SPECIAL = re.compile(r"([\\*?\[\]!# ])")
_SCRATCH = ".tmp"
_HOLDS_FIFO = "it holds a FIFO"

_SCRIPT = r"""
set -eu -o pipefail
what=$1 store=$2 work=$3 base=$4 branch=$5 start=$6 message=$7
export GIT_DIR=$PWD/store GIT_WORK_TREE=$work
ask() { git --git-dir="$store" rev-parse --verify --quiet --end-of-options "$1^{commit}" 2>/dev/null || :; }
follows() { [ -n "$2" ] && git merge-base --is-ancestor "$1" "$2" 2>/dev/null; }
declare -A named
tell() {
    named[$1]=$((${named[$1]:-0} + 1))
    [ "${named[$1]}" -gt MOST ] || printf '%s\0%s\0' "$1" "$2"
}

# git opens what is called like a file of a repository, also below the work, and waits for good at a FIFO;
# where `find` may not look, git may not either
fifos() { find ${store:+"$store"} "$work" -xdev -type p "$@" 2>/dev/null || :; }
case $what in
end) [ -z "$(fifos -print -quit)" ] || { echo "it holds a FIFO" >&2; exit 1; } ;;
tidy) fifos -delete; exit ;;
merge | renew) fifos -delete ;;
esac

head=$start own=$start on=
if [ -n "$store" ]; then
    own=$(ask "refs/heads/$branch"); follows "$base" "$own" || own=$start
    head=$(ask HEAD); follows "$base" "$head" || head=$own
    on=$(git --git-dir="$store" symbolic-ref --quiet HEAD || :)
fi
# The last commit of a run is made here, so the repository may be further on than the store.
if follows "$head" "$start"; then head=$start; fi

# The run may have set marks in its index that hide changes, as for settings that are never to be committed.
seen() {
    git ls-files -z -v | sed -zn 's/^[[:lower:]] //p' | git update-index -z --no-assume-unchanged --stdin
    git ls-files -z -v | sed -zn 's/^S //p' | while IFS= read -r -d '' name; do
        if [ -L "$work/$name" ] || [ -e "$work/$name" ]; then printf '%s\0' "$name"; fi
    done | git update-index -z --no-skip-worktree --stdin
}

# A lock, a torn index or none at all stops nothing: the index here is a copy, or made anew.
index() {
    if [ -n "$store" ] && [ -f "$store/index" ] && cp -p "$store/index" "$GIT_DIR/index" &&
        git ls-files >/dev/null 2>&1; then seen; return; fi
    rm -f "$GIT_DIR/index"
    git read-tree "$head"
}

commit_all() {
    index
    exec 3>"$GIT_DIR/names" 4>"$GIT_DIR/gone"
    keep() {
        if [ -L "$work/$1" ] || [ -r "$work/$1" ]; then printf '%s\0' "$1" >&3
        else tell unreadable "$1"; fi
    }
    # Not `git ls-files --modified`: it takes a directory in the place of a file for a change of that file.
    git diff-files -z --name-status --no-renames --ignore-submodules=dirty >"$GIT_DIR/changed"
    while IFS= read -r -d '' how && IFS= read -r -d '' name; do
        file=$work/$name
        [ "$how" != U ] || tell conflict "$name"
        if [ ! -L "$file" ] && { [ ! -e "$file" ] || [ -S "$file" ]; }; then how=D; fi
        if [ "$how" = T ] && [ ! -L "$file" ] && [ -d "$file" ]; then tell repository "$name/"; how=D; fi
        if [ "$how" = D ]; then printf '%s\0' "$name" >&4; else keep "$name"; fi
    done <"$GIT_DIR/changed"
    git ls-files -z --others --exclude-standard >"$GIT_DIR/others"
    while IFS= read -r -d '' name; do
        case $name in
        */) tell repository "$name" ;;
        *) keep "$name" ;;
        esac
    done <"$GIT_DIR/others"
    find "$work" -xdev -type d ! '(' -readable -executable ')' -prune -printf '%P/\0' >"$GIT_DIR/shut" || :
    while IFS= read -r -d '' name; do tell unreadable "$name"; done <"$GIT_DIR/shut"
    { git ls-files -z --stage | grep -z '^160000 ' || :; } | while IFS= read -r -d '' entry; do
        name=${entry#*$'\t'}
        if [ -d "$work/$name" ] && [ -n "$(ls -A -- "$work/$name" 2>/dev/null | head -c 1)" ]; then
            tell repository "$name"
        fi
    done
    exec 3>&- 4>&-
    # First what has gone: git adds no file below the name of a file, and removes none behind a link.
    git update-index -z --force-remove --stdin <"$GIT_DIR/gone"
    # A file that git refuses, as for its ends of lines or its encoding, keeps no other one back, but for
    # those beside it after a hundred: each look for one takes some calls of git.
    refused=0
    add() {
        printf '%s\0' "$@" | git update-index -z --add --remove --replace --stdin 2>/dev/null && return
        if [ $# -eq 1 ] || [ $refused -ge 100 ]; then
            refused=$((refused + 1)); tell unreadable "$1"; return
        fi
        add "${@:1:$# / 2}"
        add "${@:$# / 2 + 1}"
    }
    mapfile -d '' -t names <"$GIT_DIR/names"
    [ ${#names[@]} -eq 0 ] || add "${names[@]}"
    # A full disk refuses every file: then this fails, and all is tried again later.
    [ $refused -eq 0 ] || git hash-object -w --no-filters "$GIT_DIR/index" >/dev/null
    tree=$(git write-tree)
    parents=(-p "$head")
    for other in "$own" "$start"; do follows "$other" "$head" || parents+=(-p "$other"); done
    head_tree=$(git rev-parse "$head^{tree}")
    tip=$head
    if [ "$tree" != "$head_tree" ] || [ ${#parents[@]} -gt 2 ]; then
        tip=$(printf '%s' "$message" | git commit-tree "$tree" "${parents[@]}")
    fi
}

# What the repository lacks was made by the run: there are the branches of the user, too. The files are
# those of the branch that it is on, whatever history it has written for that.
name_branches() {
    git --git-dir="$store" for-each-ref --format='%(objectname) %(refname)' refs/heads refs/stash \
        >"$GIT_DIR/found" 2>/dev/null || :
    sed 's/ .*//' "$GIT_DIR/found" |
        GIT_OBJECT_DIRECTORY=$(sed -n 2p "$GIT_DIR/objects/info/alternates") git cat-file --batch-check |
        sed -n 's/ missing$//p' | git cat-file --batch-check='%(objectname) %(objecttype)' |
        sed -n 's/ commit$//p' >"$GIT_DIR/own"
    while read -r commit name; do
        if [ "$name" != "$on" ] && grep -qxF "$commit" "$GIT_DIR/own" && ! follows "$commit" "$tip"; then
            name=${name#refs/}
            tell branch "${name#heads/}"
            [ "${named[branch]}" -lt 20 ] || break
        fi
    done <"$GIT_DIR/found"
}

case $what in
name) tip=$head ;;
take) tip=$(ask "$start") ;;
end)
    tip=$head
    if [ -d "$work" ]; then commit_all; fi
    if [ -n "$store" ]; then name_branches; fi ;;
diff)
    index
    cd "$work"
    git diff DIFF --stat --patch "$base" --
    exit ;;
renew)
    find "$store" -name '*.lock' -delete
    export GIT_DIR=$store
    git update-ref --no-deref "refs/heads/$branch" "$start"
    git symbolic-ref HEAD "refs/heads/$branch"
    git reset --quiet --mixed "$start" 2>/dev/null || { rm -f "$store/index"; git read-tree "$start"; }
    cd "$work"
    git update-index -q --refresh >/dev/null || :
    exit ;;
merge)
    export GIT_DIR=$store
    cd "$work"
    printf '%s\n^%s\n' "$start" "$head" | git pack-objects --revs --thin --stdout -q |
        git index-pack --stdin --fix-thin >/dev/null
    git merge --ff-only --quiet --no-stat --no-verify --no-autostash --no-overwrite-ignore "$start"
    exit ;;
esac
tell on "$on"
tell tip "$tip"
printf '\0'
[ "$what" != name ] && [ -n "$tip" ] && [ "$tip" != "$base" ] || exit 0
if [ "$what" = end ]; then [ "$tip" != "$start" ] || exit 0; base="$base
^$start"; fi
printf '%s\n^%s\n' "$tip" "$base" | git pack-objects --revs --thin --stdout --delta-base-offset -q
""".replace("DIFF", " ".join(NO_PROGRAMS)).replace("MOST", str(MOST_NAMED))

_ENDS_WITH_READER = """
exec 9<&0 </dev/null
{ read -r -u 9 || kill 0; } >/dev/null 2>&1 &
trap "kill $!" EXIT
exec 9<&-
"""
"""Before the script without a box: it and its git end with their reader, which holds their input open."""


@dataclass(frozen=True)
class LeftWork:
    """What a run has left: the commit with all of it, and what no commit can hold.

    `on` is what the run's `HEAD` names. `repositories` are repositories inside and directories of submodules
    with files, into which git does not look; `unreadable` are files and directories that git cannot read
    or add, and `branches` have commits that are not in it. `conflicts` are files of a merge that has not
    ended.
    """

    tip: str
    on: str = ""
    repositories: list[str] = field(default_factory=list)
    unreadable: list[str] = field(default_factory=list)
    branches: list[str] = field(default_factory=list)
    conflicts: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Reader:
    """Reads one worktree for its repository, `git`; `state` has whether the run had a box."""

    git: Git
    worktree: Worktree
    state: WorktreeState
    environment: Mapping[str, str]

    def head(self) -> LeftWork:
        """Return the commit on which the run is, which the repository may not have. Raises GitFailed."""
        with self._at_work("read where the run is", "name", self.worktree.base) as process:
            return _left(process)

    def take(self, commit: str) -> None:
        """Bring a commit of the run and its history into the repository. Raises GitFailed, OSError."""
        with self._at_work("read a commit of the run", "take", commit) as process:
            if _left(process).tip != commit:
                raise GitFailed("read a commit of the run", f"{commit[:12]} is not there")
            self.keep(_stream(process), commit)

    def everything(self, start: str, message: str, *, history: bool) -> LeftWork:
        """Commit what the run has not committed, and bring all of it into the repository.

        `start` is where the repository's branch is. Without `history` the run's own commits are left out.

        Raises:
            GitFailed, OSError: nothing has changed.
        """
        try:
            return self._everything(start, message, history=history)
        except GitFailed as error:
            if error.why != _HOLDS_FIFO:
                raise
        with self._at_work("remove FIFOs", "tidy", start, writes=True):
            pass
        return self._everything(start, message, history=history)

    def _everything(self, start: str, message: str, *, history: bool) -> LeftWork:
        doing = "read what the run has left"
        with self._at_work(doing, "end", start, message=message, history=history) as process:
            left = _left(process)
            if left.tip not in (self.worktree.base, start):
                self.keep(_stream(process), left.tip)
        return left

    def difference(self) -> bytes:
        """Return what is changed in the files, as a patch against the base. Raises GitFailed."""
        with self._at_work("compare", "diff", self.worktree.base) as process:
            printed = _stream(process).read(MOST_OUTPUT_BYTES + 1)
            if len(printed) > MOST_OUTPUT_BYTES:
                raise GitFailed("compare", f"it says more than {MOST_OUTPUT_BYTES >> 20} MiB")
        return printed

    def renew(self, commit: str) -> None:
        """Let the store be on its branch at a commit of the repository; the files stay. Raises GitFailed."""
        with self._at_work("renew the worktree", "renew", commit, writes=True):
            pass

    def bring_in(self, commit: str) -> None:
        """Move the files and the branch on to a commit of the repository, which follows the run's own.

        Raises:
            GitFailed: uncommitted changes are in the way; the files are as they were.
        """
        with self._at_work("merge", "merge", commit, writes=True):
            pass

    @contextmanager
    def _at_work(
        self,
        doing: str,
        what: str,
        start: str,
        *,
        message: str = "",
        history: bool = True,
        writes: bool = False,
    ) -> Iterator["subprocess.Popen[bytes]"]:
        """Start the script, and make sure that it ends. Raises GitFailed, OSError."""
        worktree, files = self.worktree, Path(self.worktree.path)
        store = store_of(worktree) if history and store_of(worktree).is_dir() else None
        with scratch(worktree) as directory, tempfile.TemporaryFile() as complaint:
            borrowed = borrowed_objects(Path(worktree.repository))
            objects = [*([] if store is None else [store / "objects"]), *borrowed]
            write_store(directory / "store", self.git, worktree, worktree.base, objects)
            with (directory / "store" / "info" / "exclude").open("ab") as file:
                file.writelines(os.fsencode(f"/{_literal(name)}\n") for name in self.state.included)
            words = [what, str(store or ""), str(files), worktree.base, worktree.branch, start, message]
            script = _SCRIPT if self.state.boxed else _ENDS_WITH_READER + _SCRIPT
            command = ["bash", "--noprofile", "--norc", "-c", script, "bash", *words]
            shown = [each for each in (files, *([] if store is None else [store])) if each.is_dir()]
            for each in shown:  # a run can close them to its own user, who then could not even drop its work
                if each.lstat().st_mode & 0o700 != 0o700:
                    with held_open(os.open(each.parent, os.O_PATH | os.O_CLOEXEC)) as above:
                        os.close(opened_writable(above, each.name))  # through no link
            # never the PATH of the caller, in which a run can have put a `find`
            path = os.pathsep.join([str(Path(self.git.program).parent), *SYSTEM_DIRECTORIES])
            variables = {**self.git.variables, **identity_of(self.git), "PATH": path}
            if self.state.boxed:
                process = self._boxed(
                    doing, command, variables, directory, shown, borrowed, complaint, writes
                )
            else:
                process = subprocess.Popen(
                    command,
                    cwd=directory,
                    env=variables,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=complaint,
                    start_new_session=True,
                )
            failed: GitFailed | None = None
            most = _LOOK_SECONDS if what in ("name", "diff") else self.git.seconds
            seconds = min(self.git.seconds, most)
            with _bounded(process, seconds) as too_late:
                try:
                    yield process
                except GitFailed as error:
                    failed = error
            if too_late.is_set():
                raise GitFailed(doing, f"it took more than {seconds:g} s") from failed
            if 0 < process.returncode < _BY_A_SIGNAL or (process.returncode and failed is None):
                raise GitFailed(doing, printable(sentence_of(complaint))) from failed
            if failed is not None:
                raise failed

    def _boxed(
        self,
        doing: str,
        command: list[str],
        variables: Mapping[str, str],
        directory: Path,
        shown: list[Path],
        borrowed: list[Path],
        complaint: IO[bytes],
        writes: bool,
    ) -> "subprocess.Popen[bytes]":
        seen = set(SEEN_BY_GIT) - {"PATH"}
        rules = Rules(
            cwd=directory,
            environment={**self.environment, "PATH": variables["PATH"]},
            own={name: value for name, value in variables.items() if name not in seen},
            network=False,
            read=[*borrowed, *([] if writes else shown)],
            write=shown if writes else [],
            over=worktree_mounts(self.worktree) if writes else [],
        )
        try:
            box = build_box(rules)
            return start_bounded(
                box, command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=complaint
            )
        except BoxRefused as refusal:
            raise GitFailed(doing, f"the box for it cannot be made: {refusal.reason}") from refusal

    def keep(self, stream: IO[bytes], tip: str) -> None:
        """Bring the objects of a stream into the repository, if `tip` is whole with them.

        Raises:
            GitFailed, OSError: the repository is as it was.
        """
        common, base = Path(self.worktree.repository), self.worktree.base
        with scratch(self.worktree) as directory:
            (directory / "info").mkdir()
            (directory / "pack").mkdir()
            (directory / "info" / "alternates").write_bytes(os.fsencode(f"{common / 'objects'}\n"))
            apart = self.git.at(
                common,
                GIT_OBJECT_DIRECTORY=str(directory),
                GIT_ALLOC_LIMIT=_MOST_MEMORY,
                GIT_NO_REPLACE_OBJECTS="1",
            )
            words = ("index-pack", "--strict", "--stdin", "--fix-thin", f"--max-input-size={MAX_PACK_BYTES}")
            apart.run("read the objects of the run", *words, stdin=stream.fileno())
            if apart.commit(tip) != tip or not apart.is_ancestor(base, tip):
                raise GitFailed("read the objects of the run", f"{tip[:12]} is no commit after the base")
            apart.run("check the objects", "rev-list", "--objects", "--quiet", tip, f"^{base}")
            for pack in (directory / "pack").glob("*.pack"):
                with pack.open("rb") as file:
                    self.git.run("keep the objects of the run", "index-pack", "--stdin", stdin=file.fileno())
        sync_directories(common / "objects" / "pack")


@contextmanager
def scratch(worktree: Worktree) -> Iterator[Path]:
    """Make a directory next to a worktree, for this once."""
    files = Path(worktree.path)
    directory = Path(tempfile.mkdtemp(prefix=f"{files.name}.", suffix=_SCRATCH, dir=files.parent))
    try:
        yield directory
    finally:
        with suppress(OSError):
            remove_tree(Directory(directory.parent).entry(directory.name))


def drop_scratch(worktree: Worktree) -> None:
    """Delete what killed processes left next to a worktree. Raises OSError."""
    files = Path(worktree.path)
    for directory in files.parent.glob(f"{files.name}.*{_SCRATCH}"):
        remove_tree(Directory(directory.parent).entry(directory.name))


@contextmanager
def _bounded(process: "subprocess.Popen[bytes]", seconds: float) -> Iterator[threading.Event]:
    """Yield an event, set if the process is ended because its time is over; it has ended afterwards."""
    too_late = threading.Event()

    def end() -> None:
        if process.poll() is None:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)

    def end_late() -> None:
        too_late.set()
        end()

    timer = threading.Timer(seconds, end_late)
    timer.daemon = True
    timer.start()
    try:
        yield too_late
    finally:
        _stream(process).close()  # whoever still writes is not read any more
        process.wait()
        timer.cancel()
        if process.stdin is not None:
            process.stdin.close()


def _left(process: "subprocess.Popen[bytes]") -> LeftWork:
    """Read what comes before the objects: pairs of fields, byte by byte, because git reads what follows."""
    stream = _stream(process).fileno()
    found: dict[str, list[str]] = {}
    printed, name = bytearray(), None
    for _ in range(_MOST_HEADER):
        byte = os.read(stream, 1)
        if not byte:
            break
        if byte != b"\0":
            printed += byte
            continue
        field_, printed = os.fsdecode(bytes(printed)), bytearray()
        if name is None and not field_:
            break
        if name is None:
            name = field_
        else:
            found.setdefault(name, []).append(field_)
            name = None
    tip = found.get("tip", [""])[-1]
    if _COMMIT.fullmatch(tip) is None:
        raise GitFailed("read what the run has left", "it does not name a commit")
    kinds = ("repository", "unreadable", "branch", "conflict")
    return LeftWork(tip, found.get("on", [""])[-1], *(found.get(kind, []) for kind in kinds))


def _stream(process: "subprocess.Popen[bytes]") -> IO[bytes]:
    assert process.stdout is not None
    return process.stdout


def _literal(name: str) -> str:
    """Return a pattern that fits this name alone."""
    return _SPECIAL.sub(r"\\\1", name).replace("\n", "?")  # no pattern holds a line break
