"""An agent as a CPE configuration (`*.yaml`, `*.cpe.yaml`): one `subagent`, `defaults`, models, servers."""

from pathlib import Path

from subagent_server.catalog.fields import Origin, read_definition, report_repeated
from subagent_server.catalog.keys import canonical
from subagent_server.catalog.problems import AgentFileError, NotAnAgent, Notes
from subagent_server.catalog.strict_yaml import NotYaml, parse
from subagent_server.catalog.values import Block, is_null
from subagent_server.domain.definitions import AgentDefinition
from subagent_server.domain.errors import shorten

_STRUCTURE = frozenset({"version", "models", "subagent", "defaults"})
_MODEL_KEYS = {
    "id": "model",
    "apikeyenv": "apiKeyEnv",
    "baseurl": "baseUrl",
    "codemode": "codeMode",
    "maxoutput": "maxTokens",
}
_MODEL_ONLY = frozenset({"ref", "type", "displayname"})


def read_config(path: Path, text: str, notes: Notes) -> AgentDefinition:
    """Return the agent that a CPE configuration defines; missing and wrong pieces are faults in `notes`.

    Keys of the table of SPEC section 3 may stand under `subagent`, under `defaults` or at the top.

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
    _check_identity(subagent, whole.lines["subagent"], notes)
    _check_version(whole, notes)
    _report_repeated_blocks(whole, notes)
    combined = _combined(whole, defaults, subagent)
    _use_model(combined, whole, notes)
    return read_definition(combined, Origin(path, _stem(path)), notes)


def _stem(path: Path) -> str:
    return path.stem.removesuffix(".cpe") or path.stem


def _block(path: Path, whole: Block, key: str) -> Block:
    value = whole[key]
    if isinstance(value, Block):
        return value
    if key == "defaults" and is_null(value):
        return Block()
    raise AgentFileError(path, f"'{key}:' must be a mapping of keys", whole.lines[key])


def _check_identity(subagent: Block, line: int, notes: Notes) -> None:
    for key in ("name", "description"):
        value = subagent.get(key)
        if value is None or is_null(value) or (isinstance(value, str) and not value.strip()):
            notes.fault(f"subagent.{key} is missing", subagent.lines.get(key, line))


def _check_version(whole: Block, notes: Notes) -> None:
    version = whole.get("version")
    if version is None or is_null(version):
        notes.warn("version is missing, so the file is read as 1.0", whole.lines.get("version"))
    elif not isinstance(version, str) or version.split(".")[0] != "1":
        shown = shorten(version) if isinstance(version, str) else "of this kind"
        notes.warn(f"version {shown} is not known here, so the file is read as 1.0", whole.lines["version"])


def _report_repeated_blocks(whole: Block, notes: Notes) -> None:
    for key, line in whole.repeated.items():
        if key in _STRUCTURE:
            notes.fault(f"{key} is given twice (first on line {whole.lines[key]}), so say it once", line)
    report_repeated(whole.get("models", []), "models", notes)


def _combined(whole: Block, defaults: Block, subagent: Block) -> Block:
    """Return all keys of the agent in a single mapping; a key in two places is given twice."""
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
    """Put the model of `defaults.model` in place of its ref; its code mode replaces the default.

    The built-in loop needs a model; another runner has its own, and the ref may be its name there.
    """
    runner = _find(combined, "runner")
    is_built_in = runner is None or combined[runner] == "messages"
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
