"""What a run needs on its node, sealed in its directory. The key travels another way: neither opens alone."""

import json
import os
import secrets
from typing import Any

from subagent_server.process.launcher import LaunchPackage
from subagent_server.run import durable
from subagent_server.run.paths import RunPaths

MOST_BYTES = 64 << 20
_NONCE = bytes(12)
"""A key seals one package and no other, so its nonce need not differ."""


def seal(run: RunPaths, package: LaunchPackage) -> str:
    """Write the package, sealed, and return its key. Raises StorageFailed."""
    from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

    key = secrets.token_bytes(32)
    plain = json.dumps(package.to_json()).encode("utf-8", "surrogateescape")
    durable.write_new(run.sealed, ChaCha20Poly1305(key).encrypt(_NONCE, plain, run.run_id.encode()))
    return key.hex()


def unseal(run: RunPaths, key: str) -> dict[str, Any]:
    """Return the package of a run and remove its file. Raises OSError, ValueError: the key opens another."""
    from cryptography.exceptions import InvalidTag
    from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

    sealed = run.sealed.read(MOST_BYTES)
    try:
        plain = ChaCha20Poly1305(bytes.fromhex(key)).decrypt(_NONCE, sealed, run.run_id.encode())
    except InvalidTag as error:
        raise ValueError("the sealed package is not the one that the key belongs to") from error
    run.sealed.unlink()
    package: dict[str, Any] = json.loads(plain.decode("utf-8", "surrogateescape"))
    return package


def filled(package: dict[str, Any]) -> int:
    """Return a memory file that holds a package, for the shim."""
    memory = os.memfd_create("subagent-launch")
    rest = json.dumps(package).encode("utf-8", "surrogateescape")
    while rest:
        rest = rest[os.write(memory, rest) :]
    return memory
