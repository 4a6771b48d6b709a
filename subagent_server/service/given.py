"""What the starter of a run gives it: prompt, label and files, which reach the disk without secrets."""

from dataclasses import dataclass, field, replace

from subagent_server.domain.definitions import AgentDefinition
from subagent_server.domain.errors import shorten
from subagent_server.domain.secrets import MASK, Masker
from subagent_server.service.access import Caller
from subagent_server.service.context import Service
from subagent_server.service.inputs import InputFile
from subagent_server.service.masking import masker_at_door, masker_of


@dataclass(frozen=True)
class Given:
    """The words and files of a start. `warnings` say what of them was masked."""

    prompt: str
    label: str | None
    files: list[InputFile]
    warnings: list[str] = field(default_factory=list)


def masked_for_disk(service: Service, agent: AgentDefinition, caller: Caller, given: Given) -> Given:
    """Return prompt, label and files without secrets, for the run directory and so for the run itself.

    Secrets are those of the starter's environment, those of the agent (its variables are replaced), and
    whatever has the shape of a token.
    If a run is the starter, its own count too. Images and PDFs stay as they are.
    """
    maskers = [masker_of(agent, service.settings.environment)]
    if caller.run_id is not None:
        maskers.append(masker_at_door(service, caller.run_id))
    prompt = _masked(maskers, given.prompt)
    files = [_masked_file(maskers, file) for file in given.files]
    places = ["the prompt"] if prompt != given.prompt else []
    places += [
        f"input {shorten(new.path.name)}" for new, old in zip(files, given.files, strict=True) if new != old
    ]
    return Given(
        prompt=prompt,
        label=None if given.label is None else _masked(maskers, given.label),
        files=files,
        warnings=[_warning(place) for place in places],
    )


def _masked_file(maskers: list[Masker], file: InputFile) -> InputFile:
    if file.media_type != "text/plain":
        return file
    return replace(file, data=_masked(maskers, file.data.decode("utf-8")).encode("utf-8"))


def _masked(maskers: list[Masker], text: str) -> str:
    for masker in maskers:
        text = masker.text(text)
    return text


def _warning(place: str) -> str:
    return (
        f"A secret in {place} was replaced by {MASK}, for no secret is written to disk: "
        "give it in a variable of the environment, and name that."
    )
