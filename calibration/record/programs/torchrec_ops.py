"""torchrec (BSD-3-Clause): columns of embeddings put in another order, both passes."""

from __future__ import annotations

import torch

from calibration.record.programs.attempts import DEVICE, attempt, in_rounds, normal, on_path, without_init

on_path("torchrec")
without_init("torchrec")
without_init("torchrec.sparse")

from torchrec.sparse import triton_permute_multi_embedding as embedding  # found on the path set above


def permuted(batch: int, features: int, width: int, tables: int) -> None:
    """Each table's features dealt to as many outputs, the last feature first."""
    values = [normal(batch, features * width, dtype=torch.float32) for _ in range(tables)]
    rows = [
        [i, (i + 1) % tables, j * width, (features - 1 - j) * width, width, 0]
        for i in range(tables)
        for j in range(features)
    ]
    permutes = torch.tensor(rows, device=DEVICE, dtype=torch.int32)
    lengths = torch.full((tables,), features * width, device=DEVICE, dtype=torch.int32)
    each = [features * width] * tables
    out = embedding.triton_permute_multi_embedding(values, permutes, lengths, lengths, each)
    embedding._triton_permute_multi_embedding_backward(out, permutes, lengths, lengths, each)


def main() -> None:
    """Every attempt."""
    for sizes in ((4096, 32, 64, 2), (65536, 8, 128, 2), (1024, 64, 32, 4)):
        attempt(f"permutation {sizes}", lambda: permuted(*sizes))


if __name__ == "__main__":
    in_rounds(main)
