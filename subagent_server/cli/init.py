"""`subagent init`: register this server with an MCP client.

Everything is planned before anything is written: the client's file, its settings, the trust in the directory.
"""

import json
import os
import re
import shutil
import sys
import sysconfig
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import click

from subagent_server.cli.client_files import (
    Change,
    NotEditable,
    plan,
    plan_permissions,
    plan_removal,
    plan_withdrawal,
    snippet,
    write,
)
from subagent_server.cli.clients import (
    CLIENTS,
    SERVE_WORDS,
    SERVER,
    Client,
    ClientDirectories,
    ClientPermissions,
    Entry,
    Scope,
)
from subagent_server.cli.console.app import Flags, Session, json_session
from subagent_server.cli.console.terminal import (
    EarlyExit,
    ExitCode,
    coloured,
    err,
    escape_lines,
    one_line,
    out,
    out_json,
)
from subagent_server.cli.serve import DEFAULT_ADDRESS, check_patterns, is_address
from subagent_server.cli.trust import SIGN_COLOURS, coverage_lines
from subagent_server.run.errors import shorten
from subagent_server.sandbox.file_watch import OwnWrites
from subagent_server.settings import Settings
from subagent_server.verbs.access_tokens import token_of
from subagent_server.verbs.trust_check import Coverage, coverage, trust

_COMMAND = "subagent"
_KEY = "ANTHROPIC_API_KEY"
"""The variable of the key that agents use unless their file names another."""
_TOKEN = re.compile(r"Bearer [\w.~+/=-]+")


class _Client(click.Choice[str]):
    def get_invalid_choice_message(self, value: str, ctx: click.Context | None) -> str:
        """Return the refusal of an unknown client, with the way to register with it all the same."""
        refusal = super().get_invalid_choice_message(value, ctx).rstrip(".")
        return f"{refusal}; for another client paste what `subagent init cursor --print` shows."


@click.command()
@click.argument("client", type=_Client(list(CLIENTS)), metavar="CLIENT")
@click.option(
    "--scope",
    type=click.Choice(["project", "user"]),
    help="Change the file of the project here, or yours for every project.  "
    "[default: project for claude and cursor, user for the others]",
)
@click.option(
    "--agent",
    "patterns",
    multiple=True,
    metavar="PATTERN",
    help="Offer the client only agents whose name matches PATTERN, as `serve --agent` does; may be repeated.",
)
@click.option(
    "--http",
    "url",
    is_flag=False,
    flag_value=f"http://{DEFAULT_ADDRESS}/mcp",
    metavar="[URL]",
    help="Let the client come over HTTP, with a token of its own, to a server that runs: `serve --http`.  "
    f"[default of URL: http://{DEFAULT_ADDRESS}/mcp]",
)
@click.option(
    "--print", "only_print", is_flag=True, help="Print what to paste; read and write no file of the client."
)
@click.option("--remove", is_flag=True, help="Undo what this command wrote for CLIENT, and nothing else.")
@click.option("--yes", "-y", is_flag=True, help="Write without asking.")
@click.option("--force", is_flag=True, help=f"Replace, or remove, another server that is called {SERVER}.")
@click.option(
    "--approve/--no-approve",
    default=True,
    help="Whether the client may call the tools without asking each time, where it has a setting for that.  "
    "[default: approve]",
)
@json_session
def init(
    session: Session,
    client: str,
    scope: Scope | None,
    patterns: tuple[str, ...],
    url: str | None,
    only_print: bool,
    remove: bool,
    yes: bool,
    force: bool,
    approve: bool,
) -> None:
    """Register this server with an MCP client, with the --agents, --runs and --max-runs of this call.

    CLIENT is claude (Claude Code), codex, gemini, cursor or claude-desktop; for another client paste what
    `init cursor --print` shows. The change is shown before it is made. Everything else in the file stays. The
    yes also trusts the agents and MCP servers that come with this directory, which are listed, unless
    --agents names others.
    """
    session.check_is_user()  # what it writes lets a client start programs, and quarantine spares it
    known = CLIENTS[client]
    if remove:
        if patterns or url or only_print:
            raise click.UsageError("--remove takes out what is there: leave --agent, --http and --print out.")
        removal = Removal(session, known, scope or known.scope)
        return _carry_out(session, removal, yes=yes, force=force)
    if patterns:
        check_patterns(patterns, session.service.registry)
    order = _order(session.settings, known, patterns, scope, url, approved=approve)
    if not only_print:
        registration = _registration(session, order)
        return _carry_out(session, registration, yes=yes, force=force)
    out(snippet(known, order.entry).rstrip("\n"))
    if (permissions := order.permissions) is not None:
        path = session.shown(permissions.file(_directories(session.settings)))
        lists = " and ".join(f'"{item}" in {".".join(keys)}' for keys, item in permissions.lists.items())
        err(f"So that it does not ask before each tool, put {lists} of {path}.")
    return None


