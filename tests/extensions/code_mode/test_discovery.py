"""Programs that look up the functions of their run."""

from tests.helpers.mcp_servers import scripted
from tests.helpers.turns import call, says, tool_results
from tests.helpers.world import World

PRICE = {"type": "object", "properties": {"item": {"type": "string"}}, "required": ["item"]}
SHOP = scripted({"name": "price", "description": "Says what an item costs.", "inputSchema": PRICE}, "photo")
WHOLE = '# shop\ndef price(*, item: str) -> Text:\n    """Says what an item costs."""'


def test_with_many_tools_the_model_reads_names_and_programs_look_up_the_rest(world: World) -> None:
    codes = {
        "help(shop.price)": WHOLE,
        "help('price')": WHOLE,
        "help(shop)": "shop.price(item)  # Says what an item costs.\nshop.photo(...)",
        "search_tools('costs')": "shop.price(item)  # Says what an item costs.",
        "len(search_tools('costs').splitlines())": "shop.price(item)  # Says what an item costs.\n1",
        "help('shop.prize')": "There is no function or server 'shop.prize': the functions and servers here",
        "help()": "# 2 functions. In a program, help(shop.price) prints one whole,",
        "help(len)": "Help on built-in function len in module builtins:",
    }
    world.agent(codeMode={"enabled": True, "stubCharacters": 100}, mcpServers={"shop": SHOP})
    turns = [call("execute_python_code", code=code, executionTimeout=30) for code in codes]
    simulator = world.play(*turns, says("Done."))
    run_id = world.start()
    assert world.completed(run_id) == "Done."
    (shown,) = [each for each in simulator.requests[0].body["tools"] if each["name"] == "execute_python_code"]
    assert "# shop (2): price, photo" in shown["description"] and "def price" not in shown["description"]
    results = [tool_results(request.body)[0] for request in simulator.requests[1:]]
    for result, expected in zip(results, codes.values(), strict=True):
        assert result.startswith(expected), result
    assert results[3] == codes["search_tools('costs')"], "it is printed once"
    assert world.events(run_id, "program_call") == [], "a look-up is no call of a tool"
