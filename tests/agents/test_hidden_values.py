"""Which secrets a definition holds itself."""

from subagent_server.agents.variables import hidden_values
from subagent_server.run.agent_definition import AgentDefinition, ServerDefinition


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
