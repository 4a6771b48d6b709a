"""The version of what is stored. Standard library only: lists are read without pydantic."""

SCHEMA_VERSION = 2
"""Version 2 added `rootRunId`, `depth`, `withDescendants` and `launch`; version 1 files load."""
