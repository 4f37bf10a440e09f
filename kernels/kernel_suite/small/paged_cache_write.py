"""New keys and values into a cache of pages in Triton: a slot for each token, or -1 for one that is not kept."""

# ruff: noqa: N803  # Triton kernels write their meta-parameters in capitals
from __future__ import annotations

import torch
import triton
import triton.language as tl

from forecast_autotune.core.space import Space
from forecast_autotune.core.workload import Work

from ..suite import Case
from ..triton_kernel import Call, TritonKernel
from . import Inputs, moved


@triton.jit  # type: ignore[untyped-decorator]
def paged_cache_write(  # type: ignore[no-untyped-def]
    k_ptr, v_ptr, slot_ptr, k_cache_ptr, v_cache_ptr, k_stride, v_stride, page_stride,
    PAGE: tl.constexpr, HEADS: tl.constexpr, D: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """BLOCK numbers of one token's heads. In the cache, a page has its heads first and its tokens second."""
    token = tl.program_id(0)
    slot = tl.load(slot_ptr + token)
    if slot < 0:
        return
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = at < HEADS * D
    k = tl.load(k_ptr + token.to(tl.int64) * k_stride + at, mask=inside)
    v = tl.load(v_ptr + token.to(tl.int64) * v_stride + at, mask=inside)
    place = slot // PAGE * page_stride + at // D * (PAGE * D) + slot % PAGE * D + at % D
    tl.store(k_cache_ptr + place, k, mask=inside)
    tl.store(v_cache_ptr + place, v, mask=inside)


SPACE = Space.grid(
    {"BLOCK": [128, 256, 512, 1024], "num_warps": [1, 2, 4]},
    default={"BLOCK": 512, "num_warps": 4},
    roles={"BLOCK": "tile", "num_warps": "threads"},
)


def make_call(case: Case, seed: int, device: str) -> Call:
    """Slots in any order, one token in eleven without; keys and values lie side by side, as one product leaves them."""
    tokens, heads, d, page, pages = (case.sizes[name] for name in ("tokens", "heads", "D", "page", "pages"))
    inputs = Inputs(case, seed, device, "bfloat16")
    slot = inputs.uniform(pages * page, dtype=torch.float32).argsort()[:tokens].contiguous()
    slot[slot % 11 == 3] = -1
    both = inputs.normal(tokens, 2, heads * d)
    caches = [inputs.normal(pages, heads, page, d) for _ in range(2)]
    k, v = both.unbind(1)
    return Call(
        args=(k, v, slot, *caches, k.stride(0), v.stride(0), heads * page * d, page, heads, d),
        grid=lambda knobs: (tokens, triton.cdiv(heads * d, knobs["BLOCK"])),
        outs=tuple(caches),
    )


def reference(call: Call) -> tuple[torch.Tensor, ...]:
    k, v, slot, k_cache, v_cache, *_, page, heads, d = call.args
    kept = slot >= 0
    where, within = slot[kept] // page, slot[kept] % page
    results = []
    for new, cache in ((k, k_cache), (v, v_cache)):
        cache = cache.clone()
        cache[where, :, within] = new[kept].view(-1, heads, d)
        results.append(cache)
    return tuple(results)


def work(call: Call) -> Work:
    k, v, slot = call.args[:3]
    return Work(flops=0.0, bytes=moved(k, k, v, v, slot))


KERNEL = TritonKernel(
    name="paged_cache_write",
    function=paged_cache_write,
    space=SPACE,
    key=("PAGE", "HEADS", "D"),
    cases=(
        Case(name="prefill", sizes={"tokens": 16384, "heads": 8, "D": 128, "page": 16, "pages": 4096}),
        Case(name="decode", sizes={"tokens": 256, "heads": 8, "D": 128, "page": 32, "pages": 4096}),
        Case(
            name="all_heads", sizes={"tokens": 8192, "heads": 32, "D": 128, "page": 64, "pages": 256}, dtype="float16"
        ),
        Case(name="narrow", sizes={"tokens": 65536, "heads": 4, "D": 64, "page": 32, "pages": 4096}),
    ),
    corners=(
        Case(name="one", sizes={"tokens": 1, "heads": 1, "D": 16, "page": 1, "pages": 1}),
        Case(name="odd", sizes={"tokens": 21, "heads": 3, "D": 24, "page": 4, "pages": 9}),
        Case(name="over_a_block", sizes={"tokens": 10, "heads": 17, "D": 64, "page": 8, "pages": 2}, dtype="float16"),
    ),
    make_call=make_call,
    reference=reference,
    work=work,
    rtol=0.0,
    atol=0.0,
    restore_value=("k_cache_ptr", "v_cache_ptr"),
)
