"""Trace context of others is data: what is well-formed travels on, all else is left out."""

import pytest

from subagent_server.domain.trace_context import carried, checked, of_environment

PARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


@pytest.mark.parametrize(
    "parent",
    [
        "",
        7,
        None,
        ["x"],
        PARENT + "\n",
        PARENT.upper(),
        PARENT + "-more",
        "ff" + PARENT[2:],
        "01" + PARENT[2:] + "-\0",
        PARENT.replace("4bf92f3577b34da6a3ce929d0e0e4736", "0" * 32),
        PARENT.replace("00f067aa0ba902b7", "0" * 16),
    ],
)
def test_what_is_no_trace_parent_is_left_out(parent: object) -> None:
    assert checked({"traceparent": parent, "tracestate": "a=1"}) == {}


def test_a_trace_parent_of_a_later_version_may_say_more() -> None:
    assert checked({"traceparent": "01" + PARENT[2:] + "-more"})


@pytest.mark.parametrize("state", ["", "a=1\nEVIL=1", "a=\0", "x" * 513, 7, None])
def test_a_state_that_cannot_stand_in_an_environment_is_left_out(state: object) -> None:
    assert checked({"traceparent": PARENT, "tracestate": state, "other": "x"}) == {"traceparent": PARENT}


def test_a_context_takes_the_place_of_the_one_that_an_environment_had() -> None:
    had = {"TRACEPARENT": "old", "TRACESTATE": "old", "PATH": "/bin"}
    assert carried(had, {}) == had
    assert carried(had, {"traceparent": PARENT}) == {"TRACEPARENT": PARENT, "PATH": "/bin"}
    both = {"traceparent": PARENT, "tracestate": "a=1"}
    assert of_environment(carried(had, both)) == both
    assert of_environment(had) == {}
    assert checked(None) == {}
