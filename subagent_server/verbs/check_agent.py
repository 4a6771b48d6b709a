"""Checking an agent: why a start would refuse it, and what its file names in vain, without a start.

`subagent agents`, `doctor`, `serve --config`, the list of tools and the start itself ask here, so that they
cannot differ. Whether a person trusts the agent is judged in `verbs/trust_check.py`.

Tested in `tests/verbs/test_check_agent.py`.
"""

import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from functools import cached_property
from pathlib import Path
from typing import Protocol

from subagent_server import extensions
from subagent_server.agents.agent_file import is_http_url
from subagent_server.agents.known_names import (
    MissingName,
    has_known_price,
    missing_agents,
    missing_sentence,
    missing_tools,
    misspelt_alias,
    resolve_model,
    tool_refusals,
    unknown_model,
    unused_servers,
    verdict_of,
)
from subagent_server.agents.named_servers import UnknownServer, served_agent, serves_config
from subagent_server.agents.variables import REFERENCE, expand_as_far_as_set
from subagent_server.agents.yaml_reader import AgentFileError
from subagent_server.run.agent_definition import AgentDefinition, ServedAgent, ServerDefinition
from subagent_server.run.errors import BadArgument, shorten
from subagent_server.sandbox.box import find_program
from subagent_server.sandbox.readable import BoxRefused, homes, named_paths, shows_too_much, too_much_to_write
from subagent_server.sandbox.server_locations import (
    NotOutside,
    ServerLocation,
    asked_by_servers,
    asked_of_box,
    location_of,
    outside_start,
)
from subagent_server.verbs.inputs import cwd_of_user
from subagent_server.verbs.live_runs import written_directories
from subagent_server.verbs.service import Service, is_scripted
from subagent_server.verbs.trust_check import NotTrusted, TrustCheck


def works_without_box(agent: AgentDefinition) -> bool:
    """Whether the file of an agent leaves its programs without a box."""
    return agent.sandbox == "none" or (not agent.is_built_in and agent.sandbox == "auto")


def why_no_box(agent: AgentDefinition, environment: Mapping[str, str], cwd: Path) -> str | None:
    """Return why the programs of a run cannot have a box, as a part of a sentence, or None.

    Whether a box works is known only when the run enters it.
    """
    if agent.sandbox == "none":
        return "the agent file says `sandbox: none`"
    if works_without_box(agent):
        return f"the runner {agent.runner} works without a sandbox, unless the file says `sandbox: bwrap`"
    selection = agent.selection
    programs = selection.bash or agent.enabled_code_mode is not None or agent.runner != "messages"
    if not (programs or selection.grep or selection.glob or selection.ls):
        return None  # no program is started
    return no_program_for_boxes(environment, cwd)


def no_program_for_boxes(environment: Mapping[str, str], cwd: Path) -> str | None:
    """Return why no box can be made here, as a part of a sentence, or None."""
    try:
        find_program(environment, cwd)
    except BoxRefused as refusal:
        return refusal.reason
    return None


def _is_missing(command: str, path: str | None, cwd: Path | None) -> bool:
    """Whether a program is certainly missing. Without `cwd`, a relative path may lead anywhere."""
    if not command or _has_unset(command):
        return False
    if os.sep in command:
        return (cwd is not None or Path(command).is_absolute()) and shutil.which(
            (cwd or Path()) / command
        ) is None
    searched = path if path is not None else os.defpath
    is_absolute = all(location.startswith(os.sep) for location in searched.split(os.pathsep))
    return is_absolute and shutil.which(command, path=searched) is None


_BUDGET = "limits.budgetUsd"
_REFUSED_CALL = "A call is refused"
_MOST_SHOWN = 600
"""Characters of refusals in the description of a tool."""


@dataclass(frozen=True)
class Refusal:
    """One reason why runs of an agent are refused, as a sentence.

    `key` is spelled as in `AgentDefinition.lines`; a fault of the file, which was noted with its line when
    the file was read, has none. With `in_file` the file is to blame, and not its surroundings.
    """

    sentence: str
    key: str | None = None
    in_file: bool = True


