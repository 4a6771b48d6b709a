"""A program under its runner alone: real pipes and the real dialect, with a scripted run around them."""

import asyncio
import os
from collections.abc import Mapping
from contextlib import nullcontext
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

from subagent_server.extensions.programs.program import ChildServer, ProgramEvents, ProgramRunner, ProgramTask
from subagent_server.extensions.programs.program_runner import DIALECTS
from subagent_server.loop.runner import Outcome
from subagent_server.run.agent_definition import AgentDefinition
from subagent_server.run.errors import RunRefused
from subagent_server.run.files import Directory
from subagent_server.run.records import Failure
from subagent_server.toolbox.agent_process import AgentProcess, ProcessOrder
from subagent_server.toolbox.run_context import Permissions
from tests.loop.scripted_run import ScriptedRun

BOUND = 120.0
PROGRAMS = "subagent_server.extensions.programs"


class Worked:
    """A run that a program has carried out to its end, in the directory `place`."""

    def __init__(self, place: Path, prompt: str, env: Mapping[str, str], **keys: Any) -> None:
        """`keys` are those of its agent, `answer` to its questions, and `unasked`: why none can be asked.

        `resumes` names a session, which has cost `spent`, and `retold` is the prompt if that is lost.
        """
        self.run = ScriptedRun()
        self.run.unasked = keys.pop("unasked", None)
        self.run.answer = keys.pop("answer", self.run.answer)
        self._errors = bytearray()
        session = {name: keys.pop(name) for name in ("resumes", "spent") if name in keys}
        retold = keys.pop("retold", prompt)
        agent = AgentDefinition.model_validate({"name": "worker", "description": "Works.", **keys})
        environment = {"PATH": os.environ["PATH"], "HOME": str(place), **env}
        self._task = ProgramTask(
            agent=agent,
            run_id=self.run.run_id,
            prompt=prompt,
            retold=retold,
            content=[{"type": "text", "text": prompt}],
            preamble="You are run.",
            cwd=place,
            child=ChildServer("subagent", "false", []),
            state=Directory(place),
            environment=environment,
            **session,
        )
        self.outcome = asyncio.run(self._worked())

    @property
    def failure(self) -> Failure:
        """Why it failed."""
        assert self.outcome.failure is not None, self.outcome.text
        return self.outcome.failure

    async def _worked(self) -> Outcome:
        agent = self._task.agent
        events = ProgramEvents(self.run, lambda: self._errors.decode())
        module, name = DIALECTS[agent.runner]
        dialect = getattr(import_module(f"{PROGRAMS}.{module}"), name)(
            self._task, events, Permissions(self.run)
        )
        start = partial(self._start, dialect)
        runner = ProgramRunner(self.run, agent, dialect, events, start, _nothing, nullcontext())
        try:
            async with asyncio.timeout(BOUND):
                return await runner.work()
        except RunRefused as refusal:
            failure = Failure(code=refusal.failure_code, message=refusal.sentence, hint=refusal.hint)
            return runner.cut_short(failure)
        finally:
            await runner.stop_programs()
            await runner.aclose()
            self.usage = runner.usage

    async def _start(self, dialect: Any) -> AgentProcess:
        launch = dialect.launch()
        environment = {**self._task.environment, **launch.environment}
        order = ProcessOrder(launch.argv, environment, self._task.cwd, descriptors=launch.descriptors)
        return await AgentProcess.start(order, self._errors.extend)


async def _nothing() -> None:
    """Nothing was opened around the start."""
