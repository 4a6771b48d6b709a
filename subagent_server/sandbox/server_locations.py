"""Where the stdio servers of a run work, and how each is started there.

- *In a box of its own*, the rule: what a server executes is mostly found through its working directory
  (`npx PACKAGE`, `python -m MODULE`, `node server.js`), where a run can plant it for the next run.
- *Outside of every box*, if its entry has `sandbox: false`: its program and every file in its arguments lie
  where no run can write, and it starts in an empty directory, without variables that lead where one can.
- *Without a box*, as the shell of its run: if the agent file has `sandbox: none`, or no box can be had here.
"""

import hashlib
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from subagent_server.run.agent_definition import AgentDefinition, ServerDefinition
from subagent_server.run.history import EVENT_VARIABLES
from subagent_server.run.host_programs import NoHostProgram, lies_in, path_out_of_reach, user_program
from subagent_server.sandbox.box import Box, Rules
from subagent_server.sandbox.readable import homes, named_paths, showing, shows_too_much

Builder = Callable[[Callable[[Rules], Rules]], Box]
"""Builds a box by the rules of the run, changed. Raises BoxRefused, PathRefused, OSError; blocking."""

_LOOKING_AROUND = frozenset(
    (
        *("python", "pythonw", "pypy", "uv", "uvx", "pip", "pipx", "poetry", "pdm", "hatch", "rye", "conda"),
        *("node", "nodejs", "npm", "npx", "pnpm", "pnpx", "yarn", "corepack", "bun", "bunx", "deno", "tsx"),
        *("ts-node", "sh", "bash", "dash", "ash", "zsh", "ksh", "fish", "busybox", "env", "nice", "nohup"),
        *("timeout", "setsid", "stdbuf", "xargs", "sudo", "doas", "time", "ruby", "bundle", "perl", "php"),
        *("lua", "java", "dotnet", "go", "cargo", "make", "just", "mise", "asdf", "direnv", "nix"),
    )
)
"""Interpreters and launchers: what they execute is named by their arguments, and found through the directory
that they are started in. Any other one finds an empty directory."""
_LOADING = re.compile(
    r"(.*_)?PATH|PYTHON.*|NODE_.*|LD_.*|NPM_CONFIG_.*|BASH_ENV|ENV|PERL5.*|RUBY.*|GEM_.*|CLASSPATH|.*_OPT(ION)?S",
    re.IGNORECASE,
)
"""Variables whose directories are looked through for code."""
_SEPARATORS = re.compile(r"[:;,=\s'\"()]+")
_PATH_IN_TEXT = re.compile(r"/[^\s'\"`:,;()<>]+")
_VARIABLE_IN_TEXT = re.compile(r"\b[A-Z][A-Z0-9_]{3,}\b")
_PROJECT_FILES = ("package.json", "pyproject.toml", "node_modules", "pyvenv.cfg")
_MOST_HINTS = 3
_FIRST_LINE = 256


class NotOutside(Exception):
    """A server cannot work outside of a box; `why` is a part of a sentence."""

    def __init__(self, why: str) -> None:
        super().__init__(why)
        self.why = why


@dataclass(frozen=True)
class ServerLocation:
    """Where a server works, for people: `where` and `why` are parts of a sentence."""

    works: Literal["box", "outside", "unsandboxed", "runner"]
    where: str
    why: str

    def __str__(self) -> str:
        return f"{self.where} ({self.why})"


def asked_of_box(agent: AgentDefinition) -> dict[str, str]:
    """Return the keys that only a box of the sandbox can keep, as they are written."""
    asked = {
        "sandbox": "sandbox: bwrap" if agent.sandbox == "bwrap" else "",
        "network": "" if agent.network else "network: false",
        "sandboxLimits": "" if agent.sandbox_limits is None else "sandboxLimits",
    }
    return {key: written for key, written in asked.items() if written}


