"""Evaluations: cases, trials, and the verdict of a judge on them."""
