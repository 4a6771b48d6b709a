"""The tools of a run for files and programs in its working directory."""
