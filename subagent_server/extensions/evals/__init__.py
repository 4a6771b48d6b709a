"""Evaluations (`subagent eval`): cases tried with agents and models, as ordinary runs, and judged."""
