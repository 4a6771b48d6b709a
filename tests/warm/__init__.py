"""Tests of the part that the zygote does before it forks."""
