"""The hooks of the user: `hooks.json` beside the file of trusted directories, never in a repository.

Tested in `tests/cli/test_hooks.py`.
"""

import json
import shlex
from typing import Any

from subagent_server.process import cleanup
from subagent_server.run.errors import shorten
from subagent_server.run.host_programs import NoHostProgram
from subagent_server.settings import Settings, read_own_file
from subagent_server.verbs.live_runs import host_program

EVENTS = ("onQuestion", "onEnd")
_PASSED_ON = (
    *("PATH", "HOME", "USER", "LOGNAME", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "TERM", "TMUX"),
    *("DISPLAY", "WAYLAND_DISPLAY", "XAUTHORITY", "XDG_RUNTIME_DIR", "DBUS_SESSION_BUS_ADDRESS"),
)
"""The variables of the starter that a hook gets: no key, and nothing that an agent file sets."""


class _BadHooks(Exception):
    """Why a file of hooks is not used."""


def hooks_for_run(settings: Settings) -> tuple[str, list[str]]:
    """Return what a run is given of the hooks, and a warning if the file of the user cannot be used.

    A run hands on what it was given itself.
    """
    if settings.is_of_a_run:
        return settings.environment.get(cleanup.VARIABLE, ""), []
    if settings.trust_file is None:
        return "", []
    path = settings.trust_file.with_name("hooks.json")
    try:
        hooks = _commands(json.loads(read_own_file(path)), settings)
    except FileNotFoundError:
        return "", []
    except (OSError, ValueError, _BadHooks) as error:
        why = error.strerror if isinstance(error, OSError) else error
        return "", [f"No hook is called, because {shorten(str(path), 200)} is not used ({why}): fix it."]
    environment = {name: settings.environment[name] for name in _PASSED_ON if name in settings.environment}
    return (json.dumps({**hooks, "environment": environment}) if hooks else ""), []


def _commands(content: Any, settings: Settings) -> dict[str, list[str]]:
    """Return the command of each event, its program by its path. Raises _BadHooks, ValueError."""
    if not isinstance(content, dict) or not set(content) <= set(EVENTS):
        raise _BadHooks(f"it must be an object with {' and '.join(EVENTS)}")
    commands: dict[str, list[str]] = {}
    for event, given in content.items():
        words = shlex.split(given) if isinstance(given, str) else given
        if not isinstance(words, list) or not words or not all(isinstance(word, str) for word in words):
            raise _BadHooks(f"{event} must be a command: a text, or a list of its words")
        try:
            program = host_program(settings, words[0])
        except NoHostProgram as error:
            raise _BadHooks(
                f"the program {shorten(words[0])} of {event} cannot be used: {error.why}"
            ) from error
        commands[event] = [str(program), *words[1:]]
    return commands
