"""A tree of runs stays in the directory of its first run: its directories and its inputs, by every door."""

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from subagent_server.process.launcher import LaunchPackage
from subagent_server.run import transitions
from subagent_server.run.errors import BadArgument
from subagent_server.run.paths import RunPaths
from subagent_server.run.processes import now
from subagent_server.run.records import RunMeta
from subagent_server.settings import read_settings
from subagent_server.verbs.access import USER, Caller
from subagent_server.verbs.continue_run import ContinueOrder, continue_run
from subagent_server.verbs.inputs import enter
from subagent_server.verbs.service import Service
from subagent_server.verbs.start import StartOrder, start
from tests.verbs.holding import HoldingLauncher, Kept, holding

FRONT = "---\nname: {}\ndescription: It goes on.\nagents: [again, placed]\n{}---\nGo on."


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    """The verbs, called in `cwd`, beside a directory with a secret; nothing is started."""
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside/secret.txt").write_text("SECRET\n", encoding="utf-8")
    cwd = tmp_path / "cwd"
    (cwd / "sub").mkdir(parents=True)
    (cwd / "sub/inner.txt").write_text("inner\n", encoding="utf-8")
    for name, target in LINKS.items():
        (cwd / name).symlink_to(target)
    (cwd / "\udcff").mkdir()
    for name in (".git/hooks", "sub/.cargo"):
        (cwd / name).mkdir(parents=True)
    (tmp_path / "agents").mkdir()
    for name, key in {"again": "", "placed": f"cwd: {tmp_path}/outside\n"}.items():
        (tmp_path / f"agents/{name}.md").write_text(FRONT.format(name, key), encoding="utf-8")
    settings = read_settings(
        agents=[tmp_path / "agents"], runs=tmp_path / "runs", environment={"ANTHROPIC_API_KEY": "k"}, cwd=cwd
    )
    with holding(settings) as service:
        yield service


LINKS = {
    "out": "../outside",
    "root": "/",
    "file_out": "../outside/secret.txt",
    "inward": "sub",
    "process": "/proc/self/cwd",
    "not_utf8": "\udcff",
}


def begun(service: Service, caller: Caller = USER, agent: str = "again", **order: object) -> RunMeta:
    """Start a run that never works."""
    return start(service, StartOrder(agent, "Go on.", **order), caller)  # type: ignore[arg-type]


def recorded_cwd(service: Service, meta: RunMeta) -> str:
    """Return where a run works."""
    return service.store.read_request(meta.run_id).cwd


@pytest.mark.parametrize(
    "cwd",
    ["/etc", "~", "..", "../outside", "sub/../..", "out", "root/etc", "process", "/", "sub/../../outside"],
)
def test_a_run_is_not_started_outside_the_directory_of_its_parent(service: Service, cwd: str) -> None:
    child = Caller(begun(service).run_id)
    with pytest.raises(BadArgument, match=r"leads outside .*: name a directory in it"):
        begun(service, child, cwd=cwd)
    assert service.store.run_ids() == [child.run_id], "nothing was made"
    begun(service, cwd=cwd)


def test_a_run_may_be_started_below_the_directory_of_its_parent_and_is_recorded_by_its_real_path(
    service: Service, tmp_path: Path
) -> None:
    root = begun(service)
    here = str(tmp_path / "cwd")
    wanted = {None: here, ".": here, "sub": f"{here}/sub", "inward": f"{here}/sub", f"{here}/sub/..": here}
    for cwd, real in wanted.items():
        assert recorded_cwd(service, begun(service, Caller(root.run_id), cwd=cwd)) == real
    below = begun(service, Caller(root.run_id), cwd="sub")
    with pytest.raises(BadArgument, match="leads outside"):
        begun(service, Caller(below.run_id))


@pytest.mark.parametrize(
    ("cwd", "reason"),
    [
        ("nowhere", "is not a directory"),
        ("sub/inner.txt", "is not a directory"),
        ("sub/inner.txt/x", "is not a directory"),
        ("", "empty"),
        ("x" * 5000, "cannot be entered"),
        ("\ud800", "is not a path"),
        ("not_utf8", "not UTF-8"),
        (".git", "executed by git"),
        (".git/hooks", "executed by git"),
        ("sub/.cargo", "executed by Cargo"),
    ],
)
def test_a_directory_that_a_run_cannot_have_is_refused_with_a_reason(
    service: Service, cwd: str, reason: str
) -> None:
    child = Caller(begun(service).run_id)
    with pytest.raises(BadArgument, match=reason):
        begun(service, child, cwd=cwd)


def test_the_directory_that_an_agent_file_names_holds_for_nested_runs_and_their_continuations(
    service: Service, tmp_path: Path
) -> None:
    child = Caller(begun(service).run_id)
    placed = begun(service, child, "placed")
    outside = str(tmp_path / "outside")
    assert recorded_cwd(service, placed) == outside
    service.store.update(placed.run_id, transitions.StopRequested(), now())
    order = ContinueOrder(placed.run_id, "Go on.")
    assert recorded_cwd(service, continue_run(service, order, child)) == outside
    (tmp_path / "agents/placed.md").write_text(FRONT.format("placed", ""), encoding="utf-8")
    with pytest.raises(BadArgument, match="leads outside"):
        continue_run(service, order, child)
    assert recorded_cwd(service, continue_run(service, order)) == outside, "a user may"