def _carry_out(session: Session, what: "Registration | Removal", *, yes: bool, force: bool) -> None:
    """Show the changes, and make them if the person or --yes allows it."""
    asking = session.can_ask and not yes
    problem = _problem(session, what, may_write=yes or asking, force=force)
    if not session.as_json:
        for change in what.changes:
            for line in _diff(change, session.shown(change.path)):
                shown = escape_lines(line)
                out(coloured(shown, SIGN_COLOURS.get(shown[:1])))
        what.show(asking)
    if what.is_needed and problem is None:
        if asking and not click.confirm(what.question, err=True):
            err("Nothing was written.")
            return
        what.make(OwnWrites(session.settings.state_directory))
    if session.as_json:
        out_json(what.to_wire("refused" if problem else what.done if what.is_needed else what.nothing))
    elif problem is None:
        err(what.conclusion())
    if problem is not None:
        raise problem


def _problem(
    session: Session, what: "Registration | Removal", *, may_write: bool, force: bool
) -> EarlyExit | None:
    """Return why nothing may be written, or None."""
    for change in what.changes:
        if change.replaces and not force:
            sentence = (
                f"{session.shown(change.path)} has another server called {SERVER} and was left as it is"
            )
            return EarlyExit(ExitCode.USAGE, f"{sentence}: add --force {what.purpose}.")
    if may_write or not what.is_needed:
        return None
    sentence = "nothing was written: add --yes to write this without being asked."
    return EarlyExit(ExitCode.NEEDS_ANSWER, sentence)


# -- what is registered


@dataclass(frozen=True)
class InitOrder:
    """The entry of a client that is to be registered, in the file of a scope. `approved`: see --approve.

    `token` is the secret in the entry of a client that comes over HTTP.
    """

    client: Client
    scope: Scope
    entry: Entry
    approved: bool
    token: str | None = None

    @property
    def permissions(self) -> ClientPermissions | None:
        """The settings to write next to the entry, if any."""
        return self.client.permissions.get(self.scope) if self.approved else None

    def to_wire(self, path: Path, state: str) -> dict[str, Any]:
        """Return it for `--json`, without the token."""
        entry = json.dumps(self.entry)
        if self.token is not None:
            entry = entry.replace(self.token, "TOKEN")
        return {"client": self.client.name, "file": str(path), "state": state, "entry": json.loads(entry)}


