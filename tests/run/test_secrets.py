"""Secrets are taken out of whatever a run writes."""

import base64
import time

from hypothesis import given
from hypothesis import strategies as st

from subagent_server.run.secrets import Masker, secret_values

SECRET = "tok-1234567890abcdef"


def test_a_variable_holds_a_secret_by_its_name_or_its_look_and_a_path_is_none() -> None:
    secrets = {
        "API_KEY": SECRET,
        "SLACKPASS": "hunter2hunter2",
        "DB_PASS": "s3cr3tpw",
        "SMTP_PASSWORD_OLD": "correct horse battery",
        "GCP_CREDENTIALS": '{"private": "words of it"}',
        "REGISTRY_AUTH": "dXNlcjpwdw==",
        "ODD": "aB3dE5fG7hI9jK1lM3nO5p",
        "AS_A_PATH": "/aB3dE5fG7h+I9jK1lM3nO5pQ7rS9t/x",
        "AS_A_PATH_KEY": "/aB3dE5f/G7hI9jK1lM/3nO5pQ7rS9t",
    }
    harmless = {
        "MY_TOKEN": "short",
        "PWD": "/a/very/long/directory",
        "PLAIN": "words-of-a-gateway-4711",
        "AGENTS": "/home/Max/Projects/my-App2/agents",
        "SSH_AUTH_SOCK": "/tmp/ssh-XXXX/agent.1234",
        "KEY_FILE": "/home/me/.ssh/id_ed25519",
        "DB_PASS": "postgres",
        "GITHUB_SHA": "0123456789abcdef0123456789abcdef01234567",
        "TRACEPARENT": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        "PATH": "/usr/local/bin:/usr/bin",
        "HOMEPAGE": "https://example.com/a/b",
        "TRACE_ID": "aB3dE5fG7hI9jK1lM3nO5p",
    }
    assert secret_values(secrets) == secrets
    assert secret_values(harmless) == {}
    assert secret_values(harmless, ["PLAIN"]) == {"PLAIN": harmless["PLAIN"]}, "whatever an agent file names"
    assert secret_values({"DATABASE_URL": "postgres://u:PW-of-2026@h/db"}) == {"DATABASE_URL": "PW-of-2026"}


def test_data_of_any_depth_is_masked_and_so_are_its_keys() -> None:
    data = {"text": f"it is {SECRET}.", "list": [{"deep": SECRET}], "number": 7, SECRET: None}
    assert Masker([SECRET]).data(data) == {
        "text": "it is ***.",
        "list": [{"deep": "***"}],
        "number": 7,
        "***": None,
    }


def test_of_two_secrets_that_overlap_the_longer_is_masked_whole() -> None:
    assert Masker([SECRET, SECRET + "-more"]).text(f"{SECRET}-more") == "***"


def test_white_space_around_a_secret_is_none_of_it() -> None:
    masker = Masker([f"{SECRET}\n", " \n"])
    assert (
        masker.text(f"Illegal value {f'{SECRET}{chr(10)}'!r}, and more") == "Illegal value '***\\n', and more"
    )
    assert secret_values({"API_KEY": " " * 20 + "short"}) == {}


KEY_BLOCK = (
    "-----BEGIN RSA PRIVATE KEY-----\nProc-Type: 4,ENCRYPTED\n\nMIIEow+/a1==\n-----END RSA PRIVATE KEY-----"
)
TOKENS = [
    *("sk-ant-api03-Abc_123", "ghp_0123456789abcdef", "github_pat_11ABC_def", "glpat-abc-123456"),
    *("xoxb-1234-abcdef", "AKIAIOSFODNN7EXAMPLE", "AIzaSyA-0123456789abcdefghi", "hf_AbCdEfGhIjKlMnOp"),
    *("npm_a1b2c3d4e5f6g7", "pypi-AgEIcHlwaS5vcmc", "eyJhbGciOiJI.eyJzdWIiOiIx.c2ln", KEY_BLOCK),
]
NAMES = [
    *(
        "npm_config_registry",
        "hf_tokenizer_config",
        "sk-circle-fade-dot",
        "pypi-publish-action",
        "risk-AVERSE1",
    ),
    *("a task-Runner-2000", "-----BEGIN CERTIFICATE-----", "the eyJ of a token", "xOAKIAIOSFODNN7EXAMPLE"),
]


def test_what_has_the_shape_of_a_token_is_masked_though_nobody_knows_its_value() -> None:
    for token in TOKENS:
        assert Masker().text(f"it is '{token}', or so") == "it is '***', or so"
        assert Masker().stream(f"it is '{token}', or so".encode(), last=True) == (b"it is '***', or so", b"")
    for name in NAMES:
        assert Masker().text(name) == name, "a name that somebody gave is none"


