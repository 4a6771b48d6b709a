"""Variables and secrets in a definition: `${VAR}` is replaced for a run, secrets are masked for the disk.

A variable is left as it is until a run starts, then taken from the environment of the run.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pydantic import BaseModel

from subagent_server.agents.yaml_reader import camel
from subagent_server.run.agent_definition import AgentDefinition
from subagent_server.run.errors import CallerError
from subagent_server.run.secrets import MASK, TOKENS, is_secret_name, looks_random, without_shapes

_NAME = r"[A-Za-z_][A-Za-z0-9_]*"
REFERENCE = re.compile(
    rf"\$\$\{{|\$\{{(?:env:)?(?P<name>{_NAME})(?::-(?P<default>[^}}]*))?\}}|\$\{{{_NAME}:-[^}}]*\Z"
)
"""`${VAR}`, `${VAR:-text where it is unset}`, and `$${` for a literal `${`; `${env:VAR}` as editors have it.

One without an end is found with all behind it: each of many would be looked through to the end.
"""
LONGEST_VARIABLE = 128 << 10
"""Bytes, with its name: as long is any word that the kernel passes on (MAX_ARG_STRLEN of execve(2))."""
_MOST_MISSING = 10
_OF_AGENT = ("cwd", "base_url", "command", "args")
_OF_SERVER = ("command", "args", "env", "url", "headers")
"""The fields in which variables are replaced, besides the `env` of an agent."""


class MissingVariable(CallerError):
    """A definition refers to a variable that is not set."""

    code = "missing_variable"

    def __init__(self, variable: str, where: str) -> None:
        suffix = f" for {where}" if where else ""
        super().__init__(
            f"The environment variable {variable} is not set{suffix}: set it where the server starts."
        )
        self.variable = variable
        self.where = where


def rules_of_variables(env: Mapping[str, str]) -> list[tuple[bool, str]]:
    """Return the rules of a key `env`: whether the rule is broken, and the rule."""
    too_long = "has a variable of more than 128 KiB, which no program can get: put the text into a file"
    is_long = any(len(f"{name}={value}".encode()) >= LONGEST_VARIABLE for name, value in env.items())
    is_wrong = any(not name or "=" in name for name in env)
    return [(is_wrong, "has a variable without a proper name"), (is_long, too_long)]


def expand(value: str, environment: Mapping[str, str], where: str = "") -> str:
    """Return `value` with every `${VAR}` replaced from `environment`; `where` goes into the error.

    Anything else with a dollar sign (`$HOME`, `${x%.py}`) stays: it is for a shell to read.

    Raises:
        MissingVariable: a variable is not set and has no default.
    """

    def replacement(match: re.Match[str]) -> str:
        name, default = match["name"], match["default"]
        if name is None:
            return match[0].replace("$${", "${")
        found = environment.get(name)
        if found is None or (default is not None and not found):
            found = default
        if found is None:
            raise MissingVariable(name, where)
        return found

    return REFERENCE.sub(replacement, value)


def expand_definition(definition: AgentDefinition, environment: Mapping[str, str]) -> AgentDefinition:
    """Return `definition` ready for a run: variables replaced in `env`, programs, URLs and servers.

    The agent's own `env` is read against `environment`; everything else sees both. Prompts, descriptions and
    schemas are literal.

    Raises:
        MissingVariable: a variable is not set; the error names it and the field.
    """
    env = _expanded(definition, ("env",), environment)["env"]
    both = {**environment, **env}
    servers = {
        name: server.model_copy(update=_expanded(server, _OF_SERVER, both, f"mcpServers.{name}."))
        for name, server in definition.mcp_servers.items()
    }
    changes = {"env": env, "mcp_servers": servers}
    return definition.model_copy(update=changes | _expanded(definition, _OF_AGENT, both))


def _expanded(
    part: BaseModel, fields: Sequence[str], environment: Mapping[str, str], where: str = ""
) -> dict[str, Any]:
    """Return these fields of a part of a definition, with variables replaced in each of their texts."""

    def expanded(value: Any, at: str) -> Any:
        if isinstance(value, dict):
            return {key: expanded(item, f"{at}.{key}") for key, item in value.items()}
        if isinstance(value, list):
            return [expanded(item, at) for item in value]
        return None if value is None else expand(value, environment, at)

    return {name: expanded(getattr(part, name), where + camel(name)) for name in fields}


def expand_as_far_as_set(
    definition: AgentDefinition, environment: Mapping[str, str]
) -> tuple[AgentDefinition, list[MissingVariable]]:
    """Return the definition expanded as far as possible, and each variable that is not set.

    After ten missing variables the rest is not looked at, and the definition is returned as it was.
    """
    known, missing = dict(environment), list[MissingVariable]()
    while len(missing) < _MOST_MISSING:
        try:
            return expand_definition(definition, known), missing
        except MissingVariable as error:
            missing.append(error)
            # The variable is its own value from now on, so that the next round comes to the next one.
            known[error.variable] = f"${{{error.variable}}}"
    return definition, missing


# -- A definition as it may be on disk: secret-looking values become `***`, references to secrets stay.
#
# `${VAR}` names a secret without being a secret, and so is kept; a literal is judged by its name and by its
# look. Masking too much costs little here, because a run gets its real definition another way.


_HARMLESS_VALUE = re.compile(r"(?i:true|false|yes|no|none|auto)?")

_SCHEME = re.compile(r"(?i:\b(bearer|basic)\s+)([^\s,;\"'$]{4,})")
_RUN = re.compile(r"[A-Za-z0-9_+=-]{20,}")
_BETWEEN_URLS = re.compile(r"(\s|,(?=[\w+.-]+://))")
_FLAG = re.compile(r"(?P<name>-{0,2}[A-Za-z][\w.-]*)(?P<equals>[=:]\s*)(?P<value>.+)", re.DOTALL)
_ASSIGNED = re.compile(
    r"""(?<![\w.-])(?:(?P<flag>--[A-Za-z][\w.-]*)\s+(?!-)|(?P<name>-{0,2}[A-Za-z][\w.-]*)["']?[=:]\s*)"""
    r"""(?P<scheme>(?i:bearer|basic|token)\s+)?(?P<value>"[^"]*"|'[^']*'|[^\s"'&;,]+)"""
)


def redact(definition: AgentDefinition) -> dict[str, Any]:
    """Return `definition` as JSON data for disk, its secret-looking literals masked.

    Everything but the schema is judged; names of variables and `${VAR}` stay, so that the definition can
    be run again where the variables are set.
    """
    data: dict[str, Any] = definition.model_dump(mode="json", exclude={"output_schema"})
    schema = definition.model_dump(mode="json", include={"output_schema"})
    data["env"] = _named(definition.env)
    data["args"] = _arguments(definition.args)
    for key in ("baseUrl", "command"):
        data[key] = data[key] and _value(data[key])
    for server in data["mcpServers"].values():
        server |= {"env": _named(server["env"]), "headers": _named(server["headers"])}
        server["args"] = _arguments(server["args"])
        for key in ("command", "url"):
            server[key] = server[key] and _value(server[key])
    data["unknown"] = _tree(data["unknown"])
    data["hooks"] = _tree(data["hooks"])
    return {key: _scrubbed(value) for key, value in data.items()} | schema


def _named(values: Mapping[str, str]) -> dict[str, str]:
    return {name: _value(value, name) for name, value in values.items()}


def _tree(node: Any, name: str = "") -> Any:
    """Mask the values under a secret name, at any depth of unknown keys."""
    if isinstance(node, dict):
        return {key: _tree(child, key) for key, child in node.items()}
    if isinstance(node, list):
        return [_tree(child, name) for child in node]
    if isinstance(node, str):
        return _value(node, name)
    return MASK if is_secret_name(name) and not isinstance(node, bool) and node is not None else node


def _scrubbed(node: Any) -> Any:
    """Mask texts with the shape of a token, wherever they are."""
    if isinstance(node, dict):
        return {key: _scrubbed(child) for key, child in node.items()}
    if isinstance(node, list):
        return [_scrubbed(child) for child in node]
    return without_shapes(TOKENS.sub(MASK, node)) if isinstance(node, str) else node


def _arguments(args: Sequence[str]) -> list[str]:
    """Mask arguments, also the one after a flag such as `--token`."""
    masked: list[str] = []
    before = ""
    for arg in args:
        is_flag_value = before.startswith("-") and "=" not in before and not arg.startswith("-")
        masked.append(_value(arg, before if is_flag_value else ""))
        before = arg
    return masked


def _value(text: str, name: str = "") -> str:
    """Mask one value under `name`."""
    if is_secret_name(name) and not _is_harmless(text, name):
        return _keep_references(text)
    flag = _FLAG.fullmatch(text)
    if flag and is_secret_name(flag["name"]):
        return f"{flag['name']}{flag['equals']}{_value(flag['value'], flag['name'])}"
    text = _ASSIGNED.sub(_assigned, text)
    if "://" in text:
        return "".join(_url(word) if "://" in word else _word(word) for word in _BETWEEN_URLS.split(text))
    return _word(_SCHEME.sub(lambda match: match[0][: -len(match[2])] + MASK, text))


def _assigned(match: re.Match[str]) -> str:
    """Mask a secret that a longer text assigns: `export TOKEN=abc; run`, `run --token abc`, JSON."""
    name = match["flag"] or match["name"]
    if not is_secret_name(name) or _is_harmless(match["value"], name):
        return match[0]
    return match[0][: -len(match["value"])] + _keep_references(match["value"])


def _is_harmless(text: str, name: str) -> bool:
    """Whether a value is too plain to be a secret: a truth value, or a number of tokens."""
    return bool(_HARMLESS_VALUE.fullmatch(text)) or (text.isdecimal() and "tokens" in name.lower())


def _keep_references(text: str) -> str:
    """Mask all but `${VAR}` and a scheme such as `Bearer` before it; the default in `${VAR:-...}` too."""
    parts: list[str] = []
    end = 0
    for match in REFERENCE.finditer(text):
        parts += [_mask_literal(text[end : match.start()]), _bare(match)]
        end = match.end()
    return "".join([*parts, _mask_literal(text[end:])])


def _bare(match: re.Match[str]) -> str:
    if match["name"] is None:
        return MASK
    return f"${{{match['name']}:-{MASK}}}" if match["default"] else match[0]


def _mask_literal(text: str) -> str:
    scheme = re.match(r"\s*(?:(?i:bearer|basic|token)\s+)?", text)
    kept = scheme[0] if scheme else ""
    return kept + MASK if text[len(kept) :].strip() else text


def _word(text: str) -> str:
    """Mask each run of characters in `text` that looks random."""
    return _RUN.sub(lambda match: MASK if looks_random(match[0]) else match[0], TOKENS.sub(MASK, text))


def _url(text: str) -> str:
    """Mask user information, secret or random query values, and random path segments of a URL.

    What comes before it, as in `--url=https://...`, is judged as a word; all that is not masked stays.
    """
    before, _, rest = text.partition("://")
    rest, hash_sign, fragment = rest.partition("#")
    rest, question_mark, query = rest.partition("?")
    netloc, slash, path = rest.partition("/")
    user, at, host = netloc.rpartition("@")
    path = "/".join(map(_word, path.split("/")))
    tail = f"{question_mark}{_pairs(query)}{hash_sign}{_pairs(fragment)}"
    return f"{_word(before)}://{_user(user)}{at}{host}{slash}{path}{tail}"


def _user(user: str) -> str:
    name, colon, password = user.partition(":")
    return f"{_word(name)}:{_keep_references(password)}" if colon else _keep_references(name)


def _pairs(text: str) -> str:
    pairs = (pair.partition("=") for pair in text.split("&"))
    return "&".join(
        f"{name}={_value(value, name)}" if equals else _word(name) for name, equals, value in pairs
    )


# -- The secrets in a definition itself, to be kept out of all files of a run (SPEC section 13).


_PATH = re.compile(r"(--?[\w-]+=)?(~|\.{0,2})/\S*")
"""A directory may have a name that looks random, and a conversation without its paths is of no use."""
SHORTEST = 8
"""A shorter value would mask words that only happen to be the same."""


def hidden_values(definition: AgentDefinition) -> set[str]:
    """Return the values that `redact` takes out of `definition`, with the values of expanded variables."""
    # Found by the difference, not judged a second time: what is masked in the request is masked everywhere.
    whole = definition.model_dump(mode="json", exclude={"output_schema"})
    return {value for value in _hidden(whole, redact(definition)) if len(value) >= SHORTEST}


def _hidden(whole: Any, redacted: Any) -> Iterator[str]:
    if isinstance(whole, dict) and isinstance(redacted, dict):
        for key, value in whole.items():
            yield from _hidden(value, redacted.get(key))
    elif isinstance(whole, list) and isinstance(redacted, list):
        for value, other in zip(whole, redacted, strict=False):
            yield from _hidden(value, other)
    elif isinstance(whole, str) and isinstance(redacted, str) and whole != redacted:
        yield from () if _PATH.fullmatch(whole) else _pieces(whole, redacted)


def _pieces(whole: str, redacted: str) -> Iterator[str]:
    """Return the texts that the mask has replaced."""
    pattern = "(.+?)".join(re.escape(part) for part in redacted.split(MASK))
    match = re.fullmatch(pattern, whole, re.DOTALL)
    yield from (match.groups() if match else [whole])
