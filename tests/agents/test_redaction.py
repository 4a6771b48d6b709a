"""What of a definition may stand on disk, and which secrets it holds itself."""

import json

import pytest

from subagent_server.agents.variables import hidden_values, redact
from subagent_server.run.agent_definition import AgentDefinition, ServerDefinition

VARIABLES = """
    GITHUB_TOKEN=abc => ***
    clientSecret=abc => ***
    DB_PASSWORD=123456 => ***
    PGPASSWORD=a b => ***
    DB_PASS=x => ***
    api-key=x => ***
    APIKEY=x => ***
    X-Api-Key=x => ***
    SSH_PRIVATE_KEY=x => ***
    ENCRYPTION_KEY=x => ***
    SESSION_COOKIE=x => ***
    AWS_CREDENTIALS=x => ***
    ANY=sk-ant-REDACTED => ***
    ANY=ghp_abcdefghijkl => ***
    ANY=github_pat_11ABCDEFG => ***
    ANY=xoxb-123456-abcdef => ***
    ANY=AKIAIOSFODNN7EXAMPLE => ***
    ANY=eyJhbGciOiJIUzI1.eyJzdWIiOiIxMjM0.SflKxwRJSMeKKF2QT4 => ***
    ANY=9f86d081884c7d659a2feaa0c55ad015 => ***
    ANY=550e8400-e29b-41d4-a716-446655440000 => ***
    ANY=wJalrXUtnFEMI7K7MDENGbPxRfiCYEXAMPLEKEY => ***
    PATH=/usr/local/bin:/home/user2/projects/some-long-name-2026/bin => as it is
    MODEL=claude-sonnet-4-5-20250929 => as it is
    PACKAGE=@modelcontextprotocol/server-filesystem@2026.4.18 => as it is
    MAX_TOKENS=4096 => as it is
    USE_AUTH=true => as it is
    TOKEN_FILE=/run/secrets/token => as it is
    AUTH_URL=https://login.example/path => as it is
    KEYBOARD=qwerty => as it is
    GREETING=Hello, how are you today? => as it is
    GITHUB_TOKEN=${GH_TOKEN} => as it is
    GITHUB_TOKEN= => as it is
    AUTHORIZATION=Bearer ${TOKEN} => as it is
    DATABASE_URL=postgres://app:${PASSWORD}@db/app?sslmode=require => as it is
    API_KEY=prefix-${KEY} => ***${KEY}
    API_KEY=${KEY:-fallback} => ${KEY:-***}
    API_KEY=Bearer abcdef => Bearer ***
    API_KEY=$${NOT_A_VARIABLE} => ******
"""
URLS = r"""
    https://user:pass@host/path => https://user:***@host/path
    https://secret@host/path => https://***@host/path
    https://host/mcp?token=abc&page=2 => https://host/mcp?token=***&page=2
    https://host/s/OGQ3ZmE4YjItYzE5ZC00/mcp => https://host/s/***/mcp
    https://${HOST}/mcp?api_key=${KEY} => as it is
    https://host:8443/api/v2/search-index => as it is
    --url=https://user:pass@host/path => --url=https://user:***@host/path
    url="HTTPS://user:pass@host/path?#" => url="HTTPS://user:***@host/path?#"
    ${SCHEME}://user:pass@[host => ${SCHEME}://user:***@[host
    amqp://a:pass@one,amqp://b:word@two => amqp://a:***@one,amqp://b:***@two
    curl\thttps://a:pass@one\nhttps://b:word@two => curl\thttps://a:***@one\nhttps://b:***@two
"""
ARGUMENTS = """
    -y pkg --token abc --api-key=def --root /srv => -y pkg --token *** --api-key=*** --root /srv
    --secret ${S} => as it is
    --verbose --token --quiet => as it is
"""


def rows(table: str) -> list[list[str]]:
    return [line.strip().split(" => ") for line in table.strip().splitlines()]


@pytest.mark.parametrize(("given", "stored"), rows(VARIABLES))
def test_a_value_that_looks_like_a_secret_is_masked_and_every_other_stays(given: str, stored: str) -> None:
    name, _, value = given.partition("=")
    masked = redact(AgentDefinition(name="a", env={name: value}))["env"][name]
    assert masked == (value if stored == "as it is" else stored)


