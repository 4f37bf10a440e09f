from __future__ import annotations

import json
import math
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, astuple, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from recorded import HERE, measurement, recording, workload
from toy_prior import believing, following

pytest.importorskip("sklearn")

from calibration.fit import forest as fitting
from calibration.fit.forest import (
    WIDTH,
    Example,
    LeftOutErrors,
    Scores,
    corpus,
    fit,
    fit_and_score,
    fit_factors,
    fit_launches,
    fit_width,
    kernels_left_out,
    kind_card,
    main,
    mean_of,
    misses,
    prior_without,
    probabilities_and_speedups,
    read_example,
    score,
    sizes_left_out,
)
from calibration.fit.networks import fit_networks, kernel_weights
from forecast_autotune.core.config import Config
from forecast_autotune.core.job import Recording
from forecast_autotune.core.outcome import Failure
from forecast_autotune.errors import InvalidInputError
from forecast_autotune.evaluation.traces import write_trace
from forecast_autotune.surrogates.feature_columns import LAUNCH_FEATURES
from forecast_autotune.surrogates.prior import LEAST_WIDTH, SHIPPED, Width, read_prior, shipped_prior, width_columns

NONE_RAN = Failure(stage="launch", message="no")


def made(kernel: str, n: int, *, described: bool = True, exponent: float = 1.0, language: str = "triton") -> Recording:
    """A kernel whose time is its bound, to a power, at a size; more bound for fewer threads."""
    outcomes, told = {}, {}
    for threads in (32, 64, 128, 256, 512, 1024):
        for tile in (1, 2, 4, 8, 16):
            config = Config({"threads": threads, "tile": tile})
            bound = n / 64 * (1.0 + 512.0 / threads) * (1.0 + abs(math.log2(tile / 4)))
            outcomes[config] = measurement(bound**exponent)
            told[config] = {"us_bound": bound, "threads": float(threads), "per_thread": float(tile)}
    of = workload(n, kernel)
    return Recording(
        workload=replace(of, program=replace(of.program, language=language)),
        hardware=HERE,
        toolchain=recording().toolchain,
        default=next(iter(outcomes)),
        outcomes=outcomes,
        static_features=told if described else {},
    )


@pytest.fixture
def traces(tmp_path: Path) -> list[Path]:
    """Three kernels that say what their launches do, two sizes of one of them, and one that does not."""
    kernels = [made("one", 512), made("one", 4096), made("other", 512), made("third", 512)]
    kernels.append(made("plain", 512, described=False))
    paths = []
    for number, of in enumerate(kernels):
        paths.append(tmp_path / f"{of.workload.program.name}.{number}.jsonl.gz")
        write_trace(of, paths[-1])
    return paths


def examples(traces: list[Path]) -> list[Example]:
    return [read_example(path) for path in traces]


# Fitting ----------------------------------------------------------------------------------------------------------------


def test_a_trace_is_read_as_octaves_around_its_median(traces: list[Path]) -> None:
    one, plain = read_example(traces[0]), read_example(traces[4])
    assert (one.name, one.kernel) == ("one.0.jsonl.gz", "one")
    assert np.median(one.log2_time) == pytest.approx(0.0)
    assert one.features is not None
    assert len(one.features) == 30
    assert plain.features is None
    assert set(plain.broken) == {"few_threads", "large_block", "little_work"}


def test_a_failed_config_is_no_time(tmp_path: Path) -> None:
    of = made("one", 512)
    broken = replace(of, outcomes={c: NONE_RAN if i == 3 else o for i, (c, o) in enumerate(of.outcomes.items())})
    write_trace(broken, tmp_path / "t.jsonl.gz")
    assert np.flatnonzero(np.isnan(read_example(tmp_path / "t.jsonl.gz").log2_time)).tolist() == [3]


def test_trees_learn_what_examples_share_and_rank_an_unseen_kernel(traces: list[Path]) -> None:
    of = examples(traces)
    prior = fit(of[:3], trees=8)
    assert prior.fitted_on == ("one", "other")
    unseen = score(of[3], prior)
    assert unseen.rank_correlation is not None
    assert unseen.rank_correlation > 0.9
    assert unseen.top_10_percent == pytest.approx(1.0)
    assert unseen.default is not None
    assert unseen.first is not None
    assert 2.0 * unseen.first < unseen.default


