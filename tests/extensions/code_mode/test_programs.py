"""Programs of a model that call the tools of a run's MCP servers (SPEC section 9)."""

import json

import pytest

from tests.extensions.code_mode.shop import SHOP, outcomes, program
from tests.helpers.turns import says, tool_results
from tests.helpers.world import World


@pytest.mark.parametrize("sandbox", ["none", "bwrap"])
def test_a_program_calls_the_tools_of_a_server_and_its_output_is_the_result(
    world: World, sandbox: str
) -> None:
    codes = {
        "sum(shop.price(n=n).json()['n'] for n in range(3))": "3",
        "```python\nprice(n=4)\n```": '{"n": 4}',
        "def run():\n    print('a')\n    return [shop.sizes(), 'b']": "a\n[[1, 2], 'b']",
        "import asyncio\nasync def run():\n    await asyncio.sleep(0)\n    return 'later'": "later",
        "import asyncio\nawait asyncio.sleep(0)\n'top'": "top",
        "def run():\n    print('once')\nif __name__ == '__main__':\n    run()": "once",
        "def run():\n    print('once')\ndef main():\n    run()\nmain()": "once",
        "def run():\n    print('once')\ndef unused():\n    run()\n": "once",
        "gather(*[lambda n=n: shop.price(n=n).json()['n'] for n in range(40)]) == list(range(40))": "True",
        "shop.mail(self='me', box=MailBox(name='in')).json()": "{'self': 'me', 'box': {'name': 'in'}}",
        "price(n=None) and shop.mail(from_=str(5), box=dict(name='x')).json()['from']": "5",
        "help(price)": "# shop\ndef price(*, n: int) -> Text:\n    ...",
        "try:\n    shop.bad()\nexcept ToolError as error:\n    print('caught', error)": "caught sold out",
        "import os, subprocess, sys\nprint('1')\nsubprocess.run(['echo', '2'])\nprint('3', file=sys.stderr)\n"
        "os.write(1, b'4\\xff\\n')\nprint('\\ud800')": "1\n2\n3\n4\ufffd\n\\ud800",
        "int(open('/proc/self/oom_score_adj').read())": "500",
        "import os\n'ANTHROPIC_API_KEY' in os.environ, os.environ.get('OWN')": "(False, 'mine')",
        "import os\nif os.fork() == 0:\n    file = open('kept', 'w')\n    if os.fork() == 0:\n"
        "        print('by a child of a child', file=file)\n    else:\n        os.wait()\n    file.close()\n"
        "    os._exit(0)\nos.wait()\nopen('kept').read()": "by a child of a child",
        "import os\nif os.fork():\n    os.wait()\nelse:\n    print('child')\nprint('end')": "child\nend\nend",
        "def price(n, m):\n    return shop.price(**{'n': n}).json()['n'] + m\nprice(1, m=2)": "3",
        "class Till:\n    def price(self):\n        return 4\nshop = Till()\nshop.price()": "4",
        "from dataclasses import dataclass\n@dataclass\nclass A:\n    x: Shop = 1\nA()": "A(x=1)",
    }
    assert outcomes(world, *codes, sandbox=sandbox, env={"OWN": "mine"}) == list(codes.values())


def test_code_that_no_interpreter_and_a_call_that_no_tool_takes_make_no_call(world: World) -> None:
    codes = {
        "shop.price(n=1)\ndef f(:": "line 2",
        "x = 1\0": "null byte",
        "shop.price(n=1)\nshop.prise(n=1)": "line 2\n    shop.prise(n=1)",
        "shop.price(n=1)\nif 0:\n    shop.prise()": "WrongCall: shop has no tool 'prise'; it has price",
        "shop.price(n=1)\nprice(m=1)": "WrongCall: shop.price() has no argument 'm'; it takes n",
        "shop.price(n=1)\nshop.price()": "WrongCall: shop.price() needs the argument 'n'",
        "shop.price(n=1)\nshop.price(1)": "WrongCall: shop.price() takes its arguments by name",
        "getattr(shop, 'prise')(n=1)": "AttributeError: shop has no tool 'prise'; it has price",
        "p = shop.price\np(**{'m': 1})": "TypeError: shop.price() has no argument 'm'; it takes n",
        "p = shop.price\np()": "TypeError: shop.price() needs the argument 'n'",
        "p = shop.price\np(1)": "TypeError: shop.price() takes its arguments by name",
        "n = []\nfor _ in range(250): n = [n]\nshop.price(n=n)": "arguments are nested more than 190",
    }
    results = outcomes(world, *codes)
    for number, (result, expected) in enumerate(zip(results, codes.values(), strict=True)):
        assert expected in result and "[exit code 1]" in result, result
        assert ("Nothing was run.\n[exit code 1]" in result) == (number < 7), result
    (run_id,) = world.store.run_ids()
    assert world.events(run_id, "program_call") == []


