"""The key of an installation changes with every file of it, and with nothing else."""

import shutil
import subprocess
import sys
from pathlib import Path

from subagent_server.forkserver.installation import installation_key
from tests.helpers.processes import REPOSITORY, run_python

BOUND = 60.0


def only(packages: Path) -> dict[str, str]:
    """Return what makes an interpreter take the package from there, and not from where it stands."""
    return {"PYTHONPATH": str(packages), "PYTHONSAFEPATH": "1"}


def test_the_key_changes_with_every_source_and_with_what_is_installed(tmp_path: Path) -> None:
    copy = tmp_path / "subagent_server"
    shutil.copytree(REPOSITORY / "subagent_server", copy, ignore=shutil.ignore_patterns("__pycache__"))

    def key() -> str:
        code = (
            "from subagent_server.forkserver.installation import installation_key; print(installation_key())"
        )
        return run_python(code, environment=only(tmp_path)).stdout.strip()

    seen = [installation_key(), key()]
    (copy / "domain" / "ids.py").write_bytes((copy / "domain" / "ids.py").read_bytes() + b"\n")
    seen.append(key())
    (copy / "domain" / "new.py").touch()
    seen.append(key())
    assert len({*seen}) == 4 and seen[-1] == key()


def test_a_key_is_that_of_the_interpreter_whatever_it_was_called_by() -> None:
    code = "from subagent_server.forkserver.installation import installation_key; print(installation_key())"
    there = Path(sys.executable).parent.glob("python*")
    keys = {
        subprocess.run([name, "-c", code], capture_output=True, encoding="utf-8", timeout=BOUND).stdout
        for name in there
        if name.resolve() == Path(sys.executable).resolve()
    }
    assert keys == {f"{installation_key()}\n"}


def test_an_installation_that_was_looked_at_is_seen_to_change(tmp_path: Path) -> None:
    copy = tmp_path / "subagent_server"
    shutil.copytree(REPOSITORY / "subagent_server", copy, ignore=shutil.ignore_patterns("__pycache__"))
    code = """
        import os, sys
        from pathlib import Path
        from subagent_server.forkserver.installation import Installation
        package, installed = map(Path, sys.argv[1:])
        sys.path += [str(installed), str(installed.parent / "dist-packages")]
        def set_old_times():
            for path in (installed, package, *package.rglob("*/")):
                os.utime(path, (1, 1))
        def after(change):
            set_old_times()
            seen = Installation()
            before = seen.is_as_it_was()
            change()
            print(before, seen.is_as_it_was(), Installation().key == seen.key)
            os.utime(installed, (2**32, 2**32))  # as one that has changed just now
            print(Installation().is_as_it_was())
        def edit():
            (package / "domain" / "ids.py").open("a").write("# more")
        after((package / "domain" / "new.py").touch)
        after((package / "domain" / "new.py").unlink)
        after((installed / "other-2.0.dist-info").mkdir)
        after((installed / "no record").touch)
        after((installed.parent / "dist-packages").mkdir)
        set_old_times()
        seen = Installation()
        edit()
        print(seen.is_as_it_was())
    """
    installed = tmp_path / "site-packages"
    installed.mkdir()
    done = run_python(code, copy, installed, environment=only(tmp_path))
    came, nothing_new, just_changed = "True False False", "True False True", "False"
    seen = [came, just_changed] * 3 + [nothing_new, just_changed] * 2 + ["False"]
    assert done.stdout.splitlines() == seen, done.stderr