@dataclass(frozen=True)
class CheckedAgent:
    """An agent as a run of it would get it, with its named servers and its variables replaced.

    With a `doubt` it, or a server that it names, is not trusted: then nothing is started at all. `cwd` is
    the directory that its file names, whether or not it is there.
    """

    agent: AgentDefinition
    refusals: list[Refusal] = field(default_factory=list)
    doubt: NotTrusted | None = None
    cwd: Path | None = None
    missing_tools: list[MissingName] = field(default_factory=list)
    missing_agents: list[MissingName] = field(default_factory=list)
    missing: dict[str, str] = field(default_factory=dict)
    """By key, a sentence on a name that nothing here has, or may not have. The agent runs all the same."""

    @property
    def lacks_cwd(self) -> bool:
        """Whether the directory that its file names is not there."""
        return any(refusal.key == "cwd" for refusal in self.refusals)

    @property
    def sentences(self) -> str:
        """All refusals, a line each; empty if there are none."""
        return "\n".join(refusal.sentence for refusal in self.refusals)

    def line_of(self, key: str) -> int | None:
        """Return the line of a key in the agent's file, or that of the key that it is inside, if known."""
        return self.agent.lines.get(key) or self.agent.lines.get(key.partition(".")[0])

    @property
    def description(self) -> str:
        """The description for models: first that a call is refused, and last what is missing."""
        text = self.agent.description or f"Run the agent {self.agent.name}."
        if self.doubt is not None:
            text = f"{_refused_call(self.doubt)}\n{text}"
        elif self.refusals:
            why = self.sentences
            text = f"{_REFUSED_CALL}: {why[:_MOST_SHOWN]}{'…' if len(why) > _MOST_SHOWN else ''}\n{text}"
        return "\n".join([text, *(f"({sentence})" for sentence in self.missing.values())])


