"""Parsers fed with bytes that are chosen by which lines they reach: `python -m faults.fuzz_parsers FOLDER SECONDS SEED`.

FOLDER holds examples to begin with, and is given those that were found to lead further. The exit code is 0 where nothing
but the documented errors was raised, within 20 s and 2 GiB an attempt.
"""

from __future__ import annotations

import sys
from contextlib import suppress
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["forecast_autotune"]):
    from forecast_autotune.cli._values import read_grid
    from forecast_autotune.core.budget import Budget
    from forecast_autotune.core.model_names import parse_model_name
    from forecast_autotune.core.workload import Program
    from forecast_autotune.errors import InvalidInputError
    from forecast_autotune.evaluation.traces import read_trace
    from forecast_autotune.language.answers import Bins, from_text
    from forecast_autotune.settings import Answer
    from forecast_autotune.store import encoding
    from forecast_autotune.store.jsonl import read_entries

PROGRAM = Program(name="x", language="c++", source="")


def attempt(data: bytes, file: Path) -> None:
    """One input for every parser."""
    file.write_bytes(data)
    for read in (read_trace, read_entries):
        with suppress(InvalidInputError):
            read(file)
    text = data.decode(errors="surrogateescape")
    for parse in (Budget, Answer.parse, parse_model_name, read_grid):
        with suppress(InvalidInputError):
            parse(text)
    said = from_text(text)
    assert not isinstance(said, Bins) or abs(sum(said.probabilities) - 1) < 1e-6
    with suppress(InvalidInputError):
        value = encoding.from_text(text, "it")
        for decode in (
            encoding.decode_config, encoding.decode_outcome, encoding.decode_decision, encoding.decode_forecast,
            encoding.decode_hardware, encoding.decode_answer, lambda v: encoding.decode_workload(v, PROGRAM),
        ):  # fmt: skip
            with suppress(InvalidInputError):
                decode(value)


def main(folder: str, seconds: str, seed: str) -> None:
    file = Path(folder).with_name("fuzzed_file")
    limits = [
        f"-max_total_time={seconds}",
        f"-seed={seed}",
        "-timeout=20",
        "-rss_limit_mb=2048",
        "-print_final_stats=1",
    ]
    atheris.Setup([sys.argv[0], *limits, f"-artifact_prefix={folder}/found-", folder], lambda data: attempt(data, file))
    atheris.Fuzz()


if __name__ == "__main__":
    main(*sys.argv[1:])
