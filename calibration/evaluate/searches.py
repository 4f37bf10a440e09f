"""The methods to compare with: each takes a trial, whose default is measured already, and tries configs until none is left.

Random search; a classifier that looks for the best tenth (likelihood-free Bayesian optimisation, Song et al., ICML 2022, as
Helion searches); extremely randomised trees with a lower confidence bound; a Gaussian process with expected improvement.
With recordings of the same kernel from elsewhere: their mean (look-up), a portfolio that covers them, models of what the
look-up leaves, and a hedge. And the order of our own forecasts, whatever their uncertainty; Kernel Tuner's own strategies
are in `kernel_tuner_strategies`.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from forecast_autotune.features.forecast_columns import normal_cdf

from .kernel_tuner_strategies import STRATEGIES, strategy_order
from .trials import Array, Indices, Trial

FOREST_START = 10  # outcomes, drawn at random, before a forest is asked; a process needs fewer
PROCESS_START = 5
TREES = 100
BEST_SHARE = 0.1  # of the outcomes that the classifier is to tell from the rest
PARENTS, CHANGES = 5, 2  # neighbours differ from one of the best five in at most two knobs
CONFIDENCE = 1.0  # deviations among trees by which the lower bound lies below their mean
SINGLY = 40  # outcomes up to which a model is fitted after each; from there on after each twentieth more
PROCESS_MOST = 100  # outcomes: a step over 11,130 configs takes 0.2 s by then
REFIT_GROWTH = 1.25  # of outcomes, after which a process's hyper-parameters are fitted anew


def batch(trial: Trial) -> int:
    """How many to try before the model is fitted anew."""
    n = len(trial.tried)
    return min(trial.left, 1 if n < SINGLY else n // (SINGLY // 2))


def begin(trial: Trial, outcomes: int) -> None:
    """Draw configs until there are so many outcomes, the default's included."""
    while trial.left and len(trial.tried) < outcomes:
        trial.measure(trial.draw())


def follow(trial: Trial, order: Sequence[int], outcomes: float = math.inf) -> None:
    """Try configs in an order until there are so many outcomes."""
    for config in order:
        if not trial.left or len(trial.tried) >= outcomes:
            return
        if trial.is_free(config):
            trial.measure(config)


def try_best(trial: Trial, pool: Indices, promise: Array) -> None:
    """A batch of those of a pool that promise most."""
    for config in trial.best_first(pool, promise)[: batch(trial)]:
        trial.measure(config)


# Cold -------------------------------------------------------------------------------------------------------------------


def random_search(trial: Trial) -> None:
    begin(trial, trial.limit)


def lfbo(trial: Trial) -> None:
    begin(trial, FOREST_START)
    while trial.left:
        pool = trial.untried
        try_best(trial, pool, chance_of_best(trial, pool))


def lfbo_neighbours(trial: Trial) -> None:
    begin(trial, FOREST_START)
    while trial.left:
        pool = neighbours(trial)
        try_best(trial, pool, chance_of_best(trial, pool))


def chance_of_best(trial: Trial, pool: Indices) -> Array:
    """Chance that a config is among the best, a good one weighing as much as it is better than the edge between them."""
    from sklearn.ensemble import RandomForestClassifier

    cost = trial.costs()
    edge = np.quantile(cost, BEST_SHARE)
    good = cost <= edge
    if good.all():
        return np.zeros(pool.size)
    gain = np.maximum(edge - cost[good], 1e-3)
    weight = np.ones(cost.size)
    weight[good] = gain / gain.mean()
    forest = RandomForestClassifier(n_estimators=TREES, n_jobs=1, random_state=trial.seed())
    forest.fit(trial.case.x[trial.at], good, sample_weight=weight)
    chance: Array = forest.predict_proba(trial.case.x[pool])[:, 1]
    return chance


def neighbours(trial: Trial) -> Indices:
    """Untried configs that differ little from one of the best; all, if there are none."""
    pool, levels = trial.untried, trial.case.levels
    parents = trial.at[np.argsort(trial.costs(), kind="stable")[:PARENTS]]
    changes = np.min([(levels[pool] != levels[p]).sum(axis=1) for p in parents], axis=0)
    return pool[changes <= CHANGES] if (changes <= CHANGES).any() else pool


def trees(trial: Trial) -> None:
    begin(trial, FOREST_START)
    _follow_trees(trial, np.zeros(len(trial.case.space)))


def _follow_trees(trial: Trial, prior: Array) -> None:
    """By the lower confidence bound of trees fitted on what a prior leaves of log times."""
    from sklearn.ensemble import ExtraTreesRegressor

    x = np.column_stack([trial.case.x, prior]).astype(np.float32)
    while trial.left:
        pool = trial.untried
        forest = ExtraTreesRegressor(n_estimators=TREES, n_jobs=1, random_state=trial.seed())
        forest.fit(x[trial.at], trial.costs() - prior[trial.at])
        rest = np.array([tree.predict(x[pool]) for tree in forest.estimators_])
        try_best(trial, pool, CONFIDENCE * rest.std(axis=0) - rest.mean(axis=0) - prior[pool])


def process(trial: Trial) -> None:
    begin(trial, PROCESS_START)
    _follow_process(trial, np.zeros(len(trial.case.space)))


