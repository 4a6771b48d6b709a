"""Makes a release: `make release VERSION=1.2.3 [REPOSITORY=owner/name]`. docs/releasing.md says what it does.

Everything happens in a clone. This repository changes at the end, by one commit and one tag, and nothing is
pushed. Standard library only.
"""

import re
import shutil
import subprocess
import sys
from datetime import date
from pathlib import Path
from tempfile import TemporaryDirectory
from zipfile import ZipFile

HERE = Path(__file__).resolve().parents[1]
PLACEHOLDER = "OWNER/" + "REPOSITORY"
"""Stands in the files until the first release for the place where this repository is hosted."""
_VERSION = re.compile(r"\d+\.\d+\.\d+")
_REPOSITORY = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
_UNRELEASED = "## [Unreleased]\n"


class CannotRelease(Exception):
    """Says in a sentence why there is no release."""


def git(*words: str, where: Path = HERE) -> str:
    """Return what git prints. Raises CannotRelease with its words."""
    done = subprocess.run(["git", *words], cwd=where, capture_output=True, text=True)
    if done.returncode != 0:
        raise CannotRelease(f"git {words[0]}: {done.stderr.strip()}")
    return done.stdout


def next_changelog(text: str, version: str, today: date) -> str:
    """Return the changelog in which the unreleased changes are those of `version`. Raises CannotRelease."""
    if f"\n## [{version}]" in text:
        raise CannotRelease(f"CHANGELOG.md has a section {version} already: choose another VERSION.")
    before, found, after = text.partition(_UNRELEASED)
    changes = after.partition("\n## [")[0].strip()
    if not found or not changes:
        raise CannotRelease("CHANGELOG.md has nothing below [Unreleased]: say what is new.")
    return f"{before}{_UNRELEASED}\n## [{version}] - {today}\n{after}"


def replaced_once(path: Path, pattern: str, new: str) -> None:
    """Replace what a pattern finds, which must be one line. Raises CannotRelease."""
    text, times = re.subn(pattern, new, path.read_text(encoding="utf-8"), flags=re.M)
    if times != 1:
        raise CannotRelease(f"{path.name} says its version {times} times.")
    path.write_text(text, encoding="utf-8")


def fill(root: Path, version: str, repository: str, today: date) -> None:
    """Write version, date and place into the files of a repository. Raises CannotRelease."""
    if not _VERSION.fullmatch(version):
        raise CannotRelease(f"VERSION {version!r} is not of the form 1.2.3.")
    if repository and not _REPOSITORY.fullmatch(repository):
        raise CannotRelease(f"REPOSITORY {repository!r} is not of the form owner/name.")
    changelog = root / "CHANGELOG.md"
    text = next_changelog(changelog.read_text(encoding="utf-8"), version, today)
    changelog.write_text(text, encoding="utf-8")
    replaced_once(root / "pyproject.toml", r'^version = ".*"$', f'version = "{version}"')
    package = root / "subagent_server" / "__init__.py"
    replaced_once(package, r'^__version__ = ".*"$', f'__version__ = "{version}"')
    waiting = files_with_placeholder(root)
    if waiting and not repository:
        raise CannotRelease("The files do not say yet where this is hosted: give REPOSITORY=owner/name.")
    for path in waiting:
        path.write_text(path.read_text(encoding="utf-8").replace(PLACEHOLDER, repository), encoding="utf-8")


def files_with_placeholder(root: Path) -> list[Path]:
    """Return the committed files of a repository that do not say yet where it is hosted."""
    words = ["git", "grep", "-lIF", PLACEHOLDER]
    done = subprocess.run(words, cwd=root, capture_output=True, text=True)
    return [root / name for name in done.stdout.splitlines()]


def check_content(dist: Path, root: Path) -> None:
    """Compare the wheel in `dist` with the files of the package. Raises CannotRelease."""
    wheels, sources = list(dist.glob("*.whl")), list(dist.glob("*.tar.gz"))
    if len(wheels) != 1 or len(sources) != 1:
        raise CannotRelease(f"{dist} has {len(wheels)} wheels and {len(sources)} source archives, not one.")
    with ZipFile(wheels[0]) as wheel:
        inside = set(wheel.namelist())
    package = root / "subagent_server"
    mine = {
        str(path.relative_to(root))
        for path in (*package.rglob("*"), *(package / "example_agents").rglob("*"))
        if path.is_file() and "__pycache__" not in path.parts and path.suffix not in (".pyc", ".so")
    }
    others = {name for name in inside - mine if ".dist-info/" not in name}
    if mine - inside or others:
        raise CannotRelease(f"The wheel lacks {sorted(mine - inside)}, and has besides {sorted(others)}.")
    if not any(name.endswith("/licenses/LICENSE") for name in inside):
        raise CannotRelease("The wheel lacks the licence.")
    print(f"{wheels[0].name}: {len(mine)} files, as the package has them")


def release(version: str, repository: str) -> None:
    """Build, check, commit and tag a version. Raises CannotRelease; then nothing has changed here."""
    if git("status", "--porcelain").strip():
        raise CannotRelease("There are changes that are not committed: commit them first.")
    tag = f"v{version}"
    if git("tag", "--list", tag).strip():
        raise CannotRelease(f"There is a tag {tag} already: choose another VERSION.")
    with TemporaryDirectory(prefix="release-") as place:
        clone = Path(place, "subagent-server")
        git("clone", "--quiet", "--no-hardlinks", str(HERE), str(clone))
        fill(clone, version, repository, date.today())
        who = [f"{key}={git('config', key).strip()}" for key in ("user.name", "user.email")]
        identity = [word for each in who for word in ("-c", each)]
        git(*identity, "commit", "--quiet", "--all", "--message", f"Release {version}", where=clone)
        if subprocess.run(["make", "check", "release-check"], cwd=clone).returncode != 0:
            raise CannotRelease("The checks above failed.")
        git("fetch", "--quiet", str(clone), "HEAD")
        git("merge", "--quiet", "--ff-only", "FETCH_HEAD")
        git("tag", "--annotate", "--message", f"subagent-server {version}", tag)
        shutil.rmtree(HERE / "dist", ignore_errors=True)
        shutil.copytree(clone / "dist", HERE / "dist")
    print(
        f"{version} is committed and tagged here, and dist/ has it. To publish it: git push origin HEAD {tag}"
    )


def main(words: list[str]) -> int:
    """Run `VERSION [REPOSITORY]`, or `content DIST`; return the exit code."""
    try:
        if words[:1] == ["content"] and len(words) == 2:
            check_content(Path(words[1]).resolve(), HERE)
        elif words and words[0] and len(words) <= 2:
            release(words[0], words[1] if len(words) == 2 else "")
        else:
            raise CannotRelease("Give VERSION=1.2.3, and the first time REPOSITORY=owner/name.")
    except CannotRelease as error:
        print(f"no release: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
