"""Text by whoever, fit to be shown."""

from __future__ import annotations


def plain(text: str) -> str:
    """Text on one line without control characters: what others wrote may hold terminal commands."""
    return "".join(c if c.isprintable() else {"\n": " ", "\t": " "}.get(c, f"\\x{ord(c):02x}") for c in text)


def shortened(text: str, most: int | None) -> str:
    """Text of so many characters at most, with `…` where something was left out; None for all of it."""
    return text if most is None or len(text) <= most else f"{text[: most - 1]}…"


def shown(value: object) -> str:
    """A value as a message quotes it: 60 characters at most, and `missing` for None."""
    try:
        text = repr(value)
    except RecursionError:
        return "nested too deeply to be shown"
    return "missing" if value is None else text if len(text) <= 60 else text[:57] + "..."
