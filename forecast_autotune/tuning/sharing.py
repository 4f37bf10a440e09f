"""Who tries which config of a run: this process alone, or together with processes on other devices.

A run asks its `Sharing` before it spends anything on a config. The base class is the common case, a run that is not shared.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager

from ..core.config import Config
from ..core.job import Job
from ..core.outcome import Outcome
from ..protocols import Store, WorkSharing


class Sharing:
    """A run that this process does not share: every config is its own to try."""

    tries_default_first: bool = True
    """Whether this process tries the default before anything else."""

    def __init__(self) -> None:
        self.claimed: frozenset[Config] = frozenset()  # by other processes, and not tried yet
        self.refused: set[Config] = set()  # not this process's to try, though nobody is known to have claimed them

    def lead(self, run: str, configs_left: float, first: Config | None) -> AbstractContextManager[None]:  # noqa: ARG002
        """Let others help while this is held, until so many configs are claimed; `first` is claimed at once."""
        return contextlib.nullcontext()

    def part_of(self, workers: int) -> int:
        """How many of so many compile workers this process may use."""
        return workers

    def wanted(self) -> bool:
        """Whether this process may claim one more config."""
        return False

    def claim(self, config: Config) -> bool:  # noqa: ARG002
        """Make a config this process's own to try; a refusal is kept, so that the policy does not ask for it again."""
        return True

    def claim_batch(self, configs: Iterable[Config], most: int) -> list[Config]:  # noqa: ARG002
        """Those of the configs to try next, each claimed."""
        return list(configs)

    def settle(self, config: Config, *, transient: bool) -> None:
        """Say that a config was tried. `transient`: it failed, and the cause may lie elsewhere."""

    def refresh(self) -> bool:
        """Look what other processes have claimed; whether that has changed."""
        return False

    def outcomes(self) -> Mapping[Config, Outcome]:
        """Outcomes recorded so far by any of the processes; empty where there are no others."""
        return {}


class Leading(Sharing):
    """A run that other processes may help. The budget is for all of them together."""

    def __init__(self, work_sharing: WorkSharing, store: Store, job: Job) -> None:
        super().__init__()
        self._work_sharing = work_sharing
        self._store = store
        self._job = job

    def lead(self, run: str, configs_left: float, first: Config | None) -> AbstractContextManager[None]:
        """Let others help while this is held, until so many configs are claimed; `first` is claimed at once."""
        return self._work_sharing.lead(run, configs_left, first)

    def part_of(self, workers: int) -> int:
        """How many of so many compile workers this process may use: the processes share one host's cores."""
        return max(1, workers // self._work_sharing.processes)

    def wanted(self) -> bool:
        """Whether this process may claim one more config."""
        return self._work_sharing.wanted()

    def claim(self, config: Config) -> bool:
        """Make a config this process's own to try; a refusal is kept, so that the policy does not ask for it again."""
        if self._work_sharing.claim(config):
            return True
        self.refused.add(config)
        return False

    def claim_batch(self, configs: Iterable[Config], most: int) -> list[Config]:
        """The next few configs, claimed: at most so many, since what is claimed is nobody else's."""
        return list(itertools.islice(filter(self.claim, configs), most))

    def settle(self, config: Config, *, transient: bool) -> None:  # noqa: ARG002
        """Say that a config was tried, also where it failed for no fault of its own."""
        self._work_sharing.tried(config)

    def refresh(self) -> bool:
        """Look what other processes have claimed; whether that has changed."""
        claimed = self._work_sharing.claimed_by_others()
        changed = claimed != self.claimed
        self.claimed = claimed
        self.refused -= claimed  # now it is known who has them, and so when they are free again
        return changed

    def outcomes(self) -> Mapping[Config, Outcome]:
        """Outcomes recorded so far by any of the processes."""
        return self._store.outcomes(self._job)


class Helping(Leading):
    """A run that another process leads."""

    tries_default_first = False  # the leader does

    def settle(self, config: Config, *, transient: bool) -> None:
        """Say that a config was tried; release one that failed for no fault of its own, and help no more in this run.

        The next config would most likely fail too (this device's memory is full) and cost the whole budget.
        """
        if transient:
            self._work_sharing.release(config)
        else:
            self._work_sharing.tried(config)
