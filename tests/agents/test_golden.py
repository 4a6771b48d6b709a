"""What each agent file of `golden/` is read as, to the word.

A golden file holds cases between lines of `%%`: keys for the front matter of an agent, or a whole file (one
that begins with `---`, or is among the configurations or flows). Behind each stand lines of `=>` with what
comes of it: values that are not the usual ones, faults and warnings with their lines, or why it is no agent.
`python -m tests.agents.test_golden` writes those lines anew; read the difference before you commit it.
"""

import json
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from subagent_server.agents.formats import load_file
from subagent_server.agents.yaml_reader import AgentFileError, NotAnAgent

GOLDEN = Path(__file__).with_name("golden")
USUAL = {"name": "a", "description": "d", "systemPrompt": "You help."}
PLACES = {"source", "read_from", "lines", "faults", "warnings"}
OF_FLOWS = {"runner", "code_mode", "program_hash", "system_prompt"}


def cases(path: Path) -> list[tuple[str, str]]:
    """Return each case of a golden file: its text, and the lines that come of it."""
    found = []
    for case in path.read_text(encoding="utf-8").split("\n%%\n"):
        text, _, expected = case.rstrip("\n").partition("\n=> ")
        found.append((text, f"=> {expected}"))
    return found


def outcome(golden: Path, text: str, directory: Path) -> str:
    """Return the lines that come of the text of a case."""
    if golden.stem == "configurations":
        path, whole = directory / "file.cpe.yaml", text
    elif golden.stem == "flows":
        path, whole = directory / "a.flow.py", f'"""d"""\n{text}'
    else:
        is_whole = text.startswith("---")
        path = directory / "file.md"
        whole = text if is_whole else f"---\nname: a\ndescription: d\n{text}\n---\nYou help."
    path.write_text(whole + "\n", encoding="utf-8")
    lines = [f"=> {line}".replace(f"{directory}/", "").replace(str(directory), ".") for line in _read(path)]
    return "\n".join(lines) or "=> as usual"


def _read(path: Path) -> Iterator[str]:
    try:
        loaded = load_file(path)
    except AgentFileError as error:
        kind = "no agent" if isinstance(error, NotAnAgent) else "error"
        yield f"{kind}{_line(error.line)}: {error.reason}"
        return
    more = OF_FLOWS if path.suffix == ".py" else set()
    agent = loaded.definition.model_dump(mode="json", exclude_defaults=True, exclude=PLACES | more)
    for key, value in {"description": "", **({} if more else {"systemPrompt": ""}), **agent}.items():
        if value != USUAL.get(key):
            yield f"{key} = {json.dumps(value, ensure_ascii=False)}"
    for note in loaded.problems:
        yield f"{note.kind}{_line(note.line)}: {note.reason}"


def _line(number: int | None) -> str:
    return "" if number is None else f" in line {number}"


CASES = [
    pytest.param(path, *case, id=f"{path.stem}-{number}")
    for path in sorted(GOLDEN.glob("*.txt"))
    for number, case in enumerate(cases(path), start=1)
]


@pytest.mark.parametrize(("path", "text", "expected"), CASES)
def test_an_agent_file_is_read_as_its_golden_file_says(
    path: Path, text: str, expected: str, tmp_path: Path
) -> None:
    assert outcome(path, text, tmp_path) == expected


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as place:
        for golden in GOLDEN.glob("*.txt"):
            new = [f"{text}\n{outcome(golden, text, Path(place))}" for text, _ in cases(golden)]
            golden.write_text("\n%%\n".join(new) + "\n", encoding="utf-8")
