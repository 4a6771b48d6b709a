"""What of a definition may stand on disk."""

import json

import pytest

from subagent_server.agents.redact import redact
from subagent_server.run.agent_definition import AgentDefinition, ServerDefinition


def env(name: str, value: str) -> str:
    stored: str = redact(AgentDefinition(name="a", env={name: value}))["env"][name]
    return stored


def arguments(*args: str) -> list[str]:
    server = ServerDefinition(command="c", args=list(args))
    stored: list[str] = redact(AgentDefinition(name="a", mcp_servers={"s": server}))["mcpServers"]["s"][
        "args"
    ]
    return stored


def url(value: str) -> str:
    server = ServerDefinition(type="http", url=value)
    stored: str = redact(AgentDefinition(name="a", mcp_servers={"s": server}))["mcpServers"]["s"]["url"]
    return stored


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("GITHUB_TOKEN", "abc"),
        ("clientSecret", "abc"),
        ("DB_PASSWORD", "123456"),
        ("PGPASSWORD", "a b"),
        ("DB_PASS", "x"),
        ("api-key", "x"),
        ("APIKEY", "x"),
        ("X-Api-Key", "x"),
        ("SSH_PRIVATE_KEY", "x"),
        ("ENCRYPTION_KEY", "x"),
        ("SESSION_COOKIE", "x"),
        ("AWS_CREDENTIALS", "x"),
        ("ANY", "sk-ant-REDACTED"),
        ("ANY", "ghp_abcdefghijkl"),
        ("ANY", "github_pat_11ABCDEFG"),
        ("ANY", "xoxb-123456-abcdef"),
        ("ANY", "AKIAIOSFODNN7EXAMPLE"),
        ("ANY", "eyJhbGciOiJIUzI1.eyJzdWIiOiIxMjM0.SflKxwRJSMeKKF2QT4"),
        ("ANY", "9f86d081884c7d659a2feaa0c55ad015"),
        ("ANY", "550e8400-e29b-41d4-a716-446655440000"),
        ("ANY", "wJalrXUtnFEMI7K7MDENGbPxRfiCYEXAMPLEKEY"),
    ],
)
def test_a_literal_that_looks_like_a_secret_is_masked(name: str, value: str) -> None:
    assert env(name, value) == "***"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("PATH", "/usr/local/bin:/home/user2/projects/some-long-name-2026/bin"),
        ("MODEL", "claude-sonnet-4-5-20250929"),
        ("PACKAGE", "@modelcontextprotocol/server-filesystem@2026.4.18"),
        ("MAX_TOKENS", "4096"),
        ("USE_AUTH", "true"),
        ("TOKEN_FILE", "/run/secrets/token"),
        ("AUTH_URL", "https://login.example/path"),
        ("KEYBOARD", "qwerty"),
        ("GREETING", "Hello, how are you today?"),
        ("GITHUB_TOKEN", "${GH_TOKEN}"),
        ("GITHUB_TOKEN", ""),
        ("AUTHORIZATION", "Bearer ${TOKEN}"),
        ("DATABASE_URL", "postgres://app:${PASSWORD}@db/app?sslmode=require"),
    ],
)
def test_what_is_no_secret_or_only_names_one_stays(name: str, value: str) -> None:
    assert env(name, value) == value


@pytest.mark.parametrize(
    ("value", "stored"),
    [
        ("prefix-${KEY}", "***${KEY}"),
        ("${KEY:-fallback}", "${KEY:-***}"),
        ("Bearer abcdef", "Bearer ***"),
        ("$${NOT_A_VARIABLE}", "******"),
    ],
)
def test_the_literal_parts_beside_a_variable_are_masked(value: str, stored: str) -> None:
    assert env("API_KEY", value) == stored


def test_arguments_are_masked_by_their_flags_and_by_their_looks() -> None:
    assert arguments(
        "-y", "pkg", "--token", "abc", "--api-key=def", "--root", "/srv", "--secret", "${S}"
    ) == [*("-y", "pkg", "--token", "***", "--api-key=***", "--root", "/srv", "--secret", "${S}")]
    assert arguments("-H", "Authorization: Bearer abc", "--verbose", "--token", "--quiet") == [
        *("-H", "Authorization: Bearer ***", "--verbose", "--token", "--quiet")
    ]
    assert arguments("-c", "export TOKEN=abc; run --password 'a b' --name x") == [
        *("-c", "export TOKEN=***; run --password *** --name x")
    ]
    assert "hunter2" not in arguments('{"token": "hunter2", "n": 1}')[0]


@pytest.mark.parametrize(
    ("value", "stored"),
    [
        ("https://user:pass@host/path", "https://user:***@host/path"),
        ("https://secret@host/path", "https://***@host/path"),
        ("https://host/mcp?token=abc&page=2", "https://host/mcp?token=***&page=2"),
        ("https://host/s/OGQ3ZmE4YjItYzE5ZC00/mcp", "https://host/s/***/mcp"),
        ("https://${HOST}/mcp?api_key=${KEY}", "https://${HOST}/mcp?api_key=${KEY}"),
        ("https://host:8443/api/v2/search-index", "https://host:8443/api/v2/search-index"),
    ],
)
def test_secrets_in_urls_are_masked_and_the_rest_of_the_url_stays(value: str, stored: str) -> None:
    assert url(value) == stored


def test_headers_unknown_keys_and_prompts_are_looked_at_too() -> None:
    definition = AgentDefinition(
        name="a",
        system_prompt="Use the token sk-ant-REDACTED for the Bearer header.",
        mcp_servers={
            "s": ServerDefinition(type="http", url="http://h", headers={"X-Key": "k", "Accept": "text/html"})
        },
        unknown={"hooks": {"env": {"TOKEN": "abc", "n": 1}}, "pin": ["ghp_abcdefghij"], "secret": 12},
    )
    stored = redact(definition)
    assert stored["systemPrompt"] == "Use the token *** for the Bearer header."
    assert stored["mcpServers"]["s"]["headers"] == {"X-Key": "***", "Accept": "text/html"}
    assert stored["unknown"] == {"hooks": {"env": {"TOKEN": "***", "n": 1}}, "pin": ["***"], "secret": "***"}


def test_the_schema_of_the_result_is_not_touched_and_all_is_json() -> None:
    schema: dict[str, object] = {"type": "object", "properties": {"token": {"const": "abc"}}}
    definition = AgentDefinition(name="a", output_schema=schema, env={"TOKEN": "abc"})
    stored = json.loads(json.dumps(redact(definition)))
    assert stored["outputSchema"] == schema
    assert AgentDefinition.model_validate(stored) == definition.model_copy(update={"env": {"TOKEN": "***"}})
