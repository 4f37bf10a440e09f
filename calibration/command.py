"""What the verbs share: their parser, an argument that must be positive, numbers with so many digits."""

from __future__ import annotations

import argparse


def verb_parser(verb: str, description: str | None) -> argparse.ArgumentParser:
    """A verb's parser. Its help shows the description as it is, line by line."""
    return argparse.ArgumentParser(
        prog=f"python -m calibration {verb}",
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )


def positive(text: str) -> int:
    """A whole number of at least 1, as an argument's `type`.

    Raises:
        argparse.ArgumentTypeError: it is another text.
    """
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r}: give a whole number of at least 1")
    return int(text)


def number(value: float | None, digits: int = 1) -> str:
    """A number with so many digits behind the point; a dash for None."""
    return "-" if value is None else f"{value:.{digits}f}"
