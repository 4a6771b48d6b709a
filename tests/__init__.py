"""Tests: one folder a room, names that say what holds."""
