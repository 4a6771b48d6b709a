"""The MCP servers of an agent, and the rules of the seed's validation table (SPEC section 8)."""

from collections.abc import Callable, Iterator
from urllib.parse import urlsplit

from subagent_server.catalog.keys import camel
from subagent_server.catalog.parts import Draft, Reading, fill, report_repeated, settle
from subagent_server.catalog.keys import fields_of
from subagent_server.catalog.values import Block, Plain, Value, as_names, is_null
from subagent_server.domain.definitions import ServerDefinition
from subagent_server.domain.errors import shorten

_FIELDS = fields_of(ServerDefinition)
_NETWORK = frozenset({"http", "sse"})
_DEFAULT_TIMEOUT = ServerDefinition.model_fields["timeout"].default
