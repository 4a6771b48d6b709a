"""Load the agent of one file, in either format."""

from dataclasses import dataclass
from pathlib import Path

from subagent_server.catalog.cpe_config import read_config
from subagent_server.catalog.files import Unreadable, read_text
from subagent_server.catalog.markdown import read_markdown
from subagent_server.catalog.problems import AgentFileError, Note, Notes, shown
from subagent_server.domain.definitions import AgentDefinition

MARKDOWN = frozenset({".md", ".markdown"})
CONFIGURATION = frozenset({".yaml", ".yml"})


@dataclass(frozen=True)
class LoadedFile:
    """An agent, and the notes on its file with the line of each."""

    definition: AgentDefinition
    notes: list[Note]


def load_file(path: Path) -> LoadedFile:
    """Return the agent in `path` with its notes: Markdown if the name says so, else a CPE configuration.

    Raises:
        NotAnAgent: the file is readable and does not set out to be an agent.
        AgentFileError: it cannot be read or understood.
    """
    if shown(path) != str(path):
        raise AgentFileError(path, "its name is not UTF-8, so rename it")
    try:
        text = read_text(path)
    except Unreadable as error:
        raise AgentFileError(path, error.reason, error.line) from error
    notes = Notes()
    read = read_markdown if path.suffix.lower() in MARKDOWN else read_config
    definition = read(path, text, notes)
    whole = definition.model_copy(
        update={
            "source": path.absolute(),
            "faults": notes.reasons("fault"),
            "warnings": notes.reasons("warning"),
        }
    )
    return LoadedFile(whole, notes.found)


def load_agent_file(path: Path) -> AgentDefinition:
    """Return the agent in `path`; mistakes that do not prevent loading are in its `faults`.

    Raises:
        AgentFileError: the file cannot be read or understood, or is not an agent.
    """
    return load_file(path).definition


def load_config(path: Path) -> AgentDefinition:
    """Return the single agent of `serve --config FILE`, which must not have any fault.

    Raises:
        AgentFileError: the file cannot be read, defines no agent, or has a fault.
    """
    loaded = load_file(path)
    faults = [note for note in loaded.notes if note.kind == "fault"]
    if faults:
        more = f" (and {len(faults) - 1} more)" if len(faults) > 1 else ""
        raise AgentFileError(path, faults[0].reason + more, faults[0].line)
    return loaded.definition
