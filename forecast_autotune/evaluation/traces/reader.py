"""Read a trace in whichever form it has; the form is recognised by what the file holds, not by its name."""

from __future__ import annotations

from pathlib import Path

from ...core.job import Recording
from ...core.outcome import Measurement
from ...errors import InvalidInputError
from ...store.encoding import Json, from_text
from ...store.textfile import read_text
from .checks import ACCEPTED
from .jsonl import read_jsonl
from .kernel_tuner import is_kernel_tuner, read_kernel_tuner
from .t4 import read_t4


def read_trace(path: Path | str) -> Recording:
    """Read a recorded run: a trace of our own form, T4 JSON, or a cache file of Kernel Tuner, each also in gzip.

    Times are kept sample by sample. Of a config listed twice the first entry counts. A Kernel Tuner file that is still being
    written is read up to its last whole entry, with one warning.

    Raises:
        OSError: the file cannot be read.
        InvalidInputError: it is cut off, of another format or version, has a time that is not positive and finite, or no
            config that ran; names the file and what is accepted.
    """
    path = Path(path)
    text = read_text(path)
    first, _, rest = text.partition("\n")
    try:
        header = from_text(first, "the first line")
    except InvalidInputError:
        header = None  # the others are usually one JSON value over many lines
    if isinstance(header, dict) and "schema" in header and "results" not in header:
        recording = read_jsonl(path, header, rest)
    elif is_kernel_tuner(text):
        recording = read_kernel_tuner(path, text)
    else:
        recording = read_t4(path, header if isinstance(header, dict) and not rest.strip() else _whole(path, text))
    if not any(isinstance(outcome, Measurement) for outcome in recording.outcomes.values()):
        raise InvalidInputError(
            f"{path} has no config that ran, of {len(recording.outcomes)}: nothing to learn from it, record it again"
        )
    return recording


def _whole(path: Path, text: str) -> Json:
    """The file as one JSON object."""
    try:
        value = from_text(text, str(path))
    except InvalidInputError as err:
        if text.lstrip()[:1] == "{":
            raise InvalidInputError(f"{path} is cut off or damaged ({err}): copy the file again; {ACCEPTED}") from None
        raise InvalidInputError(f"{path} is no trace (it starts with {text[:20]!r}): {ACCEPTED}") from None
    if not isinstance(value, dict):
        raise InvalidInputError(f"{path} is no trace (it is a JSON {type(value).__name__}): {ACCEPTED}")
    return value
