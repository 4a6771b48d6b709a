"""The parts of the SDK that the sessions over HTTP use although its authors may move them.

There is no public way to give each session a store of its own, or to bound the sessions of one parent. A new
release of the SDK that moves a part fails here.
"""

import ast
import inspect
from importlib.metadata import version

import pytest
from mcp.server.lowlevel import Server
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager

from subagent_server.server.http import McpSessions

OVERRIDDEN: dict[tuple[type, str], list[str]] = {
    (StreamableHTTPSessionManager, "_admit_session"): ["self", "requestor"],
    (StreamableHTTPSessionManager, "_discard_session"): ["self", "session_id", "transport"],
}
"""Methods that are called by the SDK, with their parameters."""
READ = {
    "_server_instances": (StreamableHTTPSessionManager(Server("parts")), dict),
    "_session_owners": (StreamableHTTPSessionManager(Server("parts")), dict),
}
"""Attributes that are read or set, with their types."""
OWN = {"_ended", "_events"}
MOVED = f"mcp {version('mcp')} has moved {{}}: look at server/http.py, and pin mcp below it until then."


@pytest.mark.parametrize(("owner", "name"), OVERRIDDEN)
def test_a_method_that_sessions_override_is_where_it_was(owner: type, name: str) -> None:
    method = getattr(owner, name, None)
    assert method is not None, MOVED.format(name)
    assert list(inspect.signature(method).parameters) == OVERRIDDEN[owner, name], MOVED.format(name)


@pytest.mark.parametrize("name", READ)
def test_an_attribute_that_sessions_read_is_where_it_was(name: str) -> None:
    owner, kind = READ[name]
    assert isinstance(getattr(owner, name, None), kind), MOVED.format(name)


def test_sessions_use_no_other_private_part() -> None:
    tree = ast.parse(inspect.getsource(McpSessions))
    named = {each.attr for each in ast.walk(tree) if isinstance(each, ast.Attribute)}
    defined = {
        each.name for each in ast.walk(tree) if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)
    }
    used = {name for name in named | defined if name.startswith("_") and not name.startswith("__")}
    listed = {name for _, name in OVERRIDDEN} | set(READ)
    assert used - OWN == {name for name in listed if name.startswith("_")}
