"""Tests of the extensions, one folder each."""