def asked_by_servers(agent: AgentDefinition) -> dict[str, str]:
    """Return the keys of MCP servers that only a box can keep, each with the name of its server."""
    return {
        f"mcpServers.{name}.{'sandbox' if server.sandbox else 'network'}": name
        for name, server in agent.mcp_servers.items()
        if server.insists_on_box
    }


@dataclass(frozen=True)
class ServerStart:
    """How a server is started: in `box`, which has an environment and a working directory of its own, or not.

    `remedy` returns what to do if it failed with these words, as a part of a sentence; empty if unknown.
    `bounded`: the limits of the box hold for it, because the agent file names them.
    """

    argv: Sequence[str]
    environment: Mapping[str, str]
    cwd: Path
    box: Box | None = None
    remedy: Callable[[str], str] = lambda words: ""
    bounded: bool = False


def location_of(
    agent: AgentDefinition, server: ServerDefinition, no_box: str | None = None
) -> ServerLocation | None:
    """Return where a server works, None if it is not by stdio. `no_box` is why no box can be had here.

    `insists_on_box` and `outside_start` check whether its entry can be kept.
    """
    if server.type != "stdio":
        return None
    if not agent.is_built_in:
        return ServerLocation(
            "runner", "where its runner starts it", f"the program of the runner {agent.runner} does"
        )
    if server.sandbox is False:
        return ServerLocation("outside", "outside of every box", "its entry says sandbox: false")
    if agent.sandbox == "none" and not server.insists_on_box:
        return ServerLocation("unsandboxed", "without a box", "the agent file says sandbox: none")
    if no_box is not None:
        return ServerLocation("unsandboxed", "without a box", no_box)
    network = agent.network if server.network is None else server.network
    return ServerLocation(
        "box", "in a box of its own", "with the network" if network else "without the network"
    )


@dataclass(frozen=True)
class ServerStarts:
    """Decides how the servers of an agent are started in `cwd`. `build` is None where no box can be had.

    `project` is the directory of the user that `cwd` is made from: itself, but for a worktree. `state` is the
    state directory of this package, which keeps what servers have downloaded; with None nothing is kept.
    `written` is where live runs write, besides these.
    """

    agent: AgentDefinition
    environment: Mapping[str, str]
    cwd: Path
    project: Path
    state: Path | None = None
    build: Builder | None = None
    written: Sequence[Path] = ()

    def start(self, server: ServerDefinition, name: str) -> ServerStart:
        """Return how a server is started. Blocking.

        Raises:
            NotOutside: its entry has `sandbox: false`, and it cannot be kept.
            BoxRefused, PathRefused: its box cannot be built.
            OSError: a directory cannot be read or made.
        """
        location = location_of(self.agent, server, None if self.build is not None else "none can be had here")
        if location is not None and location.works == "outside":
            start = outside_start(
                self.agent, server, self.environment, self.state, (self.cwd, self.project), self.written
            )
            _make_private(start.cwd.parent)
            start.cwd.mkdir(mode=0o500, exist_ok=True)
            return start
        argv = [server.command or "", *server.args]
        if location is None or location.works != "box" or self.build is None:
            return ServerStart(argv, {**self.environment, **server.env}, self.cwd)
        written = (self.cwd, self.project, *self.written)
        cache = None if self.state is None else _lasting(self.state, self.project, argv)
        box = self.build(lambda rules: _rules_for(server, rules, cache, written))
        remedy = _Remedy(name, server, self.environment, box)
        is_bounded = self.agent.sandbox_limits is not None
        return ServerStart(argv, box.environment, self.cwd, box, remedy, bounded=is_bounded)


# -- in a box


