"""The verbs that every door calls: a verb is a file of its name; `tools/` makes MCP tools of them."""
