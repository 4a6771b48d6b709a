"""What the starter of a run gives it: prompt, label and files, which reach the disk without secrets."""

from dataclasses import dataclass, field, replace
from typing import Any

from subagent_server.domain.definitions import AgentDefinition
from subagent_server.domain.errors import shorten
from subagent_server.domain.secrets import MASK, Masker
from subagent_server.service.access import Caller
from subagent_server.service.context import Service
from subagent_server.service.inputs import InputFile
from subagent_server.service.masking import masker_at_door, masker_of

_NAMES = ("name", "agents")
"""By these names the definition on disk is found and asked, so they stay whole."""
_OF_PROMPT = (
    f"A secret in the prompt stands as {MASK} in the records of the run, for no secret is written to disk: "
    "the run has read the prompt itself, but cannot be started anew from its records."
)


@dataclass(frozen=True)
class Given:
    """The words and files of a start, and the agent's redacted definition.

    `warnings` say what of them was masked, and `secrets` are the values that were looked for.
    """

    prompt: str
    label: str | None
    files: list[InputFile]
    agent: dict[str, Any]
    secrets: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)


def masked_for_disk(service: Service, agent: AgentDefinition, caller: Caller, given: Given) -> Given:
    """Return what was given without secrets, for the run directory; the worker gets the prompt itself.

    Secrets are those of the starter's environment, those of the agent (its variables are replaced), and
    whatever has the shape of a token.
    If a run is the starter, its own count too. Images and PDFs stay as they are, and so do names of agents.
    """
    maskers = [masker_of(agent, service.settings.environment)]
    if caller.run_id is not None:
        maskers.append(masker_at_door(service, caller.run_id))
    prompt = _masked(maskers, given.prompt)
    files = [_masked_file(maskers, file) for file in given.files]
    inputs = [new.path.name for new, old in zip(files, given.files, strict=True) if new != old]
    kept = {key: given.agent[key] for key in _NAMES if key in given.agent}
    return Given(
        prompt=prompt,
        label=None if given.label is None else _masked(maskers, given.label),
        files=files,
        agent=_masked_data(maskers, given.agent) | kept,
        secrets=sorted({value for masker in maskers for value in masker.values}),
        warnings=[*([_OF_PROMPT] if prompt != given.prompt else []), *map(_of_input, inputs)],
    )


def _masked_file(maskers: list[Masker], file: InputFile) -> InputFile:
    if file.media_type != "text/plain":
        return file
    return replace(file, data=_masked(maskers, file.data.decode("utf-8")).encode("utf-8"))


def _masked(maskers: list[Masker], text: str) -> str:
    for masker in maskers:
        text = masker.text(text)
    return text


def _masked_data(maskers: list[Masker], data: dict[str, Any]) -> dict[str, Any]:
    masked: dict[str, Any] = data
    for masker in maskers:
        masked = masker.data(masked)
    return masked


def _of_input(name: str) -> str:
    return (
        f"A secret in input {shorten(name)} was replaced by {MASK}, for no secret is written to disk: "
        "give it in a variable of the environment, and name that."
    )