def _rules_for(server: ServerDefinition, rules: Rules, cache: Path | None, written: Sequence[Path]) -> Rules:
    """Return the rules of a run for a server, without the agent's variables and paths elsewhere.

    Raises:
        PathRefused.
    """
    home = homes(rules.environment)[0]
    lasting = {} if cache is None else {home / f".{part}": cache / part for part in _LASTING}
    network = rules.network if server.network is None else server.network
    # No key: what is posted there is in the journal as that of a foreign program, and is bounded.
    events = {name: rules.environment[name] for name in EVENT_VARIABLES if name in rules.environment}
    return replace(
        rules,
        environment=showing([Path(server.command or "")], rules.environment, written),
        own={**(events if network else {}), **server.env},
        network=network,
        read=named_paths("sandboxRead", server.sandbox_read, written),
        write=named_paths("sandboxWrite", server.sandbox_write, written),
        placed=lasting,
    )


_LASTING = ("cache", "npm")
"""`~/.cache` and `~/.npm` of a server: there npm, pip, uv and browsers keep what they have downloaded."""


def _lasting(state: Path, project: Path, argv: Sequence[str]) -> Path | None:
    """Return the directory that keeps the caches of a server; None if it cannot be made.

    It belongs to one command in one project: a file of the project (`.npmrc`) can lead what is downloaded to
    another origin, and must not reach the servers of other projects so.
    """
    key = hashlib.sha256("\0".join((str(project), *argv)).encode("utf-8", "surrogateescape")).hexdigest()[:24]
    directory = Path(os.path.realpath(state)) / "servers" / key
    try:
        for part in _LASTING:
            _make_private(directory / part)
    except OSError:
        return None
    return directory


def _make_private(directory: Path) -> None:
    """Make a directory and those above it for this user alone; `mkdir` would open those above to others.

    Raises:
        OSError: one cannot be made.
    """
    for location in (*reversed(directory.parents), directory):
        location.mkdir(mode=0o700, exist_ok=True)


@dataclass(frozen=True)
class _Remedy:
    """Names the key that a server needs which has failed in its box, by what it printed."""

    name: str
    server: ServerDefinition
    environment: Mapping[str, str]
    box: Box

    def __call__(self, words: str) -> str:
        entry = f"mcpServers.{self.name}"
        hints = [
            f"{variable} is set here and not in its box: write `{variable}: ${{{variable}}}` into {entry}.env"
            for variable in dict.fromkeys(_VARIABLE_IN_TEXT.findall(words))
            if variable in self.environment and variable not in self.box.environment
        ]
        hints += [
            f"its box does not show {location}: name it in {entry}.sandboxRead or {entry}.sandboxWrite"
            for location in dict.fromkeys(map(self._meant, self._hidden(words)))
        ]
        if not self.box.network:
            hints.append(f"it has no network: `network: true` in {entry} gives it one")
        return "; ".join(hints[:_MOST_HINTS])

    def _hidden(self, words: str) -> Iterator[Path]:
        """Yield the paths in its arguments, its environment and its words that only the host has."""
        arguments = self.box.arguments
        shown = [Path(arguments[at + 2]) for at, word in enumerate(arguments) if word in _BINDS]
        shown += [Path("/dev"), Path("/proc")]  # each box has its own
        texts = (self.server.command or "", *self.server.args, *self.server.env.values(), words)
        for path in (Path(found) for text in texts for found in _PATH_IN_TEXT.findall(text)):
            if len(path.parts) > 2 and _exists(path):
                real = Path(os.path.realpath(path.parent), path.name)  # /bin is a link
                if not any(map(real.is_relative_to, shown)):
                    yield path

    def _meant(self, path: Path) -> Path:
        """Return the directory to show: of the project that a file belongs to, if it is not too much."""
        homes = [Path(self.box.environment["HOME"])]
        above = [] if path.is_dir() else [each for each in path.parents if not shows_too_much(each, homes)]
        project = (each for each in above if any((each / name).exists() for name in _PROJECT_FILES))
        return next(project, above[0] if above else path)


_BINDS = ("--bind", "--ro-bind", "--ro-bind-try")


_exists = os.path.exists  # `Path.exists` raises for a name that is too long


# -- outside of every box


