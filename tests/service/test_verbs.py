"""The first lines of a file of verbs name the tests of them."""

import ast
import re

import pytest

from tests.helpers.processes import REPOSITORY

VERBS = (
    *("start", "continue_run", "merge_run", "end_run", "questions", "check_status", "list_runs"),
    *("wait_for_runs", "get_logs", "remove", "doctor", "trust"),
)


@pytest.mark.parametrize("verb", VERBS)
def test_a_verb_names_its_tests_and_they_exist(verb: str) -> None:
    module = ast.parse((REPOSITORY / "subagent_server" / "verbs" / f"{verb}.py").read_text(encoding="utf-8"))
    _, _, named = (ast.get_docstring(module) or "").partition("Tested in ")
    tests = re.findall(r"`(tests/[\w/]+(?:\.py)?)", named)
    assert tests, f"{verb}.py does not say where it is tested"
    assert [name for name in tests if not (REPOSITORY / name).exists()] == []
