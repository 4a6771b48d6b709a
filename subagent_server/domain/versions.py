"""The version of the stored records. Standard library only: lists are read without pydantic."""

SCHEMA_VERSION = 2
"""Version 2 added `rootRunId`, `depth`, `withDescendants` and `launch`; version 1 files load."""
