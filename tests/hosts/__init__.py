"""MCP hosts of others as parents: `make test-hosts`."""
