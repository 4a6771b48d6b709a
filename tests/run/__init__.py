"""Tests of the rules of a run."""
