"""Tests of the whole: the real server, real processes, a scripted model."""
