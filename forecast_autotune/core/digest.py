"""One way to write a value as text, and one way to name it by its content."""

from __future__ import annotations

import hashlib
import json

Value = bool | int | float | str | None
"""What a knob or an entry of a key may hold."""


def canonical_json(value: object) -> str:
    """The same text for equal values on every machine: keys sorted, no spaces, no NaN.

    Raises:
        ValueError: a float is NaN or infinite.
        TypeError: something is no JSON value.
    """
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def digest(*parts: str) -> str:
    """128 bits of SHA-256 over the parts, in hex; parts cannot run into each other."""
    sha = hashlib.sha256()
    for part in parts:
        data = part.encode()
        sha.update(len(data).to_bytes(8, "big"))
        sha.update(data)
    return sha.hexdigest()[:32]