def _order(
    settings: Settings,
    client: Client,
    patterns: Sequence[str],
    scope: Scope | None,
    url: str | None,
    *,
    approved: bool,
) -> InitOrder:
    """Return the order; over HTTP, with the token of this client, which is made if it has none.

    Raises:
        UsageError, TokensNotUsable.
    """
    approval = client.approval if approved else {}
    if url is None:
        command, *words = _command(settings, client, patterns)
        entry = {"command": command, "args": words, **client.extras, **approval}
        return InitOrder(client, scope or client.scope, entry, approved)
    if client.over_http is None:
        raise click.UsageError(f"{client.title} reads no server over HTTP from its file: leave --http out.")
    if scope == "project":
        raise click.UsageError("A token does not belong in a file of the project: leave --scope out.")
    if patterns:
        raise click.UsageError("The server over HTTP decides which agents it offers: give --agent to it.")
    if not is_address(url):
        raise click.UsageError(f"--http {shorten(url)} is no URL: write it as http://{DEFAULT_ADDRESS}/mcp.")
    token = token_of(settings.token_file, client.name)
    return InitOrder(
        client, "user", {**client.over_http(url, f"Bearer {token}"), **approval}, approved, token
    )


@dataclass(frozen=True)
class Registration:
    """An order and all that it changes: the client's file, its settings, and the trust in the directory."""

    session: Session
    order: InitOrder
    file: Change
    settings: Change | None
    covered: Coverage | None

    purpose = "to replace it"
    done, nothing = "written", "current"

    @property
    def changes(self) -> list[Change]:
        """The changes of files that there are to be made."""
        return [each for each in (self.file, self.settings) if each is not None and each.is_needed]

    @property
    def is_needed(self) -> bool:
        """Whether there is anything to do."""
        return bool(self.changes) or self.covered is not None

    @property
    def question(self) -> str:
        """What a person is asked."""
        if self.covered is None:
            return "Write this?"
        return "Write this? It trusts the directory too" if self.changes else "Trust this directory?"

    def show(self, asking: bool) -> None:
        """Print what the changes of the files do not show."""
        client = self.order.client
        if self.changes and self.order.approved and client.can_be_approved:
            out(f"{client.title} may then call these tools without asking each time (else: --no-approve).")
        for line in coverage_lines(self.covered, asking=asking) if self.covered is not None else ():
            out(line)

    def make(self, own: OwnWrites) -> None:
        """Trust the directory and write the files."""
        if self.covered is not None:
            trust(self.session.settings, self.covered)  # first: the client's first start must not be refused
        for change in self.changes:
            write(change, own)

    def to_wire(self, state: str) -> dict[str, Any]:
        """Return it for `--json`."""
        wire = {**self.order.to_wire(self.file.path, state), **_change_wire(self.file)}
        wire["trusts"] = None if self.covered is None else str(self.covered.project)
        return wire if self.settings is None else {**wire, "settings": _change_wire(self.settings)}

    def conclusion(self) -> str:
        """Return what was done, and what a person has to do next."""
        order, client = self.order, self.order.client
        if not self.changes:
            return f"{one_line(self.session.shown(self.file.path))} has this server already: nothing to do."
        asked = client.still_asks if order.approved or not client.can_be_approved else client.asks
        lines = [f"{_files(self.session, self.changes)} written.", *self._started(), *self._missing()]
        return "\n".join([*lines, f"{client.next_step} {asked}".strip()])

    def _started(self) -> Iterator[str]:
        """Yield what the client will start or connect to, and who can use the file."""
        order, environment = self.order, self.session.settings.environment
        if order.token is not None:
            yield "It comes with a token of its own; keep the server at that address running."
            return
        command = str(order.entry["command"])
        is_absolute = Path(command).is_absolute()
        found = command if is_absolute else shutil.which(command, path=environment.get("PATH"))
        yield one_line(f"It starts {found or command} serve.")
        instead = (
            ": install subagent where every shell finds it (pipx, uv), then run this again with --force."
        )
        if ".cache" in Path(command).parts:  # that of `uvx` or `pipx run`
            yield f"That program is in a cache, which may be emptied{instead}"
        elif is_absolute and order.scope == "project":
            yield (
                "The entry names paths of this machine, so that its file is of no use to a colleague"
                f"{instead if order.client.knows_project else '.'}"
            )

    def _missing(self) -> Iterator[str]:
        """Yield the next steps of a person without an agent or without a key."""
        if not self.session.service.registry.agents():
            yield (
                "There is no agent yet, so the client gets no tool `run_...`: "
                "`subagent new reviewer --from reviewer` writes one."
            )
        if not self.session.settings.environment.get(_KEY):
            where = "`subagent serve`" if self.order.token is not None else self.order.client.title
            yield (
                f"{_KEY} is not set here. Set it where {where} is started: runs are billed by the API, "
                "and not by a subscription of the client."
            )


