"""From the intent to run to a living worker."""
