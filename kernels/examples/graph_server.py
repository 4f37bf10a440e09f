"""A server that never tunes while a request waits: keys are warmed up, captured in CUDA graphs, and replayed.

Look at `mode="cached"`: a request of a size that nobody warmed up gets the best forecast at once, and its key is noted
(`forecast-autotune pending`). Look at `fa.tune_pending()`: within it keys are measured, here before capture and in an idle
minute. A graph keeps the config that it was captured with, so warm up first. Without a GPU it is a rehearsal (see
first_triton_kernel.py), which captures nothing.

Prints what each batch size runs and what that rests on: while serving, and after the idle minute.
"""

import contextlib

import torch
import triton
import triton.language as tl

import forecast_autotune as fa

ON_GPU = torch.cuda.is_available()
TIMES = {fa.Config({"ROWS": rows}): us for rows, us in {1: 40.0, 2: 25.0, 4: 14.0, 8: 30.0}.items()}
CONFIGS = [triton.Config({"ROWS": rows}, num_warps=warps) for rows in (1, 2, 4, 8) for warps in (1, 4, 8)]


@fa.autotune(configs=CONFIGS, key=["batch"], mode="cached")
@triton.jit
def normalize(x_ptr, out_ptr, batch, WIDTH: tl.constexpr, ROWS: tl.constexpr):  # noqa: N803
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)[:, None]
    at = row * WIDTH + tl.arange(0, WIDTH)[None, :]
    x = tl.load(x_ptr + at, mask=row < batch, other=0.0)
    tl.store(out_ptr + at, x * tl.rsqrt(tl.sum(x * x, axis=1, keep_dims=True) / WIDTH + 1e-6), mask=row < batch)


def forward(x, out):
    normalize[lambda meta: (triton.cdiv(len(x), meta["ROWS"]),)](x, out, len(x), x.shape[1])


def captured(x, out):
    with torch.cuda.graph(graph := torch.cuda.CUDAGraph()):
        forward(x, out)
    return graph.replay


def tell(when):
    for (batch, *_), decision in normalize.decisions.items():
        print(f"{when}: batch {batch}: {decision.config}: {decision.basis}, {decision.tried} tried")


with contextlib.nullcontext() if ON_GPU else fa.rehearsal("H200", TIMES):
    inputs = {batch: torch.randn(2, batch, 1024, device="cuda" if ON_GPU else "cpu") for batch in (16, 1024, 100)}
    with fa.tune_pending():
        for batch in (16, 1024):
            forward(*inputs[batch])
    for replay in [captured(*inputs[batch]) for batch in (16, 1024) if ON_GPU]:
        replay()
    forward(*inputs[100])  # a size by surprise
    tell("serving")
    with fa.tune_pending():
        forward(*inputs[100])
    tell("idle")
