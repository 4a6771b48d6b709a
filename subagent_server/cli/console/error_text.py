"""The sentence of an error for people: it names commands in place of the tools that a model would call."""

import re

from subagent_server.cli.console.text import one_line

_COMMANDS = {
    "run_<agent>": "`subagent run`",
    "check_status": "`subagent show`",
    "wait_for_runs": "`subagent wait`",
    "list_runs": "`subagent ls`",
    "get_logs": "`subagent logs`",
    "reply_subagent": "`subagent reply`",
    "stop_run": "`subagent stop`",
    "continue_run": "`subagent continue`",
    "storedAgent: true": "`--stored-agent`",
    "messageId": "MESSAGE",
    "`prompt`": "PROMPT",
    "`inputs`": "`--input`",
}
_TOOLS = re.compile("|".join(rf"(?<!\w){re.escape(tool)}(?!\w)" for tool in _COMMANDS))


def for_people(sentence: str) -> str:
    """Return a sentence on one line, with commands and their arguments in place of tools and theirs."""
    return one_line(_TOOLS.sub(lambda found: _COMMANDS[found[0]], sentence))
