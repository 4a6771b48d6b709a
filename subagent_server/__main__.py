"""`python -m subagent_server` is `subagent`."""

import sys

from subagent_server.front import main

if __name__ == "__main__":
    sys.exit(main())
