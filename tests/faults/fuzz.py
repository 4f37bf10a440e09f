"""Bytes, values and calls that nobody meant: made at random from a printed seed, and one at a time."""

from __future__ import annotations

import os
import random
import signal
import sqlite3
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import hypothesis
from faults.ledger import Case
from hypothesis import strategies as st

AT_MOST_S = 60  # for one attempt; the slowest takes a second
SEED = os.environ.get("FAULT_SEED")


def fuzz(case: Case, attack: Callable[..., None], *values: st.SearchStrategy[Any], short: int, whole: int) -> None:
    """Attack with values drawn at random, each an attempt of the case; the seed that is printed draws the same ones again.

    Where CI runs it, always the same.
    """
    seed = int(SEED) if SEED else random.randrange(2**32) if case.whole else 8
    print(f"FAULT_SEED={seed}")

    @hypothesis.seed(seed)
    @hypothesis.settings(
        max_examples=case.many(short=short, whole=whole),
        database=None,
        deadline=None,
        suppress_health_check=list(hypothesis.HealthCheck),
        print_blob=True,
    )
    @hypothesis.given(st.tuples(*values))
    def attempts(drawn: tuple[Any, ...]) -> None:
        with case.attempt(), in_time():
            attack(*drawn)

    attempts()


@contextmanager
def in_time(seconds: int = AT_MOST_S) -> Iterator[None]:
    """Raises TimeoutError in what takes longer."""

    def stop(*_: object) -> None:
        raise TimeoutError(f"more than {seconds} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


@contextmanager
def refused_by(*errors: type[Exception], naming: Iterable[str]) -> Iterator[None]:
    """What goes on in it may end in one of these errors, which then names all that it must."""
    try:
        yield
    except errors as err:
        unnamed = [name for name in naming if name not in str(err)]
        if unnamed:
            raise AssertionError(f"{str(err)[:500]!r} does not name {unnamed}") from err


# Values -----------------------------------------------------------------------------------------------------------------

DEEP = "[" * 100_000 + "]" * 100_000
NUMBERS = st.sampled_from(
    [0, -1, 1, 2**53, 2**63 - 1, -(2**63), 0.0, -0.0, 5e-324, 1e-300, 1e300, 1.7e308, float("inf")]
)
HOSTILE_TEXTS = st.sampled_from([
    "", " ", "null", "[]", "{}", "0", "-1", "NaN", "1e999", "Infinity", "-Infinity", '"', "{", '{"a":', "\x00", "\ud800",
    '"\\ud800"', DEEP, '{"a":' * 500 + "1" + "}" * 500, '{"a": 1, "a": 2}', "1" + "0" * 400, "1" + "0" * 5000,
    "\u202e\x1b[31mred\x07", "../../etc/passwd", "TEN MILLION", '{"samples_us": [1e-320]}', '{"samples_us": [true]}',
    '{"stage": "launch", "message": null}', '{"samples_us": [1e308, 1e308]}', '{"name": {}}', "\ufeff{}",
    "[" * 900 + "]" * 900,
]).map(lambda text: "x" * 10_000_000 if text == "TEN MILLION" else text)  # fmt: skip
JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | NUMBERS | st.floats() | st.text(st.characters(codec=None), max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4),
    max_leaves=12,
)


@st.composite
def damaged(draw: st.DrawFn, document: Any) -> Any:
    """A JSON value of which up to three parts, found at random, are exchanged, taken out or named otherwise."""
    copy = _copied(document)
    for _ in range(draw(st.integers(1, 3))):
        copy = _damaged(draw, copy)
    return copy


def _copied(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _copied(inner) for name, inner in value.items()}
    return [_copied(inner) for inner in value] if isinstance(value, list) else value


def _damaged(draw: st.DrawFn, value: Any) -> Any:
    if not (isinstance(value, (dict, list)) and value) or draw(st.integers(0, 4)) == 0:
        return draw(JSON_VALUES)
    place = draw(st.sampled_from(sorted(value) if isinstance(value, dict) else range(len(value))))
    match draw(st.integers(0, 5)):
        case 0:
            del value[place]
        case 1 if isinstance(value, dict):
            value[draw(st.text(max_size=4))] = value.pop(place)
        case _:
            value[place] = _damaged(draw, value[place])
    return value


# Files ------------------------------------------------------------------------------------------------------------------

PAGE = 4096


@st.composite
def harms(draw: st.DrawFn) -> Callable[[bytes], bytes]:
    """What a disk, a crash or a copy that was cut off makes of a file: of its bytes, other ones."""
    kind = draw(st.sampled_from(["flip", "flip", "cut", "zero", "swap", "noise", "double"]))
    at, also = draw(st.floats(0, 1, exclude_max=True)), draw(st.floats(0, 1, exclude_max=True))
    flips = draw(st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(1, 255)), min_size=1, max_size=30))
    noise = draw(st.binary(min_size=1, max_size=64))

    def harm(data: bytes) -> bytes:
        found = bytearray(data)
        pages = max(1, len(found) // PAGE)
        here, there = (int(share * pages) * PAGE for share in (at, also))
        match kind:
            case "flip":
                for share, bits in flips if found else ():
                    found[int(share * len(found))] ^= bits
            case "cut":
                del found[int(at * len(found)) :]
            case "zero":
                found[here : here + PAGE] = bytes(len(found[here : here + PAGE]))
            case "swap":
                found[here : here + PAGE], found[there : there + PAGE] = (
                    found[there : there + PAGE],
                    found[here : here + PAGE],
                )
            case "noise":
                place = int(at * len(found))
                found[place : place + len(noise)] = noise
            case "double":
                found += found[here:]
        return bytes(found)

    harm.__name__ = kind
    return harm


def columns_of(path: Path) -> list[tuple[str, str]]:
    """Every column of every table of a database."""
    connection = sqlite3.connect(path)
    try:
        tables = [
            name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY 1")
        ]
        return [(table, row[1]) for table in tables for row in connection.execute(f"PRAGMA table_info({table})")]
    finally:
        connection.close()
