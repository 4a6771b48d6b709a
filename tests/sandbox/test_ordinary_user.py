"""A box is the same for an ordinary user: what it shows, the work that is done in it, and its walls."""

from tests.helpers.ordinary_user import user
from tests.sandbox.test_attempts import every_attempt_fails
from tests.sandbox.test_limits import limits_hold
from tests.sandbox.test_ordinary_work import ordinary_work
from tests.sandbox.test_runs_in_boxes import a_shell_in_a_box
from tests.sandbox.test_server_locations import no_server_is_seen


def test_an_ordinary_user_sees_the_same_in_a_box_and_works_in_it_and_no_attempt_leaves_it() -> None:
    with user() as somebody:
        somebody.play(a_shell_in_a_box, limits_hold, ordinary_work, every_attempt_fails, no_server_is_seen)