class AgentChecker:
    """Checks agents for one answer or one start: files, trust and paths of programs are looked up once."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._trust_check = TrustCheck(service)

    @cached_property
    def _agent_names(self) -> frozenset[str] | None:
        return self._service.registry.names()

    def check(
        self,
        agent: AgentDefinition,
        *,
        elsewhere: bool = False,
        is_asked_for: bool = False,
        asks_program: bool = False,
    ) -> CheckedAgent:
        """Return an agent with everything that a start would refuse it for.

        With `elsewhere` the caller names a directory, so that of the file does not count; with `is_asked_for`
        the caller names this very definition, so that it needs no trust. With `asks_program` the program of
        the agent may be executed for its version, if the agent is trusted.
        """
        # 1. The file alone, and whether it may be used.
        doubt = None if is_asked_for else self._trust_check.doubt(agent)
        refusals = self._of_definition(agent)
        # 2. Named servers before variables: their entries hold variables too.
        equipped = agent
        try:
            equipped = self._trust_check.equipped(agent)
        except NotTrusted as error:
            doubt = doubt or error
        except UnknownServer as error:
            refusals.append(Refusal(error.sentence, f"mcpServers.{error.name}"))
        except AgentFileError as error:
            refusals.append(Refusal(error.sentence, "mcpServers", in_file=False))
        ready, unset = expand_as_far_as_set(equipped, self._service.settings.environment)
        refusals += (
            Refusal(error.sentence, ".".join(error.where.split(".")[:2]), in_file=False) for error in unset
        )
        # 3. What it relies on here, by the values that a run would have.
        refusals += self._of_surroundings(ready)
        cwd = None
        if not elsewhere and ready.cwd is not None and not _has_unset(ready.cwd):
            cwd, wrong = self._directory(ready.cwd)
            refusals += wrong
        ready, found, wrong = self._with_served(ready, cwd)
        refusals += wrong
        if doubt is None and not is_asked_for:
            doubts = (self._trust_check.doubt(each, agent) for each in found)
            doubt = next((each for each in doubts if each is not None), None)
        refusals += self._of_runner(ready, cwd)
        # 4. To ask a program for its version executes it, so only when nothing is doubted.
        unknown, checks = None, _runner_checks(agent)
        if asks_program and doubt is None and checks is not None:
            written = written_directories(self._service.settings)
            old, unknown = checks.too_old(ready, self._environment(ready), written)
            refusals += [Refusal(old, "runner", in_file=False)] if old is not None else []
        # 5. Boxes last: they depend on the directory.
        refusals += self._of_box(ready, cwd)
        refusals += self._of_servers(ready, cwd)
        if (where := extensions.refusals_for("codeMode")) and ready.enabled_code_mode is not None:
            refusals += (Refusal(sentence, "mcpServers") for sentence in extensions.imported(where)(ready))
        tools = missing_tools(ready)
        agents = missing_agents(ready, self._agent_names) if ready.agents else []
        missing = {
            "tools": missing_sentence("tools", tools),
            "agents": missing_sentence("agents", agents),
            "mcpServers": unused_servers(ready),
            "runner": unknown,
            "model": unknown_model(ready),
        }
        judged = ready.model_copy(update={"verdict": verdict_of(ready)})
        notes = {key: sentence for key, sentence in missing.items() if sentence is not None}
        return CheckedAgent(judged, refusals, doubt, cwd, tools, agents, notes)

    def check_followed(self, agent: AgentDefinition, cwd: Path) -> None:
        """Refuse a program that would start what came with its directory. Raises NotTrusted."""
        checks = _runner_checks(agent)
        self._trust_check.check_followed(checks.followed(agent) if checks else (), cwd)

    def as_shown(self, agent: AgentDefinition) -> AgentDefinition:
        """Return an agent as models may see it.

        An untrusted agent shows nothing but its name: a description is the text of a stranger, and a schema
        may come from any file that this user can read.
        """
        if (doubt := self._trust_check.doubt(agent)) is not None:
            hidden = {"output_schema": None, "input_schema": None}
            return agent.model_copy(update={"description": _refused_call(doubt), **hidden})
        return agent.model_copy(update={"description": self.check(agent).description})

    def _environment(self, agent: AgentDefinition) -> dict[str, str]:
        return {**self._service.settings.environment, **agent.env}

    def _of_definition(self, agent: AgentDefinition) -> list[Refusal]:
        """Return the refusals that follow from the file alone."""
        checks = _runner_checks(agent)
        return [
            # a fault is noted without its full stop
            *(Refusal(fault if fault.endswith((".", "!", "?")) else f"{fault}.") for fault in agent.faults),
            *_of_extensions(agent),
            *(Refusal(text, key) for key, text in (checks.unkept_keys(agent) if checks else {}).items()),
            *(Refusal(sentence, key) for key, sentence in tool_refusals(agent)),
            *(() if is_scripted(self._service.settings.environment) else unpriced(agent)),
        ]

    def _of_surroundings(self, agent: AgentDefinition) -> Iterator[Refusal]:
        """Yield what is wrong with the key and the address of the model, once variables are replaced."""
        if agent.runner != "messages":
            return
        environment, name = self._environment(agent), agent.api_key_env
        key = environment.get(name, "").strip()
        if not name.isidentifier():
            pass  # a fault of the file reports it
        elif not key:
            todo = f"set {name} where the server or the command is started"
            yield _no_model("apiKeyEnv", f"{name} is not set", todo)
        elif not (key.isascii() and key.isprintable()):
            todo = f"set {name} to the key alone"
            yield _no_model("apiKeyEnv", f"{name} holds characters that no key has", todo)
        name = "baseUrl" if agent.base_url else "ANTHROPIC_BASE_URL"
        url = agent.base_url or environment.get("ANTHROPIC_BASE_URL") or ""
        is_judged = not url or _has_unset(url) or any(fault.startswith("baseUrl ") for fault in agent.faults)
        if not is_judged and not is_http_url(url):
            todo = f"let {name} begin with http:// or https://, or leave it out"
            yield _no_model("baseUrl", f"{name} is not an address of HTTP with a host", todo)

    def _directory(self, named: str) -> tuple[Path, list[Refusal]]:
        if not named or "\0" in named:
            message = "cwd is empty or holds a NUL byte: name a directory."
            return self._service.settings.cwd, [Refusal(message, "cwd")]
        try:
            return cwd_of_user(self._service, named), []
        except BadArgument as error:
            return self._service.settings.cwd / named, [Refusal(error.sentence, "cwd")]

    def _of_runner(self, agent: AgentDefinition, cwd: Path | None) -> Iterator[Refusal]:
        """Yield the refusal of an agent whose runs need a program that is not there."""
        checks = _runner_checks(agent)
        command = (checks.program_of(agent) or "").strip() if checks is not None else ""
        if checks is not None and _is_missing(command, self._environment(agent).get("PATH"), cwd):
            message = f"The program {shorten(command)} of the runner {agent.runner} is not here: "
            yield Refusal(f"{message}{checks.installing(agent)}.", "runner", in_file=False)
        python = (agent.enabled_code_mode and agent.enabled_code_mode.python) or ""
        if os.sep in python and _is_missing(python, None, cwd):
            yield Refusal(
                f"codeMode.python: {shorten(python)} is not here.", "codeMode.python", in_file=False
            )

    def _with_served(
        self, agent: AgentDefinition, cwd: Path | None
    ) -> tuple[AgentDefinition, list[AgentDefinition], list[Refusal]]:
        """Return an agent whose MCP servers that are agents of this installation are read, and these agents.

        They are as their files have them, for trust: the `env` of an entry is pinned with its own file.
        """
        path, here = self._environment(agent).get("PATH"), cwd or self._service.settings.cwd
        served, others, refusals = dict[str, ServedAgent](), dict[str, ServerDefinition](), list[Refusal]()
        found: list[AgentDefinition] = []
        for name, server in agent.mcp_servers.items():
            if not serves_config(server, server.env.get("PATH", path)):
                others[name] = server
                continue
            try:
                own = served_agent(name, server, agent.source, here)
                with_env = own.model_copy(update={"env": {**server.env, **own.env}})
                served[name] = ServedAgent(entry=server, agent=with_env)
                found.append(own)
            except (AgentFileError, BadArgument) as error:
                refusals.append(Refusal(error.sentence, f"mcpServers.{name}"))
        return agent.model_copy(update={"mcp_servers": others, "served": served}), found, refusals

    def _of_box(self, agent: AgentDefinition, cwd: Path | None) -> Iterator[Refusal]:
        asked = asked_of_box(agent)
        settings = self._service.settings
        if asked and (reason := why_no_box(agent, settings.environment, cwd or settings.cwd)) is not None:
            for key, written in asked.items():
                message = f"{written} cannot be kept: {reason}."
                yield Refusal(message, key, in_file=works_without_box(agent))
        locations = [] if agent.sandbox == "none" else agent.write_elsewhere
        own = homes(settings.environment)
        for path in named_paths("sandboxWrite", locations, ()):
            if shows_too_much(path, own):
                refused = too_much_to_write(path)
                yield Refusal(f"{refused.reason}. {refused.hint}", "sandboxWrite")

    def _of_servers(self, agent: AgentDefinition, cwd: Path | None) -> Iterator[Refusal]:
        asked = asked_by_servers(agent)
        reason = self._no_box_for_servers(agent, cwd) if asked else None
        for key, name in asked.items() if reason is not None else ():
            yield Refusal(f"{key} cannot be kept: {reason}.", f"mcpServers.{name}", in_file=False)
        for name, server in agent.mcp_servers.items():
            for sentence in self._of_server(agent, name, server, cwd):
                yield Refusal(sentence, f"mcpServers.{name}", in_file=False)

    def _of_server(
        self, agent: AgentDefinition, name: str, server: ServerDefinition, cwd: Path | None
    ) -> Iterator[str]:
        """Yield why a server cannot be reached, or started where it is to work, unless the call decides."""
        key, settings, environment = f"mcpServers.{name}", self._service.settings, self._environment(agent)
        if server.type != "stdio":
            is_noted = any(fault.startswith(f"{key}.url ") for fault in agent.faults)
            is_judged = is_noted or not server.url or _has_unset(server.url)
            if not is_judged and not is_http_url(server.url or ""):
                yield f"{key}.url must begin with http:// or https:// and name a host."
            return
        command = (server.command or "").strip()
        if _is_missing(command, server.env.get("PATH", environment.get("PATH")), cwd):
            yield (
                f"The MCP server {shorten(name)} cannot be started, because its program {shorten(command)} "
                "is not here: install it, or fix the command."
            )
        if server.sandbox is not False or _has_unset(" ".join([command, *server.args])):
            return
        if not agent.is_built_in:
            yield f"{key}.sandbox cannot be kept: {_starts_servers(agent)}."
            return
        try:
            here, written = [cwd or settings.cwd], written_directories(settings)
            outside_start(agent, server, environment, settings.state_directory, here, written)
        except NotOutside as error:
            why = f"{key} cannot work outside of every box (sandbox: false): {error.why}"
            yield f"{why}; without the key it works in a box of its own."

    def _no_box_for_servers(self, agent: AgentDefinition, cwd: Path | None) -> str | None:
        """Return why the servers of an agent cannot have a box, as a part of a sentence."""
        if not agent.is_built_in:
            return _starts_servers(agent)
        settings = self._service.settings
        return no_program_for_boxes(settings.environment, cwd or settings.cwd)

    def server_locations(self, checked: CheckedAgent) -> dict[str, ServerLocation]:
        """Return where the stdio servers of an agent work, by name, as far as is known before a start."""
        agent = checked.agent
        no_box = self._no_box_for_servers(agent, checked.cwd)
        locations = {name: location_of(agent, server, no_box) for name, server in agent.mcp_servers.items()}
        known = {name: location for name, location in locations.items() if location is not None}
        for name, each in agent.served.items():
            why = f"it is this installation, so its agent is started by {each.agent.tool_name} as any other"
            known[name] = ServerLocation("runner", "in the run itself", why)
        return known


class RunnerChecks(Protocol):
    """What the module of an extension knows of agents whose runs its runners carry out."""

    def unkept_keys(self, agent: AgentDefinition) -> dict[str, str]:
        """Return the keys that the runner cannot keep, each with a sentence."""

    def program_of(self, agent: AgentDefinition) -> str | None:
        """Return the command of the program that carries out the runs."""

    def followed(self, agent: AgentDefinition) -> Sequence[str]:
        """Return the names in its working directory, and above it, that lead it to start programs."""

    def installing(self, agent: AgentDefinition) -> str:
        """Return how to install that program, as the end of a sentence."""

    def too_old(
        self, agent: AgentDefinition, environment: Mapping[str, str], written: Sequence[Path]
    ) -> tuple[str | None, str | None]:
        """Return why the program is too old, and a doubt if it does not print its version."""


def _runner_checks(agent: AgentDefinition) -> RunnerChecks | None:
    """Return the checks of an agent's runner; None for the built-in loop."""
    where = extensions.checks_of(agent.runner)
    checks: RunnerChecks | None = None if where is None else extensions.imported(where)
    return checks


