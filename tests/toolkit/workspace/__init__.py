"""Tests of the tools on files and programs."""
