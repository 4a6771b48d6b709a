"""The files that other programs execute (SPEC section 13).

Writing such a file has a program started without asking: at the next commit, when a directory is opened in an
editor, at the next login. A file that a person runs knowingly (`Makefile`, `package.json`, `conftest.py`) is
not here. An agent's editor does not write them, a sandbox mounts those that exist read-only, and one that
comes during a command is moved away (`sandbox/quarantine.py`).
"""

import os
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path


@dataclass(frozen=True)
class Executed:
    """A program that executes files unasked. Each of `paths` may lie at any depth; all below it counts too.

    A part of a path may be a glob. `files` are names of files alone: a directory may be called so. With
    `in_home`, the program looks in home directories only.
    """

    by: str
    paths: tuple[str, ...]
    files: tuple[str, ...] = ()
    in_home: bool = False


GIT = Executed("git", (".git", "git~1", ".gitmodules"), files=("HEAD", "commondir"))
"""`git~1` is the short name of `.git` on disks of Windows. `HEAD` makes a bare repository of its directory,
and `commondir` turns to one elsewhere: both bring a `config` that names programs."""

_OF_LEFTHOOK = [
    f"{start}lefthook{kind}.{form}"
    for start in ("", ".", ".config/")
    for kind in ("", "-local")
    for form in ("yml", "yaml", "toml", "json", "jsonc")
]
"""One of these is read, and one with `-local` besides (lefthook.dev/configuration)."""

EXECUTED_FILES: tuple[Executed, ...] = (
    GIT,
    Executed(
        "git, at the next commit",
        (
            ".husky",
            ".pre-commit-config.yaml",
            ".lefthook",
            ".lefthook-local",
            *_OF_LEFTHOOK,
            ".overcommit.yml",
        ),
    ),
    Executed("Mercurial", (".hg",)),
    Executed("Jujutsu", (".jj",)),
    Executed("Sapling", (".sl",)),
    Executed("whatever starts MCP servers", (".mcp.json",)),
    Executed("Claude Code", (".claude", ".claude.json")),
    Executed("Codex", (".codex",)),
    Executed("Gemini CLI", (".gemini",)),
    Executed("Cursor", (".cursor",)),
    Executed("Copilot", (".github/hooks", ".github/lsp.json", ".github/copilot")),
    Executed(
        "another coding agent",
        (
            ".aider.conf.yml",
            ".amazonq",
            ".augment",
            ".clinerules/hooks",
            ".codebuddy",
            ".continue",
            ".crush.json",
            "crush.json",
            ".factory",
            ".junie",
            ".kilocode",
            ".kiro",
            ".opencode",
            "opencode.json",
            "opencode.jsonc",
            ".pi",
            ".qoder",
            ".qwen",
            ".roo",
            ".trae",
            ".windsurf",
        ),
    ),
    Executed("Visual Studio Code", (".vscode", ".vscode-server", "*.code-workspace")),
    Executed("whatever opens development containers", (".devcontainer", ".devcontainer.json")),
    Executed("JetBrains IDEs", (".idea", ".fleet")),
    Executed("Zed", (".zed",)),
    Executed("Helix", (".helix",)),
    Executed("Vim", (".exrc", ".vimrc", ".nvimrc", ".nvim.lua", ".lvimrc")),
    Executed("Vim", (".gvimrc", ".vim", ".config/nvim"), in_home=True),
    Executed("Emacs", (".dir-locals.el", ".dir-locals-2.el")),
    Executed("Emacs", (".emacs", ".emacs.d"), in_home=True),
    Executed("a debugger", (".gdbinit", ".lldbinit", ".pdbrc", ".perldb")),
    Executed(
        "an interactive interpreter",
        (
            *(".Rprofile", ".Renviron", ".RData", ".ghci", ".irbrc", ".pryrc", ".ocamlinit", ".iex.exs"),
            ".octaverc",
        ),
    ),
    Executed("direnv", (".envrc",)),
    Executed(
        "mise",
        (
            "mise.toml",
            ".mise.toml",
            "mise.local.toml",
            ".mise.local.toml",
            ".mise",
            "mise/config.toml",
            ".config/mise",
            ".config/mise.toml",
        ),
    ),
    Executed("Cargo, and editors by it", (".cargo/config.toml", ".cargo/config")),
    Executed("Yarn", (".yarnrc", ".yarnrc.yml")),
    Executed("the Haskell language server", ("hie.yaml",)),
    Executed("the Lua language server", (".luarc.json", ".luarc.jsonc")),
    Executed(
        "Bash", (".bashrc", ".bash_profile", ".bash_login", ".bash_logout", ".bash_aliases"), in_home=True
    ),
    Executed("Zsh", (".zshrc", ".zshenv", ".zprofile", ".zlogin", ".zlogout"), in_home=True),
    Executed("fish", (".config/fish",), in_home=True),
    Executed("the shell", (".profile", ".kshrc", ".cshrc", ".tcshrc", ".login", ".logout"), in_home=True),
    Executed(
        "the desktop, at the next login",
        (".xprofile", ".xinitrc", ".xsession", ".xsessionrc", ".pam_environment", ".config/autostart"),
        in_home=True,
    ),
    Executed("systemd", (".config/systemd", ".config/environment.d"), in_home=True),
    Executed("git", (".gitconfig", ".config/git"), in_home=True),
    Executed("ssh", (".ssh",), in_home=True),
)

