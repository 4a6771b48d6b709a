"""Evaluations: cases, trials, and what a judge says of them."""
