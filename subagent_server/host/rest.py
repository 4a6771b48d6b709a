"""What a process does that has nothing to do for long: it gives memory back."""

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor

from subagent_server.host import pristine

_IDLE_SHARE = 0.02
"""The part of a processor that a process may have and still do nothing: it looks around now and then."""
_WORTH_SECONDS = 0.01
"""Who has worked for no longer than this since memory was given back has taken next to none again."""


class Rest:
    """Gives memory back after a while of doing nothing, and takes it again. Lives in one event loop.

    Only a process with one thread can do that, so the threads that the loop lends out are let go before: they
    end when they are idle, and the next one who wants a thread gets a fresh one.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._began = self._looked = time.monotonic()
        self._worked = 0.0
        self._given_back = 0.0
        self._threads = self._fresh_threads()

    def look(self) -> None:
        """Give memory back if nothing has been done for long. Call it every few seconds."""
        now, worked = time.monotonic(), time.process_time()
        if worked - self._worked > _IDLE_SHARE * (now - self._looked):
            self._began = now
        self._looked, self._worked = now, worked
        worth = pristine.is_kept() and worked - self._given_back > _WORTH_SECONDS
        if not worth or now - self._began < pristine.REST_SECONDS:
            return
        if pristine.is_alone():
            pristine.give_back()
            self._worked = self._given_back = time.process_time()
        else:
            self._threads.shutdown(wait=False)
            self._threads = self._fresh_threads()

    def end(self) -> None:
        """There is something to do: take the memory again that was given back."""
        pristine.take_again()

    def _fresh_threads(self) -> ThreadPoolExecutor:
        threads = ThreadPoolExecutor(thread_name_prefix="asyncio")
        self._loop.set_default_executor(threads)
        return threads