def test_the_four_outcomes_are_told_apart_and_a_failed_program_lists_the_calls_it_made(world: World) -> None:
    first = "shop.price(n=7)\n"
    codes = {
        first + "'\f'\ndef f():\n    1 / 0\nf()": "exit code 1",
        first + "shop.bad()": "exit code 1",
        first + "import sys; sys.exit(3)": "[exit code 3]",
        first + "import sys; sys.exit('enough')": "enough",
        first + "import os; os._exit(3)": "the program died: it left with exit code 3",
        first + "import os; os._exit(0)": "the program died",
        first + "import os, signal; os.kill(os.getpid(), signal.SIGKILL)": "SIGKILL",
        first + "raise MemoryError": "out of memory",
        first + "import threading\nthreading.excepthook(1)": "exit code 1",
    }
    results = outcomes(world, *codes)
    for result, expected in zip(results, codes.values(), strict=True):
        assert expected in result and '1. shop.price(n=7): done: {"n": 7}' in result, result
    assert 'File "program.py", line 4, in f\n    1 / 0' in results[0] and "<code mode>" not in results[0]
    assert "ToolError: sold out" in results[1] and "2. shop.bad(): failed: sold out" in results[1]
    (run_id,) = world.store.run_ids()
    assert [e.get("exitCode") for e in world.events(run_id, "tool_result")] == [1, 1, 1, 1, 2, 2, 2, 2, 1]


def test_images_come_back_to_the_model_and_each_program_is_kept_with_its_calls(world: World) -> None:
    world.agent(codeMode=True, mcpServers={"shop": SHOP})
    many = "for _ in range(23): shop.photo()"
    codes = ("print(shop.photo())", "shop.photo()", "held = shop.photo()", many, "shop.photo()\n1 / 0")
    simulator = world.play(*map(program, codes), says("Done."))
    run_id = world.completed_run()
    results = [request.body["messages"][-1]["content"][0] for request in simulator.requests[1:]]
    kinds = [[block["type"] for block in result["content"]] for result in results]
    expected = [["text", "image"]] * 3 + [["text"] + ["image"] * 20] + [["text"]]
    assert kinds == expected, "printed, returned, held, too many; errors are text alone"
    assert results[3]["content"][0]["text"].count("the others were left out") == 1
    texts = tool_results(simulator.requests[2].body), tool_results(simulator.requests[3].body)
    assert texts == (["a photo\n\n[image: you will see it after the program]"], ["(no output)"])
    kept = world.paths(run_id).code.path / "001"
    assert (kept / "program.py").read_text(encoding="utf-8") == "print(shop.photo())"
    assert "a photo" in (kept / "output.txt").read_text(encoding="utf-8")
    assert json.loads((kept / "result.json").read_text(encoding="utf-8"))["outcome"] == 0
    lines = [json.loads(line) for line in (kept / "calls.jsonl").read_text(encoding="utf-8").splitlines()]
    assert [line["function"] for line in lines if "function" in line] == ["shop.photo"]
    log = world.paths(run_id).log.path.read_text(encoding="utf-8")
    assert "```python" in log and "→ 1. shop.photo" in log
    shown = world.cli("show", run_id, "--code").stdout
    assert "✔ done" in shown and "print(shop.photo())" in shown and "→ 1. shop.photo {}  ← a photo" in shown


def test_a_program_whose_time_is_over_is_ended_with_all_that_it_started(world: World) -> None:
    double_fork = (
        "import os, subprocess, sys\nif os.fork() == 0:\n    os.setsid()\n    if os.fork() == 0:\n"
        "        os.execvp('sleep', ['sleep', '60'])\n    os._exit(0)\n"
    )
    stubborn = (
        "\nwhile True:\n    try:\n        shop.hangs()\n    except BaseException as e:\n        print(e)"
    )
    left = (
        "import os\nos.system('grep -lsz ^SUBAGENT_PROGRAM=' + os.environ['SUBAGENT_RUN_ID'] + '/1 "
        "/proc/[0-9]*/environ')\nNone"
    )
    late, left_over, long, flood = outcomes(
        world,
        program(double_fork + "shop.price(n=1)\n" + stubborn, 1),
        program(left),
        program("x" * (1 << 20 | 1), 1),
        program("while True:\n    print('x' * 1000)", 1),
        sandbox="none",
    )
    assert "timed out after 1 s" in late and "shop.price(n=1): done" in late
    assert "shop.hangs(): it is not known what it did" in late
    assert "1,048,577 characters" in long
    assert "timed out" in flood and " in /" in flood and len(flood) < 40_000
    assert left_over == "(no output)"
