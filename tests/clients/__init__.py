"""Real MCP clients as parents of real runs; `make test-clients` installs them and runs these tests."""
