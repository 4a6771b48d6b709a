"""Agent files of every format to one `AgentDefinition`, and trust in them."""
