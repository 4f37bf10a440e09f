"""Figures as a person reads them."""

from __future__ import annotations

SHOWN_DIGITS = 10
"""Digits of a decision's digest that `list` prints: among a million decisions two agree in them once in two stores."""


def short(digest: str) -> str:
    """The first digits of a digest, enough to name it."""
    return digest[:SHOWN_DIGITS]


def as_times(log2_speedup: float) -> str:
    """A log2 speed-up as a factor, such as 1.25x."""
    return f"{2.0 ** min(log2_speedup, 1000.0):.2f}x"


def as_time(us: float | None) -> str:
    """Microseconds in a unit that suits them; empty for None."""
    if us is None:
        return ""
    return f"{us:.4g} us" if us < 1e3 else f"{us / 1e3:.4g} ms" if us < 1e6 else f"{us / 1e6:.4g} s"


def as_duration(seconds: float) -> str:
    """Seconds in a unit that suits them."""
    if seconds < 120:
        return f"{seconds:.3g} s"
    return f"{seconds / 60:.3g} min" if seconds < 7200 else f"{seconds / 3600:.3g} h"


def as_date(seconds: float | None) -> str:
    """Seconds since 1970 as local date and time; empty for None."""
    import datetime

    if seconds is None:
        return ""
    try:
        return datetime.datetime.fromtimestamp(seconds).astimezone().strftime("%Y-%m-%d %H:%M:%S")
    except (OverflowError, ValueError, OSError):
        return f"{seconds:.0f} s after 1970"
