"""Tests of how an agent thinks."""
