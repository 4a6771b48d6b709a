"""Scripts in files, and what is said about those that are wrong."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from subagent_server.extensions.simulator import ScriptError, Simulator, load_script
from tests.extensions.simulator.clients import post

WRONG: list[tuple[str, str]] = [
    ("", "must be a mapping with the keys turns, rules, after"),
    ("- text: x", "must be a mapping with the keys turns"),
    ("{}", "says nothing: give turns, rules or conversations"),
    ("turn: []", "has no key 'turn' (did you mean 'turns'?): allowed are turns, rules, after"),
    ("turns: {text: x}", "turns: Input should be a valid list"),
    ("turns: [x]", "turns.0: must be a mapping with the keys text, thinking"),
    ("turns: [{text: a}, {txt: b}]", "turns.1: has no key 'txt' (did you mean 'text'?)"),
    ("turns: [{text: 7}]", "turns.0.text: Input should be a valid string"),
    ("turns: [{text: x, latency: -1}]", "turns.0.latency: Input should be greater than or equal to 0"),
    ("turns: [{text: x, latency: .inf}]", "turns.0.latency: Input should be a finite number"),
    ("turns: [{text: x, repeat: 0}]", "turns.0.repeat: Input should be greater than or equal to 1"),
    ("turns: [{text: x, stop_reason: done}]", "turns.0.stop_reason: Input should be 'end_turn'"),
    ("turns: [{text: x, content: []}]", "turns.0: has content and also text, thinking or tool_use"),
    ("turns: [{tool_use: {input: {}}}]", "turns.0.tool_use.0.name: Field required"),
    ("turns: [{tool_use: {name: x, input: 3}}]", "tool_use.0.input: Input should be a valid dict"),
    ("turns: [{tool_use: {name: x, input: {a: .nan}}}]", "turns.0.tool_use.0.input: must be JSON"),
    ("turns: [{tool_use: {name: x, input: {a: !!set {b}}}}]", "turns.0.tool_use.0.input: must be JSON"),
    ("turns: [{tool_use: {name: x, id: 'a b'}}]", "turns.0.tool_use.0.id: String should match pattern"),
    ("turns: [{content: [{type: video}]}]", "turns.0.content.0: must have the type text, thinking"),
    ("turns: [{content: [{type: text}]}]", "turns.0.content.0.text.text: Field required"),
    ("turns: [{content: [{name: x, input: []}]}]", "content.0.tool_use.input: Input should be"),
    ("turns: [{usage: {tokens: 1}}]", "turns.0.usage: has no key 'tokens'"),
    ("turns: [{capture: {x: '('}}]", "turns.0.capture.x.pattern: is no regular expression"),
    ("turns: [{capture: {'a b': x}}]", "turns.0.capture.a b.[key]: String should match"),
    ("turns: [{fault: {}}]", "must have exactly one of status, cut_after, stream_error"),
    ("turns: [{fault: {status: 500, hang: true}}]", "turns.0.fault.0: must have exactly one of status"),
    ("turns: [{fault: [{hang: true}, {status: 200}]}]", "fault.1.status: Input should be greater"),
    ("turns: [{fault: {hang: true, after: 2}}]", "has 'after', which goes with stream_error only"),
    ("turns: [{fault: {status: 500, times: never}}]", "fault.0.times: Input should be a valid int"),
    ("turns: [{fault: {malformed_tool_json: often}}]", "should be 'truncated' or 'garbled'"),
    ("turns: [{text: x, when: {}}]", "turns.0: has no key 'when'"),
    ("rules: [{text: x}]", "rules.0.when: Field required"),
    ("rules: [{when: {}, repeat: 2}]", "rules.0: has no key 'repeat'"),
    ("rules: [{when: {prompt: '*'}}]", "rules.0.when.prompt: is no regular expression"),
    ("rules: [{when: {prompt: 'a{99999999999}'}}]", "rules.0.when.prompt: is no regular expression"),
    ("rules: [{when: {prompt: '" + "(" * 900 + ")" * 900 + "'}}]", "prompt: is no regular expression"),
    ("rules: [{when: {turn: '1'}}]", "rules.0.when.turn: Input should be a valid integer"),
    ("conversations: [{turns: []}]", "conversations.0.when: Field required"),
    ("conversations: [{when: {turn: 1}}]", "conversations.0.when: has no key 'turn': allowed are prompt"),
    ("turns: []\nafter: stop", "after: Input should be 'repeat_last' or 'end'"),
    ("turns: [{text: x, a: 1}, {b: 1}, {c: 1}]", "turns.0: has no key 'a'"),
    ("turns: []\nturns: []", "line 1, is not YAML (the key 'turns' appears twice)"),
    ("turns:\n  - text: 'x", "is not YAML"),
    ("turns:\n\t- text: x", "line 2, is not YAML"),
    ("turns: [!!python/object:os.system {}]", "is not YAML"),
    ("turns: [\x00]", "is not YAML"),
    ("turns: " + "[" * 900, "cannot be read (maximum recursion depth"),
    (f"turns: [{{latency: {'9' * 4_400}}}]", "cannot be read (Exceeds the limit"),
]


@pytest.mark.parametrize(("content", "expected"), WRONG)
def test_a_wrong_script_is_one_sentence_with_file_place_and_what_is_allowed(
    content: str, expected: str, tmp_path: Path
) -> None:
    file = tmp_path / "script.yaml"
    file.write_text(content, encoding="utf-8")
    with pytest.raises(ScriptError) as caught:
        load_script(file)
    sentence = caught.value.sentence
    assert str(file) in sentence and expected in sentence
    assert "\n" not in sentence and sentence.endswith(".")


def test_a_script_that_cannot_be_read_says_so(tmp_path: Path) -> None:
    broken, latin = tmp_path / "broken.json", tmp_path / "latin.yaml"
    broken.write_text('{\n"turns": [}', encoding="utf-8")
    latin.write_bytes(b"turns: [{text: \xe9}]")
    deep = tmp_path / "deep.json"
    deep.write_text("[" * 200_000, encoding="utf-8")
    for path, expected in [
        (Path("/dev/zero"), "is larger than 64 MiB"),
        (deep, "cannot be read ("),
        (tmp_path / "none.yaml", "cannot be read (No such file or directory)"),
        (tmp_path, "cannot be read (Is a directory)"),
        (broken, "line 2, is not JSON"),
        (latin, "is not UTF-8 text (byte 15)"),
    ]:
        with pytest.raises(ScriptError) as caught:
            Simulator(path)
        assert expected in caught.value.sentence


def test_a_wrong_dict_is_reported_without_a_file() -> None:
    with pytest.raises(ScriptError, match=r"^The script: turns\.0: has no key 'txt'"):
        Simulator({"turns": [{"txt": "x"}]})


@pytest.mark.parametrize("name", ["script.yaml", "script.json", "script"])
def test_a_file_is_yaml_or_json(name: str, tmp_path: Path) -> None:
    file = tmp_path / name
    file.write_text(json.dumps({"turns": [{"text": "from a file"}]}), encoding="utf-8-sig")
    with Simulator(str(file)) as simulator:
        assert post(simulator).json()["content"][0]["text"] == "from a file"


def test_a_script_may_come_by_a_pipe() -> None:
    reader, writer = os.pipe()
    with os.fdopen(writer, "w", encoding="utf-8") as pipe:
        pipe.write("turns: [{text: x}]")
    with os.fdopen(reader):
        assert load_script(f"/dev/fd/{reader}").turns


def test_a_date_in_yaml_is_the_text_that_was_written(tmp_path: Path) -> None:
    file = tmp_path / "script.yaml"
    file.write_text("turns: [{tool_use: {name: at, input: {day: 2026-11-22}}}]", encoding="utf-8")
    with Simulator(file) as simulator:
        assert post(simulator).json()["content"][0]["input"] == {"day": "2026-11-22"}


def test_the_example_of_the_documentation_plays_as_it_says(tmp_path: Path) -> None:
    page = (Path(__file__).parents[3] / "docs" / "simulator.md").read_text(encoding="utf-8")
    file = tmp_path / "example.yaml"
    file.write_text(page.partition("```yaml\n")[2].partition("```")[0], encoding="utf-8")
    bash = {"type": "bash_20250124", "name": "bash"}
    messages: list[dict[str, Any]] = [{"role": "user", "content": "Please review."}]
    with Simulator(file) as simulator:
        assert post(simulator, messages=messages, tools=[bash]).status_code == 529
        content = post(simulator, messages=messages, tools=[bash]).json()["content"]
        results = [
            {"type": "tool_result", "tool_use_id": block["id"], "content": said}
            for block, said in zip(content[2:], ["README.md\nmain.py", "1a2b3c4 Start"], strict=True)
        ]
        messages += [{"role": "assistant", "content": content}, {"role": "user", "content": results}]
        answer = post(simulator, messages=messages, tools=[bash]).json()
        assert answer["content"][0]["text"] == "I reviewed main.py at 1a2b3c4. It is fine."
        assert answer["usage"]["output_tokens"] == 250
        results[0]["is_error"] = True
        answer = post(simulator, messages=messages, tools=[bash]).json()
        assert answer["content"][0]["text"] == "A command failed, so I stop here."
        assert post(simulator).json()["content"][0]["text"] == "I only review."
