"""The hosts: a row each, with exact versions. docs/clients.md has the same table for people."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Host:
    """A host, the packages that bring it, and its own bound of a call.

    `adapter` is the file in `adapters/` by which a test speaks with it. `own_timeout` is what the host waits
    for a call, in seconds, unless told otherwise; None: it has no such bound that we met. `takes_timeout`:
    the adapter can set that bound.
    """

    name: str
    adapter: str
    packages: tuple[str, ...]
    own_timeout: float | None = None
    takes_timeout: bool = True

    @property
    def is_npm(self) -> bool:
        """Whether its packages are those of npm."""
        return self.adapter.endswith(".mjs")


_MCP1 = "mcp==1.30.0"

HOSTS = (
    Host("mcp", "mcp_sdk.py", ("mcp==2.3.0",)),
    Host("mcp-1", "mcp_sdk_1.py", (_MCP1,)),
    Host("fastmcp", "fastmcp_client.py", ("fastmcp==4.1.6",)),
    Host("mcp-use", "mcp_use_client.py", ("mcp-use==1.7.1",), takes_timeout=False),
    Host("langchain", "langchain_tools.py", ("langchain-mcp-adapters==0.3.2",), takes_timeout=False),
    Host(
        "llama-index",
        "llama_index_tools.py",
        ("llama-index-tools-mcp==0.6.0",),
        own_timeout=30,
        takes_timeout=False,
    ),
    Host("openai-agents", "openai_agents.py", ("openai-agents==0.24.0",), own_timeout=5),
    Host("google-adk", "google_adk.py", ("google-adk[mcp]==2.13.0",), own_timeout=5),
    Host("agno", "agno_tools.py", ("agno[mcp]==3.1.10", "fastmcp==4.1.6"), own_timeout=10),
    Host("pydantic-ai", "pydantic_ai_toolset.py", ("pydantic-ai-slim[mcp]==2.68.0",), takes_timeout=False),
    Host(
        "smolagents",
        "smolagents_tools.py",
        ("smolagents[mcp]==1.26.0", "mcpadapt==0.1.19", _MCP1),
        own_timeout=5,
    ),
    Host(
        "crewai",
        "crewai_tools_adapter.py",
        ("crewai-tools[mcp]==1.15.30",),
        own_timeout=5,
        takes_timeout=False,
    ),
    Host("autogen", "autogen_workbench.py", ("autogen-ext[mcp]==0.7.5", _MCP1), own_timeout=5),
    Host("semantic-kernel", "semantic_kernel_plugin.py", ("semantic-kernel[mcp]==1.45.0",)),
    Host("haystack", "haystack_toolset.py", ("mcp-haystack==2.1.1",), own_timeout=30),
    Host("strands", "strands_client.py", ("strands-agents==1.62.0",)),
    Host("dspy", "dspy_tools.py", ("dspy[mcp]==3.4.1",), takes_timeout=False),
    Host("typescript-1", "typescript_1.mjs", ("@modelcontextprotocol/sdk@1.32.2",), own_timeout=60),
    Host("typescript", "typescript_2.mjs", ("@modelcontextprotocol/client@2.4.0",), own_timeout=60),
    Host("ai-sdk", "ai_sdk.mjs", ("@ai-sdk/mcp@2.0.99",), takes_timeout=False),
    Host("mastra", "mastra.mjs", ("@mastra/mcp@2.0.0", "@mastra/core@1.71.0"), own_timeout=60),
    Host(
        "langchain-js",
        "langchain.mjs",
        ("@langchain/mcp-adapters@1.1.4", "@langchain/core@1.4.0"),
        own_timeout=60,
    ),
    Host("openai-agents-js", "openai_agents.mjs", ("@openai/agents@0.20.0",), own_timeout=5),
)
