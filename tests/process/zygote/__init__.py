"""Tests of the generic fork server, with tiny programs."""
