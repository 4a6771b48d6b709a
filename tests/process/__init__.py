"""Tests of how the processes of runs come to be."""
