"""conch-triton-kernels (Apache-2.0): boxes that overlap are suppressed."""

from __future__ import annotations

import torch

from calibration.record.programs.attempts import DEVICE, attempt, in_rounds, on_path

on_path("conch")

from conch.ops.vision.nms import nms  # found on the path set above


def main() -> None:
    """Every attempt."""
    for boxes in (1000, 4096, 20000):
        corners = torch.rand(boxes, 2, device=DEVICE) * 1000
        attempt(
            f"{boxes} boxes",
            lambda: nms(torch.cat([corners, corners + 20], 1), torch.rand(len(corners), device=DEVICE), 0.5),
        )


if __name__ == "__main__":
    in_rounds(main)
