"""The door over HTTP: streamable HTTP for MCP at `/mcp`, and plain routes beside it.

From outside to inside: `socket_bounds.py` (connections), `gates.py` (who may, and bodies), `app.py` (routes,
and what has no answer yet), `sessions.py` (MCP), `clients.py` (handlers).
"""
