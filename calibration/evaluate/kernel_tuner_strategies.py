"""Kernel Tuner's own strategies, played in its simulation mode against a recorded space."""

from __future__ import annotations

import contextlib
import importlib
import json
import random
import signal
import tempfile
import threading
import warnings
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any
from unittest.mock import patch

import numpy as np

from .trials import Case

STRATEGIES = ("genetic_algorithm", "simulated_annealing", "bayes_opt", "greedy_ils", "pso", "diff_evo")
PATIENCE_S = 60  # and another for each config: its Bayesian optimisation takes 110 s for 1,113 among 11,130
REPEATS = 1000  # evaluations without a new config after which a strategy is stopped: some would go on for good
KERNEL = "recorded"  # a name and a source that nothing is made of


class TookTooLongError(Exception):
    """A strategy did not end."""


class Watched:
    """A strategy as Kernel Tuner lets one hand it in; notes what it has evaluated, each config once and in order."""

    def __init__(self, strategy: str, seed: int) -> None:
        self.strategy = strategy
        self.seed = seed
        self.order: dict[tuple[int, ...], None] = {}
        self.repeats = 0
        self.broke = ""

    def tune(self, searchspace: Any, runner: Any, options: Any) -> Any:
        from kernel_tuner.util import StopCriterionReached
        from scipy.stats import qmc

        evaluate = runner.run

        def run(configs: Any, options: Any) -> Any:
            results = evaluate(configs, options)
            for config, result in zip(configs, results, strict=True):
                if result is not None:
                    known = len(self.order)
                    self.order[tuple(config)] = None
                    self.repeats = 0 if len(self.order) > known else self.repeats + 1
            if self.repeats > REPEATS:
                raise StopCriterionReached(f"{self.repeats} evaluations brought no new config")
            return results

        runner.run = run
        module = importlib.import_module(f"kernel_tuner.strategies.{self.strategy}")
        seeded = partial(qmc.LatinHypercube, rng=self.seed)  # which draws from a generator of its own
        try:
            with (
                patch.object(qmc, "LatinHypercube", seeded),
                patch.object(module, "LatinHypercube", seeded, create=True),
            ):
                return module.tune(searchspace, runner, options)
        except StopCriterionReached:
            return []  # with its very first evaluation
        except (IndexError, TypeError, ValueError) as err:
            self.broke = repr(err)  # as where a config of a sampled space has no neighbour, or few are left
            return []


def strategy_order(case: Case, strategy: str, limit: int, seed: int) -> tuple[list[int], str]:
    """The configs that a strategy asks for when it may evaluate so many, in its order, each once; and how it broke down.

    A knob is its position among its values, for several strategies reckon with numbers. Fewer may come back: the annealing
    schedule and the number of generations end by themselves, and a strategy that comes back to the same few is stopped.

    Raises:
        TookTooLongError: it did not end; only looked for in a process's main thread.
    """
    import kernel_tuner

    rows: list[list[int]] = case.levels.tolist()
    position = {tuple(row): i for i, row in enumerate(rows)}
    names = [f"knob{k}" for k in range(case.levels.shape[1])]
    if not names:
        return list(range(len(rows))), ""
    values = {name: sorted(set(column)) for name, column in zip(names, zip(*rows, strict=True), strict=True)}

    def recorded(knobs: dict[str, int]) -> bool:
        return tuple(knobs.values()) in position

    watched = Watched(strategy, seed)
    with tempfile.TemporaryDirectory() as folder, _drawing_from(seed), _no_longer_than(PATIENCE_S + limit):
        cache = Path(folder) / "cache.json"
        cache.write_text(json.dumps(_cache(case, rows, names, values)))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            kernel_tuner.tune_kernel(
                KERNEL,
                "",
                1,
                [],
                values,
                lang="C",
                restrictions=[recorded] if len(names) > 1 else None,
                simulation_mode=True,
                cache=str(cache),
                strategy=watched,
                strategy_options={"max_fevals": limit},
                quiet=True,
            )
    return [position[row] for row in watched.order], watched.broke


def _cache(case: Case, rows: list[list[int]], names: list[str], values: dict[str, list[int]]) -> dict[str, object]:
    """The recording as the file of an earlier run."""

    def entry(row: list[int], log2_us: float) -> dict[str, object]:
        time = float(2.0**log2_us) if np.isfinite(log2_us) else "RuntimeFailedConfig"
        return {**dict(zip(names, row, strict=True)), "time": time}

    entries = (entry(row, log2_us) for row, log2_us in zip(rows, case.log2_us.tolist(), strict=True))
    return {
        "device_name": "recorded",
        "kernel_name": KERNEL,
        "problem_size": 1,
        "tune_params_keys": names,
        "tune_params": values,
        "objective": "time",
        "cache": {",".join(map(str, row)): e for row, e in zip(rows, entries, strict=True)},
    }


@contextlib.contextmanager
def _drawing_from(seed: int) -> Iterator[None]:
    """Its strategies draw from both global generators: seed them, and put them back."""
    before, before_numpy = random.getstate(), np.random.get_state()  # theirs are the global ones
    random.seed(seed)
    np.random.seed(seed)
    try:
        yield
    finally:
        random.setstate(before)
        np.random.set_state(before_numpy)


@contextlib.contextmanager
def _no_longer_than(seconds: int) -> Iterator[None]:
    def give_up(_signal: int, _frame: FrameType | None) -> None:
        raise TookTooLongError(f"no end after {seconds} s")

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGALRM, give_up)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
