"""Texts that are cut to be shown."""

from __future__ import annotations

import pytest

from forecast_autotune.core.text import told_apart

FLAGS = " ".join(f"-flag{number}" for number in range(10))


@pytest.mark.parametrize(
    ("texts", "cut"),
    [
        (["2.13.0", "2.14.0"], ["2.13.0", "2.14.0"]),
        ([f"{FLAGS} -O2", f"{FLAGS} -O3"], ["… -O2", "… -O3"]),
        ([FLAGS, f"{FLAGS} -O3"], ["…", "… -O3"]),
        (["none", FLAGS], ["none", "-flag0 -flag1 -fl…"]),
        ([f"{FLAGS} -a -b", f"{FLAGS} -b -a"], ["…a -b", "…b -a"]),
        ([f"{'x' * 50}1", f"{'x' * 50}2"], ["…1", "…2"]),
        ([f"-O3 {'x' * 20} -DA", f"-O3 {'x' * 20} -DB", "-O2"], ["… -DA", "… -DB", "…2"]),
    ],
)
def test_long_texts_are_cut_so_that_what_differs_is_seen(texts: list[str], cut: list[str]) -> None:
    assert told_apart(texts, 18) == cut
