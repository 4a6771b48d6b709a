"""`make release`: what it writes into the files, and what it refuses."""

from datetime import date
from pathlib import Path

import pytest

from tests.release import PLACEHOLDER, CannotRelease, check_content, fill, git

CHANGELOG = "# Changelog\n\n## [Unreleased]\n\n### Added\n\n- A thing.\n\n## [0.1.0] - 2026-01-01\n"
TODAY = date(2026, 12, 1)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A repository with the files that a release changes."""
    files = {
        "CHANGELOG.md": CHANGELOG,
        "pyproject.toml": 'name = "subagent-server"\nversion = "0.1.0"\n',
        "subagent_server/__init__.py": '__version__ = "0.1.0"\n',
        "README.md": f"uvx --from git+https://example.org/{PLACEHOLDER} subagent demo\n",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text, encoding="utf-8")
    git("init", "-q", where=tmp_path)
    git("add", ".", where=tmp_path)
    return tmp_path


def test_a_release_fills_in_version_date_and_place(project: Path) -> None:
    fill(project, "0.2.0", "ada/subagents", TODAY)
    written = {path.name: path.read_text(encoding="utf-8") for path in project.rglob("*.*") if path.is_file()}
    assert "## [Unreleased]\n\n## [0.2.0] - 2026-12-01\n\n### Added" in written["CHANGELOG.md"]
    assert 'version = "0.2.0"' in written["pyproject.toml"] and '"0.2.0"' in written["__init__.py"]
    assert written["README.md"] == "uvx --from git+https://example.org/ada/subagents subagent demo\n"
    (project / "CHANGELOG.md").write_text(CHANGELOG, encoding="utf-8")
    fill(project, "0.3.0", "", TODAY)  # from then on the place is known


@pytest.mark.parametrize(
    ("version", "repository", "why"),
    [
        ("v0.2", "ada/subagents", "not of the form 1.2.3"),
        ("0.2.0", "https://example.org/ada", "not of the form owner/name"),
        ("0.2.0", "", "give REPOSITORY=owner/name"),
        ("0.1.0", "ada/subagents", "a section 0.1.0 already"),
    ],
)
def test_a_release_is_refused_with_its_reason(project: Path, version: str, repository: str, why: str) -> None:
    with pytest.raises(CannotRelease, match=why):
        fill(project, version, repository, TODAY)


def test_a_release_without_changes_is_refused(project: Path) -> None:
    text = CHANGELOG.replace("### Added\n\n- A thing.\n\n", "")
    (project / "CHANGELOG.md").write_text(text, encoding="utf-8")
    with pytest.raises(CannotRelease, match="say what is new"):
        fill(project, "0.2.0", "ada/subagents", TODAY)


def test_a_directory_without_a_wheel_is_no_release(tmp_path: Path) -> None:
    with pytest.raises(CannotRelease, match="0 wheels"):
        check_content(tmp_path, tmp_path)
