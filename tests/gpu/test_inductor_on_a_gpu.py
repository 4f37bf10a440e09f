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

from forecast_autotune.store.queries import StoreFile

torch = pytest.importorskip("torch")

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU"),
]

REPOSITORY = Path(__file__).parents[2]
LIMIT_S = 280

MADE = """
import functools, importlib, json
import torch
import forecast_autotune as fa
from torch._inductor import config, select_algorithm
from torch.nn.attention.flex_attention import flex_attention

fa.install(inductor=True)
sureness = importlib.import_module("forecast_autotune.frontends.inductor.narrowing")
sureness.FAR_SLOWER = 16.0  # templates are timed where the library is sure to win, too
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
with_gradients = [t.detach().requires_grad_() for t in (q, k, v)]

def gradients(attend):
    return torch.autograd.grad(attend(*with_gradients).float().square().sum(), with_gradients)

def called(function):
    return function()

functions = {
    "mm": (lambda: torch.relu(x @ weight.T), called),
    "addmm": (lambda: torch.nn.functional.linear(x, weight, bias), called),
    "bmm": (lambda: q @ k.transpose(-1, -2), called),
    "conv": (lambda: torch.relu(torch.nn.functional.conv2d(images, kernel, padding=1)), called),
    "flex": (lambda: flex_attention(q, k, v), called),
    "decoding": (lambda: flex_attention(q[:, :, :1], k, v), called),
    "backward": (lambda q, k, v: flex_attention(q, k, v), gradients),
    "fp8": (
        functools.partial(torch._scaled_mm, fp8(512, 1024), fp8(768, 1024).T, one, one, out_dtype=torch.bfloat16),
        called,
    ),
}
found = {}
for name, (function, run) in functions.items():
    torch._dynamo.reset()
    before = len(timed)
    got, expected = run(torch.compile(function, mode="max-autotune-no-cudagraphs")), run(function)
    torch.testing.assert_close(got, expected, rtol=0.05, atol=0.05)
    found[name] = timed[before:]
from forecast_autotune.frontends.inductor.choices import narrowing

known = narrowing.selections
chosen = [str(config) for each in known for config in each.parameters]
print(json.dumps({"timed": found, "chosen": chosen, "recalled": narrowing.counts.recalled}))
"""


def told_by(folder: Path, script: str, **environment: str) -> Any:
    """What a script prints last, in a process with store and caches in a folder."""
    folders = {"TORCHINDUCTOR_CACHE_DIR": "inductor", "TRITON_CACHE_DIR": "triton", "FORECAST_AUTOTUNE_DIR": "store"}
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)],
        env={**os.environ, **{name: str(folder / inner) for name, inner in folders.items()}, **environment},
        cwd=REPOSITORY, capture_output=True, text=True, timeout=LIMIT_S,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "TuningWarning" not in done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_few_candidates_are_timed_and_none_on_a_machine_with_their_pack(tmp_path: Path) -> None:
    first = told_by(tmp_path / "first", MADE)
    templates = {
        name: [[each for each in listed if each.startswith("triton")] for listed in lists]
        for name, lists in first["timed"].items()
    }
    # In training the forward pass also keeps a number a row, and takes what was found for it in inference.
    assert len(templates["backward"]) == 1
    for name, lists in templates.items():
        assert lists, name
        if name != "decoding":  # of which nothing is forecast
            assert all(1 <= len(listed) <= 4 for listed in lists), name
    pack = tmp_path / "pack.jsonl"
    StoreFile(tmp_path / "first" / "store").export(pack)
    second = told_by(tmp_path / "second", MADE, FORECAST_AUTOTUNE_PACKS=str(pack))
    assert {name: lists for name, lists in second["timed"].items() if lists} == {}
    assert second["chosen"] == first["chosen"]
    assert second["recalled"] == len(second["chosen"])


BEFORE_A_GELU = """
import json
import torch
import forecast_autotune as fa
from calibration.torch_compile.compiles import clock, times_us

def random(*shape):
    return torch.randn(*shape, dtype=torch.bfloat16, device="cuda")

x, weight, bias = random(2048, 6144), random(1408, 6144), random(1408)

def default():
    return torch.nn.functional.gelu(torch.nn.functional.linear(x, weight, bias))

def ours():
    return torch.nn.functional.gelu(torch.nn.functional.linear(x, weight, bias))

expected, default = default(), torch.compile(default)
default()
fa.install(inductor=True)
from forecast_autotune.frontends.inductor import narrowing
from forecast_autotune.frontends.inductor.request import stood_aside

narrowing.FAR_SLOWER = FAR_SLOWER
ours = torch.compile(ours, options={"max_autotune_gemm": True})
torch.testing.assert_close(ours(), expected, rtol=0.05, atol=0.5)
print(json.dumps({"us": times_us([default, ours], clock()), "aside": stood_aside()}))
"""


@pytest.mark.parametrize("far_slower", ["1.2", "16.0"], ids=["as it is", "templates are timed"])
def test_a_product_before_a_gelu_is_not_slower_than_by_default(tmp_path: Path, far_slower: str) -> None:
    told = told_by(tmp_path, BEFORE_A_GELU.replace("= FAR_SLOWER", f"= {far_slower}"))
    default_us, ours_us = told["us"]
    assert told["aside"] == ""
    assert ours_us < 1.05 * default_us


GENERATED = """
import json
import torch
import forecast_autotune as fa
from torch._inductor.runtime.triton_heuristics import CachingAutotuner

benched = []
bench = CachingAutotuner.bench

def counted(self, launcher, *args, with_profiler=False, **kwargs):
    benched.append(self.fn.__name__)
    return bench(self, launcher, *args, with_profiler=with_profiler, **kwargs)

CachingAutotuner.bench = counted
fa.install(inductor=True)
x = torch.randn(4096, 8192, device="cuda")
functions = {
    "pointwise": lambda: torch.nn.functional.gelu(x) * 2.0,
    "transposed": lambda: x.t().contiguous() + 1.0,
    "reduction": lambda: x.square().mean(dim=-1),
    "normalized": lambda: torch.softmax(x, dim=-1),
}
counts = {}
for name, function in functions.items():
    torch._dynamo.reset()
    before = len(benched)
    torch.testing.assert_close(torch.compile(function, MODE)(), function(), rtol=1e-3, atol=1e-3)
    counts[name] = len(benched) - before
from forecast_autotune.frontends.inductor.generated import kernels
from forecast_autotune.frontends.inductor.request import stood_aside

told = {"timed": kernels.timed_count, "recalled": kernels.recalled_count, "aside": stood_aside()}
print(json.dumps({"benched": counts, **told}))
"""


@pytest.mark.parametrize(
    "mode", ["fullgraph=True", 'mode="max-autotune-no-cudagraphs"'], ids=["default", "max-autotune"]
)
def test_no_config_of_a_generated_kernel_is_timed_on_a_second_machine(tmp_path: Path, mode: str) -> None:
    script = GENERATED.replace("MODE", mode)
    first = told_by(tmp_path / "first", script)
    assert first["aside"] == ""
    assert first["recalled"] == 0
    assert first["timed"] == sum(count > 1 for count in first["benched"].values()) > 0
    pack = tmp_path / "pack.jsonl"
    StoreFile(tmp_path / "first" / "store").export(pack)
    second = told_by(tmp_path / "second", script, FORECAST_AUTOTUNE_PACKS=str(pack))
    assert second["recalled"] == first["timed"]
    assert {name: count for name, count in second["benched"].items() if count} == {}
