"""What bounds the memory of a box, where a control group can be had and where none can."""

import pytest

from subagent_server.run.agent_definition import SandboxLimits
from subagent_server.run.control_groups import GROUPS
from subagent_server.sandbox.box_limits import limits_as_text
from tests.helpers.turns import call, says, shell
from tests.helpers.world import World
from tests.sandbox.boxed import boxed

HAS_GROUP = GROUPS.kind() is not None
HOGS = """
import mmap, os, sys
if sys.argv[1] == "shared":
    memory = mmap.mmap(-1, 192 << 20)
    for _ in range(192):
        memory.write(b"x" * (1 << 20))
else:
    for _ in range(24):
        os.write(os.memfd_create("x"), b"x" * (8 << 20))
print("never bounded")
"""


def test_log_and_doctor_name_the_bound_that_holds(world: World) -> None:
    of_memory = "4 GiB memory," if HAS_GROUP else "4 GiB private memory of each process,"
    assert limits_as_text(SandboxLimits()).startswith(of_memory)
    world.agent_saying(shell("true"), says("Done."), sandbox="bwrap")
    run_id = world.completed_run()
    assert of_memory in world.events(run_id, "run_started")[0]["sandbox"]
    assert of_memory in world.cli("doctor").stderr


def limits_hold(world: World) -> None:
    (limits,) = boxed(
        world, "ulimit -u; ulimit -d; ulimit -f; ulimit -c; ulimit -n; cat /proc/self/oom_score_adj"
    )
    assert limits.split() == ["256", "4194304", "1048576", "0", "4096", "500"]


def test_every_limit_holds_in_a_box(world: World) -> None:
    limits_hold(world)


@pytest.mark.skipif(not HAS_GROUP, reason="no control group can be had here")
def test_a_box_cannot_hold_more_shared_memory_or_files_in_memory_than_its_bound(world: World) -> None:
    (world.work / "hogs.py").write_text(HOGS, encoding="utf-8")
    commands = [f"python3 hogs.py {kind}; echo ended with $?" for kind in ("shared", "files")]
    results = boxed(world, *commands, sandboxLimits={"memoryBytes": 128 << 20})
    assert "never" not in str(results) and results[-1].endswith("ended with 137")
    (run_id,) = world.store.run_ids()
    GROUPS.remove(run_id)


@pytest.mark.parametrize("name", ["bash", "nice"])
def test_a_program_that_a_run_puts_into_its_path_does_not_lift_its_bounds(world: World, name: str) -> None:
    world.environment["PATH"] = f"{world.work}/bin:{world.environment['PATH']}"
    plants = r"""
        mkdir bin; cat > bin/NAME <<'END'
#!/usr/bin/python3
import os, sys
words = [word.replace("ulimit -f", "true") for word in sys.argv[1:]]
os.execv("/usr/bin/NAME", ["NAME", *words])
END
        chmod +x bin/NAME
    """.replace("NAME", name)
    *_, bound = boxed(
        world, plants, call("bash", restart=True), "ulimit -f", sandboxLimits={"fileBytes": 1 << 20}
    )
    assert bound.endswith("1024")
