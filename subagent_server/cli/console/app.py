"""The entry point: run a verb with its flags, and turn an exception into one line on stderr and an exit code.

With --json the line is an object, with the same sentence.
"""

import re
import shlex
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import redirect_stderr, suppress
from dataclasses import dataclass
from functools import cache, cached_property, wraps
from importlib import import_module
from io import StringIO
from itertools import islice, takewhile
from pathlib import Path
from typing import Any, Concatenate, NamedTuple, ParamSpec, TypeVar

import click
from click.shell_completion import CompletionItem

from subagent_server import __version__, extensions
from subagent_server.cli.console.option_types import DIRECTORY, Count
from subagent_server.cli.console.terminal import (
    EXIT_CODES,
    EarlyExit,
    ExitCode,
    OutputClosed,
    cut,
    err,
    exit_of_error,
    for_people,
    has_person,
    json_text,
    one_line,
    out_json,
    prepare_streams,
    reader_is_gone,
)
from subagent_server.extensions import Command
from subagent_server.run.errors import SubagentError, adopting
from subagent_server.run.processes import check_system
from subagent_server.run.stderr import lack_of_room, of_the_system
from subagent_server.settings import Settings, read_settings
from subagent_server.verbs.access import LATEST, Caller, NotAllowed, caller_of, find_run, user_here
from subagent_server.verbs.reconcile import Observed, observe
from subagent_server.verbs.service import Service, open_service
from subagent_server.verbs.tree_limits import check_may_delegate
from subagent_server.verbs.views import NextCalls, RunView, run_view

# -- The flags that every verb takes, before or after its name.


@dataclass
class Flags:
    """The values of the flags that every verb takes. One after the verb overrides the same one before it."""

    agents: tuple[Path, ...] = ()
    runs: Path | None = None
    max_runs: int | None = None
    launcher: str | None = None
    trust: bool = False
    debug: bool = False
    as_json: bool = False
    """Until --json is parsed, whether it is among the words: for the report of a fault in them."""


T = TypeVar("T")
P = ParamSpec("P")


def common_options() -> list[click.Option]:
    """Return the options that every verb takes. Their values go into the context's `Flags`."""
    return [
        click.Option(
            ["--agents"],
            type=DIRECTORY,
            multiple=True,
            metavar="DIR",
            help="Where agent files are; may be repeated, the earlier wins.  "
            "[default: $SUBAGENT_AGENTS, else ./agents and ./.claude/agents]",
            **_KEPT,
        ),
        click.Option(
            ["--runs"],
            type=DIRECTORY,
            metavar="DIR",
            help="Where runs are kept.  [default: $SUBAGENT_RUNS, else the nearest runs/ upwards]",
            **_KEPT,
        ),
        click.Option(
            ["--max-runs"],
            type=Count(min=1),
            metavar="N",
            help="How many runs work at once; more wait.  [default: $SUBAGENT_MAX_RUNS, else 64]",
            **_KEPT,
        ),
        click.Option(
            ["--launcher"],
            metavar="WHERE",
            help="Where runs work whose agents do not say: local, slurm or ssh:HOST.  "
            "[default: $SUBAGENT_LAUNCHER, else local]",
            **_KEPT,
        ),
        click.Option(
            ["--debug"], is_flag=True, help="Show where in the program an error comes from.", **_KEPT
        ),
    ]


def take_common_options(command: click.Command) -> None:
    """Let a verb take the common options that it has no own meaning for; its help names them in a line."""
    own = {option for param in command.params for option in param.opts}
    common = [option for option in common_options() if own.isdisjoint(option.opts)]
    for option in common:
        option.hidden = True
    if not common:  # it has them since an earlier call
        return
    command.params += common
    names = ", ".join(name for option in common for name in option.opts)
    command.epilog = f"Every verb takes {names} too: see `subagent --help`."


def _keep(ctx: click.Context, param: click.Parameter, value: Any) -> None:
    if value and param.name:
        setattr(ctx.ensure_object(Flags), param.name, value)


_KEPT: dict[str, Any] = {"expose_value": False, "callback": _keep}
json_option = click.option(
    "--json",
    "as_json",
    is_flag=True,
    help="Print JSON, for programs.",
    expose_value=False,
    callback=lambda ctx, _, value: setattr(ctx.ensure_object(Flags), "as_json", value),
)
trust_option = click.option(
    "--trust",
    is_flag=True,
    help="Use the agents and MCP servers that come with this directory, for this command.",
    **_KEPT,
)


