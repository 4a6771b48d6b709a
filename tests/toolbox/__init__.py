"""Tests of the tools of an agent."""
