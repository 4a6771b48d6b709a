"""The door over HTTP: streamable HTTP for MCP at `/mcp`, and plain routes beside it.

From outside to inside: `gates.py` (who may), `assembly.py` (routes), `sessions.py` (MCP), `calls.py` (what
has no answer yet), `clients.py` (handlers).
"""
