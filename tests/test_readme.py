"""The README's example runs as it stands there."""

from __future__ import annotations

import re
from pathlib import Path

import torch

README = Path(__file__).parents[1] / "README.md"


def test_the_ten_lines_run() -> None:
    example = re.search(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    assert example is not None
    x = torch.arange(1000, dtype=torch.float32)
    scope = {"x": x}
    exec(example[1], scope)  # noqa: S102
    assert torch.equal(scope["y"], 2 * x)


def test_every_setting_is_in_the_table() -> None:
    from forecast_autotune.settings import Settings

    table = README.read_text()
    for name in Settings.__dataclass_fields__:
        assert f"| `{name.upper()}` |" in table
