"""Tests of what an agent can use."""
