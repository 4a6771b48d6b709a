"""Read the conversation and the tool outputs that a run's directory keeps, for people.

Everything in it is data of a model or of programs.
"""

from subagent_server.domain.errors import BadArgument, shorten
from subagent_server.service.access import USER, Caller
from subagent_server.service.context import Service
from subagent_server.service.open_run import open_run
from subagent_server.store.transcript import Message, read_transcript

MAX_FILE_BYTES = 16 << 20


def conversation(service: Service, run_id: str, last: int, caller: Caller = USER) -> list[Message]:
    """Return the last messages between a run and its model.

    Raises:
        InvalidRunId, UnknownRun, UnreadableMeta, NotAllowed.
    """
    open_run(service, run_id, caller)
    return list(read_transcript(service.store.paths.run(run_id)))[-last:]


def output_names(service: Service, run_id: str) -> list[str]:
    """Return the names of the files that the tools of a run have printed; empty if they cannot be read."""
    outputs = service.store.paths.run(run_id).outputs
    try:
        return sorted(outputs.names())
    except OSError:
        return []


def read_output(service: Service, run_id: str, name: str, caller: Caller = USER) -> bytes:
    """Return the beginning of such a file, 16 MiB at most.

    Raises:
        BadArgument: there is no such file, or it is no plain one.
        InvalidRunId, UnknownRun, UnreadableMeta, NotAllowed.
    """
    open_run(service, run_id, caller)
    outputs = service.store.paths.run(run_id).outputs
    try:
        if name in outputs.names():
            with outputs.entry(name).reader() as file:
                return file.read(MAX_FILE_BYTES)
    except OSError as error:
        raise BadArgument(f"{shorten(name)} cannot be read ({error.strerror or error}).") from error
    raise BadArgument(f"Run {run_id} has no file {shorten(name)}.")