@pytest.mark.parametrize(("given", "stored"), rows(URLS))
def test_secrets_in_urls_are_masked_and_the_rest_of_the_url_stays(given: str, stored: str) -> None:
    given, stored = (text.replace("\\t", "\t").replace("\\n", "\n") for text in (given, stored))
    server = ServerDefinition(type="http", url=given, args=["--to", given])
    masked = redact(AgentDefinition(name="a", mcp_servers={"s": server}))["mcpServers"]["s"]
    assert (masked["url"], masked["args"][1]) == (given if stored == "as it is" else stored,) * 2


@pytest.mark.parametrize(("given", "stored"), rows(ARGUMENTS))
def test_arguments_are_masked_by_their_flags(given: str, stored: str) -> None:
    assert arguments(*given.split()) == (given if stored == "as it is" else stored).split()


def arguments(*args: str) -> list[str]:
    server = ServerDefinition(command="c", args=list(args))
    redacted = redact(AgentDefinition(name="a", mcp_servers={"s": server}))
    masked: list[str] = redacted["mcpServers"]["s"]["args"]
    return masked


def test_arguments_are_masked_by_their_looks() -> None:
    assert arguments("-H", "Authorization: Bearer abc") == ["-H", "Authorization: Bearer ***"]
    script = arguments("-c", "export TOKEN=abc; run --password 'a b' --name x")
    assert script == ["-c", "export TOKEN=***; run --password *** --name x"]
    assert arguments("--token=two words") == ["--token=***"]
    assert "hunter2" not in arguments('{"token": "hunter2", "n": 1}')[0]


def test_headers_lists_unknown_keys_and_prompts_are_looked_at_too() -> None:
    headers = {"X-Key": "k", "Accept": "text/html"}
    stored = redact(
        AgentDefinition(
            name="a",
            system_prompt="Use the token sk-ant-REDACTED for the Bearer header.",
            tools=["Bash(curl -u ghp_abcdefghijkl)"],
            mcp_servers={"s": ServerDefinition(type="http", url="http://h", headers=headers)},
            unknown={"hooks": {"env": {"TOKEN": "abc", "n": 1}}, "pin": ["ghp_abcdefghij"], "secret": 12},
        )
    )
    assert stored["systemPrompt"] == "Use the token *** for the Bearer header."
    assert stored["tools"] == ["Bash(curl -u ***)"]
    assert stored["mcpServers"]["s"]["headers"] == {"X-Key": "***", "Accept": "text/html"}
    assert stored["unknown"] == {"hooks": {"env": {"TOKEN": "***", "n": 1}}, "pin": ["***"], "secret": "***"}


def test_the_schema_of_the_result_is_not_touched_and_all_is_json() -> None:
    schema: dict[str, object] = {"type": "object", "properties": {"token": {"const": "abc"}}}
    definition = AgentDefinition(name="a", output_schema=schema, env={"TOKEN": "abc"})
    stored = json.loads(json.dumps(redact(definition)))
    assert stored["outputSchema"] == schema
    assert AgentDefinition.model_validate(stored) == definition.model_copy(update={"env": {"TOKEN": "***"}})


def test_the_secrets_of_env_headers_arguments_and_addresses_are_found_and_nothing_else() -> None:
    servers = {
        "a": ServerDefinition(
            command="/opt/4f2a9c81d7e34b5a9c0f11/server",
            args=[
                "--token",
                "tok-of-the-args",
                "--root",
                "/srv/9c81d7e34b5a9c0f114f2a",
                "--level=debug",
                "--url=HTTPS://u:of-the-arg@h#",
            ],
            env={"SERVICE_PASSWORD": "of-the-env", "DEBUG": "true", "PIN_KEY": "1234"},
        ),
        "b": ServerDefinition(
            type="http",
            url="https://user:of-the-url@host/mcp?key=of-the-query",
            headers={"Authorization": "Bearer of-the-header", "X-Version": "2026-11-22"},
        ),
    }
    agent = AgentDefinition(name="a", env={"API_TOKEN": "of-the-agent"}, mcp_servers=servers)
    assert hidden_values(agent) == {
        "tok-of-the-args",
        "of-the-arg",
        "of-the-env",
        "of-the-url",
        "of-the-query",
        "of-the-header",
        "of-the-agent",
    }