def test_the_same_examples_give_the_same_model(traces: list[Path]) -> None:
    one, other = (fit(examples(traces), trees=5) for _ in range(2))
    for name in ("feature", "threshold", "left", "right", "value"):
        assert getattr(one, name).tolist() == getattr(other, name).tolist()
    assert one.factors == other.factors
    assert one.networks is not None
    assert other.networks is not None
    for (weights, biases), (same, and_same) in zip(one.networks.layers, other.networks.layers, strict=True):
        assert (weights == same).all()
        assert (biases == and_same).all()


def test_cuda_has_a_model_of_its_own_and_leaves_tritons_as_it_was(traces: list[Path], tmp_path: Path) -> None:
    """It is fitted on both. In these toys CUDA is the faster the longer its bound, so that the two models disagree."""
    for number, name in enumerate(("fourth", "fifth")):
        path = tmp_path / f"{name}.{number}.jsonl.gz"
        write_trace(made(name, 512, exponent=-3.0, language="cuda"), path)
        traces.append(path)
    without, both = fit(examples(traces[:5]), trees=6), fit(examples(traces), trees=6)
    assert without.cuda is None
    assert both.cuda is not None
    assert len(both.cuda.feature) == 2
    for name in ("feature", "threshold", "value"):
        assert getattr(both, name).tolist() == getattr(without, name).tolist()
    of_triton, of_cuda = examples([traces[2], traces[5]])
    forecasts = [both.of_launches(of.job.static_features, of.job) for of in (of_triton, of_cuda)]
    ours, theirs = (forecast.mean for forecast in forecasts if forecast is not None)
    assert np.corrcoef(ours, theirs)[0, 1] < 0.9
    assert misses(of_cuda, both).expected.tolist() != misses(of_cuda, without).expected.tolist()


def test_a_kernel_of_four_times_as_many_configs_counts_twice_as_much() -> None:
    weights = kernel_weights(np.repeat([0, 1, 2], [25, 100, 400]))
    assert [weights[:25].sum(), weights[25:125].sum(), weights[125:].sum()] == pytest.approx([5.0, 10.0, 20.0])
    alike = kernel_weights(np.repeat([0, 1], [25, 400]), 0.0)
    assert [alike[:25].sum(), alike[25:].sum()] == pytest.approx([1.0, 1.0])


def test_trees_weigh_kernels_by_the_root_of_their_configs(traces: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fitting, "KERNELS_SEEN", 1.0)
    one, _, other, *_ = examples(traces)
    # Nothing tells the configs apart, so all that trees learn is the mean over both kernels.
    of = [
        replace(e, features=np.zeros((n, len(LAUNCH_FEATURES))), log2_time=np.full(n, y))
        for e, n, y in ((one, 16, 1.0), (other, 144, 0.0))
    ]
    expected = fit_launches(of, trees=4).each_tree(np.zeros((1, len(LAUNCH_FEATURES))))
    assert expected == pytest.approx(0.25, abs=0.01)
    alike = fit_launches(of, trees=4, power=0.0).each_tree(np.zeros((1, len(LAUNCH_FEATURES))))
    assert alike == pytest.approx(0.5, abs=0.01)


def test_networks_learn_across_kernels_each_weighted_by_root_of_configs() -> None:
    draw = np.random.default_rng(0)
    x = draw.normal(0, 2, (8000, len(LAUNCH_FEATURES)))
    y = 0.7 * x[:, 3] - 0.4 * abs(x[:, 5])
    of_kernel = np.repeat([0, 1, 2, 3], 2000)
    found = fit_networks(x[:6000], y[:6000], of_kernel[:6000], count=3, seen=0.7, seed=0)
    assert np.corrcoef(found.expected(x[6000:]).mean(axis=0), y[6000:])[0, 1] > 0.9
    # 400 configs of one kernel say one thing, 3,200 of two others another: roots of 20, 40 and 40.
    told = np.zeros((3600, len(LAUNCH_FEATURES)))
    answers = np.repeat([3.0, 0.0], [400, 3200])
    alone = fit_networks(told, answers, np.repeat([0, 1, 2], [400, 1600, 1600]), count=4, seen=1.0, seed=0)
    assert alone.expected(told[:1]).mean() == pytest.approx(0.6, abs=0.12)