def report(sentence: str, *, code: str = "remark", next_step: str | None = None) -> None:
    """Print the one line of an error or a remark to stderr; with --json an object on one line.

    Raises as `out` does.
    """
    context = click.get_current_context(silent=True)
    if context is not None and context.ensure_object(Flags).as_json:
        report_json(sentence, code=code, next_step=next_step)
    else:
        err(f"subagent: {sentence}")


def report_json(sentence: str, *, code: str, next_step: str | None) -> None:
    """Print an error or a remark as an object on one line of stderr. Raises as `out` does."""
    error_object = {"code": code, "message": sentence, "nextStep": next_step}
    err(json_text(error_object, indent=None))


def last_clause(sentence: str) -> str | None:
    """Return the clause after the last colon of an error's sentence, which is the next step."""
    _, colon, clause = sentence.rpartition(": ")
    is_within = clause.count("`") % 2 or clause.count(")") > clause.count("(")
    return clause if colon and not is_within else None


# -- The table of verbs. The module of a verb is imported when it is called, so that `ls` starts quickly.


def _verb(where: str, help: str) -> Command:
    return Command(f"subagent_server.cli.{where if ':' in where else f'{where}:{where}'}", help)


_OWN: dict[str, dict[str, Command]] = {
    "Run": {
        "run": _verb("run", "Start an agent and follow it until it ends."),
        "rerun": _verb("run:rerun", "Start the task of a run once more, as a new run."),
        "continue": _verb("run:continue_", "Continue a run that has ended, as a new run."),
        "wait": _verb("wait", "Wait until runs end; the exit code says how."),
        "stop": _verb("wait:stop", "Stop runs, and the runs that they started."),
    },
    "Look and answer": {
        "ls": _verb("ls", "List runs: those that need you, those that work, the last that ended."),
        "show": _verb("show", "Show everything about a run."),
        "logs": _verb("logs", "Print the log of a run, or follow it."),
        "inbox": _verb("inbox", "List the questions that wait for an answer."),
        "reply": _verb("inbox:reply", "Answer a question of a run."),
        "ask": _verb("inbox:ask", "Ask the parent one question, from a program of a run."),
        "compare": _verb("show:compare", "Show two runs side by side."),
        "stats": _verb("stats", "Sum up runs, tokens and cost by agent and day."),
        "page": _verb("page", "Open the page that shows the runs in a browser."),
    },
    "Keep or remove": {
        "merge": _verb("merge", "Merge what a run has changed in its git worktree."),
        "export": _verb("export", "Pack a run into one archive."),
        "rm": _verb("rm", "Remove runs that are over."),
        "prune": _verb("rm:prune", "Remove runs that ended long ago."),
    },
    "Agents": {
        "agents": _verb("agents", "List the agents and the faults of their files."),
        "new": _verb("agents:new", "Write the file of a new agent."),
        "mcp": _verb("mcp", "Try the MCP servers of an agent."),
        "trust": _verb("trust", "Let the agents and MCP servers of a directory be used."),
        "doctor": _verb("doctor", "Find what is wrong with agent files, or with runs."),
        "schema": _verb("schema", "Print the JSON Schema of a file of a run, or of an agent file."),
    },
    "Connect": {
        "init": _verb("init", "Register this server with an MCP client."),
        "serve": _verb("serve", "Serve the agents to an MCP client."),
        "completion": _verb("completion", "Print the script that completes this command in a shell."),
    },
}


@cache
def groups() -> dict[str, dict[str, Command]]:
    """Return the verbs by the headings of `--help`; those of extensions follow the verb that they name."""
    more = extensions.commands()
    found: dict[str, dict[str, Command]] = {title: {} for title in _OWN}
    for title, group in _OWN.items():
        for name, verb in group.items():
            found[title] |= {name: verb, **{new: each for new, each in more.items() if each.after == name}}
    return found


@cache
def verbs() -> dict[str, Command]:
    """Return all verbs in the order of `--help`."""
    return {name: verb for group in groups().values() for name, verb in group.items()}


_EPILOG = (
    "RUN is the id of a run, a unique beginning of it, its unique last part, or @last, the "
    "last run that no other run started. Exit codes: "
    + "; ".join(f"{code.value} {meaning}" for code, meaning in EXIT_CODES.items())
    + "."
)


