"""Shared by the verbs of the command line: streams, text, flags, the table of verbs, questions."""
