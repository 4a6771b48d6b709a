"""The door over HTTP: streamable HTTP for MCP at `/mcp`, and plain routes beside it.

From outside to inside: `socket_bounds.py` (connections), `traffic.py` (log, metrics), `gates.py` (who may),
`bodies.py` (size and time; `payload_scan.py` takes large payloads out), `assembly.py` (routes), `sessions.py`
(MCP), `calls.py` (what has no answer yet), `clients.py` (handlers).
"""
