"""What a box shows of a repository's configuration."""

import subprocess
from pathlib import Path

from subagent_server.sandbox.git_files import config_without_credentials, configurations

CONFIG = """[core]
\tbare = false
[remote "origin"]
\turl = https://x-access-token:0a1b2c3d4e@github.com/o/r
\tfetch = +refs/heads/*:refs/remotes/origin/*
[http "https://github.com/"]
\textraheader = AUTHORIZATION: basic \\
eC1hY2Nlc3MtdG9rZW46MGExYjJjM2Q0ZQ==
[github] token = short
[url "https://me:pw@host/"]
\tinsteadOf = host:
[user]
\tname = A
"""


def test_a_box_sees_the_settings_of_a_repository_without_its_credentials(tmp_path: Path) -> None:
    config = tmp_path / "config"
    config.write_text(CONFIG, encoding="utf-8")
    shown = config_without_credentials(config)
    assert shown is not None
    for secret in (b"0a1b2c3d4e", b"eC1hY2Nlc3M", b"short", b"me:pw"):
        assert secret not in shown
    config.write_bytes(shown)
    listed = subprocess.run(
        ["git", "config", "--file", str(config), "--list"], capture_output=True, check=True, text=True
    ).stdout.splitlines()
    assert "remote.origin.url=https://x-access-token:***@github.com/o/r" in listed and "user.name=A" in listed
    assert config_without_credentials(config) is None


def test_files_of_configuration_of_worktrees_and_submodules_are_found_and_no_link_is_followed(
    tmp_path: Path,
) -> None:
    places = (".", "worktrees/one", "modules/libs/two", "modules/libs/two/modules/deep")
    for place in places:
        (tmp_path / place).mkdir(parents=True, exist_ok=True)
        (tmp_path / place / "HEAD").touch()
    (tmp_path / "modules/linked").symlink_to("/etc")
    found = set(configurations(tmp_path))
    assert {tmp_path / place / name for place in places for name in ("config", "config.worktree")} <= found
    assert not [path for path in found if "linked" in path.parts or "objects" in path.parts]
