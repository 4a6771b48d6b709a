"""A scripted Messages API on loopback: for the demo, the tests, the benchmarks and users' own tests."""

from subagent_server.simulator.errors import ScriptError
from subagent_server.simulator.loading import load_script, parse_script, script_text
from subagent_server.simulator.recorder import RecordedRequest
from subagent_server.simulator.running import Simulator
from subagent_server.simulator.script import Script, Turn

__all__ = [
    "RecordedRequest",
    "Script",
    "ScriptError",
    "Simulator",
    "Turn",
    "load_script",
    "parse_script",
    "script_text",
]
