"""Finding a run by what a person typed."""

from itertools import islice

from subagent_server.domain.errors import AmbiguousRun, SubagentError, UnknownRun
from subagent_server.domain.ids import is_run_id
from subagent_server.service.context import Service

LATEST = "@last"


def find_run(service: Service, name: str) -> str:
    """Return the id of the run that a person names: its id, a unique prefix or its last part, or `@last`.

    `@last` is the last run that no other run started.

    Raises:
        UnknownRun, AmbiguousRun.
    """
    root = service.store.paths
    if is_run_id(name) and root.run(name).directory.is_dir():
        return name
    stored = list(service.store.newest_first())
    matches: list[str] = []
    if name == LATEST:
        matches = list(islice(filter(lambda each: _may_be_first(service, each), stored), 1))
    elif name:
        matches = [each for each in stored if each.startswith(name)]
        matches = matches or [each for each in stored if each.rpartition("-")[2] == name]
    if not matches:
        raise UnknownRun(name, service.settings.runs_root)
    if len(matches) > 1:
        raise AmbiguousRun(name, matches)
    return matches[0]


def _may_be_first(service: Service, run_id: str) -> bool:
    """Whether this is a run, and none that another run started.

    A run whose state cannot be read counts: `stop @last` shall not fall on an older run.
    """
    try:
        return service.store.read(run_id).parent_run_id is None
    except UnknownRun:
        return False
    except SubagentError:
        return True
