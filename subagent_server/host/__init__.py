"""The operating system: locks, files, processes, waking. This room knows nothing of runs."""
