"""Finding a run by what a person typed."""

from itertools import islice

from subagent_server.domain.errors import AmbiguousRun, UnknownRun
from subagent_server.domain.ids import is_run_id
from subagent_server.service.context import Service
from subagent_server.store.stored import StoredRuns

LATEST = "@last"


def find_run(service: Service, name: str) -> str:
    """Return the id of the run that a person names: its id, a unique prefix or its last part, or `@last`.

    Raises:
        UnknownRun, AmbiguousRun.
    """
    root = service.store.paths
    if is_run_id(name) and root.run(name).directory.is_dir():
        return name
    stored = StoredRuns(root)
    if name == LATEST:
        matches = list(islice(filter(service.store.exists, stored.newest_first()), 1))
    else:
        matches = stored.starting_with(name) if name else []
    if not matches and name:
        matches = stored.ending_in(name)
    if not matches:
        raise UnknownRun(name, service.settings.runs_root)
    if len(matches) > 1:
        raise AmbiguousRun(name, matches)
    return matches[0]