def _registration(session: Session, order: InitOrder) -> Registration:
    """Return what the order changes; if the client's file cannot be changed, print the entry to paste.

    Raises:
        EarlyExit, UsageError, BadArgument.
    """
    client, settings, permissions = order.client, session.settings, order.permissions
    directories = _directories(settings)
    path = _file(client, order.scope, directories)

    def add(path: Path) -> Change:
        return plan(client, path, order.entry, private=order.scope == "user")

    try:
        change = _planned(session, order.scope, path, add, "paste the above into it")
    except EarlyExit:
        if session.as_json:
            out_json({**order.to_wire(path, "refused"), "diff": []})
        else:
            out(snippet(client, order.entry).rstrip("\n"))
        raise
    allowed = None
    if permissions is not None:
        allow = partial(plan_permissions, permissions=permissions)
        allowed = _planned(session, order.scope, permissions.file(directories), allow, "add --no-approve")
    covered = None
    if order.token is None and settings.agents_by_default:
        found = coverage(settings, settings.cwd, leave_out=SERVER)
        covered = found if found.is_new else None
    return Registration(session, order, change, allowed, covered)


# -- what is removed


class Removal:
    """The order that undoes all that `init` wrote for a client in a scope. Raises EarlyExit, UsageError."""

    purpose = "to take it out"
    done, nothing = "removed", "absent"
    question = "Take this out?"

    def __init__(self, session: Session, client: Client, scope: Scope) -> None:
        self._session, self._client, self._scope = session, client, scope
        directories = _directories(session.settings)
        self._path = _file(client, scope, directories)
        instead = f"take {SERVER} out by hand"
        planned = [_planned(session, scope, self._path, partial(plan_removal, client), instead)]
        if (permissions := client.permissions.get(scope)) is not None:
            withdraw = partial(plan_withdrawal, permissions=permissions)
            planned.append(_planned(session, scope, permissions.file(directories), withdraw, instead))
        self.changes = [change for change in planned if change.is_needed]

    @property
    def is_needed(self) -> bool:
        """Whether there is anything to do."""
        return bool(self.changes)

    def show(self, asking: bool) -> None:
        """Print nothing: the changes of the files show all."""

    def make(self, own: OwnWrites) -> None:
        """Write the files, and remove folders of the project that are empty then."""
        for change in self.changes:
            write(change, own)
            if change.path.parent.parent == self._session.settings.cwd:
                with suppress(OSError):  # it is not empty, or a link: then it stays
                    change.path.parent.rmdir()

    def to_wire(self, state: str) -> dict[str, Any]:
        """Return it for `--json`."""
        wire = {"client": self._client.name, "file": str(self._path), "state": state}
        return {**wire, "changes": [_change_wire(change) for change in self.changes]}

    def conclusion(self) -> str:
        """Return what was done, and where else the server is."""
        session = self._session
        if self.changes:
            return (
                f"{_files(session, self.changes)} without this server now. Start {self._client.title} anew. "
                "Trust in a directory stays: `subagent trust --remove DIR` ends it."
            )
        words = [f"{one_line(session.shown(self._path))} does not have this server: nothing to do."]
        for other in self._client.files:
            path = _file(self._client, other, _directories(session.settings))
            with suppress(NotEditable, OSError):
                if other != self._scope and plan_removal(self._client, path).is_needed:
                    words.append(f"Your file {one_line(session.shown(path))} has it: --scope {other}.")
        return " ".join(words)


# -- the files of clients


