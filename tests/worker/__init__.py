"""Tests of the life of one run."""