def outside_start(
    agent: AgentDefinition,
    server: ServerDefinition,
    environment: Mapping[str, str],
    state: Path | None,
    directories: Sequence[Path],
    written: Sequence[Path] = (),
) -> ServerStart:
    """Return how a server is started outside of every box.

    Runs of the agent work in the `directories`; live runs write there and in the `written` directories.

    An interpreter finds its libraries by itself: that they lie out of reach is the promise of its author.

    Raises:
        NotOutside: a run could decide what it executes.
    """
    named = [Path(each).expanduser() for each in (*agent.write_elsewhere, *agent.written_by_servers)]
    writable = [*directories, *written, *named]
    kept = dict(_out_of_reach(environment, writable))
    for name, value in server.env.items():
        _check_variable(name, value, writable)
    variables = {**kept, **server.env}
    try:
        program = user_program(server.command or "", variables.get("PATH"), writable)
    except NoHostProgram as error:
        raise NotOutside(f"its program {server.command} is not used: {error.why}") from error
    _check_interpreter(program, server.args, writable)
    for argument in server.args:
        _check_argument(argument, directories, writable)
    return ServerStart([str(program), *server.args], variables, _empty_directory(state, writable))


def _out_of_reach(environment: Mapping[str, str], writable: Sequence[Path]) -> Iterator[tuple[str, str]]:
    """Yield the variables that lead to no writable path; of PATH, the directories that are not writable."""
    for name, value in environment.items():
        if name == "PATH":
            yield name, path_out_of_reach(value, writable)
        elif not any(_reached(value, writable)):
            yield name, value


def _reached(text: str, writable: Sequence[Path]) -> Iterator[Path]:
    """Yield the absolute paths in a text that lie in a writable directory."""
    for part in _SEPARATORS.split(text):
        if part.startswith("/") and "\0" not in part and lies_in(Path(part), writable) is not None:
            yield Path(part)


def _check_variable(name: str, value: str, writable: Sequence[Path]) -> None:
    for path in _reached(value, writable):
        if _LOADING.fullmatch(name) or not path.is_dir():
            raise NotOutside(f"a run can write {path}, which its variable {name} names")


def _check_interpreter(program: Path, args: Sequence[str], writable: Sequence[Path]) -> None:
    names = {re.sub(r"[-.\d]+$", "", path.name) for path in (program, program.resolve())}
    if names & _LOOKING_AROUND and not (args and Path(args[0]).is_absolute() and Path(args[0]).is_file()):
        raise NotOutside(
            f"{program.name} would look for what it executes in its working directory, unless its first "
            "argument is the absolute path of a file"
        )
    try:
        with program.open("rb") as file:
            line = file.read(_FIRST_LINE).partition(b"\n")[0]
    except OSError:
        return
    if line.startswith(b"#!") and (words := line[2:].split()):
        interpreter = Path(os.fsdecode(words[0]))
        if not interpreter.is_absolute() or lies_in(interpreter, writable) is not None:
            raise NotOutside(f"a run can write {interpreter}, by which {program} is executed")


def _check_argument(argument: str, directories: Sequence[Path], writable: Sequence[Path]) -> None:
    """Refuse an argument that names a file in reach. A directory in reach is what the server works on."""
    for part in (argument, *argument.split("=", 1)[1:]):
        path = Path(part)
        if "\0" in part or not part:
            continue
        if not path.is_absolute():
            if any(_exists(directory / part) for directory in directories):
                raise NotOutside(
                    f"its argument {part} is looked up where a run can write: give an absolute path"
                )
        elif (location := lies_in(path, writable)) is not None and not path.is_dir():
            raise NotOutside(f"a run can write its argument {part}, because it lies in {location}")


def _empty_directory(state: Path | None, writable: Sequence[Path]) -> Path:
    if state is None:
        raise NotOutside("there is no state directory to start it in: set HOME or XDG_STATE_HOME")
    directory = Path(os.path.realpath(state)) / "servers" / "empty"
    if (location := lies_in(directory, writable)) is not None:
        raise NotOutside(f"the state directory lies where a run can write, in {location}: set XDG_STATE_HOME")
    return directory