def _directories(settings: Settings) -> ClientDirectories:
    try:
        home = Path(settings.environment.get("HOME") or Path.home())
    except RuntimeError as error:  # as of a container for any user
        sentence = "The files of clients cannot be found, because HOME names no directory: set it."
        raise EarlyExit(ExitCode.ENVIRONMENT, sentence) from error
    return ClientDirectories(settings.cwd, home, settings.environment)


def _file(client: Client, scope: Scope, directories: ClientDirectories) -> Path:
    if scope not in client.files:
        raise click.UsageError(f"{client.title} has no file for a {scope}: leave --scope out.")
    return client.files[scope](directories)


def _planned(
    session: Session, scope: Scope, path: Path, make: Callable[[Path], Change], instead: str
) -> Change:
    """Return the change of a file. Raises EarlyExit, with what to do instead: the file stays as it is."""
    try:
        # A link that leads out of the project would let the permissions hold everywhere.
        real = Path(os.path.realpath(path))  # Path.resolve fails at a link to itself
        if scope == "project" and not real.is_relative_to(session.settings.cwd.resolve()):
            raise NotEditable("a link leads out of the project")
        return make(path)
    except NotEditable as error:
        line = "" if error.line is None else f", line {error.line}"
        sentence = f"{session.shown(path)} was left as it is, because {error.reason}{line}"
        raise EarlyExit(ExitCode.USAGE, f"{sentence}: fix it and try again, or {instead}.") from error


def _files(session: Session, changes: list[Change]) -> str:
    names = " and ".join(one_line(session.shown(change.path)) for change in changes)
    return f"{names} {'is' if len(changes) == 1 else 'are'}"


def _change_wire(change: Change) -> dict[str, Any]:
    return {"file": str(change.path), "diff": _diff(change, str(change.path))}


def _diff(change: Change, name: str) -> list[str]:
    return [_TOKEN.sub("Bearer TOKEN", line) for line in change.diff(name)]


# -- the command of the server


def _command(settings: Settings, client: Client, patterns: Sequence[str]) -> list[str]:
    """Return the command of the server, with absolute paths for a client that starts it elsewhere."""
    flags = click.get_current_context().ensure_object(Flags)
    words = [*_own_command(settings.environment, from_shell=client.knows_project), *SERVE_WORDS]
    if not client.knows_project:
        words += ["--cwd", str(settings.cwd)]
    if flags.agents or not (client.knows_project or settings.agents_by_default):
        for directory in settings.agent_directories:
            words += ["--agents", str(directory)]
    if flags.runs or not client.knows_project:
        words += ["--runs", str(settings.runs_root)]
    if flags.max_runs:
        words += ["--max-runs", str(flags.max_runs)]
    if flags.launcher:
        words += ["--launcher", flags.launcher]
    for pattern in patterns:
        words += ["--agent", pattern]
    return words


def _own_command(environment: Mapping[str, str], *, from_shell: bool) -> list[str]:
    """Return the words that start this command, from any directory and permanently.

    The bare name is used if PATH finds this installation permanently: not only through an environment
    that is activated in this shell, and only for programs with the PATH of a shell (`from_shell`). Otherwise
    it is the path of the script, or of the interpreter if there is no script.
    """
    called, installed = Path(sys.argv[0]), Path(sysconfig.get_path("scripts")) / _COMMAND
    scripts = [called, installed] if called.name == _COMMAND else [installed]
    script = next((each.absolute() for each in scripts if each.is_file() and os.access(each, os.X_OK)), None)
    if script is None:
        return [sys.executable, "-P", "-m", "subagent_server"]
    for directory in map(Path, environment.get("PATH", "").split(os.pathsep)) if from_shell else ():
        found, is_of_a_venv = directory / _COMMAND, os.path.lexists(directory.parent / "pyvenv.cfg")
        if directory.is_absolute() and not is_of_a_venv and os.access(found, os.X_OK):
            return [_COMMAND] if found.resolve() == script.resolve() else [str(script)]
    return [str(script)]
