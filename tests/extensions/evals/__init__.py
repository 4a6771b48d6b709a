"""Evaluations: files, scorers, figures."""
