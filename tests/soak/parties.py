"""Who lives in a soak beside the runs: starters, repliers, those who stop, and those who only look.

Each is a thread with dice of its own. Whoever is killed is replaced.
"""

import random
import subprocess
import threading
import traceback
from collections.abc import Callable
from pathlib import Path

from subagent_server.run.errors import CallerError, HostError
from subagent_server.verbs.end_run import stop
from subagent_server.verbs.questions import reply
from subagent_server.verbs.reconcile import observe
from tests.soak.client import Client, HttpClient, McpClient, ServerGone, ServerSilent
from tests.soak.field import Field, deadly_environment
from tests.soak.orders import OrderBook, answer_to
from tests.soak.worktrees import with_worktrees

_CALLS_OF_ONE_SERVER = 40
_COMMAND_SECONDS = 90


class Parties:
    """All threads of a soak. `live_target` is how many runs are kept under way."""

    def __init__(self, field: Field, seed: str, live_target: int) -> None:
        self.closing = threading.Event()
        """Set when nothing new is started; questions are still answered."""
        self.over = threading.Event()
        self._field = field
        self._seed = seed
        self._live_target = live_target
        self._book = OrderBook(f"{seed}/orders")
        self._threads: list[threading.Thread] = []
        self._errors = 0
        self._merged: set[str] = set()

    def begin(self, servers: int) -> None:
        """Let so many servers over pipes begin, and one of each other kind."""
        others = (self._serve_http, self._command, self._merge, self._look, self._answer, self._stop)
        for number, life in enumerate((*[self._serve] * servers, *others)):
            chance = random.Random(f"{self._seed}/{life.__name__}/{number}")
            thread = threading.Thread(target=self._live, args=(life, chance), name=life.__name__)
            thread.start()
            self._threads.append(thread)

    def join(self) -> None:
        """Wait for the end of all threads. Set `over` first."""
        for thread in self._threads:
            thread.join()

    def _live(self, life: Callable[[random.Random], None], chance: random.Random) -> None:
        while not self.over.is_set() and not (self.closing.is_set() and life in self._starters()):
            try:
                life(chance)
            except ServerSilent as error:
                self._field.audit.write("silent server", what=str(error))
            except Exception:  # noqa: BLE001 - a fault of the soak itself: told at the end, with the others
                self._field.audit.write("fault of the soak", what=traceback.format_exc())

    def _starters(self) -> tuple[Callable[[random.Random], None], ...]:
        return (self._serve, self._serve_http, self._command)

    def _is_room(self) -> bool:
        return len(self._field.working()) < self._live_target

    def _error_file(self, name: str) -> Path:
        self._errors += 1
        return self._field.errors / f"{name}.{self._errors}.{threading.get_ident()}"

    # -- starters

    def _serve(self, chance: random.Random) -> None:
        """A server over pipes and its parent, until it dies or has done enough."""
        self._served(chance, McpClient)

    def _serve_http(self, chance: random.Random) -> None:
        """A server over HTTP and its parent, until it dies or has done enough."""
        self._served(chance, HttpClient)

    def _served(self, chance: random.Random, kind: type[McpClient] | type[HttpClient]) -> None:
        environment = {**self._field.environment, **deadly_environment(chance)}
        installed, errors = self._field.installation, self._error_file("server")
        before, pid = installed.version, 0
        try:
            with kind(environment, self._field.work, errors, installed.program) as client:
                pid = client.pid
                self._field.audit.write("greeted", pid=pid, before=before, version=client.greet())
                for _ in range(_CALLS_OF_ONE_SERVER):
                    if self.closing.wait(chance.uniform(0, 0.6)):
                        return
                    self._call(client, chance)
        except ServerGone:
            self._field.audit.write("died", pid=pid)

    def _call(self, client: Client, chance: random.Random) -> None:
        if self._is_room():
            self._order_run(client, chance)
            return
        runs = self._field.working()
        open_ones = [(meta.run_id, message) for meta in runs for message in meta.pending]
        choice = chance.random()
        if open_ones and choice < 0.6:
            run_id, message = chance.choice(open_ones)
            answer = answer_to(message.question_content)
            client.call("reply_subagent", runId=run_id, messageId=message.message_id, answer=answer)
        elif runs and choice > 0.98:
            run_id = chance.choice(runs).run_id
            self._field.audit.write("stop", run=run_id)
            client.call("stop_run", runId=run_id, reason="the soak wants it")
        elif runs and choice > 0.7:
            client.call("check_status", runId=chance.choice(runs).run_id, waitSeconds=chance.choice([0, 1]))
        else:
            client.call("wait_for_runs", waitSeconds=chance.uniform(0, 2))

    def _order_run(self, client: Client, chance: random.Random) -> None:
        order = self._book.next()
        self._field.audit.write("order", order=order.order_id, starter=client.pid)
        seconds = chance.choice([0, 0, 0.5])
        view = client.call(f"run_{order.agent}", prompt=order.prompt(), waitSeconds=seconds)
        if view is not None:
            self._field.audit.write("accepted", order=order.order_id, run=view["runId"])

    def _command(self, chance: random.Random) -> None:
        """`subagent run --detach`, once there is room for a run more."""
        while not self._is_room():
            if self.closing.wait(chance.uniform(0, 0.5)):
                return
        order = self._book.next()
        words = ["run", order.agent, order.prompt(), "--detach"]
        code, said = self._said(chance, words, lambda pid: {"order": order.order_id, "starter": pid})
        if code == 0:
            self._field.audit.write("accepted", order=order.order_id, run=said.strip())

    def _said(
        self, chance: random.Random, words: list[str], told: Callable[[int], dict[str, object]]
    ) -> tuple[int, str]:
        """Return exit code and output of a command that may be killed; `told` is noted when it has begun."""
        with self._error_file("command").open("ab") as log:
            process = subprocess.Popen(
                [*self._field.installation.program, *words],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                env={**self._field.environment, **deadly_environment(chance)},
                cwd=self._field.work,
                start_new_session=True,
            )
            self._field.audit.write(words[0] if words[0] == "merge" else "order", **told(process.pid))
            said, _ = process.communicate(timeout=_COMMAND_SECONDS)
        if process.returncode < 0:
            self._field.audit.write("died", pid=process.pid)
        return process.returncode, said.decode()

    def _merge(self, chance: random.Random) -> None:
        """Bring the work of a run that has ended into the working copy, now and then."""
        if self.closing.wait(chance.uniform(0.5, 4)):
            self.over.wait()
            return
        ended = [meta.run_id for meta in with_worktrees(self._field) if meta.run_id not in self._merged]
        if not ended:
            return
        run_id = chance.choice(ended)
        code, _ = self._said(chance, ["merge", run_id], lambda pid: {"run": run_id, "pid": pid})
        if code == 0:
            self._merged.add(run_id)
            self._field.audit.write("merged", run=run_id)

    # -- the others

    def _answer(self, chance: random.Random) -> None:
        """Answer what is open, whoever else may be doing so too; what is asked last is not left open."""
        self.over.wait(chance.uniform(0, 0.5))
        for meta in self._field.working():
            for message in meta.pending:
                answer = answer_to(message.question_content)
                self._tried(
                    lambda m=message, r=meta.run_id, a=answer: reply(  # type: ignore[misc]
                        self._field.service, r, a, m.message_id
                    )
                )

    def _stop(self, chance: random.Random) -> None:
        """Stop a run now and then."""
        if self.closing.wait(chance.uniform(2, 16)):
            self.over.wait()
            return
        runs = self._field.working()
        if runs:
            run_id = chance.choice(runs).run_id
            self._field.audit.write("stop", run=run_id)
            self._tried(lambda: stop(self._field.service, run_id, "the soak wants it"))

    def _look(self, chance: random.Random) -> None:
        """Read a run as everybody does."""
        self.over.wait(chance.uniform(0, 0.3))
        run_ids = self._field.store.run_ids()[:30]
        if run_ids:
            run_id = chance.choice(run_ids)
            self._tried(lambda: observe(self._field.store, run_id))

    def _tried(self, verb: Callable[[], object]) -> None:
        """Call a verb; what the caller has to bear (the run has ended, ...) is borne, the rest is told."""
        try:
            verb()
        except CallerError:
            return
        except HostError as error:
            self._field.audit.write("refused by the machine", what=error.sentence)
