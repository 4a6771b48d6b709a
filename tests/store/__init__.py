"""Tests of the run directory."""