class VerbGroup(click.Group):
    """A group that names the verb that an unknown name means, or is similar to."""

    def invoke(self, ctx: click.Context) -> object:
        """Name the verb in a fault of its options: click leaves it out if a value is missing or too much."""
        try:
            return super().invoke(ctx)
        except click.UsageError as error:
            name = ctx.invoked_subcommand
            if error.ctx is None and name and (verb := self.get_command(ctx, name)) is not None:
                error.ctx = click.Context(verb, parent=ctx, info_name=name)
            raise

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the verb that `args` begins with."""
        try:
            return super().resolve_command(ctx, args)
        except click.exceptions.NoSuchCommand:
            name = args[0] if ctx.parent is None else f"{ctx.info_name} {args[0]}"
            if meant := _OTHER_NAMES.get(name):
                sentence = f"No such command '{name}': it is `subagent {meant}`."
                raise click.UsageError(sentence, ctx) from None
            similar = [verb for verb in self.list_commands(ctx) if verb not in _ENDING]
            raise click.exceptions.NoSuchCommand(args[0], possibilities=similar, ctx=ctx) from None


class LazyGroup(VerbGroup):
    """A group with the verbs of `verbs`; each also takes the common options."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of the verbs in the order of the table."""
        return list(verbs())

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import a verb and return it, or None if no verb has this name."""
        # A verb of the core is found without the table of extensions.
        own = next((group[cmd_name] for group in _OWN.values() if cmd_name in group), None)
        verb = own or verbs().get(cmd_name)
        if verb is None:
            return None
        module, attribute = verb.where.split(":")
        command: click.Command = getattr(import_module(module), attribute)
        take_common_options(command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of verbs without importing them."""
        width = max(map(len, verbs()))
        for title, group in groups().items():
            with formatter.section(title):
                formatter.write_dl([(name.ljust(width), verb.help) for name, verb in group.items()])


_OTHER_NAMES = {
    "help": "--help",
    "version": "--version",
    "list": "ls",
    "ps": "ls",
    "status": "ls` or `subagent show RUN",
    "top": "ls --watch",
    "ui": "ls --watch` or `subagent page",
    "config": "doctor FILE",
    "lint": "doctor FILE",
    "mcp serve": "serve --config FILE",
    "config lint": "doctor FILE",
}
"""What people call verbs elsewhere: other programs, and the specification of the agent files."""
_ENDING = frozenset({"stop", "rm", "prune", "merge"})
"""Verbs that end or change something: a mistyped name never suggests them."""


