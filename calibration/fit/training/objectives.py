"""What training makes small: proper scores of eight bins, and one that is not."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

OBJECTIVES = ("nll", "brier", "crps", "brier+correct")
"""`brier+correct` adds the chance of naming the right bin to the Brier score, as the reward of correctness does: no proper
score, for its best answer to a truth of q is the projection of 2 q, sharper than q."""


def loss_of(objective: str, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """The mean of an objective over eight logits a row, shape (n, 8), and the measured bins, shape (n,), both on one device.

    `nll` is -ln of the bin's probability; `brier` half the squared distance to the bin (Brier 1950); `crps` the squared
    distance of cumulated probabilities over the seven edges, divided by 7 (Epstein 1969).
    """
    import torch

    if objective == "nll":
        return torch.nn.functional.cross_entropy(logits, labels)
    p = logits.softmax(dim=-1)
    hit = torch.nn.functional.one_hot(labels, p.shape[-1]).to(p.dtype)
    if objective == "crps":
        return ((p.cumsum(-1) - hit.cumsum(-1))[:, :-1] ** 2).sum(-1).mean() / (p.shape[-1] - 1)
    brier = 0.5 * ((p - hit) ** 2).sum(-1).mean()
    return brier if objective == "brier" else brier - (p * hit).sum(-1).mean()
