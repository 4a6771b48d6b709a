"""What can be done with runs: a file for each verb or family of verbs."""
