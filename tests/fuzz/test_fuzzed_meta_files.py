"""Meta files that something else than the store wrote."""

import tempfile
from pathlib import Path

import pytest
from hypothesis import given

from subagent_server.process.launcher import LocalLauncher
from subagent_server.run import transitions
from subagent_server.run.errors import SubagentError
from subagent_server.run.records import Failure
from subagent_server.settings import read_settings
from subagent_server.verbs.end_run import stop
from subagent_server.verbs.examine import examine
from subagent_server.verbs.get_logs import get_logs
from subagent_server.verbs.list_runs import list_runs
from subagent_server.verbs.questions import reply
from subagent_server.verbs.service import Service, open_service
from tests.fuzz.dice import FUZZED, is_plain, mutated
from tests.helpers.runs import ASKED, RUN_ID, STARTED, start_run
from tests.helpers.truth import check_status

pytestmark = pytest.mark.fuzz

OTHER = "20261122-093015-417-abcdef"


def _a_state() -> bytes:
    """Return the bytes of a real meta file, with a question and an end."""
    with tempfile.TemporaryDirectory() as name:
        service = _service(Path(name))
        failure = Failure(code="crashed", message="It broke.")
        start_run(service.store, RUN_ID, STARTED, ASKED, transitions.RunFailed(failure=failure))
        return service.store.paths.run(RUN_ID).meta.path.read_bytes()


def _service(directory: Path) -> Service:
    return open_service(read_settings(environment={}, cwd=directory), LocalLauncher())


STATE = _a_state()


@FUZZED
@given(mutated(STATE))
def test_a_damaged_meta_file_gives_one_sentence_and_spoils_no_other_run(content: bytes) -> None:
    with tempfile.TemporaryDirectory() as name:
        service = _service(Path(name))
        start_run(service.store, RUN_ID)
        start_run(service.store, OTHER)
        service.store.paths.run(RUN_ID).meta.path.write_bytes(content)
        for verb in (
            lambda: check_status(service, RUN_ID),
            lambda: check_status(service, RUN_ID, "q1"),
            lambda: get_logs(service, RUN_ID),
            lambda: reply(service, RUN_ID, "yes"),
            lambda: stop(service, RUN_ID),
        ):
            try:
                verb()
            except SubagentError as error:
                assert is_plain(error.sentence)
        rows = list_runs(service.store).rows
        assert OTHER in [row.run_id for row in rows]
        assert all(finding.what for finding in examine(service.store, [RUN_ID], {}))
