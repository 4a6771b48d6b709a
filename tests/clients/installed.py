"""Where the clients are. A client that is missing fails the tests that need it."""

import os
import platform
import sys
from dataclasses import dataclass
from pathlib import Path

from tests.helpers.processes import REPOSITORY

_ARCHITECTURES = {"x86_64": "x64", "aarch64": "arm64", "arm64": "arm64"}
_MACHINE = f"{sys.platform}-{_ARCHITECTURES.get(platform.machine(), platform.machine())}"


@dataclass(frozen=True)
class Installed:
    """The programs below the folder that npm has filled."""

    modules: Path

    @property
    def node(self) -> str:
        """The node that the clients in JavaScript run on."""
        return self._program(f"node-{_MACHINE}/bin/node")

    @property
    def claude(self) -> list[str]:
        """Claude Code."""
        return [self._program(f"@anthropic-ai/claude-code-{_MACHINE}/claude")]

    @property
    def codex(self) -> list[str]:
        """Codex."""
        return [self._program(f"@openai/codex-{_MACHINE}/vendor/*/bin/codex")]

    @property
    def gemini(self) -> list[str]:
        """Gemini CLI."""
        return [self.node, self._program("@google/gemini-cli/bundle/gemini.js")]

    @property
    def opencode(self) -> list[str]:
        """opencode."""
        return [self._program(f"opencode-{_MACHINE}/bin/opencode")]

    @property
    def qwen(self) -> list[str]:
        """Qwen Code."""
        return [self.node, self._program("@qwen-code/qwen-code/cli-entry.js")]

    @property
    def copilot(self) -> list[str]:
        """GitHub Copilot CLI."""
        return [self.node, self._program("@github/copilot/npm-loader.js")]

    @property
    def claude_acp(self) -> list[str]:
        """The adapter of Claude Code."""
        return [self.node, self._program("@agentclientprotocol/claude-agent-acp/dist/index.js")]

    @property
    def codex_acp(self) -> list[str]:
        """The adapter of Codex."""
        return [self.node, self._program("@agentclientprotocol/codex-acp/dist/index.js")]

    @property
    def inspector(self) -> list[str]:
        """MCP Inspector, as a command."""
        launcher = "@modelcontextprotocol/inspector/clients/launcher/build/index.js"
        return [self.node, self._program(launcher), "--cli", "--connect-timeout", "120000"]

    @property
    def conformance(self) -> list[str]:
        """The conformance suite of the protocol."""
        return [self.node, self._program("@modelcontextprotocol/conformance/dist/index.js")]

    @property
    def typescript(self) -> Path:
        """The SDK for clients in TypeScript, as a module."""
        return Path(self._program("@modelcontextprotocol/client/dist/index.mjs"))

    def _program(self, pattern: str) -> str:
        found = sorted(self.modules.glob(pattern))
        assert found, f"{self.modules / pattern} is missing: `make test-clients` installs it"
        return str(found[0])


def installed() -> Installed:
    """Return the clients that `make test-clients` has installed, below CLIENTS or its default."""
    folder = Path(os.environ.get("CLIENTS") or REPOSITORY / ".cache" / "clients")
    return Installed(folder.absolute() / "node_modules")
