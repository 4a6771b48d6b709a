"""How an agent thinks: `runner.py` is the protocol, each runner is a file or a folder of its own."""
