"""The agent of one file: Markdown with front matter between two lines of `---`, or a CPE configuration."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from subagent_server.agents.agent_file import Origin, read_definition, report_repeated
from subagent_server.agents.flow_file import KEYS as KEYS_OF_FLOWS
from subagent_server.agents.flow_file import SUFFIX as FLOW
from subagent_server.agents.flow_file import read_flow
from subagent_server.agents.yaml_reader import (
    AgentFileError,
    Block,
    NotAnAgent,
    Notes,
    NotYaml,
    Plain,
    Problem,
    Unreadable,
    canonical,
    is_null,
    parse,
    parse_leniently,
    read_text,
    shown,
)
from subagent_server.run.agent_definition import AgentDefinition
from subagent_server.run.errors import BadArgument, shorten

_OPENING = re.compile(r"\s*?^---[ \t]*$\n?", re.MULTILINE)
_LOST_OPENING = re.compile(
    r"\s*(?:name|description):.*\n(?:[\w-]+:.*\n|[ \t#].*\n)*---[ \t]*$", re.IGNORECASE | re.MULTILINE
)
"""Keys of an agent and the line that ends them, without the line before them."""
_CLOSING = re.compile(r"^---.*$\n?", re.MULTILINE)
_IDENTITY = frozenset({"name", "description"})
_BLANK_LINES = re.compile(r"(?:[ \t]*\n)*")


MAX_FRONT_MATTER = 128 << 10
"""Characters. Lenient reading of as much takes less than a second."""


@dataclass(frozen=True)
class FrontMatter:
    """The two parts of a file; `first_line` is the line on which the front matter begins."""

    text: str
    first_line: int
    body: str


def read_markdown(path: Path, text: str, notes: Notes) -> AgentDefinition:
    """Return the agent defined by the text of a Markdown file; its mistakes go to `notes`.

    Raises:
        NotAnAgent: there is no front matter, or front matter with neither name nor description.
        AgentFileError: the front matter is not closed, too long, or cannot be understood.
    """
    parts = split(path, text)
    block = _understand(path, parts, notes)
    if all(is_null(block[key]) for key in block if canonical(key) in _IDENTITY):
        raise NotAnAgent(path, "its front matter has neither name nor description, so it is not an agent")
    if "$ARGUMENTS" in parts.body:
        notes.warn("the prompt says $ARGUMENTS, which nothing replaces: the task is the first message")
    origin = Origin(path=path, name=path.stem, body=parts.body)
    return read_definition(block, origin, notes)


def split(path: Path, text: str) -> FrontMatter:
    """Return front matter and body. Of the body, only blank lines around it are dropped.

    Raises:
        NotAnAgent, AgentFileError: as for `read_markdown`.
    """
    opening = _OPENING.match(text)
    if opening is None and _LOST_OPENING.match(text):
        raise AgentFileError(path, "its front matter has no beginning: put a line '---' before its keys", 1)
    if opening is None:
        raise NotAnAgent(
            path, "it has no front matter (a first line '---' at the margin), so it is not an agent"
        )
    first_line = opening[0].rstrip("\n").count("\n") + 2
    closing = _CLOSING.search(text, opening.end())
    if closing is None:
        reason = "its front matter has no end: put a line '---' between the keys and the prompt"
        raise AgentFileError(path, reason, first_line - 1)
    if closing.start() - opening.end() > MAX_FRONT_MATTER:
        reason = f"its front matter is longer than {MAX_FRONT_MATTER >> 10} KiB, so make it shorter"
        raise AgentFileError(path, reason, first_line)
    body = text[closing.end() :].rstrip()
    return FrontMatter(text[opening.end() : closing.start()], first_line, _BLANK_LINES.sub("", body, count=1))


def _understand(path: Path, parts: FrontMatter, notes: Notes) -> Block:
    try:
        value = parse(parts.text, parts.first_line)
    except NotYaml as error:
        return _understand_loosely(path, parts, notes, error)
    if value == "":
        return Block()
    # Prose may have been taken for YAML: `Use it when: ...` on a line of its own reads as a mapping.
    if isinstance(value, Block) and all(
        isinstance(value[key], str) for key in value if key.lower() == "description"
    ):
        return value
    reason = NotYaml("it is not a list of 'key: value' lines", parts.first_line)
    return _understand_loosely(path, parts, notes, reason)


def _understand_loosely(path: Path, parts: FrontMatter, notes: Notes, trouble: NotYaml) -> Block:
    read = parse_leniently(parts.text, parts.first_line)
    if read is None:
        raise AgentFileError(path, f"its front matter cannot be understood ({trouble.reason})", trouble.line)
    for line in read.stray:
        notes.warn("this line is under no key and was left out", line)
    for line in read.indented:
        notes.warn("the key is indented, and is read as one at the margin", line)
    for broken in read.broken:
        notes.fault(broken.reason, broken.line)
    return read.block


# -- An agent as a CPE configuration (`*.yaml`, `*.cpe.yaml`): one `subagent`, `defaults`, models, servers.


_STRUCTURE = frozenset({"version", "models", "subagent", "defaults"})
_MODEL_KEYS = {
    "id": "model",
    "apikeyenv": "apiKeyEnv",
    "baseurl": "baseUrl",
    "codemode": "codeMode",
    "maxoutput": "maxTokens",
    "maxtokens": "maxTokens",
}
_MODEL_ONLY = frozenset({"ref", "type", "displayname"})


def read_config(path: Path, text: str, notes: Notes) -> AgentDefinition:
    """Return the agent that a CPE configuration defines; missing and wrong pieces are faults in `notes`.

    Keys of the table of SPEC section 3 may be under `subagent`, under `defaults` or at the top.

    Raises:
        NotAnAgent: there is no `subagent:` block.
        AgentFileError: the text is not YAML, or its blocks are no mappings.
    """
    try:
        whole = parse(text)
    except NotYaml as error:
        raise AgentFileError(path, f"it is not YAML ({error.reason})", error.line) from error
    if not isinstance(whole, Block) or "subagent" not in whole:
        raise NotAnAgent(path, "it has no 'subagent:' block, so it defines no agent")
    subagent = _block(path, whole, "subagent")
    defaults = _block(path, whole, "defaults") if "defaults" in whole else Block()
    for key in ("name", "description"):
        value = subagent.get(key)
        if value is None or is_null(value) or (isinstance(value, str) and not value.strip()):
            notes.fault(f"subagent.{key} is missing", subagent.lines.get(key, whole.lines["subagent"]))
    _check_version(whole, notes)
    for key, line in whole.repeated.items():
        if key in _STRUCTURE:
            notes.fault(f"{key} appears twice (first on line {whole.lines[key]}), so say it once", line)
    report_repeated(whole.get("models", []), "models", notes)
    combined = _combined(whole, defaults, subagent)
    _use_model(combined, whole, notes)
    return read_definition(combined, Origin(path, path.stem.removesuffix(".cpe") or path.stem), notes)


def _block(path: Path, whole: Block, key: str) -> Block:
    value = whole[key]
    if isinstance(value, Block):
        return value
    if key == "defaults" and is_null(value):
        return Block()
    raise AgentFileError(path, f"'{key}:' must be a mapping of keys", whole.lines[key])


def _check_version(whole: Block, notes: Notes) -> None:
    version = whole.get("version")
    if version is None or is_null(version):
        notes.warn("version is missing, so the file is read as 1.0", whole.lines.get("version"))
    elif not isinstance(version, str) or version.split(".")[0] != "1":
        shown = shorten(version) if isinstance(version, str) else "of this kind"
        notes.warn(f"version {shown} is not known here, so the file is read as 1.0", whole.lines["version"])


def _combined(whole: Block, defaults: Block, subagent: Block) -> Block:
    """Return all keys of the agent in a single mapping; a key under two parts appears twice."""
    combined = Block()
    seen: dict[str, str] = {}
    for block in (subagent, defaults, whole):
        for key, value in block.items():
            if block is whole and key in _STRUCTURE:
                continue
            combined.put(seen.setdefault(canonical(key), key), value, block.lines[key])
        combined.repeated |= {key: line for key, line in block.repeated.items() if key in combined}
    return combined


def _use_model(combined: Block, whole: Block, notes: Notes) -> None:
    """Replace the ref of `defaults.model` by its model; its code mode replaces the default.

    The built-in loop needs a model; another runner has its own, and the ref may be its name there.
    """
    runner = _find(combined, "runner")
    written = Plain("") if runner is None else combined[runner]
    is_built_in = is_null(written) or str(written).strip().lower() == "messages"
    key = _find(combined, "model")
    reference = combined[key] if key else None
    if key is None or not isinstance(reference, str) or is_null(reference):
        if is_built_in:
            notes.fault("defaults.model is missing: give the ref of one of the models")
        return
    model = _model(reference, whole, combined.lines[key], notes if is_built_in else Notes())
    if model is not None:
        _check_model(model, is_built_in, notes)
        del combined[key]
        _take_over(combined, model, reference)
    elif is_built_in:
        del combined[key]


def _take_over(combined: Block, model: Block, reference: str) -> None:
    for name, value in model.items():
        target = _MODEL_KEYS.get(canonical(name))
        if target is not None:
            old = _find(combined, target)
            if old is not None:
                del combined[old]
            combined.put(target, value, model.lines[name])
        elif canonical(name) not in _MODEL_ONLY:
            combined.put(f"models.{reference}.{name}", value, model.lines[name])


def _find(block: Block, key: str) -> str | None:
    """Return the spelling of `key` in `block`, if present."""
    return next((spelling for spelling in block if canonical(spelling) == canonical(key)), None)


def _model(reference: str, whole: Block, line: int, notes: Notes) -> Block | None:
    models = whole.get("models")
    listed = [model for model in models if isinstance(model, Block)] if isinstance(models, list) else []
    found = [model for model in listed if model.get("ref") == reference]
    if not found:
        known = ", ".join(shorten(str(model["ref"])) for model in listed if "ref" in model) or "none"
        notes.fault(f"defaults.model is {shorten(reference)}, and the refs under models are: {known}", line)
        return None
    if len(found) > 1:
        notes.fault(f"two models have the ref {shorten(reference)}", found[1].lines["ref"])
    return found[0]


def _check_model(model: Block, is_built_in: bool, notes: Notes) -> None:
    kind = model.get("type", "anthropic")
    if is_built_in and kind != "anthropic":
        reason = f"the model's type must be anthropic for the built-in loop, not {shorten(str(kind))}"
        notes.fault(reason, model.lines["type"])
    name = model.get("id")
    if not isinstance(name, str) or not name.strip():
        notes.fault(f"model {shorten(str(model['ref']))} has no id", model.lines["ref"])


# -- Load the agent of one file, in either format.


MARKDOWN = frozenset({".md", ".markdown"})
CONFIGURATION = frozenset({".yaml", ".yml"})


@dataclass(frozen=True)
class LoadedFile:
    """An agent, and what was found while its file was read: faults and warnings."""

    definition: AgentDefinition
    problems: list[Problem]


def load_file(path: Path) -> LoadedFile:
    """Return the agent in `path` with its problems: by its name Markdown or a flow, else a CPE configuration.

    Raises:
        NotAnAgent: the file is readable and does not set out to be an agent.
        AgentFileError: it cannot be read or understood.
    """
    if shown(path) != str(path):
        named = "its name" if shown(Path(path.name)) != path.name else "the name of a directory above it"
        raise AgentFileError(path, f"{named} is not UTF-8, so rename it")
    try:
        text = read_text(path)
    except Unreadable as error:
        raise AgentFileError(path, error.reason, error.line) from error
    notes = Notes()
    is_markdown = path.suffix.lower() in MARKDOWN
    read = read_flow if path.name.endswith(FLOW) else read_markdown if is_markdown else read_config
    definition = read(path, text, notes)
    whole = definition.model_copy(
        update={
            "source": path.absolute(),
            "faults": notes.reasons("fault"),
            "warnings": notes.reasons("warning"),
        }
    )
    found = [Problem(path, note.line, note.kind, note.reason, whole.name) for note in notes.found]
    return LoadedFile(whole, found)


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
    faults = [note for note in loaded.problems if note.kind == "fault"]
    if faults:
        more = f" (and {len(faults) - 1} more)" if len(faults) > 1 else ""
        raise AgentFileError(path, faults[0].reason + more, faults[0].line)
    return loaded.definition


# -- Keys of an agent file that a caller sets for one run, checked as the file's own are.


OVERRIDES = ("model", "effort", "maxTurns", "timeoutSeconds", "budgetUsd")
"""The keys that a caller may set: none of them starts a program or sends a key elsewhere."""


def overridden(agent: AgentDefinition, named: Mapping[str, str]) -> tuple[AgentDefinition, list[str]]:
    """Return the agent with the values of `named` instead of those of its file, and warnings about them.

    Raises:
        BadArgument: a key may not be set, or its value is wrong.
    """
    if not named:
        return agent, []
    if unknown := sorted(set(named) - set(OVERRIDES)):
        raise BadArgument(f"{unknown[0]} cannot be given for one run: only {', '.join(OVERRIDES)} can.")
    if empty := [key for key, value in named.items() if is_null(Plain(value.strip()))]:
        raise BadArgument(f"{empty[0]} is empty: give a value, or leave it out.")
    is_flow = agent.runner == "flow"
    if is_flow and (lost := [key for key in named if canonical(key) not in KEYS_OF_FLOWS]):
        raise BadArgument(f"{lost[0]} cannot be kept: a flow has no model. Leave it out.")
    kept = {"command": agent.command} if agent.command else {}  # without one, its runner is a fault
    found, notes = _read({"runner": "messages" if is_flow else agent.runner, **kept, **named})
    if faults := notes.reasons("fault"):
        raise BadArgument(f"{'; '.join(faults)}: give another value.")
    changes: dict[str, object] = {"lines": found.lines | agent.lines}  # as named in the file: to be kept
    changes |= {name: getattr(found, name) for name in ("model", "effort") if name in named}
    if "model" in named:
        changes["other_models"] = []
    limits = {name: getattr(found.limits, name) for name in found.limits.model_fields_set}
    changes["limits"] = agent.limits.model_copy(update=limits)
    warnings = [f"{warning}." for warning in notes.reasons("warning") if warning.startswith("model ")]
    return agent.model_copy(update=changes), warnings


def fault_of(key: str, value: str) -> str | None:
    """Return what is wrong with the value of a key, as words that go after its name, or None."""
    if is_null(Plain(value.strip())):
        return "is empty"
    _, notes = _read({"runner": "messages", key: value})
    faults = notes.reasons("fault")
    return faults[0].partition(" ")[2] if faults else None


def _read(named: Mapping[str, str]) -> tuple[AgentDefinition, Notes]:
    block, notes = Block(), Notes()
    for line, (key, value) in enumerate(named.items(), start=1):
        block.put(key, Plain(value), line)
    return read_definition(block, Origin(Path(), "override"), notes), notes
