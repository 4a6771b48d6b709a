"""Tests of agent files: of every format to one definition."""
