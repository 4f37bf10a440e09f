"""What training makes small, what it is shown, and what it is kept from: all that needs no transformers."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from recorded import HERE, measurement, recording

from calibration.fit.train import split
from calibration.fit.training.loop import Batches, Plan, nll_at
from calibration.fit.training.objectives import OBJECTIVES, loss_of
from calibration.fit.training.rewards import REWARDS
from calibration.fit.training.spaces import prompts_of
from forecast_autotune.core.outcome import Measurement
from forecast_autotune.core.workload import Program
from forecast_autotune.errors import InvalidInputError
from forecast_autotune.evaluation.recorded_space import RecordedSpace

SIZES = (1024, 4096, 16384, 65536)
DEVICES = ("A", "B", "C")
KERNELS = tuple(f"kernel_{i}" for i in range(12))


def space(kernel: str, n: int, device: str, *, best_block: float = 7.0) -> RecordedSpace:
    found = recording(hardware=replace(HERE, name=device), n=n, best_block=best_block)
    program = Program(name=kernel, language="cuda", source=f"void {kernel}();")
    found = replace(found, workload=replace(found.workload, program=program))
    return RecordedSpace(name=f"{kernel}.{n}.{device}", recording=found)


@pytest.fixture(scope="module")
def spaces() -> tuple[RecordedSpace, ...]:
    found = (space(k, n, d) for k, n, d in itertools.product(KERNELS, SIZES, DEVICES))
    return tuple(sorted(found, key=lambda s: s.name))


class Letters:
    """A tokenizer to which each character is a token."""

    def __call__(self, texts: Sequence[str], **_: object) -> dict[str, Any]:
        return {"input_ids": [[ord(c) for c in text] for text in texts]}


# What is made small ------------------------------------------------------------------------------------------------------

TRUE = torch.tensor([0.02, 0.05, 0.08, 0.15, 0.40, 0.18, 0.10, 0.02], dtype=torch.float64)


def minimum(objective: str) -> torch.Tensor:
    """The distribution at which the mean of an objective over outcomes drawn from TRUE is least, by its gradient."""
    logits = torch.zeros(8, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.LBFGS(
        [logits], max_iter=500, tolerance_grad=1e-12, tolerance_change=1e-16, line_search_fn="strong_wolfe"
    )

    def expected() -> torch.Tensor:
        optimizer.zero_grad()
        losses = [loss_of(objective, logits[None], torch.tensor([label])) for label in range(8)]
        found = (TRUE * torch.stack(losses)).sum()
        found.backward()
        return found

    for _ in range(20):
        optimizer.step(expected)
    return logits.detach().softmax(-1)


@pytest.mark.parametrize("objective", ["nll", "brier", "crps"])
def test_a_proper_score_is_least_at_the_truth(objective: str) -> None:
    assert torch.allclose(minimum(objective), TRUE, atol=1e-4)


def test_adding_correctness_to_brier_rewards_more_certainty_than_is_true() -> None:
    """It is the projection on the simplex of 2 q: max(1.5 q - t, 0) with the t at which it sums to 1."""
    low, high = 0.0, 1.0
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if (2 * TRUE - middle).clamp(min=0).sum() > 1 else (low, middle)
    projected = (2 * TRUE - low).clamp(min=0)
    found = minimum("brier+correct")
    assert torch.allclose(found, projected, atol=2e-3)
    assert found.max() > 1.2 * TRUE.max()


def test_objectives_are_what_their_sources_say_of_one_forecast() -> None:
    p = TRUE.numpy()
    expected = {
        "nll": -math.log(p[2]),
        "brier": 0.5 * sum((p[i] - (i == 2)) ** 2 for i in range(8)),
        "crps": sum((p[: i + 1].sum() - (i >= 2)) ** 2 for i in range(7)) / 7,
    }
    expected["brier+correct"] = expected["brier"] - p[2]
    assert set(expected) == set(OBJECTIVES)
    for objective, value in expected.items():
        assert float(loss_of(objective, TRUE.log()[None], torch.tensor([2]))) == pytest.approx(value, abs=1e-9)


def test_an_unknown_objective_is_refused_with_those_there_are() -> None:
    with pytest.raises(InvalidInputError, match="'accuracy': accepted are nll, brier, crps"):
        Plan(objective="accuracy")


# Rewards of written answers ----------------------------------------------------------------------------------------------


def answer(percent: Sequence[int]) -> str:
    said = ", ".join(f'"{label}": {n}' for label, n in zip("ABCDEFGH", percent, strict=True))
    return f'{{"reasoning": "", {said}}}'


def test_a_certain_right_answer_earns_most_and_an_unreadable_one_nothing() -> None:
    certain = answer([0, 0, 100, 0, 0, 0, 0, 0])
    assert [REWARDS[name](certain, 2) for name in ("correct", "brier", "crps")] == [1, 2, 2]
    for unreadable in ("", "I think it is faster", certain[:-1], certain + ".", answer([0] * 8), '{"A": 100}'):
        assert [reward(unreadable, 2) for reward in REWARDS.values()] == [0, 0, 0]


def test_rewards_are_what_the_paper_says_of_an_unsure_answer() -> None:
    text = answer([0, 0, 60, 40, 0, 0, 0, 0])
    assert [REWARDS["correct"](text, measured) for measured in (2, 3)] == [1, 0]
    half_brier = 0.5 * (0.4**2 + 0.4**2), 0.5 * (0.6**2 + 0.6**2)
    assert REWARDS["brier"](text, 2) == pytest.approx(1 + 1 - half_brier[0])
    assert REWARDS["brier"](text, 3) == pytest.approx(0 + 1 - half_brier[1])
    assert REWARDS["crps"](text, 2) == pytest.approx(1 + 1 - 0.4**2 / 7)
    assert REWARDS["crps"](text, 5) == pytest.approx(0 + 1 - (0.6**2 + 1 + 1) / 7)


def test_the_true_answer_earns_most_unless_only_correctness_is_rewarded() -> None:
    """Unlike in a loss over logits: a written answer is right or wrong as a whole, whatever its confidence."""
    true = np.array([0, 0, 10, 20, 50, 15, 5, 0])
    sharp = np.array([0, 0, 0, 0, 100, 0, 0, 0])

    def expected(reward: str, percent: np.ndarray[Any, Any]) -> float:
        text = answer(percent.tolist())
        return float(sum(share / 100 * REWARDS[reward](text, b) for b, share in enumerate(true)))

    assert expected("correct", sharp) == expected("correct", true)
    for reward in ("brier", "crps"):
        assert expected(reward, true) > expected(reward, sharp) + 0.01


# What is left out --------------------------------------------------------------------------------------------------------


ROUNDS = [f"{way}:{i}/3" for way in ("sizes", "kernels", "hardware") for i in range(3)]


@pytest.mark.parametrize(
    "asked", [[one] for one in ROUNDS] + [["sizes:0/3", "kernels:1/3"], ["sizes:0/3", "hardware:1/3"]]
)
def test_what_is_left_out_is_neither_learned_nor_chosen_on(spaces: tuple[RecordedSpace, ...], asked: list[str]) -> None:
    found = split(spaces, asked)
    parts = [found.learned, found.chosen_on, *found.left_out.values()]
    names = [s.name for part in parts for s in part]
    assert found.learned
    assert all(found.left_out.values())
    assert len(names) == len(set(names))
    assert len(asked) > 1 or len(names) == len(spaces)


@pytest.mark.parametrize("more", [[], ["sizes:1/3"]])
@pytest.mark.parametrize(("way", "what"), [("kernels", "kernel"), ("hardware", "hardware")])
def test_what_is_left_out_whole_is_met_nowhere_else(
    spaces: tuple[RecordedSpace, ...], way: str, what: str, more: list[str]
) -> None:
    for fold in range(3):
        found = split(spaces, [f"{way}:{fold}/3", *more])
        met = {getattr(s, what) for part in (found.learned, found.chosen_on) for s in part}
        assert met
        assert not met & {getattr(s, what) for s in found.left_out[way]}


def test_of_what_is_left_out_by_size_the_same_kernel_is_known(spaces: tuple[RecordedSpace, ...]) -> None:
    """Judged under `sizes` is what it says: what is left out in another way too is judged in neither."""
    found = split(spaces, ["sizes:0/3", "kernels:1/3"])
    assert {s.kernel for s in found.left_out["sizes"]} <= {s.kernel for s in found.learned}


@pytest.mark.parametrize("way", ["sizes", "kernels", "hardware"])
def test_every_space_is_left_out_once(spaces: tuple[RecordedSpace, ...], way: str) -> None:
    rounds = [[s.name for s in split(spaces, [f"{way}:{i}/3"]).left_out[way]] for i in range(3)]
    assert sorted(itertools.chain(*rounds)) == [s.name for s in spaces]


@pytest.mark.parametrize("asked", ["sizes", "sizes:1", "weeks:0/2", "sizes:2/2", "sizes:a/b", "hardware:3/9"])
def test_a_way_of_leaving_out_that_makes_no_sense_is_refused(spaces: tuple[RecordedSpace, ...], asked: str) -> None:
    with pytest.raises(InvalidInputError, match="leave"):
        split(spaces, [asked])


@pytest.mark.parametrize("asked", ["sizes:0/4", "kernels:0/4", "hardware:0/3"])
def test_a_prompt_tells_nothing_of_the_times_of_its_own_space(spaces: tuple[RecordedSpace, ...], asked: str) -> None:
    found = split(spaces, [asked])
    ((own, *_),) = found.left_out.values()
    outcomes = {
        config: measurement(1e6 / o.median_us) if isinstance(o, Measurement) else o
        for config, o in own.recording.outcomes.items()
    }
    other = RecordedSpace(name=own.name, recording=replace(own.recording, outcomes=outcomes))
    reference = own.median
    assert own.bins(reference) != other.bins(reference)
    for known in ((*found.learned, *found.chosen_on), (*spaces,)):  # the second with itself among those known
        told, told_otherwise = (
            prompts_of(
                s,
                reference,
                range(len(s.job.space)),
                4_500,
                known=tuple(s if k.name == s.name else k for k in known),
                mined=tuple(s if k.name == s.name else k for k in known),
            )
            for s in (own, other)
        )
        assert told == told_otherwise
        # The comparison can fail: what is known of others is told.
        assert told != prompts_of(own, reference, range(len(own.job.space)), 4_500)


# Batches -----------------------------------------------------------------------------------------------------------------


def test_the_same_number_gives_the_same_batch_and_another_gives_another(spaces: tuple[RecordedSpace, ...]) -> None:
    plan = Plan(spaces=2, configs=5, steps=10)
    first, again = (Batches(spaces[:20], Letters(), plan) for _ in range(2))
    assert first[1] != again[7]
    assert [first[step] for step in (7, 1)] == [again[step] for step in (7, 1)]
    assert first[1] != Batches(spaces[:20], Letters(), replace(plan, seed=1))[1]


def test_a_batch_is_labelled_with_what_was_measured() -> None:
    """Where a block that is twice as large is 0.9 octaves faster, a prompt's own words say which bin is right."""
    outcomes = {c: measurement(1000 / float(str(c.knobs["block"])) ** 0.9) for c in recording().outcomes}
    one = space("kernel", 4096, "A")
    one = RecordedSpace(name="one", recording=replace(one.recording, outcomes=outcomes))
    batches = Batches([one], Letters(), Plan(spaces=1, configs=20, steps=5))
    met = set()
    for rows, bins in (part for step in range(5) for part in batches[step]):
        for row, found in zip(rows, bins, strict=True):
            factor = re.search(r"changed: .*block \d+ -> \d+ \(x([\d.]+)\)", "".join(map(chr, row)))
            octaves = 0.9 * round(math.log2(float(factor[1]))) if factor else 0.0
            assert found == sum(octaves > edge for edge in (-2, -1, -0.5, 0, 0.5, 1, 2))
            met.add(found)
    assert len(met) >= 6


def test_the_likelihood_held_back_weighs_each_space_alike() -> None:
    sure = np.array([[10.0, *[0.0] * 7]])
    forecasts = [(np.repeat(sure, 9, axis=0), np.zeros(9, dtype=int)), (np.zeros((1, 8)), np.array([3]))]
    assert nll_at(forecasts, 1.0) == pytest.approx(math.log(8) / 2, abs=1e-3)
    assert nll_at(forecasts, 1e6) == pytest.approx(math.log(8), abs=1e-3)  # so hot that all are alike
