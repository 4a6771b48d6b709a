"""The verbs that every door calls, a file per verb group."""
