"""Bytes, values and calls that nobody meant: made at random from a printed seed, and one at a time."""

from __future__ import annotations

import os
import random
import signal
import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import hypothesis
from faults.ledger import Case
from hypothesis import strategies as st

AT_MOST_S = 60  # for one attempt; the slowest takes a second
SEED = os.environ.get("FAULT_SEED")


def fuzz(case: Case, attack: Callable[..., None], *values: st.SearchStrategy[Any], short: int, whole: int) -> None:
    """Attack with values drawn at random, each an attempt of the case; where CI runs it, always from the same seed.

    The seed that is printed draws the same values again with the same version of hypothesis and the same sources, from which
    it takes constants: what was drawn where an attempt fails is told with its error.
    """
    seed = int(SEED) if SEED else random.randrange(2**32) if case.whole else 8
    print(f"FAULT_SEED={seed} hypothesis {hypothesis.__version__}")

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
    left_s, every_s = signal.setitimer(signal.ITIMER_REAL, seconds)  # of the timer that pytest-timeout has set
    began = time.monotonic()
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        if left_s:
            signal.setitimer(signal.ITIMER_REAL, max(0.01, left_s - (time.monotonic() - began)), every_s)


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Harm:
    """What a disk, a crash or a copy that was cut off makes of a file; its repr says which, where a test fails on it."""

    kind: str
    at: float  # a share of the file, as `also` is
    also: float
    flips: Sequence[tuple[float, int]]
    noise: bytes

    def __call__(self, data: bytes) -> bytes:
        found = bytearray(data)
        pages = max(1, len(found) // PAGE)
        here, there = (int(share * pages) * PAGE for share in (self.at, self.also))
        match self.kind:
            case "flip":
                for share, bits in self.flips if found else ():
                    found[int(share * len(found))] ^= bits
            case "cut":
                del found[int(self.at * len(found)) :]
            case "zero":
                found[here : here + PAGE] = bytes(len(found[here : here + PAGE]))
            case "swap":
                found[here : here + PAGE], found[there : there + PAGE] = (
                    found[there : there + PAGE],
                    found[here : here + PAGE],
                )
            case "noise":
                place = int(self.at * len(found))
                found[place : place + len(self.noise)] = self.noise
            case "double":
                found += found[here:]
        return bytes(found)


@st.composite
def harms(draw: st.DrawFn) -> Harm:
    """What becomes of a file's bytes."""
    kind = draw(st.sampled_from(["flip", "flip", "cut", "zero", "swap", "noise", "double"]))
    at, also = draw(st.floats(0, 1, exclude_max=True)), draw(st.floats(0, 1, exclude_max=True))
    flips = draw(st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(1, 255)), min_size=1, max_size=30))
    noise = draw(st.binary(min_size=1, max_size=64))
    return Harm(kind=kind, at=at, also=also, flips=flips, noise=noise)


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
