"""The generic tools in the order in which they are listed, and which of them a caller has."""

from subagent_server.service.access import Caller
from subagent_server.service.context import Service
from subagent_server.service.nesting import agents_of
from subagent_server.service.tools.child_tools import ASK_PARENT, UPDATE_STATUS
from subagent_server.service.tools.parent_tools import (
    CHECK_STATUS,
    CONTINUE_RUN,
    GET_LOGS,
    LIST_RUNS,
    REPLY_SUBAGENT,
    STOP_RUN,
    WAIT_FOR_RUNS,
)
from subagent_server.service.tools.spec import ToolSpec
from subagent_server.settings import Role

TOOLS: tuple[ToolSpec, ...] = (
    CHECK_STATUS,
    WAIT_FOR_RUNS,
    LIST_RUNS,
    GET_LOGS,
    REPLY_SUBAGENT,
    STOP_RUN,
    CONTINUE_RUN,
    ASK_PARENT,
    UPDATE_STATUS,
)
PARENT_TOOLS = tuple(tool for tool in TOOLS if "parent" in tool.roles)


def tools_of(service: Service, role: Role, caller: Caller) -> tuple[ToolSpec, ...]:
    """Return the generic tools of a role; a child has the parent's only if the child may start others.

    Raises:
        UnreadableMeta: the request of the child's run cannot be read.
    """
    if role == "parent":
        return PARENT_TOOLS
    if role == "child" and not agents_of(service, caller):
        return tuple(tool for tool in TOOLS if "child" in tool.roles)
    return TOOLS
