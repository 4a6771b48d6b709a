"""`subagent completion`: print the script that completes this command in a shell."""

import click
from click.shell_completion import get_completion_class

from subagent_server.cli.console.terminal import out

_SHELLS = {
    "bash": 'eval "$(subagent completion bash)" goes into ~/.bashrc',
    "zsh": 'eval "$(subagent completion zsh)" goes into ~/.zshrc, behind compinit',
    "fish": "subagent completion fish | source goes into ~/.config/fish/config.fish",
}
"""By shell: the line that makes it complete, and where the line belongs."""


@click.command()
@click.argument("shell", type=click.Choice(list(_SHELLS)), metavar="bash|zsh|fish")
def completion(shell: str) -> None:
    """Print the script that completes this command in a shell.

    It completes verbs, options, agents, runs and paths. The first line, a comment, says where to put it.
    """
    kind = get_completion_class(shell)
    assert kind is not None  # click has all three
    command = click.get_current_context().find_root().command
    source = kind(command, {}, "subagent", "_SUBAGENT_COMPLETE").source()
    # click's script for fish ends a path or a description at its first comma, and sorts runs by their names
    source = source.replace('string split ","', 'string split --max 1 ","')
    source = source.replace("complete --no-files", "complete --keep-order --no-files")
    out(f"# {_SHELLS[shell]}\n{source.strip()}")
