"""An agent can work in a box: ordinary projects are built, tested and committed there without settings."""

import os
import sys

import pytest

from tests.helpers.repositories import git, make_repository
from tests.helpers.scale import WHOLE
from tests.helpers.turns import calls, says, tool_results, use
from tests.helpers.world import World

GIT = """
git status --short; git log --format=%s; git diff --stat && echo same
git clone -q . /tmp/clone && cd /tmp/clone && git switch -qc branch && echo one > file && git add file
git commit -qm 'In a box' && git switch -q - && git merge -q branch && git gc -q && git log --format=%s
"""
PYTHON = {
    "pyproject.toml": "[project]\nname = 'small'\nversion = '1'\n",
    "small.py": "def double(number):\n    return 2 * number\n",
    "test_small.py": (
        "import multiprocessing, socket, sqlite3, tempfile, zoneinfo\nimport small\n"
        "def test_double():\n    assert small.double(2) == 4\n"
        "def test_processes():\n"
        "    with multiprocessing.get_context('spawn').Pool(2) as pool:\n"
        "        assert pool.map(small.double, [1, 2]) == [2, 4]\n"
        "def test_loopback():\n"
        "    with socket.create_server(('127.0.0.1', 0)) as server:\n"
        "        socket.create_connection(server.getsockname()).close()\n"
        "def test_machine(tmp_path):\n"
        "    sqlite3.connect(tmp_path / 'x').execute('create table t (x)')\n"
        "    assert zoneinfo.ZoneInfo('Europe/Berlin') and tempfile.TemporaryFile()\n"
    ),
}
NODE = {
    "package.json": '{"name": "small", "version": "1.0.0", "scripts": {"test": "node --test"}}',
    "small.test.js": (
        "const test = require('node:test'), assert = require('node:assert'), fs = require('node:fs');\n"
        "test('adds', () => assert.equal(1 + 1, 2));\n"
        "test('writes', () => fs.mkdtempSync(require('node:os').tmpdir() + '/'));\n"
    ),
}
MAKE = {
    "Makefile": "small: small.sh\n\tinstall $< $@\ntest: small\n\t./small\n",
    "small.sh": "#!/bin/sh\necho built\n",
}
WORK = {
    "git": ({}, GIT, ("In a box", "same")),
    "pytest": (PYTHON, "python3 -m pytest -q -p no:cacheprovider 2>&1", ("4 passed",)),
    "npm": (
        NODE,
        "npm test 2>&1; mkdir new && cd new && npm init -y >/dev/null 2>&1 && ls",
        ("pass 2", "fail 0", "package.json"),
    ),
    "make": (MAKE, "make test", ("built",)),
}


def ordinary_work(world: World) -> None:
    """Let a model do the work of each kind in a box, in one run."""
    tool_chain = [f"{prefix}/bin" for prefix in (sys.prefix, sys.base_prefix)]
    world.environment["PATH"] = os.pathsep.join([*tool_chain, world.environment["PATH"]])
    git("config", "--file", world.home / ".gitconfig", "user.name", "Ada")
    git("config", "--file", world.home / ".gitconfig", "user.email", "ada@example.com")
    make_repository(world.work)
    for name, (files, _, _) in WORK.items():
        (world.work / name).mkdir()
        for file, text in files.items():
            (world.work / name / file).write_text(text, encoding="utf-8")
    commands = [
        f"cd {world.work if name == 'git' else name}; {command}" for name, (_, command, _) in WORK.items()
    ]
    world.agent(sandbox="bwrap", network=False)
    simulator = world.play(
        *(calls(use("bash", command=command), use("bash", restart=True)) for command in commands),
        says("Done."),
    )
    assert world.completed(world.start()) == "Done."
    results = [tool_results(request.body)[0] for request in simulator.requests[1:]]
    for (name, (_, _, wanted)), result in zip(WORK.items(), results, strict=True):
        assert all(words in result for words in wanted), f"{name}: {result}"


@pytest.mark.skipif(os.getuid() == 0 and not WHOLE, reason="`test_ordinary_user.py` does it as another user")
def test_git_pytest_npm_and_make_work_in_a_box(world: World) -> None:
    ordinary_work(world)
