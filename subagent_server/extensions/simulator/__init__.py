"""A scripted Messages API on loopback: for the demo, the tests, the benchmarks and users' own tests."""

from subagent_server.extensions.simulator.model_script import (
    Script,
    ScriptError,
    Turn,
    load_script,
    parse_script,
    script_text,
)
from subagent_server.extensions.simulator.model_server import RecordedRequest, Simulator

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