FIRST_OF_SEVERAL = frozenset(
    path.partition("/")[0] for entry in EXECUTED_FILES for path in entry.paths if "/" in path
)
"""Directories in which some names are executed, and most are not."""


def literal_names(directory: Path) -> list[str]:
    """Return the paths of the table below a directory (its real path), without globs.

    `git~1` is left out: it is the short name of a `.git` that is there. What lies in a home directory counts
    from there: `git` below `~/.config`.
    """
    home = real_home()
    paths = [path for entry in EXECUTED_FILES if not entry.in_home for path in entry.paths]
    if directory.is_relative_to(home):
        of_home = (home / path for entry in EXECUTED_FILES if entry.in_home for path in entry.paths)
        paths += [str(path.relative_to(directory)) for path in of_home if directory in path.parents]
    return [path for path in paths if not set("*?[~") & set(path)]


def real_home() -> Path:
    """Return the real path of the home directory."""
    return Path(os.path.realpath(os.path.expanduser("~")))  # noqa: PTH111 - not every user has a home


def executed_by(
    parts: Sequence[str], lifted: Sequence[str] = (), *, is_directory: bool = False, or_above: bool = False
) -> Executed | None:
    """Return the program that executes the file at `parts`, a path below a working directory, or None.

    With `or_above` a directory counts that may contain such a file: `.cargo` for its `config.toml`. A link of
    that name counts as all that it leads to, and a run that works in there is kept from nothing.
    `lifted` are paths below the same directory that the author of the agent allows: each allows the entry
    that contains it, from that path downward, and nothing next to it.
    """
    names = [_folded(part) for part in parts]
    # From each directory on the way: any of them may be opened as a project of its own.
    for start, name in enumerate(names):
        for entry in (*_by_first_name().get(name, ()), *_BY_GLOB):
            if _begins(entry, names[start:], is_directory, or_above) and not is_lifted(
                parts, lifted, below=start
            ):
                return entry
    return None


def is_lifted(parts: Sequence[str], lifted: Sequence[str], *, below: int = 0) -> bool:
    """Whether `parts` lies in one of the `lifted` paths that has more than `below` parts."""
    freed = [path.strip("/").split("/") for path in lifted]
    return any(len(path) > below and list(parts[: len(path)]) == path for path in freed)


def lies_above(parts: Sequence[str], lifted: Sequence[str]) -> bool:
    """Whether one of the `lifted` paths lies below `parts`."""
    freed = [path.strip("/").split("/") for path in lifted]
    return any(len(path) > len(parts) and path[: len(parts)] == list(parts) for path in freed)


def found_above(names: Sequence[str], cwd: Path, home: Path | None) -> Iterator[tuple[Path, str]]:
    """Yield each directory, from `cwd` upwards, with each of these names that it has.

    The home directory ends that: what is there is the user's own.
    """
    own = home and Path(os.path.realpath(home))
    for directory in (cwd, *cwd.parents):
        if directory == own:
            return
        for name in names:
            if os.path.lexists(directory / name):
                yield directory, name


def can_run_code(paths: Sequence[str]) -> str:
    """Return the sentence on files that changed during a run and are executed by other programs."""
    return (
        f"Changed during this run, and other programs execute them by themselves: {', '.join(paths)}. "
        "Look at these before you use git, or open the directory in an editor or another agent."
    )


def _begins(entry: Executed, names: Sequence[str], is_directory: bool, or_above: bool) -> bool:
    patterns = [_folded(path).split("/") for path in entry.paths]
    if not is_directory and len(names) == 1:
        patterns += [[_folded(name)] for name in entry.files]
    whole = (pattern for pattern in patterns if or_above or len(names) >= len(pattern))
    return any(all(map(fnmatchcase, names, pattern)) for pattern in whole)


def _folded(name: str) -> str:
    """Return one form of all names that some file system takes for the same.

    Upper case, composed letters, characters that are not seen, dots and spaces at the end, streams after a
    colon: `.GIT`, `.g\\u200cit`, `.git.`, `.git::$INDEX_ALLOCATION`.
    """
    seen = "".join(c for c in unicodedata.normalize("NFKC", name) if unicodedata.category(c) != "Cf")
    return seen.casefold().partition(":")[0].rstrip(" .")


@cache
def _by_first_name() -> Mapping[str, Sequence[Executed]]:
    """Return the entries by the first name of their paths: most names are in none of them."""
    found: dict[str, list[Executed]] = {}
    for entry in EXECUTED_FILES:
        for name in dict.fromkeys(_folded(path).partition("/")[0] for path in (*entry.paths, *entry.files)):
            found.setdefault(name, []).append(entry)
    return found


_BY_GLOB = [entry for entry in EXECUTED_FILES if set("*?[") & set("".join(entry.paths))]
