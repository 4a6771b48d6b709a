"""The wheel, installed by pip, pipx and uv on each Python that it supports, is whole and works anywhere.

All are marked `install`, for `make test-install`, but one that is quick: it borrows what the program
depends on.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from zipfile import ZipFile

import pytest

from tests.helpers.processes import REPOSITORY

BOUND = 400.0
PYTHONS = ("3.11", "3.12", "3.13")
GIT = ("git", "-c", "user.name=Ada", "-c", "user.email=ada@example.org")
INSTALLERS = Path(os.environ.get("INSTALLERS", REPOSITORY / ".cache" / "installers"), "bin")


def run(*words: str | Path, cwd: Path, env: Mapping[str, str] | None = None) -> str:
    """Run a command that must end well, and return what it printed."""
    done = subprocess.run(words, cwd=cwd, env=env, capture_output=True, text=True, timeout=BOUND)
    assert done.returncode == 0, f"{words}: {done.stdout[-2000:]} {done.stderr[-2000:]}"
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the wheel from the files of the repository, or return that of a release, which WHEEL names."""
    if given := os.environ.get("WHEEL"):
        return Path(given).resolve(strict=True)
    place = tmp_path_factory.mktemp("wheel")
    source = place / "source"
    for name in ("subagent_server", "agents"):
        left_out = shutil.ignore_patterns("__pycache__", "*.pyc")
        shutil.copytree(REPOSITORY / name, source / name, symlinks=True, ignore=left_out)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(REPOSITORY / name, source)
    building = ("-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "--no-index")
    run(sys.executable, *building, "-w", place, source, cwd=place)
    (built,) = place.glob("*.whl")
    return built


def interpreter(version: str) -> str:
    """Return the Python of a version, or skip the test if this machine does not have it."""
    of_pyenv = sorted(Path("~/.pyenv/versions").expanduser().glob(f"{version}.*/bin/python"))
    for found in (shutil.which(f"python{version}"), *of_pyenv):
        try:
            return run(str(found), "-c", "import sys; print(sys.executable)", cwd=Path("/")).strip()
        except (AssertionError, FileNotFoundError):
            continue  # it is missing, or a stand-in of pyenv for a version that is not chosen
    if "WHEEL" in os.environ:
        pytest.fail(f"Python {version} is not installed, and a release is tried on all of {PYTHONS}")
    pytest.skip(f"Python {version} is not installed")


def environment(home: Path, **more: str) -> dict[str, str]:
    """Return variables for a person who has just come: a home of their own, no key, no compiler."""
    kept = ("PATH", "LANG", "TMPDIR", "http_proxy", "https_proxy", "no_proxy", "SSL_CERT_FILE")
    given = {name: os.environ[name] for name in kept if name in os.environ}
    home.mkdir(exist_ok=True)
    return {**given, "HOME": str(home), "CC": "false", "CXX": "false", "SUBAGENT_WARM": "0", **more}


def check(command: Sequence[str | Path], place: Path, env: Mapping[str, str]) -> None:
    """Use an installed command as a newcomer does, in a directory outside of this repository."""
    shop = place / "shop"
    shop.mkdir(parents=True)
    (shop / "shop.py").write_text("price = 3\n", encoding="utf-8")
    for words in (("init", "-q"), ("add", "."), ("commit", "-q", "-m", "Give discounts")):
        run(*GIT, *words, cwd=shop, env=env)
    shown = run(*command, "demo", cwd=shop, env=env)
    assert "Give discounts" in shown and "parent ← completed: " in shown
    assert run(*command, "new", "mine", "--from", "reviewer", cwd=shop, env=env) == "agents/mine.md\n"
    assert run(*command, "agents", cwd=shop, env=env).startswith("mine ")


@pytest.mark.process
def test_the_wheel_works_outside_the_repository(wheel: Path, tmp_path: Path) -> None:
    packages = tmp_path / "packages"
    ZipFile(wheel).extractall(packages)
    env = environment(tmp_path / "home", PYTHONPATH=str(packages))
    check((sys.executable, "-m", "subagent_server"), tmp_path / "place", env)
    listed = {path.name for path in (packages / "subagent_server" / "example_agents").iterdir()}
    assert listed == {path.name for path in (REPOSITORY / "agents").iterdir()}


@pytest.mark.install
@pytest.mark.parametrize("version", PYTHONS)
def test_pip_installs_it_without_a_compiler(wheel: Path, tmp_path: Path, version: str) -> None:
    home = tmp_path / "home"
    run(interpreter(version), "-m", "venv", tmp_path / "venv", cwd=tmp_path)
    pip = tmp_path / "venv" / "bin" / "pip"
    run(pip, "install", "-q", "--only-binary=:all:", wheel, cwd=tmp_path, env=environment(home))
    check([tmp_path / "venv" / "bin" / "subagent"], tmp_path / "place", environment(home))
    run(pip, "uninstall", "-q", "-y", "subagent-server", cwd=tmp_path)
    assert not list((tmp_path / "venv").rglob("subagent_server"))


@pytest.mark.install
@pytest.mark.parametrize("version", PYTHONS)
def test_pipx_and_uv_install_it_as_a_command(wheel: Path, tmp_path: Path, version: str) -> None:
    python = interpreter(version)
    if not (INSTALLERS / "pipx").exists():
        pytest.skip("pipx and uv are not installed: `make test-install` does so")
    index = run(sys.executable, "-m", "pip", "config", "list", cwd=tmp_path)
    settings = dict(line.split("=", 1) for line in index.splitlines())
    of_uv = {
        "UV_EXTRA_INDEX_URL": settings.get("global.extra-index-url", "").strip("'"),
        "UV_FIND_LINKS": settings.get("global.find-links", "").strip("'"),
        "UV_INDEX_STRATEGY": "unsafe-best-match",  # as pip, whose configuration uv does not read
        "UV_SYSTEM_CERTS": "1",
    }
    for name, words in {
        "pipx": ("pipx", "install", "--python", python),
        "uv": ("uv", "tool", "install", "-q", "--python", python),
    }.items():
        home = tmp_path / name
        env = environment(home, **{key: value for key, value in of_uv.items() if value})
        run(INSTALLERS / words[0], *words[1:], wheel, cwd=tmp_path, env=env)
        check([home / ".local" / "bin" / "subagent"], tmp_path / f"place-{name}", environment(home))