def test_examples_without_launches_teach_the_rules_alone(traces: list[Path]) -> None:
    plain = read_example(traces[4])
    prior = fit([plain], trees=5)
    assert prior.feature.size == 0
    assert prior.factors["few_threads"].mean > fit_factors([])["few_threads"].mean  # it is slower there than believed
    assert prior.factors["ragged"] == fit_factors([])["ragged"]  # of which it says nothing


def test_no_traces_are_refused() -> None:
    with pytest.raises(InvalidInputError, match="make record"):
        fit([])


def missed(sigma_of: Callable[[np.ndarray, np.ndarray], np.ndarray], seed: int) -> LeftOutErrors:
    """A space where what was measured lies around what was expected as a rule has it."""
    draw = np.random.default_rng(seed)
    expected, disagreement = draw.normal(0, draw.uniform(0.2, 2.0), 60), draw.uniform(0.1, 2.0, 60)
    return LeftOutErrors(
        columns=width_columns(expected, disagreement),
        expected=np.median(expected) - expected,
        measured=np.median(expected) - expected + draw.normal(0, sigma_of(expected, disagreement)),
    )


@pytest.mark.parametrize("rule", [Width(-0.7), Width(-0.5, 0.8), Width(0.0, 0.2, 0.7), Width(0.2, 0.3, 0.2, 0.6)])
def test_the_width_comes_near_the_rule_by_which_forecasts_missed(rule: Width) -> None:
    found = fit_width([(f"kernel {seed}", missed(rule.sigma, seed)) for seed in range(150)])
    unseen = missed(rule.sigma, 1000).columns
    near = np.exp(unseen @ np.array(astuple(found))) / np.exp(unseen @ np.array(astuple(rule)))
    assert 0.75 < near.min() <= near.max() < 1.35


def test_a_width_is_fitted_only_as_far_as_it_is_read() -> None:
    found = fit_width([(f"kernel {seed}", missed(Width(0.0, distance=-3.0).sigma, seed)) for seed in range(20)])
    assert found.distance == LEAST_WIDTH.distance


def test_without_anything_left_out_the_width_is_the_usual_one() -> None:
    assert fit_width([]) == WIDTH


def test_what_trees_miss_is_separated_from_a_common_offset(traces: list[Path]) -> None:
    one = read_example(traces[0])
    found = misses(one, following(step=0.05))
    assert len(found.measured) == 30
    # Its trees say log2 of the bound plus a half: what is missed is their steps.
    assert abs(found.measured - found.expected).max() < 0.1


def test_honesty_is_told_by_kind_over_all_configs_of_it(traces: list[Path]) -> None:
    of = examples(traces)
    everywhere = {i: probabilities_and_speedups(example, following(step=0.05)) for i, example in enumerate(of)}
    card = kind_card(of, everywhere)
    assert list(card) == ["one tile each", "not described"]
    told: Any = card["one tile each"]
    assert (told["kernels"], told["configs"]) == (3, 120)
    assert told["brier_skill"] > 0.5


# Leaving out ------------------------------------------------------------------------------------------------------------


def test_each_kernel_and_each_of_several_sizes_is_left_out_once(traces: list[Path]) -> None:
    of = examples(traces)
    assert kernels_left_out(of) == [{0, 1}, {2}, {4}, {3}]  # one, other, plain, third
    assert sizes_left_out(of) == [{0}, {1}]
    assert sizes_left_out(of[2:]) == []


def test_a_ranking_with_a_failing_config_first_falls_back_on_the_default(traces: list[Path]) -> None:
    one = read_example(traces[0])
    best = int(np.nanargmin(one.log2_time))
    times = one.log2_time.copy()
    times[best] = np.nan
    prior = following(step=0.05)
    ran, failed = score(one, prior), score(replace(one, log2_time=times), prior)
    assert ran.first == pytest.approx(1.0)
    assert failed.first == failed.top_1_percent == failed.default


def test_kernels_that_nothing_is_known_of_are_scored_as_that(traces: list[Path]) -> None:
    found = score(read_example(traces[4]), believing({}))
    assert found.rank_correlation is None
    assert found.first == found.default


def test_slowdowns_are_averaged_as_factors() -> None:
    one = Scores(
        rank_correlation=0.5,
        top_1_percent=1.0,
        top_10_percent=1.0,
        top_50_percent=1.0,
        first=2.0,
        default=None,
        ece=0.1,
        brier_skill=-0.2,
    )
    found = mean_of([one, replace(one, rank_correlation=None, first=8.0, ece=0.3)])
    assert (found.rank_correlation, found.first, found.default, found.ece) == (0.5, 4.0, None, 0.2)


