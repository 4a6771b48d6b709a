"""Tests of agents that are started by a contract."""
