"""Laying the code together that every fork of a process will run.

Python counts references inside of its objects, so a fork that runs a function gets copies of the pages on
which it lies, and a page holds some functions that run and many that do not. Copies of the code that runs,
made one after the other, lie on few pages. Standard library only.
"""

import gc
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import CodeType, FrameType, FunctionType

_kept: list[set[CodeType]] = []
"""What has been copied: if it went, there would be gaps all over the memory."""


@contextmanager
def watched() -> Iterator[set[CodeType]]:
    """Yield a set that gets the code of every Python function called meanwhile, in new threads too."""
    ran: set[CodeType] = set()

    def note(frame: FrameType, event: str, argument: object) -> None:
        if event == "call":
            ran.add(frame.f_code)

    threading.setprofile(note)
    sys.setprofile(note)
    try:
        yield ran
    finally:
        sys.setprofile(None)
        threading.setprofile(None)


def of_modules(names: tuple[str, ...]) -> set[CodeType]:
    """Return the code of the functions of these modules and packages."""
    below = tuple(f"{name}." for name in names)
    return {each.__code__ for each in _functions() if f"{each.__module__}.".startswith(below)}


def lay_together(hot: set[CodeType]) -> None:
    """Give every function that runs code of `hot` a copy of it, one copy beside the other."""
    copies: dict[CodeType, CodeType] = {}
    _kept.append(hot)
    for function in _functions():
        if function.__code__ in hot:
            function.__code__ = _copy(function.__code__, hot, copies)


def _functions() -> list[FunctionType]:
    return [each for each in gc.get_objects() if isinstance(each, FunctionType)]


def _copy(code: CodeType, hot: set[CodeType], copies: dict[CodeType, CodeType]) -> CodeType:
    """Return the one copy of a function's code, with copies of the functions inside."""
    if code not in copies:
        inner = tuple(
            _copy(each, hot, copies) if isinstance(each, CodeType) and each in hot else each
            for each in code.co_consts
        )
        copies[code] = code.replace(co_consts=inner)
    return copies[code]
