"""A run as one archive: to attach to a report, or to keep. What is secret to this process is masked again.

Tested in `tests/cli/test_export.py`.
"""

import io
import tarfile
from collections.abc import Iterable, Iterator
from typing import BinaryIO

from subagent_server.domain.secrets import Masker
from subagent_server.host.directory import Directory, Entry
from subagent_server.service.access import USER, Caller
from subagent_server.service.context import Service
from subagent_server.service.masking import masker_at_door
from subagent_server.service.open_run import open_run
from subagent_server.store.paths import RunPaths

MAX_FILE_BYTES = 64 << 20
"""A larger file of a run is left out, and said."""
MAX_FILES = 2_000
"""Of one run; the rest is left out, and said."""
_DEEPEST = 4


def export(service: Service, run_ids: Iterable[str], file: BinaryIO, caller: Caller = USER) -> list[str]:
    """Write runs into a compressed tar archive, a folder each, and return sentences on what was left out.

    Locks, marks and pipes stay behind, and so does what is no plain file of the run.

    Raises:
        UnknownRun, UnreadableMeta, NotAllowed: a run cannot be opened.
        OSError: the archive cannot be written.
    """
    left_out: list[str] = []
    with tarfile.open(fileobj=file, mode="w|gz", format=tarfile.PAX_FORMAT) as archive:
        for run_id in run_ids:
            meta = open_run(service, run_id, caller).meta
            masker = masker_at_door(service, run_id)
            for number, (name, entry) in enumerate(_files(service.store.paths.run(run_id))):
                if number >= MAX_FILES:
                    left_out.append(f"Run {run_id} has more than {MAX_FILES:,} files: the rest is left out.")
                    break
                try:
                    content = _masked(masker, entry.read(MAX_FILE_BYTES))
                except FileNotFoundError:
                    continue  # it has just been removed
                except OSError as error:
                    left_out.append(f"{run_id}/{name} is left out: {error.strerror}.")
                    continue
                _add(archive, f"{run_id}/{name}", content, meta.created_at.timestamp())
    return left_out


def _files(run: RunPaths) -> Iterator[tuple[str, Entry]]:
    """Yield the files of a run that a reader can use, with their names in the archive."""
    single = (run.request, run.meta, run.result, run.payload, run.events, run.log, run.transcript)
    for entry in (*single, run.shim, run.exit, run.worker_out):
        if entry.exists():
            yield entry.name, entry
    for folder in (run.inputs, run.outputs, run.server_logs, run.code):
        yield from _below(folder, folder.path.name, 1)


def _below(folder: Directory, named: str, depth: int) -> Iterator[tuple[str, Entry]]:
    if depth > _DEEPEST or not folder.exists():
        return
    for name in sorted(folder.names()):
        inner = folder.below(name)
        if inner.exists():
            yield from _below(inner, f"{named}/{name}", depth + 1)
        else:
            yield f"{named}/{name}", folder.entry(name)


def _masked(masker: Masker, content: bytes) -> bytes:
    """Return a text without secrets, and any other content as it is."""
    try:
        return masker.text(content.decode("utf-8")).encode("utf-8")
    except UnicodeDecodeError:
        return content


def _add(archive: tarfile.TarFile, name: str, content: bytes, moment: float) -> None:
    info = tarfile.TarInfo(name.encode("utf-8", "replace").decode())
    info.size, info.mtime, info.mode = len(content), int(moment), 0o600
    archive.addfile(info, io.BytesIO(content))
