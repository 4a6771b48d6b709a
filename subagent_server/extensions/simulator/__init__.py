"""A scripted Messages API on loopback: for the demo, the tests, the benchmarks and users' own tests."""

from subagent_server.extensions.simulator.model_script import Script, ScriptError, Turn, load_script
from subagent_server.extensions.simulator.model_server import Simulator

__all__ = ["Script", "ScriptError", "Simulator", "Turn", "load_script"]
