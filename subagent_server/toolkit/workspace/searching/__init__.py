"""The program behind `grep` and `glob`, a process of its own. Standard library and `paths` only."""
