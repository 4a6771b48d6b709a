"""Agents that are started by a contract, as the seed `agent_mcp_server.txt` has them, on ordinary runs."""
