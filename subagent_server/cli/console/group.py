"""The table of verbs. The module of a verb is imported when it is called, so that `ls` starts quickly."""

from collections.abc import Sequence
from importlib import import_module
from typing import NamedTuple

import click

from subagent_server import __version__, extensions
from subagent_server.cli.console.flags import common_options, take_common_options


class Verb(NamedTuple):
    """Where a verb is, as `module:attribute`, and its line in the list of `--help`."""

    where: str
    help: str


def _verb(name: str, help: str) -> Verb:
    return Verb(f"subagent_server.cli.{name}:{name}", help)


_OWN: dict[str, Verb] = {
    "run": _verb("run", "Start an agent and follow it until it ends."),
    "rerun": _verb("rerun", "Start the task of a run once more, as a new run."),
    "ls": _verb("ls", "List runs: those that need you, those that work, the last that ended."),
    "show": _verb("show", "Show everything about a run."),
    "logs": _verb("logs", "Print the log of a run, or follow it."),
    "wait": _verb("wait", "Wait until runs end; the exit code says how."),
    "inbox": _verb("inbox", "List the questions that wait for an answer."),
    "reply": _verb("reply", "Answer a question of a run."),
    "stop": _verb("stop", "Stop runs, and the runs that they started."),
    "continue": Verb(
        "subagent_server.cli.continue_:continue_", "Carry a run that has ended on, as a new run."
    ),
    "merge": _verb("merge", "Merge what a run has changed in its git worktree."),
    "rm": _verb("rm", "Remove runs that are over."),
    "page": _verb("page", "Open the page that shows the runs in a browser."),
    "prune": _verb("prune", "Remove runs that ended long ago."),
    "stats": _verb("stats", "Sum up runs, tokens and cost by agent and day."),
    "agents": _verb("agents", "List the agents and the faults of their files."),
    "compare": _verb("compare", "Show two runs side by side."),
    "new": _verb("new", "Write the file of a new agent."),
    "mcp": Verb("subagent_server.cli.mcp.command:mcp", "Try the MCP servers of an agent."),
    "trust": _verb("trust", "Let the agents and MCP servers of a directory be used."),
    "doctor": _verb("doctor", "Find what is wrong with agent files, or with runs."),
    "init": _verb("init", "Register this server with an MCP client."),
    "schema": _verb("schema", "Print the JSON Schema of a file of a run, or of an agent file."),
    "serve": _verb("serve", "Serve the agents to an MCP client."),
    "export": _verb("export", "Pack a run into one archive."),
    "completion": _verb("completion", "Print the script that completes this command in a shell."),
}

VERBS: dict[str, Verb] = {
    name: verb
    for own, verb_of_own in _OWN.items()
    for name, verb in [
        (own, verb_of_own),
        *(
            (name, Verb(each.where, each.help))
            for name, each in extensions.commands().items()
            if each.after == own
        ),
    ]
}
"""All verbs in the order of `--help`; those of extensions stand behind the verb that they name."""

_EPILOG = (
    "RUN is the id of a run, a unique beginning of it, its unique last part, or @last, the "
    "last run that no other run started. "
    "Exit codes: 0 ok, 1 the run failed, 2 usage, 3 no such run or agent, 4 the run was stopped, "
    "5 a person's answer is needed, 6 environment, 124 timed out, 130 Ctrl-C (which stops the watching, "
    "never the run)."
)


class LazyGroup(click.Group):
    """A group with the verbs of `VERBS`; each also takes the common options."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Read the options before the verb. `help` and `version` are other spellings of the options."""
        return super().parse_args(ctx, _spelled_as_options(args))

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of the verbs in the order of the table."""
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import a verb and return it, or None if there is no verb of this name."""
        verb = VERBS.get(cmd_name)
        if verb is None:
            return None
        module, attribute = verb.where.split(":")
        command: click.Command = getattr(import_module(module), attribute)
        take_common_options(command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the verb that `args` begins with; an unknown name fails with similar names."""
        try:
            return super().resolve_command(ctx, args)
        except click.exceptions.NoSuchCommand:
            raise click.exceptions.NoSuchCommand(args[0], possibilities=VERBS, ctx=ctx) from None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of verbs without importing them."""
        with formatter.section("Verbs"):
            formatter.write_dl([(name, verb.help) for name, verb in VERBS.items()])


def _spelled_as_options(args: Sequence[str]) -> list[str]:
    match args:
        case ["help", *verb]:
            return [*verb, "--help"]
        case ["version" | "-v", *_]:
            return ["--version"]
        case _:
            return list(args)


@click.command(
    cls=LazyGroup,
    params=common_options(),
    epilog=_EPILOG,
    subcommand_metavar="VERB [ARGS]...",
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.version_option(__version__, prog_name="subagent", message="%(prog)s %(version)s")
def subagent() -> None:
    """Hand work to subagents, watch them, and answer their questions.

    Every run has a directory of its own; the verbs work on these files, with no server running.
    """
