"""Code that runs is copied, and does what it did."""

from collections.abc import Callable

from subagent_server.host import hot_code


def adder(step: int) -> Callable[[int], int]:
    """Return a closure, whose code lies in that of this function."""

    def add(number: int) -> int:
        return number + step

    return add


def never() -> int:
    """Nobody calls this."""
    return 1


ADD_TWO = adder(2)


def test_what_ran_has_a_copy_of_its_code_and_works_as_before() -> None:
    before = {function: function.__code__ for function in (adder, ADD_TWO, never)}
    with hot_code.watched() as hot:
        assert adder(1)(1) == 2
    assert {adder.__code__, ADD_TWO.__code__} <= hot and never.__code__ not in hot
    hot_code.lay_together({code for code in hot if code.co_filename == __file__})
    assert adder.__code__ is not before[adder] and ADD_TWO.__code__ is not before[ADD_TWO]
    assert never.__code__ is before[never]
    assert (ADD_TWO(1), adder(3)(1)) == (3, 4)
    assert adder(1).__code__ is ADD_TWO.__code__, "the inner function has one copy too"


def test_threads_that_are_started_meanwhile_are_watched_too() -> None:
    from threading import Thread

    with hot_code.watched() as hot:
        thread = Thread(target=never)
        thread.start()
        thread.join()
    assert never.__code__ in hot
