"""The terminal of the command line: words, streams, groups of verbs, questions to people."""
