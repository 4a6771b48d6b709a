"""The tools of an agent."""
