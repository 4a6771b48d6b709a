"""The context of a verb: settings, service and caller, each made on first use.

Slow modules are imported on first use too: `subagent ls` needs neither the service nor pydantic.
"""

import shlex
from collections.abc import Callable, Iterable
from functools import cached_property, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Concatenate, ParamSpec, TypeVar

import click

from subagent_server.cli.console.flags import Flags
from subagent_server.cli.console.output import report
from subagent_server.cli.console.refused import Refused, refusal
from subagent_server.domain.errors import SubagentError, adopting
from subagent_server.service.access import Caller, NotAllowed, caller_of, user_here
from subagent_server.settings import Settings, read_settings

if TYPE_CHECKING:
    from subagent_server.service.context import Service
    from subagent_server.service.reconcile import Observed
    from subagent_server.service.views import RunView

P = ParamSpec("P")
T = TypeVar("T")


class Session:
    """One call of the command line."""

    def __init__(self, flags: Flags) -> None:
        self._flags = flags

    @cached_property
    def settings(self) -> Settings:
        """The settings of flags, environment and working directory. Raises BadArgument."""
        flags = self._flags
        found = read_settings(
            agents=flags.agents, runs=flags.runs, max_runs=flags.max_runs, trust=flags.trust
        )
        if found.passed_over is not None:
            report(
                f"{self.shown(found.passed_over, found.cwd)} is not marked as made here, so runs are in "
                f"{self.shown(found.runs_root, found.cwd)}: "
                f"`{adopting(self.shown(found.passed_over, found.cwd))}` would use it."
            )
        return found

    @cached_property
    def service(self) -> "Service":
        """The context that the verbs of `service` take."""
        from subagent_server.service.context import open_service

        return open_service(self.settings)

    @cached_property
    def caller(self) -> Caller:
        """The user or a child run, by its token (SPEC section 5). Raises NotAllowed.

        What a person starts is that person's as long as the command watches it.
        """
        if self.settings.child_run_id is None and self.settings.child_token is None:
            return user_here()
        return caller_of(self.settings, self.service.store)

    def leader(self) -> Caller:
        """Return the caller of a verb that answers or stops runs. (A start is checked as it starts.)

        Raises:
            NotAllowed: the caller is a child whose agent may not delegate.
        """
        from subagent_server.service.nesting import check_may_delegate

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
        from subagent_server.service.find_run import find_run

        return find_run(self.service, name)

    def run_ids(self, names: Iterable[str]) -> list[str]:
        """Return the ids of the runs that are named, each once, in their order. Raises as `run_id` does."""
        return list(dict.fromkeys(self.run_id(name) for name in names))

    def view(self, observed: "Observed") -> "RunView":
        """Return the view of a run, whose next calls are commands."""
        from subagent_server.service.next_calls import Commands
        from subagent_server.service.views import run_view

        return run_view(self.service.store, observed, Commands(self.command))

    def named_runs(self, names: Iterable[str]) -> tuple[list[str], list[Refused]]:
        """Return the ids of the runs that are named, each once, and the names without one, reported."""
        run_ids: dict[str, None] = {}
        refused = []
        for name in names:
            try:
                run_ids[self.run_id(name)] = None
            except SubagentError as error:
                refused.append(refusal(name, error))
        return list(run_ids), refused

    def command(self, *words: str) -> str:
        """Return a command that a person can type next, with --runs if a flag named the runs root."""
        root = ["--runs", str(self._flags.runs)] if self._flags.runs is not None else []
        return shlex.join(["subagent", *root, *words])

    @property
    def named_root(self) -> Path | None:
        """The runs root that the flag --runs names, or None."""
        return None if self._flags.runs is None else self.settings.runs_root

    def shown(self, path: Path, cwd: Path | None = None) -> str:
        """Return a path relative to the working directory if it lies below it."""
        here = cwd or self.settings.cwd
        return str(path.relative_to(here)) if path.is_relative_to(here) else str(path)


def pass_session(verb: Callable[Concatenate[Session, P], T]) -> Callable[P, T]:
    """Pass a verb the session of its flags as the first argument."""

    @wraps(verb)
    def with_session(*args: P.args, **kwargs: P.kwargs) -> T:
        flags = click.get_current_context().ensure_object(Flags)
        return verb(Session(flags), *args, **kwargs)

    return with_session
