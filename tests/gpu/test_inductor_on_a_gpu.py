"""torch.compile with Inductor's candidates narrowed, on a GPU: how many are timed, and that results are right."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU"),
]

REPOSITORY = Path(__file__).parents[2]
LIMIT_S = 280

MADE = """
import functools, json
import torch
import forecast_autotune as fa
from torch._inductor import config, select_algorithm
from torch.nn.attention.flex_attention import flex_attention

fa.install(inductor=True)
timed = []
select_algorithm.add_feedback_saver(lambda timings, *_: timed.append([choice.name for choice in timings]))
config.max_autotune_conv_backends = "ATEN,TRITON"

def random(*shape):
    return torch.randn(*shape, dtype=torch.bfloat16, device="cuda") / shape[-1] ** 0.5

def fp8(*shape):
    return torch.randn(*shape, device="cuda").to(torch.float8_e4m3fn)

one = torch.ones((), device="cuda")
x, weight, bias = random(512, 1024), random(768, 1024), random(768)
images, kernel = (t.to(memory_format=torch.channels_last) for t in (random(8, 64, 56, 56), random(128, 64, 3, 3)))
q, k, v = (random(2, 8, 1024, 64) for _ in range(3))
functions = {
    "mm": lambda: torch.relu(x @ weight.T),
    "addmm": lambda: torch.nn.functional.linear(x, weight, bias),
    "bmm": lambda: q @ k.transpose(-1, -2),
    "conv": lambda: torch.relu(torch.nn.functional.conv2d(images, kernel, padding=1)),
    "flex": lambda: flex_attention(q, k, v),
    "fp8": functools.partial(torch._scaled_mm, fp8(512, 1024), fp8(768, 1024).T, one, one, out_dtype=torch.bfloat16),
}
found = {}
for name, function in functions.items():
    torch._dynamo.reset()
    before = len(timed)
    got, expected = torch.compile(function, mode="max-autotune-no-cudagraphs")(), function()
    torch.testing.assert_close(got, expected, rtol=0.05, atol=0.05)
    found[name] = timed[before:]
"""


def told_by(tmp_path: Path, script: str, **environment: str) -> Any:
    """What a script prints last, in a process with the store and the caches of the test."""
    folders = {"TORCHINDUCTOR_CACHE_DIR": "inductor", "TRITON_CACHE_DIR": "triton"}
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)],
        env={**os.environ, **{name: str(tmp_path / folder) for name, folder in folders.items()}, **environment},
        cwd=REPOSITORY, capture_output=True, text=True, timeout=LIMIT_S,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "TuningWarning" not in done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_few_candidates_are_timed_and_another_machine_with_the_store_times_none(tmp_path: Path) -> None:
    script = MADE + "print(json.dumps(found))"
    found = told_by(tmp_path, script)
    for name, lists in found.items():
        (listed,) = lists
        templates = [each for each in listed if each.startswith("triton")]
        assert 1 <= len(templates) <= 4, name
    again = told_by(tmp_path, script, TORCHINDUCTOR_CACHE_DIR=str(tmp_path / "elsewhere"))
    assert {name: lists for name, lists in again.items() if lists} == {}
