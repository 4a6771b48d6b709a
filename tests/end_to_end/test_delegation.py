"""A parent hands over work and gets its result."""

from tests.helpers.turns import asks, says
from tests.helpers.world import World


def test_a_run_is_started_at_once_asks_is_answered_and_gives_its_result(world: World) -> None:
    world.agent()
    world.play(asks("Which colour?", "red", "blue"), says("Painted."))
    with world.serve() as parent:
        view = parent.call("run_worker", prompt="Paint it.", label="paint")
        assert view["status"] in ("ready", "running") and view["live"] and view["label"] == "paint"
        run_id = view["runId"]
        assert f'check_status(runId="{run_id}"' in view["instructions"]

        view = parent.call("check_status", runId=run_id, waitSeconds=60)
        assert view["status"] == "waiting_parent_reply" and "waitNote" not in view, (
            "no longer wait was needed"
        )
        (question,) = view["messages"]
        assert question["question"] == "Which colour?" and question["options"] == ["red", "blue"]
        assert f'reply_subagent(runId="{run_id}", messageId="q1"' in view["instructions"]

        answer = parent.call("reply_subagent", runId=run_id, answer="blue", waitSeconds=60)
        assert answer["success"]
        view = answer["updatedMetadata"]
        assert (view["status"], view["result"]) == ("completed", "Painted.")
        assert view["usage"]["turns"] == 2 and view["usage"]["toolCalls"] == 1