def _follow_process(trial: Trial, prior: Array) -> None:
    """By the expected improvement of a Gaussian process over what a prior leaves of log times."""
    from sklearn.gaussian_process import GaussianProcessRegressor
    from sklearn.gaussian_process.kernels import ConstantKernel, Matern, WhiteKernel

    x = trial.case.x
    kernel: Any = ConstantKernel() * Matern(np.ones(x.shape[1]), (1e-1, 1e2), nu=2.5) + WhiteKernel(1e-2, (1e-4, 1.0))
    fit_from = 0.0
    while trial.left:
        pool, cost = trial.untried, trial.costs()
        refits = len(trial.tried) >= fit_from
        model = GaussianProcessRegressor(
            kernel, optimizer="fmin_l_bfgs_b" if refits else None, normalize_y=True, random_state=trial.seed()
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a length at its bound is no news: some knobs do not matter
            model.fit(x[trial.at], cost - prior[trial.at])
            rest, sigma = model.predict(x[pool], return_std=True)
        if refits:
            kernel, fit_from = model.kernel_, REFIT_GROWTH * len(trial.tried)
        sigma = np.maximum(sigma, 1e-9)
        z = (cost.min() - prior[pool] - rest) / sigma
        density = np.exp(-0.5 * z * z) / math.sqrt(2.0 * math.pi)
        try_best(trial, pool, sigma * (z * normal_cdf(z) + density))


# With history -----------------------------------------------------------------------------------------------------------


def look_up(trial: Trial, *, same_vendor: bool) -> None:
    follow(trial, _looked_up(trial, trial.case.history.mean(same_vendor=same_vendor)))


def _looked_up(trial: Trial, cost: Array) -> list[int]:
    """All configs, the cheapest first."""
    order = trial.best_first(np.arange(cost.size), -cost)
    trial.unmeasured = order[0]
    return order


def portfolio(trial: Trial) -> None:
    """Try what leaves the least on the table over all recordings; once each one's best is tried, begin a new cover."""
    log2 = trial.case.history.log2
    cost = np.where(np.isnan(log2), np.nanmax(log2, axis=1, keepdims=True), log2)
    cost -= cost.min(axis=1, keepdims=True)
    trial.unmeasured = int(np.argmin(cost.sum(axis=0)))
    covered = cost[:, 0] if trial.tried else np.full(len(cost), math.inf)
    while trial.left:
        pool = trial.untried
        if (covered <= cost[:, pool].min(axis=1)).all():
            covered = np.full(len(cost), math.inf)
        left = np.minimum(covered[:, None], cost[:, pool])
        pick = trial.best_first(pool, -left.sum(axis=0))[0]
        trial.measure(pick)
        covered = np.minimum(covered, cost[:, pick])


def trees_on_look_up(trial: Trial) -> None:
    prior = trial.case.history.mean()
    follow(trial, _looked_up(trial, prior), PROCESS_START)
    _follow_trees(trial, prior)


def process_on_look_up(trial: Trial) -> None:
    prior = trial.case.history.mean()
    follow(trial, _looked_up(trial, prior), PROCESS_START)
    _follow_process(trial, prior)


def hedge(trial: Trial) -> None:
    """Look-up at first, then in turns with the classifier."""
    order = _looked_up(trial, trial.case.history.mean(same_vendor=True))
    follow(trial, order, FOREST_START)
    while trial.left:
        pool = trial.untried
        half = max(1, batch(trial) // 2)
        follow(trial, trial.best_first(pool, chance_of_best(trial, pool)), len(trial.tried) + half)
        follow(trial, order, len(trial.tried) + half)


# By our own forecasts ---------------------------------------------------------------------------------------------------


def top_forecasts(trial: Trial) -> None:
    """In the order of the forecasts made before anything was measured."""
    follow(trial, _forecast_order(trial))


def top_forecasts_again(trial: Trial) -> None:
    """The best forecast of those left, forecast anew after each batch."""
    _forecast_order(trial)
    while trial.left:
        pool = trial.untried
        try_best(trial, pool, trial.forecast(trial.outcomes)[pool])


def _forecast_order(trial: Trial) -> list[int]:
    """All configs by what was expected of them at first; by chance, and no choice, where all forecasts abstained."""
    expected = trial.forecast({})
    order = trial.best_first(np.arange(expected.size), expected)
    trial.unmeasured = order[0] if expected.any() else 0
    return order


def by_kernel_tuner(strategy: str, trial: Trial) -> None:
    if trial.left:
        order, trial.broke = strategy_order(trial.case, strategy, trial.limit, trial.seed())
        follow(trial, order)


# All of them ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Method:
    """How to search, and on which terms.

    `history`: it needs recordings from elsewhere. `most`: it is not asked for more. `per_budget`: what it does depends on
    the budget, so that each is a run of its own. `forecasts`: it follows our own forecasts, so it is no baseline of theirs.
    """

    search: Callable[[Trial], None]
    history: bool = False
    most: int | None = None
    per_budget: bool = False
    forecasts: bool = False


METHODS = {
    "random": Method(search=random_search),
    "lfbo": Method(search=lfbo),
    "lfbo-neighbours": Method(search=lfbo_neighbours),
    "trees-lcb": Method(search=trees),
    "gp-ei": Method(search=process, most=PROCESS_MOST),
    "look-up": Method(search=partial(look_up, same_vendor=False), history=True),
    "look-up-vendor": Method(search=partial(look_up, same_vendor=True), history=True),
    "portfolio": Method(search=portfolio, history=True),
    "gp-on-look-up": Method(search=process_on_look_up, history=True, most=PROCESS_MOST),
    "trees-on-look-up": Method(search=trees_on_look_up, history=True),
    "hedge": Method(search=hedge, history=True),
    "top-forecast": Method(search=top_forecasts, forecasts=True),
    "top-forecast-again": Method(search=top_forecasts_again, forecasts=True),
    **{f"kt-{name}": Method(search=partial(by_kernel_tuner, name), per_budget=True) for name in STRATEGIES},
}
