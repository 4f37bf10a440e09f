"""Ranks of one job tune together and come to one decision: under torchrun, or alone, which starts it with two ranks.

    torchrun --standalone --nproc-per-node 2 kernels/examples/torchrun_ranks.py

Look at `shard=True`: ranks on different GPUs of one kind measure different configs of one key, under one budget, through
the store they share. Where there is no common disk, FORECAST_AUTOTUNE_SYNC=rank0 sends decisions through the job itself. No
call waits for another rank's: who finds a key being tuned runs the default and looks again later. Without a GPU it is a
rehearsal (see first_triton_kernel.py). Prints what each rank ran at its first call, and at its last.
"""

import contextlib
import os
import sys
import time

import torch
import torch.distributed as dist
import triton
import triton.language as tl
from torch.distributed.run import main as torchrun

import forecast_autotune as fa

if "RANK" not in os.environ:
    sys.exit(torchrun(["--standalone", "--nproc-per-node", "2", __file__]))

ON_GPU = torch.cuda.is_available()
TIMES = {fa.Config({"BLOCK": block}): us for block, us in {64: 90.0, 256: 35.0, 1024: 20.0}.items()}
CONFIGS = [triton.Config({"BLOCK": block}, num_warps=warps) for block in (64, 256, 1024) for warps in (2, 4, 8)]


@fa.autotune(configs=CONFIGS, key=["n"], shard=True)
@triton.jit
def increment(x_ptr, n, BLOCK: tl.constexpr):  # noqa: N803
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(x_ptr + at, tl.load(x_ptr + at, mask=at < n) + 1.0, mask=at < n)


dist.init_process_group("gloo")
rank, ran = dist.get_rank(), []
if ON_GPU:
    torch.cuda.set_device(rank % torch.cuda.device_count())
with contextlib.nullcontext() if ON_GPU else fa.rehearsal("H200", TIMES):
    x = torch.zeros(1 << 20, device="cuda" if ON_GPU else "cpu")
    tuned = torch.tensor(0)
    while not tuned:
        time.sleep(0.1)  # the rest of a step
        increment[lambda meta: (triton.cdiv(x.numel(), meta["BLOCK"]),)](x, x.numel())
        (decision,) = increment.decisions.values()
        ran.append(str(decision.config))
        tuned.fill_(decision.rests_on_outcomes)
        dist.all_reduce(tuned, op=dist.ReduceOp.MIN)  # where a step would add up gradients
seen = [None] * dist.get_world_size()
dist.all_gather_object(seen, (ran[0], ran[-1]))
if rank == 0:
    for other, (first, last) in enumerate(seen):
        print(f"rank {other}: first {first}, at last {last}")
dist.destroy_process_group()
