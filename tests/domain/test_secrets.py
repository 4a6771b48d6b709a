"""Secrets are taken out of whatever a run writes."""

from hypothesis import given
from hypothesis import strategies as st

from subagent_server.domain.secrets import Masker, secret_values

SECRET = "tok-1234567890abcdef"


def test_variables_hold_secrets_by_their_names_and_only_when_they_are_long() -> None:
    environment = {"API_KEY": SECRET, "MY_TOKEN": "short", "PWD": "/a/very/long/directory", "ODD": SECRET}
    assert secret_values(environment) == {"API_KEY": SECRET}
    assert secret_values(environment, ["ODD"]) == {"API_KEY": SECRET, "ODD": SECRET}


def test_data_of_any_depth_is_masked_and_its_keys_are_not() -> None:
    data = {"text": f"it is {SECRET}.", "list": [{"deep": SECRET}], "number": 7, SECRET: None}
    assert Masker([SECRET]).data(data) == {
        "text": "it is ***.",
        "list": [{"deep": "***"}],
        "number": 7,
        SECRET: None,
    }


def test_of_two_secrets_that_overlap_the_longer_is_masked_whole() -> None:
    assert Masker([SECRET, SECRET + "-more"]).text(f"{SECRET}-more") == "***"


def test_white_space_around_a_secret_is_none_of_it() -> None:
    masker = Masker([f"{SECRET}\n", " \n"])
    assert (
        masker.text(f"Illegal value {f'{SECRET}{chr(10)}'!r}, and more") == "Illegal value '***\\n', and more"
    )
    assert secret_values({"API_KEY": " " * 20 + "short"}) == {}


@given(st.lists(st.binary(max_size=8) | st.just(SECRET.encode()), max_size=30), st.integers(1, 25))
def test_a_stream_is_masked_however_it_is_cut(parts: list[bytes], size: int) -> None:
    whole = b"".join(parts)
    masker, written, waiting = Masker([SECRET]), b"", b""
    for start in range(0, len(whole), size):
        ready, waiting = masker.stream(waiting + whole[start : start + size])
        written += ready
    ready, waiting = masker.stream(waiting, last=True)
    assert waiting == b""
    assert written + ready == whole.replace(SECRET.encode(), b"***")
