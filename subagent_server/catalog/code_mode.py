"""Read the key `codeMode` of an agent file: true, false or a mapping, also with the keys of CPE files."""

from collections.abc import Mapping

from subagent_server.catalog.keys import canonical
from subagent_server.catalog.parts import Reading, read_part
from subagent_server.catalog.values import Block, Value
from subagent_server.domain.definitions import CodeMode

_RENAMED = {"maxtimeout": "maxTimeoutSeconds"}


def read_code_mode(value: Value, line: int | None, reading: Reading) -> CodeMode:
    """Return code mode from `true`, `false` or a mapping of its keys."""
    if isinstance(value, str):
        block = Block()
        block.put("enabled", value, line or 0)
        value = block
    if isinstance(value, Block):
        value = _renamed(value, _RENAMED)
    return read_part(CodeMode, value, "codeMode", line, reading)


def _renamed(block: Block, names: Mapping[str, str]) -> Block:
    """Return a mapping with some of its keys under the name that they have here."""
    result = Block()
    for key, value in block.items():
        result.put(names.get(canonical(key), key), value, block.lines[key])
    result.repeated |= block.repeated
    return result
