# ruff: noqa: N803  # Triton kernels write their meta-parameters in capitals
"""What Inductor's templates do, as Triton kernels, for what can be told of their configs ahead: products, flex attention.

Inductor writes its kernels when it renders them, sizes and epilogue included. These ask for the same tiles in the same
order, so `launch_features` describes them as it does any kernel. The package never compiles them; recordings time products.
"""

from __future__ import annotations

import triton
import triton.language as tl

GROUP_M = 8  # what Inductor gives where a config says nothing


@triton.jit(do_not_specialize=["m"])  # type: ignore[untyped-decorator]
def product(  # type: ignore[no-untyped-def]
    a_ptr, b_ptr, c_ptr, m, n, k, a_row, a_column, b_row, b_column, a_batch, b_batch,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr, EVEN_K: tl.constexpr,
    A_BY_ROWS: tl.constexpr, B_BY_ROWS: tl.constexpr, ALLOW_TF32: tl.constexpr, FAST_ACCUM: tl.constexpr,
):  # fmt: skip
    """A batch of products, C = A B, C by rows. The grid: tiles of one product, products."""
    of_batch = tl.program_id(1)
    a_ptr += of_batch * a_batch
    b_ptr += of_batch * b_batch
    c_ptr += of_batch * m * n
    number, down, across = tl.program_id(0), tl.cdiv(m, BLOCK_M), tl.cdiv(n, BLOCK_N)
    group = number // (GROUP_M * across)
    rows_of_group = min(down - group * GROUP_M, GROUP_M)
    tile_m = group * GROUP_M + number % rows_of_group
    tile_n = number % (GROUP_M * across) // rows_of_group
    rows, columns = tile_m * BLOCK_M + tl.arange(0, BLOCK_M), tile_n * BLOCK_N + tl.arange(0, BLOCK_N)
    at_rows, at_columns, depth = rows % m, columns % n, tl.arange(0, BLOCK_K)
    if not A_BY_ROWS:
        at_rows = tl.max_contiguous(tl.multiple_of(at_rows, BLOCK_M), BLOCK_M)
    if B_BY_ROWS:
        at_columns = tl.max_contiguous(tl.multiple_of(at_columns, BLOCK_N), BLOCK_N)
    total = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for step in range(tl.cdiv(k, BLOCK_K)):
        along = step * BLOCK_K + depth
        a_at = a_ptr + at_rows[:, None] * a_row + along[None, :] * a_column
        b_at = b_ptr + along[:, None] * b_row + at_columns[None, :] * b_column
        if EVEN_K:
            a, b = tl.load(a_at), tl.load(b_at)
        else:
            a = tl.load(a_at, mask=along[None, :] < k, other=0.0)
            b = tl.load(b_at, mask=along[:, None] < k, other=0.0)
        if FAST_ACCUM:
            total = tl.dot(a, b, total, allow_tf32=ALLOW_TF32, out_dtype=tl.float32)
        else:
            total += tl.dot(a, b, allow_tf32=ALLOW_TF32, out_dtype=tl.float32)
    rows, columns = tile_m * BLOCK_M + tl.arange(0, BLOCK_M), tile_n * BLOCK_N + tl.arange(0, BLOCK_N)
    where = (rows[:, None] < m) & (columns[None, :] < n)
    tl.store(c_ptr + rows[:, None] * n + columns[None, :], total.to(c_ptr.dtype.element_ty), mask=where)


