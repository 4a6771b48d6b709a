"""How many examples the fuzz tests try, and their mutations."""

import os
from datetime import timedelta

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from subagent_server.run.errors import OTHER_SPACES, visible
from tests.helpers.scale import times

FUZZED = settings(
    max_examples=int(os.environ.get("FUZZ_EXAMPLES", times(25, 150))),
    deadline=timedelta(seconds=60),
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
"""`make fuzz` sets FUZZ_EXAMPLES to 10,000; the deadline of each example is what catches a hang."""

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=40),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=12), inner, max_size=3),
    max_leaves=8,
)


@st.composite
def mutated(draw: st.DrawFn, original: bytes) -> bytes:
    """Draw `original` with a few bytes changed, cut out, doubled or put in."""
    data = bytearray(original)
    for _ in range(draw(st.integers(1, 4))):
        start = draw(st.integers(0, len(data)))
        end = draw(st.integers(start, min(len(data), start + 40)))
        kind = draw(st.sampled_from(["replace", "cut", "double", "truncate"]))
        if kind == "replace":
            data[start:end] = draw(st.binary(max_size=20) | st.text(max_size=10).map(str.encode))
        elif kind == "cut":
            del data[start:end]
        elif kind == "double":
            data[start:start] = data[start:end]
        else:
            del data[start:]
    return bytes(data)


def is_plain(sentence: str) -> bool:
    """Whether it is one line without escapes; spaces and joiners of other scripts are harmless."""
    return visible(sentence, OTHER_SPACES) == sentence