PAIR = base64.b64encode(b"x-access-token:0123abcd").decode()
IN_CONTEXT = {
    "postgres://u:PW@h/db": "postgres://u:***@h/db",
    "https://x:p@ss:w0rd@h, twice": "https://x:***@h, twice",
    "https://0123456789abcdef0123@h/o/r": "https://***@h/o/r",
    f"AUTHORIZATION: basic {PAIR}": "AUTHORIZATION: basic ***",
    f"run it with basic {PAIR} and": "run it with basic *** and",
    '"Authorization": "Bearer abc-12345.x"': '"Authorization": "Bearer ***"',
    "curl -H 'authorization: s3cr3t-words'": "curl -H 'authorization: ***'",
    "a bearer abcdef12345.": "a bearer ***",
    "export SLACKPASS=hunter22 and": "export SLACKPASS=*** and",
    "//registry/:_authToken=0a1b2c3d": "//registry/:_authToken=***",
    '{"password": "hunter2222"}': '{"password": "***"}',
}
NO_CREDENTIALS = [
    *(
        "https://git@github.com/o/r",
        "http://127.0.0.1:8080/a@b",
        "postgres://app:${PASSWORD}@db",
        "a://x:$PW@y",
    ),
    *("Basic authentication", "basic information2 ", "the bearer of it", "Authorization: required from 2026"),
    *("SORT_KEY=alphabetical", "KEY=/etc/ssl/key1.pem", "f(password='same-words')", "MAX_TOKENS=100000000"),
    *("password=self.key_password", "Authorization: getToken(user1)"),
]


def test_a_credential_is_masked_by_the_words_before_it_and_the_words_stay() -> None:
    for text, masked in IN_CONTEXT.items():
        assert Masker().text(text) == masked
        assert Masker().stream(text.encode(), last=True) == (masked.encode(), b"")
        assert Masker().text(masked) == masked
    for text in NO_CREDENTIALS:
        assert Masker().text(text) == text


def test_the_data_of_a_picture_is_not_broken_by_letters_that_chance_put_together() -> None:
    picture = "A+" * 600 + "AIzaSyA0123456789abcdefghi" + "A=" * 1
    assert Masker().text(picture) == picture and Masker().text(picture[1190:]) != picture[1190:]


def test_masking_takes_time_in_proportion_to_the_text() -> None:
    """A hundredth of this takes for ever where a pattern tries again from every place."""
    began = time.process_time()
    for part in (
        *("sk-", "x", "eyJaaaaaaaa.", "eyJaaaaaaaa.aa.", "-----BEGIN "),
        *("-----BEGIN PRIVATE KEY-----a-", "://", "://a:b", "://a:b@c@", "Authorization: "),
        *("Authorization:basic ", "basic YQ ", "KEY=", "PASSWORD='a1", 'password": "a1'),
    ):
        Masker().text(text := part * (200_000 // len(part)))
        Masker().stream(text.encode())
    for start in ("-----BEGIN ", "://a:", "://", "KEY=", "basic ", "Authorization: basic "):
        Masker().text(start + "A" * 200_000)
    assert time.process_time() - began < 10


WORDS = [" ", "words and\n", "a.b-c", "Basic", "x" * 9_000]


@given(st.lists(st.sampled_from([*TOKENS, *IN_CONTEXT, *WORDS]), max_size=12), st.data())
def test_a_credential_in_a_stream_is_masked_however_it_is_cut(parts: list[str], data: st.DataObject) -> None:
    whole = " ".join(parts).encode()
    masker, written, waiting = Masker([SECRET]), b"", b""
    cuts = sorted(data.draw(st.lists(st.integers(0, len(whole)), max_size=20)))
    for start, end in zip([0, *cuts], [*cuts, len(whole)], strict=True):
        ready, waiting = masker.stream(waiting + whole[start:end])
        written += ready
    assert written + masker.stream(waiting, last=True)[0] == masker.stream(whole, last=True)[0]


def test_a_key_in_a_stream_is_masked_with_its_last_line_wherever_it_is_cut() -> None:
    key = next(token for token in TOKENS if token.startswith("-----BEGIN"))
    whole = f"a.b-c {key} {TOKENS[0]} and so on".encode()
    masker = Masker([SECRET])
    for cut in range(len(whole)):
        ready, waiting = masker.stream(whole[:cut])
        assert ready + masker.stream(waiting + whole[cut:], last=True)[0] == b"a.b-c *** *** and so on", cut
        beside = f"and KEY=abc123DEF456{key}".encode()
        ready, waiting = masker.stream(beside[:cut])
        assert b"abc123" not in ready + masker.stream(waiting + beside[cut:], last=True)[0], cut


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
