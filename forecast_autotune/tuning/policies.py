"""Policies: what to compile and to measure next."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from ..core.budget import Budget
from ..core.config import Config
from ..core.forecast import Forecast
from ..core.job import Compile, Measure, Stop, View, log2_speedups
from ..core.outcome import Failure
from ..features.forecast_columns import Columns, columns_of, expected_gain, normal_cdf
from ..features.knob_matrix import KnobMatrix, knob_matrix
from ..features.knob_roles import role_of_name

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from ..protocols import Policy

    Array = NDArray[np.float64]

CHUNK = 64  # configs that Exhaustive compiles ahead of measuring: enough for any pool, little lost if it is stopped

# How Selective picks.

# Configs drawn for each place of a batch, of which the farthest apart are taken. A single pick is drawn alone: the farthest
# of 3 ended at 1.39, one drawn at 1.19 (44 tries, convolution on four devices, medians of 10 seeds).
SPREAD_CANDIDATES = 4
FIRST_SPREAD = 4  # configs that ran, the default included, before forecasts that hardly differ are followed
FLAT = 0.05  # forecasts hardly differ if their means vary by less than this share of their sigmas
SHARP = 1.0  # forecasts are sharp if their means vary over the space by more than so many of their sigmas
OUTSIDE_EVERY = 5  # one of so many picks ignores the forecasts' favourites
OUTSIDE_FROM = 5  # outcomes before that: the first few follow the forecasts
FEW_VALUES = 3  # of a knob, for picks among the first ten that force it
# While outcomes have said nothing yet, for many workers begin a whole budget so; four are the warps that many lists have. On
# 243 spaces of 81 recorded kernels, by models that have not seen them, with 16 workers and 8 configs, choices are then 2.1 %
# off the best instead of 2.4, and 5 % of them over 10 % off instead of 6; with 16 configs at worst 16 % off instead of 29.
OUTSIDE_EVERY_BLIND, FEW_VALUES_BLIND = 2, 4
# From so many outcomes on, some picks follow forecasts that outcomes of similar configs have not changed. One in so many
# follows those made before anything was measured; where all recordings are of other hardware, one in so many follows the
# recordings. On four GPUs, the other three known, 50 tries ended at 1.017 instead of 1.054; recordings of the same GPU
# gained nothing so.
UNBENT_FROM = 10
INITIAL_EVERY, OTHER_HARDWARE_EVERY = 4, 2
NEAR = 1.0  # configs of one batch closer than this, in deviations of their knobs, teach each other's outcome
COST_NEIGHBOURS = 2.0  # deviations of knobs within which configs cost alike
COSTS_READ = 200  # newest costs that predict the others; with 1,000, predicting 190,000 configs took 12 s and 4 GiB
BLOCK = 1024  # configs whose costs are predicted at a time

# When Selective stops by itself.
LIKE_FAILURES = 4  # so many first outcomes, all failed with one message: it is the call, not the config
WORTHWHILE = math.log2(1.01)  # a gain that would be worth another measurement
STOP_CHANCE = 0.02  # stop when the chance that any config left gains that much is below this
# Configs that ran before that: where every config was forecast by more than rules of thumb before, and not by recordings of
# other hardware alone; and elsewhere. On 134 spaces of 20 to 256 configs, their kernels left out, this measures 33 % of the
# larger ones and loses 0.01 %, at worst 1 %. With no such forecasts, it cost 2 to 3 % from 30 on.
STOP_FROM, STOP_FROM_UNGROUNDED = 16, 50
# Stop too, from STALE_FROM outcomes on, when those after the first STALE (a share) have gained less than WORTHWHILE together
# and no config left has a chance of STALE_CHANCE to gain it. On eight spaces this spent half of a budget of 10 % and lost
# 0.2 %; from 50 outcomes on, it spent 45 % and lost 0.4 %, but 3 % on a C++ GEMM of 400 configs.
STALE_FROM, STALE, STALE_CHANCE = 150, 0.15, 0.2


def make_policy(budget: Budget, *, seed: int = 0, learns: bool = False) -> Policy:
    """The policy that a budget calls for, as live runs and replays have it.

    Args:
        seed: of the draws, where a policy draws.
        learns: real calls may teach what is not known.
    """
    if not budget.measures:
        return StoredOnly("it is learned from real calls") if learns else StoredOnly()
    return Exhaustive() if budget.all else Selective(seed)


class Exhaustive:
    """Measure every config, in the order of the space."""

    def step(self, view: View) -> Compile | Measure | Stop:
        """Measure what is compiled, else compile the next chunk."""
        if ready := _ready(view):
            return Measure(ready)
        busy = {*view.under_way, *view.outcomes, *view.evidence}
        untried = tuple(c for c in view.space if c not in busy)
        return Compile(untried[: max(CHUNK, view.workers)]) if untried else _all_tried(view)


def _all_tried(view: View) -> Stop:
    return Stop("every config was begun" if view.under_way else "every config was tried")


class StoredOnly:
    """Measure nothing: what is stored or forecast must do.

    Args:
        why: nothing is measured.
    """

    def __init__(self, why: str = "measuring is not wanted here") -> None:
        self._why = why

    def step(self, view: View) -> Compile | Measure | Stop:
        """Stop, saying how many configs were known."""
        known = sum(c in view.outcomes for c in view.space)
        return Stop(f"{self._why}; {known} of {len(view.space)} configs were known")


class First:
    """Take the first config, whatever is known."""

    def step(self, view: View) -> Compile | Measure | Stop:
        """Stop, naming the default config."""
        return Stop("the first config was asked for", config=view.space.default)


class SuggestedFirst:
    """Try some configs before those that another policy chooses: somebody else found them best, nobody has timed them here.

    Args:
        suggested: gives those of the space that are known by now, the most promising first.
    """

    def __init__(self, policy: Policy, suggested: Callable[[], Sequence[Config]]) -> None:
        self.policy = policy
        self.suggested = suggested

    def step(self, view: View) -> Compile | Measure | Stop:
        """Measure what is compiled, else compile the suggested configs, else what the other policy says."""
        if ready := _ready(view):
            return Measure(ready)
        busy = {*view.under_way, *view.outcomes}
        untried = tuple(dict.fromkeys(c for c in self.suggested() if c not in busy))
        room = int(max(1, min(view.configs_left, len(untried))))
        return Compile(untried[:room]) if untried else self.policy.step(view)


class Selective:
    """Measure the configs that could still change the answer.

    Follows the forecasts by expected improvement over the best so far; a failure gains nothing. Where time is what will run
    out, it follows the improvement per second. Where forecasts say nothing, it spreads configs over the space.

    Two kinds of picks go elsewhere:

    * Every fifth pick, every second while nothing but the default was measured, ignores the forecasts' favourites and tries
      an algorithm not measured yet, else a rare value of a knob: a forecast can be wrong about a whole region.
    * Later, every fourth pick is the best by the forecasts made before anything was measured, or every second the best by
      recordings on other hardware, weighed by how well each did here: outcomes of neighbours can bend a forecast wrongly.

    Stops by itself when no config left has a real chance of a gain, or when nothing was gained for long.

    Args:
        seed: of the draws; the same seed and view give the same step.
    """

    def __init__(self, seed: int = 0) -> None:
        self.seed = seed

    def step(self, view: View) -> Compile | Measure | Stop:
        """Measure what is compiled, else stop for a good reason, else compile the next batch."""
        if ready := _ready(view):
            return Measure(ready)
        if alike := _failing_alike(view):
            return Stop(alike)
        picking = _Picking(view, self.seed)
        if picking.untried.size == 0:
            return _all_tried(view)
        if reason := picking.nothing_left():
            return Stop(reason)
        # Cut off at the end, not picked for so many: a larger budget goes on where a smaller one ended.
        room = int(max(1, min(view.configs_left, len(view.space))))
        return Compile(tuple(view.space[i] for i in picking.batch(_batch_size(view))[:room]))


def _ready(view: View) -> tuple[Config, ...]:
    """Configs that are compiled, and that nobody has measured or is about to."""
    busy = {*view.under_way, *view.outcomes}
    return tuple(c for c in view.evidence if c not in busy)


def _failing_alike(view: View) -> str:
    """Why to stop, if every config tried failed to load or launch with the same message; empty otherwise.

    Empty too while there is an algorithm not tried yet, which may run where others do not: all variants of a product of
    8-bit floats but one need a newer GPU.
    """
    outcomes = list(view.outcomes.values())
    if len(outcomes) < LIKE_FAILURES:
        return ""
    messages = {o.message if isinstance(o, Failure) and o.stage in ("load", "launch") else None for o in outcomes}
    if len(messages) > 1 or None in messages:
        return ""
    for knob, role in view.space.roles.items():
        if role == "algorithm" and {c[knob] for c in view.space} > {c[knob] for c in view.outcomes}:
            return ""
    return f"all of the first {len(outcomes)} configs failed alike: {messages.pop()}"


def _batch_size(view: View) -> int:
    """How many to compile next, if the budget allows: one while each outcome teaches much, more later."""
    n = len(view.outcomes) + len(view.under_way)
    size = 1 if n < 20 else 2 if n < 50 else 4 if n < 100 else round((0.2 if n < 250 else 0.4) * n)
    return max(size, view.workers)


class _Picking:
    """One step's view as arrays."""

    def __init__(self, view: View, seed: int) -> None:
        import numpy as np

        self.view = view
        self.knobs: KnobMatrix = knob_matrix(view.space)
        self.forecasts: Columns = columns_of(view.forecasts)
        self.turn = len(view.outcomes) + len(view.under_way)
        self.random = random.Random(f"{seed} {self.turn}")
        index = view.space.index
        self.under_way = np.array([index(c) for c in view.under_way if c not in view.outcomes], dtype=np.intp)
        tried = np.array([index(c) for c in view.outcomes if c in view.space], dtype=np.intp)
        self.tried = np.concatenate([tried, self.under_way])
        busy = np.zeros(len(view.space), dtype=bool)
        busy[self.tried] = True
        self.untried = np.flatnonzero(~busy)
        self.speedups = log2_speedups(view.outcomes, view.space.default)
        self.best = max(self.speedups.values(), default=0.0)
        self.incumbent = index(max(self.speedups, key=self.speedups.__getitem__)) if self.speedups else 0

    def nothing_left(self) -> str:
        """Why to stop, if no config left has a real chance of a gain worth having; empty otherwise."""
        import numpy as np

        known = len(self.view.outcomes)
        if len(self.speedups) < STOP_FROM:  # what failed says nothing of how fast others are
            return ""
        f = self.forecasts
        mean, sigma, fail = f.mean[self.untried], f.sigma[self.untried], f.fail[self.untried]
        if np.isnan(mean).any():
            return ""
        chance = (1.0 - fail) * normal_cdf((mean - self.best - WORTHWHILE) / np.maximum(sigma, 1e-9))
        any_gains = 1.0 - float(np.exp(np.log1p(-np.minimum(chance, 1.0 - 1e-12)).sum()))
        enough = self._initially_grounded() or len(self.speedups) >= STOP_FROM_UNGROUNDED
        if any_gains < STOP_CHANCE and enough:
            return (
                f"the chance that any of {self.untried.size} configs left gains 1 % is {any_gains:.1%}{self._saved()}"
            )
        if known < STALE_FROM:
            return ""
        first = int(STALE * known)
        early = max(
            (self.speedups[c] for c in list(self.view.outcomes)[:first] if c in self.speedups), default=-math.inf
        )
        if self.best - early < WORTHWHILE and float(chance.max()) < STALE_CHANCE:
            gained = 2.0 ** (self.best - early) - 1.0
            return (
                f"the last {known - first} of {known} configs gained {gained:.1%} together, and none left gains 1 % "
                f"with a chance of {STALE_CHANCE:.0%}{self._saved()}"
            )
        return ""

    def _initially_grounded(self) -> bool:
        """Whether more than rules of thumb spoke of every config before anything was measured, and not recordings of other
        hardware alone: what these are sure of need not hold here."""
        initial = self.view.initial_forecasts
        if self.forecasts.by_other_hardware is not None:
            return False
        return bool(initial) and all(isinstance(f, Forecast) and f.grounded for f in initial)

    def _saved(self) -> str:
        """How much of the budget is not spent, to follow the reason for stopping."""
        left = min(self.view.configs_left, self.untried.size)
        usual_s = sum(o.cost_s for o in self.view.outcomes.values()) / max(1, len(self.view.outcomes))
        return f"; {left:.0f} configs of the budget are saved, some {left * usual_s:.0f} s"

    def batch(self, size: int) -> list[int]:
        """Positions of the next configs to try."""
        import numpy as np

        size = min(size, self.untried.size)
        gains = expected_gain(self.forecasts, self.best) * self._per_second()
        if self.turn < OUTSIDE_FROM and self._initially_sharp():
            gains = np.exp2(self.forecasts.mean) * (1.0 - self.forecasts.fail)
        gains[self.tried] = np.nan
        if np.isnan(gains[self.untried]).any() or (len(self.speedups) < FIRST_SPREAD and self._flat()):
            return self._spread(size)
        unbent_every = INITIAL_EVERY if self.forecasts.by_other_hardware is None else OTHER_HARDWARE_EVERY
        outside_every = OUTSIDE_EVERY_BLIND if self._is_blind else OUTSIDE_EVERY
        chosen: list[int] = []
        weight = np.ones(gains.size)
        for config in self.under_way:
            if config != 0:  # the default teaches nothing: speed-ups relate to it
                weight *= self._novelty(config)
        for turn in range(self.turn, self.turn + size):
            usable = gains * weight
            usable[chosen] = np.nan
            pick = None
            if turn >= OUTSIDE_FROM and turn % outside_every == outside_every - 1:
                pick = self._outside(usable)
            elif turn >= UNBENT_FROM and turn % unbent_every == unbent_every - 1:
                pick = self._unbent_favourite(usable)
            if pick is None:
                pick = int(np.nanargmax(usable))
            chosen.append(pick)
            weight *= self._novelty(pick)
        return chosen

    def _per_second(self) -> Array | float:
        """Factors that turn gains into gains per second of cost, as far as time is what the budget will run out of.

        1 where there is time for all configs left. The cost of a config (compiling, timing, failing) is predicted from
        configs with similar knobs.
        """
        import numpy as np

        costs_s = {
            self.view.space.index(c): o.cost_s
            for c, o in self.view.outcomes.items()
            if c in self.view.space and o.cost_s > 0
        }
        if len(costs_s) < 2 or math.isinf(self.view.seconds_left):
            return 1.0
        at, log_cost = np.array(list(costs_s)), np.log(np.array(list(costs_s.values())))
        wanted_s = float(np.exp(log_cost).mean()) * min(self.view.configs_left, self.untried.size)
        scarce = 1.0 - min(1.0, self.view.seconds_left / wanted_s) if wanted_s > 0 else 0.0
        if scarce <= 0:
            return 1.0
        x = (self.knobs.values / COST_NEIGHBOURS).astype(np.float32)
        known, known_log_cost = x[at[-COSTS_READ:]], log_cost[-COSTS_READ:].astype(np.float32)
        expected = np.empty(len(x))
        for start in range(0, len(x), BLOCK):
            rows = x[start : start + BLOCK]
            apart = (rows**2).sum(axis=1)[:, None] + (known**2).sum(axis=1)[None, :] - 2.0 * (rows @ known.T)
            alike = np.exp(-0.5 * np.maximum(apart, 0.0)) + np.float32(1e-6)
            expected[start : start + BLOCK] = alike @ known_log_cost / alike.sum(axis=1)
        factor: Array = np.exp(-scarce * (expected - log_cost.mean()))
        return factor

    def _flat(self) -> bool:
        """Whether the newest forecasts hardly tell one config from another."""
        return self._nearly_equal(self.forecasts.mean, self.forecasts.sigma)

    def _nearly_equal(self, mean: Array, sigma: Array) -> bool:
        """Whether the means of untried configs differ by less than a small share of their sigmas."""
        return float(mean[self.untried].std()) < FLAT * float(sigma[self.untried].mean())

    @property
    def _is_blind(self) -> bool:
        """Whether outcomes have said nothing yet that forecasts could be corrected by, and these are vague."""
        return len(self.speedups) <= 1 and not self._initially_sharp()

    def _initially_sharp(self) -> bool:
        """Whether the initial forecasts told configs apart by more than their own uncertainty.

        They do where the same program was measured on other hardware. Then the first few picks are the configs expected to
        be best, not those that might be best: with another vendor's recordings, five picks ended at 1.21 instead of 1.60
        times the best. With vaguer forecasts that is the worse choice: ten picks, cold, ended at 1.48 instead of 1.19.
        """
        import numpy as np

        if not self.view.initial_forecasts:
            return False
        initial = columns_of(self.view.initial_forecasts)
        known = initial.known
        return bool(known.any()) and float(initial.mean[known].std()) > SHARP * float(np.mean(initial.sigma[known]))

    def _unbent_favourite(self, gains: Array) -> int | None:
        """The best untried config by recordings on other hardware, else by the forecasts made before anything was measured.

        Outcomes of neighbours have not bent these: only this finds an optimum that lies alone among bad configs. None if
        they hardly tell configs apart.
        """
        import numpy as np

        f = self.forecasts
        mean, sigma, fail = f.by_other_hardware, f.sigma, f.fail
        if mean is None:
            if not self.view.initial_forecasts:
                return None
            initial = columns_of(self.view.initial_forecasts)
            mean, sigma, fail = initial.mean, initial.sigma, initial.fail
        usable = ~np.isnan(gains) & ~np.isnan(mean)
        if not usable.any() or self._nearly_equal(mean, sigma):
            return None
        expected = mean + np.log2(np.maximum(1.0 - fail, 1e-9))
        return int(np.argmax(np.where(usable, expected, -np.inf)))

    def _novelty(self, pick: int) -> Array:
        """How much each config would still teach once this one is tried: 0 for the pick itself, 1 far away."""
        import numpy as np

        x = self.knobs.values
        apart = ((x - x[pick]) ** 2).sum(axis=1)
        novelty: Array = 1.0 - np.exp(-0.5 * apart / NEAR**2)
        return novelty

    def _outside(self, gains: Array) -> int | None:
        """A config of an untried algorithm; else, near the best so far, one with the least tried value of some knob."""
        import numpy as np

        if (untried := self._untried_algorithm(gains)) is not None:
            return untried
        few_values = FEW_VALUES_BLIND if self._is_blind else FEW_VALUES
        rarest: list[tuple[float, str, int]] = []
        for knob, level in self.knobs.levels.items():
            tried = np.bincount(level[self.tried], minlength=int(level.max()) + 1)
            if self.turn < 10 and tried.size > few_values:
                continue
            for value, count in enumerate(tried):
                if value != level[self.incumbent]:
                    rarest.append((count * tried.size + self.random.random(), knob, value))
        for _, knob, value in sorted(rarest):
            forced = np.flatnonzero((self.knobs.levels[knob] == value) & ~np.isnan(gains))
            if forced.size:
                changes = sum(
                    (level[forced] != level[self.incumbent]).astype(int) for level in self.knobs.levels.values()
                )
                nearest = forced[changes == changes.min()]
                return int(nearest[np.argmax(gains[nearest])])
        return None

    def _untried_algorithm(self, gains: Array) -> int | None:
        """The most promising config of an algorithm of which no config was tried yet; None if all were."""
        import numpy as np

        roles = self.view.space.roles
        for knob, level in self.knobs.levels.items():
            if roles.get(knob, role_of_name(knob)) == "algorithm":
                new = np.flatnonzero(~np.isin(level, level[self.tried]) & ~np.isnan(gains))
                if new.size:
                    return int(new[np.argmax(gains[new])])
        return None

    def _spread(self, size: int) -> list[int]:
        """Of configs drawn at random, those farthest from all tried so far and from each other (maximin)."""
        import numpy as np

        pool = self.untried
        candidates = 1 if size == 1 else min(size * SPREAD_CANDIDATES, pool.size)
        pool = np.array(self.random.sample(pool.tolist(), candidates), dtype=np.intp)
        x = self.knobs.values
        taken = list(self.tried) or [0]
        apart = np.min([((x[pool] - x[t]) ** 2).sum(axis=1) for t in taken], axis=0)
        picks: list[int] = []
        for _ in range(size):
            far = int(np.argmax(apart))
            picks.append(int(pool[far]))
            apart = np.minimum(apart, ((x[pool] - x[pool[far]]) ** 2).sum(axis=1))
            apart[far] = -1.0
        return picks
