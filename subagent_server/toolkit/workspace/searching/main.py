"""Does one search and ends: the request is JSON on stdin, the directory an inherited descriptor.

It is a process of its own because a regular expression can take for ever and only a kill ends it. It uses
Python's `re` so that a pattern means the same on every machine.
"""

import json
import re
import resource
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from subagent_server.host.inside import printable
from subagent_server.toolkit.workspace.searching.answer import Answer
from subagent_server.toolkit.workspace.searching.find import find
from subagent_server.toolkit.workspace.searching.globs import BadGlob, Globs
from subagent_server.toolkit.workspace.searching.grep import Grep, NotText
from subagent_server.toolkit.workspace.searching.tree import Stop, Tree

_MEMORY_BYTES = 1 << 30
_SECONDS_AFTER = 30


def main() -> None:
    """Answer the request on stdin."""
    request = json.load(sys.stdin)
    _bound(resource.RLIMIT_AS, _MEMORY_BYTES)
    _bound(resource.RLIMIT_CPU, int(request["seconds"]) + _SECONDS_AFTER)  # should nobody be left to kill it
    answer = Answer(matches=request["limit"], characters=request["characters"])
    try:
        answer.end(_SEARCHES[request["tool"]](request, answer))
    except Stop as stop:
        answer.end([str(stop)])
    except (BadGlob, re.error, OverflowError, RecursionError) as error:
        answer.refuse(str(error))


def _bound(limit: int, most: int) -> None:
    hard = resource.getrlimit(limit)[1]
    resource.setrlimit(limit, (most if hard == resource.RLIM_INFINITY else min(most, hard), hard))


def _grep(request: dict[str, Any], answer: Answer) -> list[str]:
    flags = re.IGNORECASE if request["ignoreCase"] else 0
    search = re.compile(request["pattern"], flags).search
    grep = Grep(search, request["outputMode"], request["context"], answer, _shown(request))
    if request["file"] is None:
        return grep.tree(_tree(request), _wanted(request))
    try:
        grep.file(request["directory"], request["file"], request["file"])
    except NotText as error:
        return [f"{printable(request['file'])} is {error}, which is not searched"]
    except OSError as error:
        return [f"{printable(request['file'])} could not be read ({error.strerror})"]
    return []


def _glob(request: dict[str, Any], answer: Answer) -> list[str]:
    globs, root = Globs(request["pattern"]), Path(request["root"])
    return find(globs, _tree(request), answer, limit=request["limit"], root=root, shown=_shown(request))


_SEARCHES: dict[str, Callable[[dict[str, Any], Answer], list[str]]] = {"grep": _grep, "glob": _glob}


def _tree(request: dict[str, Any]) -> Tree:
    return Tree(request["directory"], most_entries=request["mostEntries"], seconds=request["seconds"])


def _shown(request: dict[str, Any]) -> Callable[[str], str]:
    base: str = request["base"]
    return lambda path: printable(f"{base}/{path}" if base else path)


def _wanted(request: dict[str, Any]) -> Callable[[str], bool]:
    """Return the file filter: without `/` it is for names, else for paths from here or from the root."""
    pattern: str | None = request["glob"]
    if not pattern:
        return lambda _: True
    if "/" not in pattern:
        names = Globs(pattern)
        return lambda path: names.matches(path.rpartition("/")[2])
    paths, base = Globs(pattern), request["base"]
    return lambda path: paths.matches(path) or (bool(base) and paths.matches(f"{base}/{path}"))
