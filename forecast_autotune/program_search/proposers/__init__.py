"""Who proposes candidates; see `base.Proposer`."""
