"""`subagent export`: a run in one archive."""

import io
import os
import subprocess
import tarfile

from tests.cli.command import COMMAND, Cli
from tests.cli.families import family

SECRET = "sk-this-is-the-secret-of-the-test-0123456789"


def test_a_run_is_packed_without_secrets_locks_and_what_is_no_file_of_it(cli: Cli) -> None:
    run_id = cli.completed("aaaaaa", f"The result. {SECRET}")
    run = cli.store.paths.run(run_id)
    outputs = run.directory / "outputs"
    outputs.mkdir(mode=0o700)
    (outputs / "one.txt").write_text(f"long output {SECRET}", encoding="utf-8")
    (outputs / "raw.bin").write_bytes(b"\xff\x00")
    (outputs / "planted").symlink_to("/etc/passwd")
    os.mkfifo(outputs / "pipe", 0o600)
    done = cli("export", "aaaaaa", "-o", "run.tgz", env={"MY_API_KEY": SECRET})
    assert done.returncode == 0 and "run.tgz is written" in done.stderr
    with tarfile.open(cli.home / "run.tgz") as archive:
        names = archive.getnames()
        texts = {name: (archive.extractfile(name) or io.BytesIO()).read() for name in names}
    assert {f"{run_id}/{name}" for name in ("request.json", "run.meta.json", "result.json")} <= set(names)
    assert texts[f"{run_id}/outputs/one.txt"] == b"long output ***"
    assert texts[f"{run_id}/outputs/raw.bin"] == b"\xff\x00"
    assert not any(SECRET.encode() in text for text in texts.values())
    assert not any("lock" in name or "planted" in name or "pipe" in name for name in names)
    assert "outputs/planted is left out" in done.stderr and "outputs/pipe is left out" in done.stderr


def test_a_tree_goes_to_stdout_and_nothing_is_written_over(cli: Cli) -> None:
    with family(cli) as ids:
        command = [*COMMAND, "export", ids.boss, "--tree", "-o", "-"]
        done = subprocess.run(
            command,
            cwd=cli.home,
            env=cli.environment,
            capture_output=True,
            check=True,
            stdin=subprocess.DEVNULL,
        )
        with tarfile.open(fileobj=io.BytesIO(done.stdout)) as archive:
            assert {name.split("/")[0] for name in archive.getnames()} == {ids.boss, ids.helper, ids.tester}
        (cli.home / "mine").write_text("mine", encoding="utf-8")
        refused = cli("export", ids.boss, "-o", "mine")
        assert refused.returncode == 2 and "is there already" in refused.stderr
        assert (cli.home / "mine").read_text(encoding="utf-8") == "mine"