def _of_extensions(agent: AgentDefinition) -> Iterator[Refusal]:
    """Yield the refusals of an agent that asks for an extension which this installation does not have."""
    if agent.runner != "messages" and agent.runner not in extensions.runners():
        yield Refusal(f"runner: {agent.runner} is not in this installation: choose another.", "runner")
    if agent.enabled_code_mode is not None and extensions.tools_for("codeMode") is None:
        yield Refusal("codeMode is not in this installation: leave it out.", "codeMode")


def takes_budget(agent: AgentDefinition) -> bool:
    """Whether the program that carries out its runs keeps a budget itself."""
    checks = _runner_checks(agent)
    return checks is not None and "budgetUsd" not in checks.unkept_keys(agent.bounded(Decimal(0)))


def unpriced(agent: AgentDefinition, above: str | None = None) -> Iterator[Refusal]:
    """Yield why its budget, or that of the run `above` it, cannot be kept: what its runs cost is unknown."""
    if (above is None) == (agent.limits.budget_usd is None):
        return
    budget = "budgetUsd" if above is None else f"budgetUsd of run {above}"
    if agent.runner != "messages":
        may_cost = not agent.is_built_in and agent.runner != "command"  # most commands call no model
        if above is not None and may_cost and not takes_budget(agent):
            why = f"{budget} cannot be kept by the runner {agent.runner}: choose another runner."
            yield Refusal(why, _BUDGET)
        return
    for name in (agent.model, *agent.other_models):
        if has_known_price(name):
            continue
        near = misspelt_alias(name)
        model = f"{shorten(resolve_model(name))}{f' (nearest: {near})' if near else ''}"
        why = (
            f"{budget} cannot be kept, because no price is known for the model {model}: name "
            "one whose price is known, or limit the run by maxTurns and timeoutSeconds."
        )
        yield Refusal(why, _BUDGET)


def _no_model(key: str, why: str, todo: str) -> Refusal:
    return Refusal(f"{why}, so the model cannot be called: {todo}.", key, in_file=False)


def says_refused(description: str) -> bool:
    """Whether the description of an agent as it is shown begins with a refusal of calls."""
    return description.startswith(_REFUSED_CALL)


def _refused_call(doubt: NotTrusted) -> str:
    return f"{_REFUSED_CALL}, because {doubt.remark}"


def _starts_servers(agent: AgentDefinition) -> str:
    return f"the program of the runner {agent.runner} starts the servers itself"


def _has_unset(text: str) -> bool:
    return REFERENCE.search(text) is not None
