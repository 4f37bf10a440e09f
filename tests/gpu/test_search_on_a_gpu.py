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


@pytest.mark.parametrize("kernel", ["softmax.variants", "rms_norm"])
def test_a_kernel_of_the_suite_is_searched(kernel: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = [f"kernel_suite.{kernel}:VARIANTS", "--budget", "6", "--json", "--dir", str(tmp_path)]
    code = cli.main(["search", *words])
    found, told = capsys.readouterr()
    assert code in (0, 1), told
    result = json.loads(found)
    assert result["measured"] == 6, told
