"""The test suites of real projects, fetched from registries, say the same in a box as outside of it."""

import os
import re
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.helpers.scale import sampled
from tests.helpers.turns import says, shell, tool_results
from tests.helpers.world import World

SUITE_SECONDS = 240.0
RUST = {
    "Cargo.toml": '[package]\nname = "small"\nversion = "0.1.0"\nedition = "2021"\n',
    "build.rs": 'fn main() { println!("cargo:rustc-env=BUILT=yes"); }\n',
    "src/lib.rs": '#[test]\nfn is_built() { assert_eq!(env!("BUILT"), "yes"); }\n',
}


@dataclass(frozen=True)
class Project:
    """How to put a project into a directory, the command of its tests, and the words that count them."""

    fetch: Callable[[Path], None]
    command: str
    count: str


def of_pypi(requirement: str) -> Callable[[Path], None]:
    """Return a function that unpacks a source package from PyPI."""

    def fetch(directory: Path) -> None:
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", ":all:"]
        run([*pip, requirement], directory)
        unpack(directory)

    return fetch


def of_npm(package: str, runner: str) -> Callable[[Path], None]:
    """Return a function that unpacks a package from npm, and installs what runs its tests."""

    def fetch(directory: Path) -> None:
        run(["npm", "pack", "--silent", package], directory)
        unpack(directory)
        run(["npm", "pkg", "delete", "devDependencies"], directory)
        run(["npm", "install", "--silent", "--ignore-scripts", runner], directory)

    return fetch


def rust(directory: Path) -> None:
    """Write a project with a build script and a test."""
    for name, text in RUST.items():
        file = directory / name
        file.parent.mkdir(exist_ok=True)
        file.write_text(text, encoding="utf-8")


def run(command: list[str], directory: Path) -> None:
    """Run a command that has to succeed."""
    done = subprocess.run(
        command, cwd=directory, capture_output=True, encoding="utf-8", check=False, timeout=SUITE_SECONDS
    )
    assert done.returncode == 0, done.stdout + done.stderr


def unpack(directory: Path) -> None:
    """Unpack the one archive in a directory, without the directory in it."""
    (archive,) = directory.iterdir()
    with tarfile.open(archive) as packed:
        for member in packed.getmembers():
            member.name = member.name.partition("/")[2]
            packed.extract(member, directory, filter="data")
    archive.unlink()


PYTEST = "PYTHONPATH=src python3 -m pytest -p no:cacheprovider -q tests 2>&1 | tail -15"
PROJECTS = {
    "click": Project(of_pypi("click==8.5.1"), PYTEST, r"\d{3,} passed"),
    "idna": Project(of_pypi("idna==3.20"), PYTEST.replace("=src", "=."), r"\d{2,} passed"),
    "minimist": Project(
        of_npm("minimist@1.2.8", "tape@5"), "node_modules/.bin/tape 'test/*.js' | tail -5", r"# pass +\d{2,}"
    ),
    "cargo": Project(rust, "cargo build && cargo test 2>&1 | grep result", r"ok\. 1 passed"),
}


@pytest.mark.parametrize("name", sampled([*PROJECTS], 2))
def test_the_tests_of_a_real_project_say_the_same_in_a_box(world: World, name: str) -> None:
    project = PROJECTS[name]
    if name == "cargo" and shutil.which("cargo") is None:
        pytest.skip("there is no cargo: `apt-get install cargo`")
    project.fetch(world.work)
    tool_chain = [f"{prefix}/bin" for prefix in (sys.prefix, sys.base_prefix)]
    world.environment["PATH"] = os.pathsep.join([*tool_chain, world.environment["PATH"]])
    world.environment.setdefault("RUSTUP_HOME", str(Path("~/.rustup").expanduser()))
    counted = []
    for sandbox in ("none", "bwrap"):
        world.agent(sandbox=sandbox)
        simulator = world.play(shell(project.command), says("Done."))
        run_id = world.start()
        world.ended(run_id, SUITE_SECONDS)
        assert world.completed(run_id) == "Done."
        (result,) = tool_results(simulator.requests[-1].body)
        found = re.search(project.count, result)
        assert found is not None and not re.search(r"\b[1-9]\d* failed", result), f"{sandbox}: {result}"
        counted.append(found.group())
    assert counted[0] == counted[1]
