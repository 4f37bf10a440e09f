"""Several proposers as one: each is asked for as many as what it has brought so far is worth."""

from __future__ import annotations

from collections.abc import Sequence

from ..candidate import Candidate, TriedCandidate
from .base import Proposer, SearchView, tally, why_nothing


class Mix:
    """Shares each turn's proposals among proposers: by how often what each proposed became the fastest, none left out.

    Args:
        proposers: whose names differ.
    """

    name = "mix"

    def __init__(self, proposers: Sequence[Proposer]) -> None:
        self.proposers = tuple(proposers)

    @property
    def trouble(self) -> str:
        """See `why_nothing`: that of each which has any."""
        return "; ".join(filter(None, (why_nothing(proposer, "trouble") for proposer in self.proposers)))

    @property
    def ended(self) -> str:
        """See `why_nothing`: once all have ended."""
        reasons = [why_nothing(proposer, "ended") for proposer in self.proposers]
        return "; ".join(dict.fromkeys(reasons)) if all(reasons) else ""

    def propose(self, view: SearchView, n: int) -> Sequence[Candidate]:
        """See `Proposer`. What one cannot fill, the next ones may."""
        counts = tally(view.tried)
        worth = []
        for proposer in self.proposers:
            tried, won = counts.get(proposer.name, (0, 0))
            worth.append((won + 1) / (tried + 4))
        found: dict[str, Candidate] = {}
        for i, proposer in enumerate(self.proposers):
            share = max(1, round((n - len(found)) * worth[i] / sum(worth[i:])))
            for one in proposer.propose(view, min(share, n - len(found))) if len(found) < n else ():
                found.setdefault(one.digest, one)
        return list(found.values())

    def repair(self, view: SearchView, failed: TriedCandidate) -> Candidate | None:
        """See `Proposer`: whoever proposed it is asked."""
        of = next((p for p in self.proposers if p.name == failed.candidate.proposer), None)
        return None if of is None else of.repair(view, failed)
