"""A server that waits for no tuning: `mode="online"` launches every new batch size at once, and learns from the requests.

Look at `serve`, which knows nothing of tuning: some requests try another config, on their own arguments, as long as all
that costs at most FORECAST_AUTOTUNE_ONLINE_COST of the time in the kernel. Look at `fa.freeze()`: from then on every call
of a size runs the same config. Without a GPU it is a rehearsal (see first_triton_kernel.py).

Prints what each batch size runs after its first request, and in the end: whether that was measured, and what exploring cost.
"""

import contextlib
import random
import time

import torch
import triton
import triton.language as tl

import forecast_autotune as fa

ON_GPU = torch.cuda.is_available()
TIMES = {fa.Config({"ROWS": rows}): us for rows, us in {1: 4000.0, 2: 2500.0, 4: 1400.0, 8: 3000.0}.items()}
CONFIGS = [triton.Config({"ROWS": rows}, num_warps=4) for rows in (1, 2, 4, 8)]


@fa.autotune(configs=CONFIGS, key=["batch"], mode="online")
@triton.jit
def normalize(x_ptr, out_ptr, batch, WIDTH: tl.constexpr, ROWS: tl.constexpr):  # noqa: N803
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)[:, None]
    at = row * WIDTH + tl.arange(0, WIDTH)[None, :]
    x = tl.load(x_ptr + at, mask=row < batch, other=0.0)
    tl.store(out_ptr + at, x * tl.rsqrt(tl.sum(x * x, axis=1, keep_dims=True) / WIDTH + 1e-6), mask=row < batch)


def serve(x, out):
    normalize[lambda meta: (triton.cdiv(len(x), meta["ROWS"]),)](x, out, len(x), x.shape[1])


def tell(when):
    for (batch, *_), decision in sorted(normalize.decisions.items()):
        cost = f", {decision.explored_s:.4f} s explored" if decision.basis == "measured" else ""
        print(f"{when}: batch {batch}: ROWS={decision.config['ROWS']}: {decision.basis}{cost}")


with contextlib.nullcontext() if ON_GPU else fa.rehearsal("H200", TIMES):
    requests = [torch.randn(2, batch, 1024, device="cuda" if ON_GPU else "cpu") for batch in (16, 128, 1024)]
    for x, out in requests:
        serve(x, out)
    tell("at once")
    ends = time.time() + 60
    while time.time() < ends and any(d.basis != "measured" for d in normalize.decisions.values()):
        serve(*random.choice(requests))
        time.sleep(0.0005)  # until the next request
    fa.freeze()
    tell("learned")