def test_the_card_scores_what_was_left_out(traces: list[Path]) -> None:
    prior, card, unseen = fit_and_score(traces, trees=4)
    assert card["data"] == {
        "traces": {
            "one": ["one.0.jsonl.gz", "one.1.jsonl.gz"],
            "other": ["other.2.jsonl.gz"],
            "plain": ["plain.4.jsonl.gz"],
            "third": ["third.3.jsonl.gz"],
        },
        "without_launches": ["plain.4.jsonl.gz"],
        "hardware": ["A (80 SMs)"],
        "configs": 150,
        "failed": 0,
    }
    assert card["width"] == asdict(prior.width)
    by_kernel, by_size = card["kernels_left_out"], card["sizes_left_out"]
    assert isinstance(by_kernel, dict)
    assert isinstance(by_size, dict)
    assert (by_kernel["traces"], by_size["traces"]) == (5, 2)
    assert list(by_kernel["by_kernel"]) == ["one", "other", "plain", "third"]
    assert list(by_size["by_kernel"]) == ["one"]
    without = fit(examples([traces[i] for i in (0, 1, 2, 4)]), trees=4)
    by_hand = score(read_example(traces[3]), replace(without, width=prior.width))
    assert by_kernel["by_kernel"]["third"]["rank_correlation"] == pytest.approx(by_hand.rank_correlation, abs=1e-4)
    assert {kernel: kernel in prior.fitted_on for kernel, prior in unseen.items()} == dict.fromkeys(
        ("one", "other", "plain", "third"), False
    )


def test_where_every_kernel_has_one_size_no_size_is_left_out(traces: list[Path]) -> None:
    assert fit_and_score(traces[1:], trees=2)[1]["sizes_left_out"] is None


# The command ------------------------------------------------------------------------------------------------------------


