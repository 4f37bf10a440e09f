"""Answers of language models that a store keeps, by digest, so that the same question is asked once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from ..errors import InvalidInputError
from ..language.answers import Bins
from . import rows
from .encoding import decode_answer, encode_answer, from_text, to_text
from .rows import Complain

if TYPE_CHECKING:
    import sqlite3

MOST = 100_000
"""Answers kept at most; with each that is written, those go that lie further back. 100,000 are some 30 MB."""

AT_ONCE = 500  # digests of one query; SQLite before 3.32 takes 999 values


def kept_answers(connection: sqlite3.Connection, digests: Sequence[str], complain: Complain) -> dict[str, Bins]:
    """Kept answers by digest; questions without one are left out, and so are answers that do not decode."""
    known: dict[str, Bins] = {}
    for start in range(0, len(digests), AT_ONCE):
        some = digests[start : start + AT_ONCE]
        marks = ",".join("?" * len(some))
        for digest, value in connection.execute(
            f"SELECT digest, value FROM answer WHERE digest IN ({marks})",  # noqa: S608  # only marks
            some,
        ).fetchall():
            what = f"answer {digest}"
            try:
                known[digest] = decode_answer(from_text(value, what), what)
            except InvalidInputError as err:
                complain(str(err))
    return known


def keep_answers(connection: sqlite3.Connection, answers: Mapping[str, Bins]) -> None:
    """Write answers in place of earlier ones to the same question, and let the oldest go beyond `MOST`."""
    now = rows.now()
    connection.executemany(
        "INSERT OR REPLACE INTO answer (digest, value, kept_at) VALUES (?, ?, ?)",
        [(digest, to_text(encode_answer(answer)), now) for digest, answer in answers.items()],
    )
    connection.execute("DELETE FROM answer WHERE id <= (SELECT max(id) FROM answer) - ?", (MOST,))
