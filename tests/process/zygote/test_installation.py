"""The key of an installation changes with every file of it, and with nothing else."""

import shutil
import subprocess
import sys
from pathlib import Path

from subagent_server.process.zygote_protocol import installation_key
from tests.helpers.processes import REPOSITORY, run_python

BOUND = 60.0
KEY = "from subagent_server.process.zygote_protocol import installation_key; print(installation_key())"


def only(packages: Path) -> dict[str, str]:
    """Return what makes an interpreter take the package from there, and not from where it stands."""
    return {"PYTHONPATH": str(packages), "PYTHONSAFEPATH": "1"}


def test_the_key_changes_with_every_source(tmp_path: Path) -> None:
    copy = tmp_path / "subagent_server"
    shutil.copytree(REPOSITORY / "subagent_server", copy, ignore=shutil.ignore_patterns("__pycache__"))

    def key() -> str:
        return run_python(KEY, environment=only(tmp_path)).stdout.strip()

    seen = [installation_key(), key()]
    (copy / "run" / "states.py").write_bytes((copy / "run" / "states.py").read_bytes() + b"\n")
    seen.append(key())
    (copy / "run" / "new.py").touch()
    seen.append(key())
    (copy / "run" / "new.py").unlink()
    assert len({*seen}) == 4 and seen[2] == key()


def test_the_key_is_the_same_for_every_name_of_the_interpreter() -> None:
    there = Path(sys.executable).parent.glob("python*")
    keys = {
        subprocess.run([name, "-c", KEY], capture_output=True, encoding="utf-8", timeout=BOUND).stdout
        for name in there
        if name.resolve() == Path(sys.executable).resolve()
    }
    assert keys == {f"{installation_key()}\n"}


def test_the_key_changes_with_an_installed_package(tmp_path: Path) -> None:
    installed = tmp_path / "site-packages"
    installed.mkdir()

    def key() -> str:
        return run_python(f"import sys; sys.path.append(sys.argv[1]); {KEY}", installed).stdout

    before = key()
    (installed / "no record").touch()
    assert key() == before
    (installed / "other-2.0.dist-info").mkdir()
    assert key() != before
