"""The suite's CUDA kernels on a GPU: what drawn variants compute, and what tuning through the front door comes to."""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from emulated import caller, drawn, knobs  # noqa: E402
from kernel_suite import Case, Kernel, cuda_kernels  # noqa: E402

from forecast_autotune.core.config import Config  # noqa: E402

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU"),
    pytest.mark.skipif(shutil.which("nvcc") is None, reason="builds variants with nvcc"),
    pytest.mark.timeout(300),
]

SEED = 30
MORE = 2  # configs of each source beside those that are tuned; nvcc takes a second or two for each

KERNELS = tuple(cuda_kernels())
every_kernel = pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.name)

# One process a kernel, so that their bindings are compiled side by side: one of them takes ten seconds.
TUNE = f"""
import json, os, sys
import torch
from emulated import drawn
from forecast_autotune import Space
from kernel_suite import cuda_kernels

kernel = next(k for k in cuda_kernels() if k.name == sys.argv[1])
tuned = kernel.tuned(space=Space(drawn(kernel, {SEED}), roles=kernel.space.roles), budget="all")
*inputs, out = kernel.make_inputs(next(c for c in kernel.cases if c.name == "odd"), {SEED}, "cuda")
tuned(*inputs, out)
(decision,) = tuned.decisions.values()
told = {{
    "measured": decision.tried,
    "failed": decision.failed,
    "agrees": torch.allclose(out, kernel.reference(*inputs, out), rtol=kernel.rtol, atol=kernel.atol),
    "outcomes": {{c.text: str(o) for c, o in tuned.tuned.outcomes((*inputs, out)).items()}},
}}
os.environ["FORECAST_AUTOTUNE_MODE"] = "first"
try:
    tuned(*(tensor.double() for tensor in (*inputs, out)))
except RuntimeError as err:
    told["refused"] = str(err)
print(json.dumps(told))
"""


@pytest.fixture(scope="module", autouse=True)
def tunings(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, subprocess.Popen[str]]]:
    """A process for each kernel that tunes it, started before anything else and read last."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("FORECAST_AUTOTUNE_")}
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
    started = {}
    for kernel in KERNELS:
        folder = tmp_path_factory.mktemp(kernel.name)
        with (folder / "stderr").open("w") as log:
            started[kernel.name] = subprocess.Popen(
                [sys.executable, "-c", TUNE, kernel.name],
                env={**environment, "FORECAST_AUTOTUNE_DIR": str(folder)},
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
    yield started
    for process in started.values():
        process.kill()
        process.communicate()


@pytest.fixture(scope="module")
def variants(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[tuple[str, Config], Future[Any]]]:
    """Drawn configs of every kernel, compiled side by side without torch and to be called through their C interface."""
    folder = tmp_path_factory.mktemp("variants")
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        yield {
            (kernel.name, config): pool.submit(built, kernel, config, folder)
            for kernel in KERNELS
            for config in drawn(kernel, SEED, more=MORE)
        }


def built(kernel: Kernel, config: Config, folder: Path) -> Callable[..., None]:
    library = folder / f"{kernel.name}_{config.digest}.so"
    source = kernel.sources[str(config["source"])]
    arch = "sm_{}{}".format(*torch.cuda.get_device_capability())
    flags = [str(config[knob]) for knob, role in kernel.space.roles.items() if role == "flag" and config[knob]]
    command = ["nvcc", "-shared", "-Xcompiler", "-fPIC", "-std=c++17", f"-arch={arch}", *knobs(config, kernel), *flags]
    done = subprocess.run([*command, str(source), "-o", str(library)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{kernel.name} {config}:\n{done.stderr}"
    return caller(kernel, ctypes.CDLL(str(library)))


def agrees(kernel: Kernel, case: Case, call: Callable[..., None]) -> bool:
    """Whether `call` computes what the reference does, and writes neither beside its output nor to its inputs."""
    *inputs, out = kernel.make_inputs(case, SEED, "cuda")
    before = [tensor.clone() for tensor in inputs]
    guarded = torch.full((out.numel() + 128,), 7.0, device="cuda")
    inside = guarded[64 : 64 + out.numel()].view(out.shape).copy_(out)
    call(*inputs, inside)
    torch.cuda.synchronize()
    return (
        torch.allclose(inside, kernel.reference(*inputs, out), rtol=kernel.rtol, atol=kernel.atol)
        and bool((guarded[:64] == 7.0).all() and (guarded[64 + out.numel() :] == 7.0).all())
        and all(map(torch.equal, inputs, before))
    )


@every_kernel
def test_drawn_variants_agree_with_the_reference(
    kernel: Kernel, variants: dict[tuple[str, Config], Future[Any]]
) -> None:
    cases = (*kernel.corners, next(case for case in kernel.cases if case.name == "odd"))
    wrong = {
        str(config): names
        for config in drawn(kernel, SEED, more=MORE)
        if (names := [case.name for case in cases if not agrees(kernel, case, variants[kernel.name, config].result())])
    }
    assert not wrong


@every_kernel
def test_a_kernel_is_tuned_through_the_front_door_and_refuses_what_it_must(
    kernel: Kernel, tunings: dict[str, subprocess.Popen[str]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    process = tunings[kernel.name]
    out, _ = process.communicate(timeout=280)
    (log,) = tmp_path_factory.getbasetemp().glob(f"{kernel.name}[0-9]*/stderr")
    assert process.returncode == 0, log.read_text()[-4000:]
    told = json.loads(out.splitlines()[-1])
    assert (told["measured"], told["failed"]) == (len(drawn(kernel, SEED)), 0), told["outcomes"]
    assert told["agrees"]
    assert f"{kernel.name} takes float32" in told["refused"]
