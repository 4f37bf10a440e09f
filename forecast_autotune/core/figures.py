"""Figures as a person reads them."""

from __future__ import annotations

SHOWN_DIGITS = 10
"""Digits of a decision's digest that `list` prints: among a million decisions two agree in them once in two stores."""


def short(digest: str) -> str:
    """The first digits of a digest, enough to name it."""
    return digest[:SHOWN_DIGITS]


def as_times(log2_speedup: float) -> str:
    """A log2 speed-up as a factor, such as 1.25x."""
    return f"{as_factor(log2_speedup)}x"


def as_factor(log2_speedup: float) -> str:
    """The same without its sign: two decimals, fewer of large ones, and one digit of tiny ones."""
    factor = 2.0 ** min(log2_speedup, 1000.0)
    return f"{factor:.2f}" if 0.01 <= factor < 100 else f"{factor:.0f}" if factor >= 100 else f"{factor:.1g}"


def as_time(us: float | None, relative_spread: float | None = None) -> str:
    """Microseconds in a unit that suits them, with the spread of the samples where it is known; empty for None."""
    if us is None:
        return ""
    scale, unit = (1.0, "us") if us < 1e3 else (1e3, "ms") if us < 1e6 else (1e6, "s")
    spread = "" if relative_spread is None else f" ±{_two_digits(relative_spread * us / scale)}"
    return f"{us / scale:.4g}{spread} {unit}"


def _two_digits(number: float) -> str:
    return f"{number:.2g}" if number < 99.5 else f"{number:.0f}"


def as_percent(share: float) -> str:
    """A share in per cent, to two digits."""
    return f"{_two_digits(share * 100)} %"


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


def counted(count: int, noun: str, plural: str = "") -> str:
    """A count with its noun: `1 config`, `0 configs`, `12,000 configs`."""
    return f"{count:,} {noun if count == 1 else plural or noun + 's'}"