@triton.jit  # type: ignore[untyped-decorator]
def attention(  # type: ignore[no-untyped-def]
    q_ptr, k_ptr, v_ptr, out_ptr, m, n, shared_heads,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, QK_DIM: tl.constexpr, V_DIM: tl.constexpr,
):  # fmt: skip
    """Attention of every query to every key. The grid: tiles of queries, heads of all batches; by rows throughout."""
    head = tl.program_id(1)
    q_ptr += head * m * QK_DIM
    out_ptr += head * m * V_DIM
    k_ptr += head // shared_heads * n * QK_DIM
    v_ptr += head // shared_heads * n * V_DIM
    rows = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    inner, outer = tl.arange(0, QK_DIM), tl.arange(0, V_DIM)
    q = tl.load(q_ptr + rows[:, None] * QK_DIM + inner[None, :], mask=rows[:, None] < m, other=0.0)
    largest = tl.full((BLOCK_M,), float("-inf"), dtype=tl.float32)
    weight = tl.zeros((BLOCK_M,), dtype=tl.float32)
    total = tl.zeros((BLOCK_M, V_DIM), dtype=tl.float32)
    for start in range(0, n, BLOCK_N):
        keys = start + tl.arange(0, BLOCK_N)
        k = tl.load(k_ptr + keys[None, :] * QK_DIM + inner[:, None], mask=keys[None, :] < n, other=0.0)
        scores = tl.dot(q, k)
        larger = tl.maximum(largest, tl.max(scores, 1))
        shares = tl.exp2(scores - larger[:, None])
        fading = tl.exp2(largest - larger)
        weight = weight * fading + tl.sum(shares, 1)
        v = tl.load(v_ptr + keys[:, None] * V_DIM + outer[None, :], mask=keys[:, None] < n, other=0.0)
        total = total * fading[:, None] + tl.dot(shares.to(v.dtype), v)
        largest = larger
    where = (rows[:, None] < m) & (outer[None, :] < V_DIM)
    tl.store(
        out_ptr + rows[:, None] * V_DIM + outer[None, :],
        (total / weight[:, None]).to(out_ptr.dtype.element_ty),
        mask=where,
    )


@triton.jit  # type: ignore[untyped-decorator]
def attention_backward(  # type: ignore[no-untyped-def]
    q_ptr, k_ptr, v_ptr, dout_ptr, dk_ptr, dv_ptr, m, n, shared_heads,
    BLOCK_M1: tl.constexpr, BLOCK_N1: tl.constexpr, QK_DIM: tl.constexpr, V_DIM: tl.constexpr,
):  # fmt: skip
    """The half of attention's gradient that is of keys and values; that of queries has the same tiles, turned round.

    The grid: tiles of keys, heads of all batches; by rows throughout.
    """
    head = tl.program_id(1)
    q_ptr += head * m * QK_DIM
    dout_ptr += head * m * V_DIM
    k_ptr += head // shared_heads * n * QK_DIM
    v_ptr += head // shared_heads * n * V_DIM
    dk_ptr += head * n * QK_DIM
    dv_ptr += head * n * V_DIM
    keys = tl.program_id(0) * BLOCK_N1 + tl.arange(0, BLOCK_N1)
    inner, outer = tl.arange(0, QK_DIM), tl.arange(0, V_DIM)
    k = tl.load(k_ptr + keys[:, None] * QK_DIM + inner[None, :], mask=keys[:, None] < n, other=0.0)
    v = tl.load(v_ptr + keys[:, None] * V_DIM + outer[None, :], mask=keys[:, None] < n, other=0.0)
    dk = tl.zeros((BLOCK_N1, QK_DIM), dtype=tl.float32)
    dv = tl.zeros((BLOCK_N1, V_DIM), dtype=tl.float32)
    for start in range(0, m, BLOCK_M1):
        rows = start + tl.arange(0, BLOCK_M1)
        q = tl.load(q_ptr + rows[None, :] * QK_DIM + inner[:, None], mask=rows[None, :] < m, other=0.0)
        dout = tl.load(dout_ptr + rows[:, None] * V_DIM + outer[None, :], mask=rows[:, None] < m, other=0.0)
        shares = tl.exp2(tl.dot(k, q))
        dv += tl.dot(shares.to(dout.dtype), dout)
        dscores = shares * tl.dot(v, tl.trans(dout))
        dk += tl.dot(dscores.to(q.dtype), tl.trans(q))
    tl.store(dk_ptr + keys[:, None] * QK_DIM + inner[None, :], dk.to(dk_ptr.dtype.element_ty), mask=keys[:, None] < n)
    tl.store(dv_ptr + keys[:, None] * V_DIM + outer[None, :], dv.to(dv_ptr.dtype.element_ty), mask=keys[:, None] < n)
