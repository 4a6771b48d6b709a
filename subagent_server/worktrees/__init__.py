"""Worktrees of git: making one, keeping its changes, merging and removing it. Nothing here knows runs."""
