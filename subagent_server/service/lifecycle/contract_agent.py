"""The agent of `agent_start`: it has no file, only a model, and its run is given a contract as its prompt."""

from subagent_server.domain.definitions import AgentDefinition

CONTRACT_AGENT = "contract"
"""Its name in lists. An agent file of this name is another agent."""
DEFAULT_CONTRACT_MODEL = "sonnet"


def contract_agent(model: str | None) -> AgentDefinition:
    """Return the agent, with every tool of an agent file without `tools`."""
    return AgentDefinition(
        name=CONTRACT_AGENT,
        by_contract=True,
        description="Fulfils a contract.",
        model=model or DEFAULT_CONTRACT_MODEL,
    )
