"""Which variable a name means: each has a key of its own in its function's frame."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class Scope:
    """Names of a function, block by block.

    `members` are those of the struct that a method is of. `of_call` are keys of what only a call tells: parameters, and
    variables that come of them.
    """

    members: frozenset[str] = frozenset()
    blocks: list[dict[str, str]] = field(default_factory=lambda: [{}])
    taken: set[str] = field(default_factory=set)
    of_call: set[str] = field(default_factory=set)

    def declare(self, name: str) -> str:
        """A key for a new variable."""
        key, number = name, 1
        while key in self.taken:
            number += 1
            key = f"{name} {number}"
        self.taken.add(key)
        self.blocks[-1][name] = key
        return key

    def find(self, name: str) -> str | None:
        """The key of a variable that is known here."""
        return next((block[name] for block in reversed(self.blocks) if name in block), None)
