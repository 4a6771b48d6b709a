"""What a run can use on files and programs in its working directory."""