@pytest.mark.parametrize(
    "path",
    [
        *("/etc/hostname", "../outside/secret.txt", "out/secret.txt", "file_out", "root/etc/hostname"),
        "sub/../../x",
    ],
)
def test_inputs_of_a_nested_run_lie_in_the_directory_of_its_parent(service: Service, path: str) -> None:
    root = begun(service)
    with pytest.raises(BadArgument, match=r"leads outside .* is not in its inputs/"):
        begun(service, Caller(root.run_id), inputs=[path])
    done = begun(service, Caller(root.run_id))
    service.store.update(done.run_id, transitions.StopRequested(), now())
    with pytest.raises(BadArgument, match="leads outside"):
        continue_run(service, ContinueOrder(done.run_id, "Go on.", [path]), Caller(root.run_id))
    assert len(service.store.run_ids()) == 2, "nothing was made"


def test_inputs_may_lie_anywhere_in_it_and_in_the_inputs_and_outputs_of_the_run(
    service: Service, tmp_path: Path
) -> None:
    root = begun(service, inputs=["../outside/secret.txt"])
    run = service.store.paths.run(root.run_id)
    run.outputs.path.mkdir()
    (run.outputs.path / "long.txt").write_text("long\n", encoding="utf-8")
    (run.outputs.path / "link.txt").symlink_to(tmp_path / "outside/secret.txt")
    given = ["inner.txt", "../inward/inner.txt", str(run.outputs.path / "long.txt")]
    below = begun(
        service, Caller(root.run_id), cwd="sub", inputs=[*given, str(run.inputs.path / "01-secret.txt")]
    )
    copies = service.store.paths.run(below.run_id).inputs
    assert [path.read_text(encoding="utf-8") for path in sorted(copies.path.iterdir())] == [
        *("inner\n", "inner\n", "long\n", "SECRET\n")
    ]
    for path in (run.outputs.path / "link.txt", run.request):
        with pytest.raises(BadArgument, match="leads outside"):
            begun(service, Caller(root.run_id), inputs=[str(path)])
    with pytest.raises(BadArgument, match="leads outside"):
        begun(service, Caller(below.run_id), inputs=[str(run.outputs.path / "long.txt")])


@pytest.mark.parametrize("name", ["\ud800", "\udcff/file", "x" * 5000, "file/below"])
def test_an_input_whose_name_cannot_be_is_refused_in_a_sentence(service: Service, name: str) -> None:
    (service.settings.cwd / "file").touch()
    (service.settings.cwd / "\udcff/file").touch()
    child = Caller(begun(service).run_id)
    for caller in (USER, child):
        with pytest.raises(BadArgument):
            begun(service, caller, inputs=[name])


def test_an_input_that_is_a_fifo_or_a_device_holds_nobody_up(service: Service, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "cwd/pipe")
    child = Caller(begun(service).run_id)
    for caller in (USER, child):
        with pytest.raises(BadArgument, match="not a regular file"):
            begun(service, caller, inputs=["pipe"])
    with pytest.raises(BadArgument, match="not a regular file"):
        begun(service, inputs=["/dev/zero"])


class Swapper(HoldingLauncher):
    """A launcher that has `sub` swapped for a link as soon as everything is checked."""

    def __init__(self) -> None:
        super().__init__()
        self.packages: list[LaunchPackage] = []

    def reserve(self, run: RunPaths) -> Kept:
        """Swap it, and keep what is handed to the process."""
        here = run.directory.parents[1] / "cwd"
        (here / "sub").rename(here / "aside")
        (here / "sub").symlink_to("../outside")
        super().reserve(run)
        return KeptPackage(self.locks[-1], self.packages)


class KeptPackage(Kept):
    """A run that seems to live, and whose package is kept."""

    def __init__(self, lock: int, packages: list[LaunchPackage]) -> None:
        super().__init__(lock)
        self._packages = packages

    def start(self, package: LaunchPackage) -> None:
        self._packages.append(package)


def test_a_directory_that_is_swapped_while_a_run_is_made_is_handed_on_as_it_was_checked(
    service: Service, tmp_path: Path
) -> None:
    child = Caller(begun(service).run_id)
    swapper = Swapper()
    try:
        below = begun(replace(service, launcher=swapper), child, cwd="sub", inputs=["inner.txt"])
    finally:
        service.launcher.locks.extend(swapper.locks)  # type: ignore[attr-defined]
    (package,) = swapper.packages
    assert package.cwd == recorded_cwd(service, below) == str(tmp_path / "cwd/sub")
    assert (service.store.paths.run(below.run_id).inputs.path / "01-inner.txt").read_bytes() == b"inner\n"


def test_a_directory_that_became_a_link_after_it_was_checked_is_not_entered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # and back at the end
    (tmp_path / "outside").mkdir()
    (tmp_path / "sub").mkdir()
    enter(str(tmp_path / "sub"))
    (tmp_path / "sub").rmdir()
    (tmp_path / "sub").symlink_to("outside")
    with pytest.raises(NotADirectoryError):
        enter(str(tmp_path / "sub"))