def test_the_command_writes_a_model_that_is_read_and_prints_its_card(
    traces: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "model.json"
    words = [*map(str, traces), "--to", str(target), "--trees", "3", "--jobs", "1"]
    assert main([*words, "--json"]) == 0
    told = capsys.readouterr()
    assert json.loads(told.out) == json.loads(target.read_text())["card"]
    assert "fit: 7 of 7 models" in told.err
    assert f"wrote {target}" in told.err
    assert read_prior(target).fitted_on == ("one", "other", "plain", "third")
    before = target.read_bytes()
    assert main([*words, "--left-out", str(tmp_path / "unseen")]) == 0
    out = capsys.readouterr().out
    assert target.read_bytes() == before
    assert read_prior(tmp_path / "unseen" / "third.json").fitted_on == ("one", "other", "plain")
    assert [line.split("  ")[0].strip() or line.split()[0] for line in out.splitlines()][:2] == [
        "left out",
        "kernels left out",
    ]
    assert "third" in out


@pytest.mark.thorough
def test_several_processes_write_the_same_model(traces: list[Path], tmp_path: Path) -> None:
    alone, together = tmp_path / "alone.json", tmp_path / "together.json"
    for target, jobs in ((alone, "1"), (together, "2")):
        words = [*map(str, traces), "--to", str(target), "--trees", "2", "--jobs", jobs]
        done = subprocess.run(
            [sys.executable, "-m", "calibration", "fit", *words],
            capture_output=True,
            text=True,
            check=False,
            cwd=Path(fitting.__file__).parents[2],
        )
        assert done.returncode == 0, done.stderr
    assert alone.read_bytes() == together.read_bytes()


def test_the_shipped_model_is_never_overwritten_by_other_traces(
    traces: list[Path], capsys: pytest.CaptureFixture[str]
) -> None:
    before = SHIPPED.stat().st_mtime_ns
    with pytest.raises(SystemExit) as left:
        main([str(traces[0])])
    assert left.value.code == 2
    assert "--to" in capsys.readouterr().err
    assert SHIPPED.stat().st_mtime_ns == before


def refused(capsys: pytest.CaptureFixture[str], *words: object) -> str:
    assert main([*map(str, words), "--jobs", "1", "--trees", "2"]) == 2
    return capsys.readouterr().err


def test_too_few_kernels_are_refused_with_what_there_is(
    traces: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "m.json"
    told = refused(capsys, *traces[:3], "--to", target)
    assert "3 traces are of 2 kernels (one, other)" in told
    assert not target.exists()


def test_a_missing_folder_is_made_and_only_the_model_is_left_in_it(traces: list[Path], tmp_path: Path) -> None:
    target = tmp_path / "new" / "model.json"
    assert main([*map(str, traces), "--to", str(target), "--trees", "2", "--jobs", "1"]) == 0
    assert list(target.parent.iterdir()) == [target]


def test_a_model_that_would_grow_too_large_is_not_written(
    traces: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fitting, "MAX_BYTES", 1000)
    target = tmp_path / "m.json"
    target.write_text("as it was")
    assert "of 1000 it may: fit fewer than 2 trees" in refused(capsys, *traces, "--to", target)
    assert target.read_text() == "as it was"


def test_what_is_no_trace_is_refused_by_name(
    traces: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "poem.jsonl").write_text("roses are red\n")
    assert "poem.jsonl" in refused(capsys, *traces, tmp_path / "poem.jsonl", "--to", tmp_path / "m.json")
    assert "nothing.jsonl" in refused(capsys, *traces, tmp_path / "nothing.jsonl", "--to", tmp_path / "m.json")


# The suite's own --------------------------------------------------------------------------------------------------------


@pytest.fixture
def small_suite(monkeypatch: pytest.MonkeyPatch, traces: list[Path], tmp_path: Path) -> Iterator[Path]:
    """These traces for the suite's, and the folder where models without a kernel are kept."""
    monkeypatch.setattr(fitting, "corpus_paths", lambda: tuple(traces))
    monkeypatch.setattr(fitting, "TRACES", traces[0].parent)
    monkeypatch.setattr(fitting, "LEFT_OUT", tmp_path / "kept")
    for kept in (prior_without, fitting._fit_digest):
        kept.cache_clear()
    yield tmp_path / "kept"
    for kept in (prior_without, fitting._fit_digest):
        kept.cache_clear()


def test_a_model_without_a_kernel_of_the_suite_does_not_know_it(small_suite: Path) -> None:
    found = prior_without("other")
    assert found is not None
    assert found.fitted_on == ("one", "plain", "third")
    another = prior_without("other", 1)
    assert another is not None
    assert another.fitted_on == found.fitted_on
    assert not np.array_equal(another.threshold, found.threshold)


def test_kernels_of_a_round_are_left_out_together_by_one_fit(
    small_suite: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fitting, "KERNEL_ROUNDS", 2)
    found = [prior_without(kernel) for kernel in ("one", "plain", "other", "third")]
    assert [each.fitted_on for each in found if each is not None] == [("other", "third")] * 2 + [("one", "plain")] * 2
    assert len(list(small_suite.iterdir())) == 2


def test_a_model_fitted_without_a_kernel_is_kept_and_refitted_if_broken(
    small_suite: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fitted: list[int] = []
    real = fitting.fit
    monkeypatch.setattr(fitting, "fit", lambda some, seed: (fitted.append(len(some)), real(some, seed=seed))[1])
    first = prior_without("other")
    (kept,) = small_suite.iterdir()
    text = kept.read_text()
    prior_without.cache_clear()
    again = prior_without("other")
    assert fitted == [4]
    kept.write_text(text[:100])
    prior_without.cache_clear()
    anew = prior_without("other")
    assert fitted == [4, 4]
    assert kept.read_text() == text
    assert first is not None
    for other in (again, anew):
        assert other is not None
        assert other.value.tolist() == first.value.tolist()


def test_a_kernel_that_is_not_of_the_suite_leaves_the_shipped_model() -> None:
    assert prior_without("dance") is None


@pytest.mark.slow
def test_the_shipped_model_is_what_the_suites_recordings_give() -> None:
    fitted, found = fit(corpus()), shipped_prior()
    assert (fitted.fitted_on, fitted.factors) == (found.fitted_on, found.factors)
    for name in ("feature", "left", "right"):
        assert getattr(fitted, name).tolist() == getattr(found, name).tolist()
    assert np.abs(fitted.value - found.value).max() < 1e-3
    assert fitted.networks is not None
    assert found.networks is not None
    some = np.vstack([e.features for e in corpus()[::40] if e.features is not None])
    of_both = (networks.expected(some).mean(axis=0) for networks in (fitted.networks, found.networks))
    assert np.corrcoef(*of_both)[0, 1] > 0.9  # their last digits depend on the machine's arithmetic
