"""The verbs that play a scripted model: `demo`, `prompt` and `script`."""
