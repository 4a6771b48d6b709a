"""The programs that carry out runs, played by small scripts."""
