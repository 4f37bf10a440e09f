"""Text by whoever, fit to be shown."""

from __future__ import annotations


def plain(text: str) -> str:
    """Text on one line without control characters: what others wrote may hold terminal commands."""
    return "".join(c if c.isprintable() else {"\n": " ", "\t": " "}.get(c, f"\\x{ord(c):02x}") for c in text)
