"""A search for programs on a GPU, whose candidates run in the box."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("libcst")

from forecast_autotune import cli  # noqa: E402

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU"),
]


def test_a_kernel_of_the_suite_is_searched(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code = cli.main(
        ["search", "kernel_suite.softmax.variants:VARIANTS", "--budget", "3", "--json", "--dir", str(tmp_path)]
    )
    found, told = capsys.readouterr()
    assert code in (0, 1), told
    assert json.loads(found)["measured"] == 3, told