@click.command(
    cls=LazyGroup,
    params=common_options(),
    epilog=_EPILOG,
    subcommand_metavar="VERB [ARGS]...",
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.version_option(__version__, "-v", "--version", prog_name="subagent", message="%(prog)s %(version)s")
def subagent() -> None:
    """Hand work to subagents, watch them, and answer their questions.

    Every run has a directory of its own; the verbs work on these files, with no server running.
    """


_MEANT = re.compile(r"\(Did you mean one of: (.*)\?\)\.?$")
_REPORTED = (SubagentError, EarlyExit, OutputClosed, click.ClickException, click.Abort, OSError)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code; `arguments` are those of the process by default."""
    prepare_streams()
    words = sys.argv[1:] if arguments is None else arguments
    flags = Flags(as_json="--json" in takewhile(lambda word: word != "--", words))
    try:
        code = subagent.main(arguments, prog_name="subagent", standalone_mode=False, obj=flags)
        return int(code or 0)
    except SystemExit:
        if reader_is_gone():  # click exits by itself after a --help whose reader has gone
            return ExitCode.OK
        raise
    except Exception as error:
        if not isinstance(error, _REPORTED) and lack_of_room(error) is None:
            raise
        if flags.debug:
            traceback.print_exc()
        if isinstance(error, click.exceptions.NoArgsIsHelpError):
            err(error.format_message())
            return ExitCode.USAGE
        verdict = _verdict(error)
        with suppress(OutputClosed, EarlyExit):
            if verdict.sentence and flags.as_json:
                next_step = verdict.next_step or last_clause(verdict.sentence)
                report_json(verdict.sentence, code=verdict.code, next_step=next_step)
            elif verdict.sentence:
                if isinstance(error, click.Abort):
                    err("")  # the line of the question, which was not answered
                report(verdict.sentence)
        return verdict.exit


class _Verdict(NamedTuple):
    """The end of a verb by an error: exit code, code for programs, and its line, empty if there is none."""

    exit: ExitCode
    code: str
    sentence: str
    next_step: str | None = None


def _verdict(error: Exception) -> _Verdict:
    match error:
        case SubagentError():
            return _Verdict(exit_of_error(error), error.code, for_people(error.sentence))
        case EarlyExit():
            return _Verdict(error.code, error.code.name.lower(), one_line(error.sentence))
        case OutputClosed():
            return _Verdict(ExitCode.OK, "ok", "")
        case click.ClickException():
            return _usage(error)
        case click.Abort():
            return _Verdict(ExitCode.INTERRUPTED, "interrupted", "interrupted.")
        case OSError() if lack_of_room(error) is None:
            return _Verdict(ExitCode.ENVIRONMENT, "environment", one_line(of_the_system(error)))
        case _:
            return _Verdict(ExitCode.ENVIRONMENT, "environment", lack_of_room(error) or str(error))


def _usage(error: click.ClickException) -> _Verdict:
    context = error.ctx if isinstance(error, click.UsageError) else None
    where = context.command_path if context else "subagent"
    sentence = one_line(error.format_message())
    sentence = _MEANT.sub(r"Did you mean one of \1?", sentence)
    names = {parameter.name for parameter in context.command.params} if context else ()
    if sentence.startswith("Got unexpected extra") and ("prompt" in names or "question" in names):
        sentence = f"{sentence.rstrip('.')}: put a text of several words in quotes"
    end = "" if sentence.endswith((".", "?")) else "."
    more = f"`{where} --help` says more."
    return _Verdict(ExitCode.USAGE, "usage", f"{sentence}{end} {more}", more)


# -- Report a run that a verb refuses, and continue with the other runs that were named.


@dataclass(frozen=True)
class Refused:
    """A run by its name, the sentence of the refusal, and its exit code."""

    name: str
    why: str
    code: ExitCode


def each_of(names: Iterable[str], act: Callable[[str], T]) -> tuple[list[T], list[Refused]]:
    """Call `act` with each name; a refusal is reported, and the other runs are done all the same."""
    done: list[T] = []
    refused: list[Refused] = []
    for name in names:
        try:
            done.append(act(name))
        except SubagentError as error:
            why = for_people(error.sentence)
            report(why, code=error.code, next_step=last_clause(why))
            refused.append(Refused(name, why, exit_of_error(error)))
    return done, refused


def code_of(refused: Iterable[Refused]) -> ExitCode:
    """Return the exit code of the first refusal, or OK without one."""
    return next((each.code for each in refused), ExitCode.OK)


# -- The context of a verb: settings, service and caller, each made on first use.


class Session:
    """One call of the command line."""

    def __init__(self, flags: Flags) -> None:
        self._flags = flags

    @cached_property
    def settings(self) -> Settings:
        """The settings of flags, environment and working directory. Raises BadArgument."""
        flags = self._flags
        found = read_settings(
            agents=flags.agents,
            runs=flags.runs,
            max_runs=flags.max_runs,
            trust=flags.trust,
            launcher=flags.launcher,
        )
        if found.passed_over is not None:
            report(
                f"{self.shown(found.passed_over, found.cwd)} is not marked as made here, so runs are in "
                f"{self.shown(found.runs_root, found.cwd)}: "
                f"`{adopting(self.shown(found.passed_over, found.cwd))}` would use it."
            )
        return found

    @cached_property
    def service(self) -> Service:
        """The context that the verbs take."""
        return open_service(self.settings)

    @cached_property
    def caller(self) -> Caller:
        """The user or a child run, by its token (SPEC section 5). Raises NotAllowed.

        What a person starts is that person's as long as the command watches it.
        """
        if self.settings.child_run_id is None and self.settings.child_token is None:
            return user_here()  # without the service, which `ls` does not need
        return caller_of(self.settings, self.service.store)

    def leader(self) -> Caller:
        """Return the caller of a verb that answers or stops runs. (A start is checked as it starts.)

        Raises:
            NotAllowed: the caller is a child whose agent may not delegate.
        """
        check_may_delegate(self.service, self.caller)
        return self.caller

    def check_is_user(self) -> None:
        """Refuse a verb that only the user may call.

        Raises:
            NotAllowed: the caller is a child.
        """
        if self.caller.is_child:
            raise NotAllowed(
                f"Run {self.caller.run_id} is a subagent, and only the owner of the runs may do this: "
                "ask your parent with ask_parent."
            )

    def run_id(self, name: str) -> str:
        """Return the id of the run that a person names. Raises UnknownRun, AmbiguousRun."""
        return find_run(self.service, name)

    def run_ids(self, names: Iterable[str]) -> list[str]:
        """Return the ids of the runs that are named, each once, in their order. Raises as `run_id` does."""
        return list(dict.fromkeys(self.run_id(name) for name in names))

    def open_run(self, run_id: str) -> Observed:
        """Return a run as it is now. Raises as `observe` does."""
        return observe(self.service.store, run_id, self.caller)

    def open_runs(self, run_ids: Iterable[str]) -> list[Observed]:
        """Return runs as they are now. Raises as `open_run` does."""
        return [self.open_run(run_id) for run_id in run_ids]

    def view(self, observed: Observed) -> RunView:
        """Return the view of a run, whose next calls are commands."""
        return run_view(self.service.store, observed, NextCalls(command=self.command))

    def named_runs(self, names: Iterable[str]) -> tuple[list[str], list[Refused]]:
        """Return the ids of the runs that are named, each once, and the names without one, reported."""
        run_ids, refused = each_of(names, self.run_id)
        return list(dict.fromkeys(run_ids)), refused

    def command(self, *words: str) -> str:
        """Return a command that a person can type next, with --runs if a flag named the runs root."""
        root = ["--runs", str(self._flags.runs)] if self._flags.runs is not None else []
        return shlex.join(["subagent", *root, *words])

    @property
    def as_json(self) -> bool:
        """Whether the verb prints JSON, for programs."""
        return self._flags.as_json

    def say_done(self, facts: dict[str, Any], sentence: str) -> None:
        """Print what a verb has done: the facts with --json, else the sentence to stderr."""
        if self.as_json:
            out_json(facts)
        else:
            err(sentence)

    @property
    def can_ask(self) -> bool:
        """Whether a person can be asked before something is done."""
        return has_person() and not self.as_json

    @property
    def named_root(self) -> Path | None:
        """The runs root that the flag --runs names, or None."""
        return None if self._flags.runs is None else self.settings.runs_root

    def shown(self, path: Path, cwd: Path | None = None) -> str:
        """Return a path relative to the working directory if it lies below it."""
        here = cwd or self.settings.cwd
        return str(path.relative_to(here)) if path.is_relative_to(here) else str(path)


def pass_session(verb: Callable[Concatenate[Session, P], T]) -> Callable[P, T]:
    """Pass a verb the session of its flags. Raises HostError: there can be no runs on this system."""

    @wraps(verb)
    def with_session(*args: P.args, **kwargs: P.kwargs) -> T:
        check_system()
        flags = click.get_current_context().ensure_object(Flags)
        return verb(Session(flags), *args, **kwargs)

    return with_session


def json_session(verb: Callable[Concatenate[Session, P], T]) -> Callable[P, T]:
    """Do as `pass_session`, and add the option --json to the verb."""
    return json_option(pass_session(verb))


# -- What the shell completes: names of agents, and runs by the short ids that lists show.


_MOST = 50
_WIDTH = 60

Complete = Callable[[click.Context, click.Parameter, str], list[CompletionItem]]


def completing(find: Callable[[Session, str], Iterator[CompletionItem]]) -> Complete:
    """Return what click asks for completions: none where nothing can be read. The person is in mid-line."""

    def complete(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        kept: list[CompletionItem] = []
        with suppress(SubagentError, OSError, click.UsageError), redirect_stderr(StringIO()):
            kept.extend(find(Session(ctx.ensure_object(Flags)), incomplete))
        return kept

    return complete


@completing
def complete_runs(session: Session, incomplete: str) -> Iterator[CompletionItem]:
    """Yield the runs whose short or whole id begins so, those that need a person first, or `@last`."""
    from subagent_server.run.store import RunStore
    from subagent_server.verbs.list_runs import RunList

    if incomplete and LATEST.startswith(incomplete):  # as no run does
        yield CompletionItem(LATEST)

    def names(run_id: str) -> list[str]:
        return [name for name in (run_id.rpartition("-")[2], run_id) if name.startswith(incomplete)]

    store = RunStore(session.settings.runs_root)
    rows = RunList(store, caller=session.caller, named=lambda run_id: bool(names(run_id))).every()
    for row in islice(rows, _MOST):
        about = " · ".join(filter(None, (row.agent, row.label or row.summary)))
        yield CompletionItem(names(row.run_id)[0], help=cut(one_line(about), _WIDTH))


@completing
def complete_agents(session: Session, incomplete: str) -> Iterator[CompletionItem]:
    """Yield the agents whose name begins so. Names that a shell would take apart are left out."""
    for agent in session.service.registry.agents():
        if agent.name.startswith(incomplete) and not set(agent.name) & set(" \t\n'\"`$\\;&|<>()*?[]{}!"):
            yield CompletionItem(agent.name, help=cut(one_line(agent.description), _WIDTH))
