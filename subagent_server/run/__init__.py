"""What a run is: its states, its files, the processes behind it."""
