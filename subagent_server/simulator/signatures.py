"""Signatures of thinking blocks: a hash of the text, so that a block that was changed on the way shows."""

import base64
import hashlib


def signature_of(thinking: str) -> str:
    """Return the signature of a thinking block, the same for the same text."""
    digest = hashlib.sha256(b"simulated thinking\0" + thinking.encode("utf-8", "replace")).digest()
    return base64.b64encode(digest * 3).decode("ascii")
