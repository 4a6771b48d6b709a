"""What a start makes, and that it makes nothing where something is wrong."""

import base64
import os

import pytest

from subagent_server.run.errors import BadArgument, StorageFailed, UnknownAgent
from tests.helpers.turns import says
from tests.helpers.world import World

PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)


def refusal(world: World, prompt: str = "Do it.", agent: str = "worker", **order: object) -> str:
    """Return the sentence of a start that is refused, and check that it has left nothing."""
    world.agent()
    with pytest.raises((BadArgument, UnknownAgent)) as raised:
        world.start(prompt, agent, **order)
    assert world.store.run_ids() == [] and world.store.live_ids() == []
    sentence = raised.value.sentence
    assert sentence.endswith(".") and "\n" not in sentence and len(sentence) < 700
    return sentence


def test_inputs_are_copied_at_the_start_and_reach_the_model_in_their_order(world: World) -> None:
    simulator = world.agent_saying(says("Read."))
    (world.work / "notes.txt").write_text("as it was: ünïcode", encoding="utf-8")
    (world.work / "dot.png").write_bytes(PNG)
    (world.home / "paper.pdf").write_bytes(b"%PDF-1.4\n%%EOF\n")
    long = "n" * 251 + ".txt"
    (world.work / long).write_bytes(b"")
    run_id = world.start("Read these.", inputs=["notes.txt", "dot.png", "../paper.pdf", "notes.txt", long])
    (world.work / "notes.txt").write_text("changed after the start", encoding="utf-8")
    (world.work / "dot.png").unlink()
    assert world.completed(run_id) == "Read."
    content = simulator.requests[0].body["messages"][0]["content"]
    kinds = [block["type"] for block in content]
    assert kinds == ["text", "text", "image", "text", "document", "text", "text", "text"]
    assert "as it was: ünïcode" in content[0]["text"] and "as it was" in content[5]["text"]
    assert base64.b64decode(content[2]["source"]["data"]) == PNG
    assert content[4]["source"]["media_type"] == "application/pdf"
    assert content[-1]["text"] == "Read these."
    assert len(list(world.paths(run_id).inputs.path.iterdir())) == 5


def test_inputs_that_no_model_reads_are_refused_by_name(world: World) -> None:
    (world.work / "folder").mkdir()
    (world.work / "binary").write_bytes(b"\x00\x01\x02" * 100)
    (world.work / "latin").write_bytes("Grüße".encode("latin-1"))
    os.mkfifo(world.work / "pipe")
    (world.work / "huge.txt").write_bytes(b"x" * 2_000_001)
    (world.work / "big.dat").write_bytes(PNG + b"\0" * 3_932_160)
    (world.work / "wide.txt").write_bytes(PNG[:16] + (8001).to_bytes(4, "big") + PNG[20:])
    for name, words in {
        "missing.txt": "No such file",
        "folder": "Is a directory",
        "binary": "neither UTF-8 text, PDF nor image",
        "latin": "neither UTF-8 text, PDF nor image",
        "pipe": "not a regular file",
        "huge.txt": "2,000,001 bytes",
        "big.dat": "at most 3,932,160 can be shown",
        "wide.txt": "8001 by",
        "a\0b": "NUL",
        "": "empty",
        "x" * 5000: "cannot be read",
    }.items():
        sentence = refusal(world, inputs=[name])
        assert words in sentence and (name[:80] in sentence or words == "NUL"), sentence
    assert "51 input files" in refusal(world, inputs=["x"] * 51)
    for name in ("one.pdf", "two.pdf"):
        (world.work / name).write_bytes(b"%PDF-1.4\n" + b"\0" * 12_000_000)
    together = refusal(world, inputs=["one.pdf", "two.pdf"])
    assert "two.pdf" in together and "more than the 32,000,000" in together


def test_no_link_of_a_run_leads_an_input_out_of_the_project(world: World) -> None:
    world.agent_saying(says("Read."))
    (world.home / "key").write_text("SECRET", encoding="utf-8")
    (world.work / "notes").write_text("mine", encoding="utf-8")
    (world.home / "notes").symlink_to(world.work / "notes")
    for name, target in {"report": "../key", "up": "..", "inner": "notes"}.items():
        (world.work / name).symlink_to(target)
    for name in ("report", "up/key", str(world.work / "report")):
        assert "by a link that a run could have made: name the file itself" in refusal(world, inputs=[name])
    run_id = world.start("Read these.", inputs=["inner", "../key", "../notes"])
    copies = sorted(world.paths(run_id).inputs.path.iterdir())
    assert [copy.read_text(encoding="utf-8") for copy in copies] == ["mine", "SECRET", "mine"]


def test_a_prompt_a_label_or_a_directory_that_cannot_be_is_refused(world: World) -> None:
    assert "The prompt is empty" in refusal(world, " \n\t")
    assert "10,000,000 characters" in refusal(world, "x" * 10_000_000)
    assert "label" in refusal(world, label="x" * 201)
    (world.work / "file").touch()
    for cwd in ("nowhere", "file", "", "a\0b", "x" * 5000, "~nobody-of-this-name"):
        assert "cwd" in refusal(world, cwd=cwd)
    assert "the agents here are worker" in refusal(world, agent="nobody")


def test_a_runs_root_that_cannot_be_written_gives_one_sentence_and_nothing_half_made(world: World) -> None:
    world.agent()
    world.runs.write_text("I am a file.", encoding="utf-8")
    with pytest.raises(StorageFailed, match="could not be written"):
        world.start()
    assert world.runs.read_text(encoding="utf-8") == "I am a file."
    world.runs.unlink()
