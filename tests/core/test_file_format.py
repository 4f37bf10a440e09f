from __future__ import annotations

from pathlib import Path

import pytest

from forecast_autotune.core.file_format import FileFormat
from forecast_autotune.errors import InvalidInputError

FORMAT = FileFormat(schema="forecast_autotune.example", version=2)
OLDER_TOO = FileFormat(schema="forecast_autotune.example", version=4, reads_too=(2, 3))


def check(header: dict[str, object], form: FileFormat = FORMAT) -> None:
    form.check(header, Path("a.json"), accepted="give an example", remedy="write it again")


def test_a_file_of_this_format_and_version_may_hold_anything_else() -> None:
    check({**FORMAT.header, "more": 1})
    assert list(FORMAT.header) == ["schema", "version"], "in this order in every file"


@pytest.mark.parametrize(
    ("header", "message"),
    [
        ({}, "a.json has the schema missing: give an example"),
        ({"schema": "other", "version": 2}, "a.json has the schema 'other': give an example"),
        ({**FORMAT.header, "version": 3}, r"a.json has version 3, this version .* reads 2: write it again"),
    ],
)
def test_another_format_or_version_is_refused_with_what_to_do(header: dict[str, object], message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        check(header)


def test_the_message_names_every_version_that_is_read() -> None:
    check({**OLDER_TOO.header, "version": 3}, OLDER_TOO)
    with pytest.raises(InvalidInputError, match=r"has version 1, this version .* reads 2, 3, 4: write it again"):
        check({**OLDER_TOO.header, "version": 1}, OLDER_TOO)
