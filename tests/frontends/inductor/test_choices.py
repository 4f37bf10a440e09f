"""Inductor's own candidates, narrowed: real lowering, listing and rendering; only the times are given."""

from __future__ import annotations

import math
import os
import shutil
import subprocess
import sys
import textwrap
import threading
import time
import warnings
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from rehearsed_inductor import Timed, as_another_process, decisions, lowered, names, product, store
from torch._inductor import config as inductor_config
from torch._inductor import select_algorithm
from torch._inductor.async_compile import AsyncCompile
from torch._inductor.choices import InductorChoices
from torch._inductor.ir import MultiTemplateBuffer
from torch._inductor.scheduler import FusionResult, Scheduler
from torch._inductor.virtualized import V
from torch.compiler import config as compiler_config

import forecast_autotune as fa
from forecast_autotune.cli import doctor, main
from forecast_autotune.core.budget import TotalSpent
from forecast_autotune.core.forecast import Forecast
from forecast_autotune.core.hardware import Hardware
from forecast_autotune.core.outcome import Failure, Measurement
from forecast_autotune.errors import TuningWarning
from forecast_autotune.frontends import deciding
from forecast_autotune.frontends.inductor import candidates, choices, hook, narrowing, product_candidates
from forecast_autotune.frontends.inductor import request as product_request
from forecast_autotune.frontends.inductor.product import Product, fits, is_too_small
from forecast_autotune.remote.fleet_store import FleetStore

pytestmark = [  # torch's own
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings(r"ignore::UserWarning:torch\..*"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore:Could not find an active CPU backend"),
]


@pytest.mark.parametrize(("text", "budget"), [("2", 2), ("4", 4), ("30s", 4), ("1%", 7)])
def test_the_library_and_the_best_forecasts_are_timed(timed: Timed, monkeypatch: Any, text: str, budget: int) -> None:
    monkeypatch.setenv("FORECAST_AUTOTUNE_BUDGET", text)
    product()
    (listed,) = timed.lists
    assert names(listed)[0] == "mm"
    assert len(listed) == 1 + budget
    assert choices.narrowing.counts.candidates > 300


def test_what_inductor_timed_is_stored_with_the_forecast_before_it(timed: Timed) -> None:
    timed.ms = lambda place: float("inf") if place == 2 else 0.3 - 0.01 * place
    product()
    (stored,) = decisions()
    decision = stored.decision
    assert stored.tuning_key.workload.program.name == "inductor.mm"
    assert decision.basis == "measured"
    assert decision.config_us == pytest.approx(260.0)
    assert decision.default_us == pytest.approx(300.0)
    touched = store().detail(stored).touched
    assert all(isinstance(each.forecast, Forecast) for each in touched)
    outcomes = [each.outcome for each in touched]
    assert sum(isinstance(o, Measurement) for o in outcomes) == 4
    assert [o.transient for o in outcomes if isinstance(o, Failure)] == [True]


def test_a_product_that_is_decided_goes_on_alone_and_is_not_timed(timed: Timed, monkeypatch: Any) -> None:
    timed.ms = lambda place: 0.3 - 0.01 * place
    product()
    product()
    as_another_process(monkeypatch)
    product()
    assert len(timed.lists) == 1
    assert choices.narrowing.counts.recalled == 1
    product(m=512)
    assert len(timed.lists) == 2


def test_what_is_decided_is_not_described_for_forecasts(timed: Timed, monkeypatch: Any) -> None:
    product()
    as_another_process(monkeypatch)
    monkeypatch.setattr(product_candidates, "product_features", lambda *_: 1 // 0)
    product()
    assert choices.narrowing.counts.recalled == 1
    assert product_request.stood_aside() == ""


def test_packs_are_part_of_the_keys_of_inductors_caches(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    cache_name = product_request.cache_name
    monkeypatch.setenv("FORECAST_AUTOTUNE_DIR", str(tmp_path / "store"))
    known = {cache_name()}
    for name, text in (("a", "one"), ("b", "another"), ("c", "one")):
        (tmp_path / name).write_text(text)
        monkeypatch.setenv("FORECAST_AUTOTUNE_PACKS", str(tmp_path / name))
        known.add(cache_name())
    assert len(known) == 3
    (tmp_path / "c").write_text("another")  # as where it is written anew
    assert cache_name() in known
    (tmp_path / "c").unlink()
    assert cache_name() not in known


def test_nothing_is_timed_where_the_store_was_shipped_as_a_pack(timed: Timed, monkeypatch: Any, tmp_path: Path) -> None:
    product()
    store().export(tmp_path / "pack.jsonl")
    monkeypatch.setenv("FORECAST_AUTOTUNE_DIR", str(tmp_path / "second machine"))
    monkeypatch.setenv("FORECAST_AUTOTUNE_PACKS", str(tmp_path / "pack.jsonl"))
    as_another_process(monkeypatch)
    product()
    assert choices.narrowing.counts.recalled == 1
    assert len(timed.lists) == 1


@pytest.mark.parametrize("mode", ["tune", "cached"])
def test_a_pack_behind_a_url_is_read_before_anything_is_chosen(
    timed: Timed, mode: str, monkeypatch: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    timed.ms = lambda place: 0.3 - 0.01 * place
    product()
    tuned = decisions()[0].decision.config
    assert main(["export", (tmp_path / "tree").as_uri() + "/", "--dir", os.environ["FORECAST_AUTOTUNE_DIR"]]) == 0
    monkeypatch.setenv("FORECAST_AUTOTUNE_PACKS", capsys.readouterr().out.strip())
    monkeypatch.setenv("FORECAST_AUTOTUNE_DIR", str(tmp_path / "second machine"))
    monkeypatch.setenv("FORECAST_AUTOTUNE_MODE", mode)
    monkeypatch.setattr(deciding, "READING_S", 60.0)
    as_another_process(monkeypatch)
    product()
    (chosen,) = choices.narrowing.selections
    assert (chosen.decided, chosen.is_new, len(timed.lists)) == (tuned, False, 1)


def test_what_is_chosen_before_a_pack_is_read_is_not_kept(timed: Timed, monkeypatch: Any, tmp_path: Path) -> None:
    monkeypatch.setattr(deciding, "READING_S", 0.0)
    monkeypatch.setattr(FleetStore, "unread", lambda *_: ["a pack"])
    monkeypatch.setenv("FORECAST_AUTOTUNE_MODE", "cached")
    monkeypatch.setenv("FORECAST_AUTOTUNE_PACKS", f"{tmp_path.as_uri()}/none#{'0' * 64}")
    product()
    (chosen,) = choices.narrowing.selections
    assert chosen.is_new
    assert not choices.narrowing.may_save_graph()


def test_the_same_product_in_each_layer_is_one_trial(timed: Timed) -> None:
    a = torch.ones(256, 256)
    lowered(lambda a, b: torch.relu(torch.relu(torch.relu(a @ b) @ b) @ b), a, a)
    assert choices.narrowing.counts.products == 3
    assert choices.narrowing.counts.timed == 5
    (stored,) = decisions()
    assert len(store().detail(stored).touched) == 5


def test_the_times_that_inductor_keeps_on_disk_are_not_taken_for_ours(timed: Timed, monkeypatch: Any) -> None:
    with inductor_config.patch(autotune_local_cache=True):
        product()
        as_another_process(monkeypatch)
        monkeypatch.setenv("FORECAST_AUTOTUNE_DIR", f"{store().path.parent}, another")
        timed.ms = lambda place: 0.3 - 0.01 * place
        product()
    assert len(timed.lists) == 2
    (stored,) = decisions()
    assert stored.decision.default_us == pytest.approx(300.0)


def test_equal_products_of_one_graph_are_timed_once(timed: Timed) -> None:
    a = torch.ones(256, 256)
    with inductor_config.patch(benchmark_epilogue_fusion=True):
        lowered(lambda a, b: torch.relu(torch.relu(a @ b) @ b), a, a)
    assert choices.narrowing.counts.products == 2
    assert len(timed.lists) == 1


def test_a_library_is_charged_for_the_epilogue_that_a_template_takes_in(timed: Timed, monkeypatch: Any) -> None:
    monkeypatch.setattr(product_candidates, "_epilogue_us", lambda lowered, _: 50.0 if lowered.epilogue else 0.0)
    timed.ms = lambda place: 0.1 + 0.01 * place
    product()
    lowered(lambda a, b: a @ b, torch.ones(256, 256), torch.ones(256, 256))
    alone, fused = sorted(decisions(), key=lambda stored: "epilogue" in stored.tuning_key.workload.key)
    assert str(alone.decision.config) == "template=aten::mm"
    assert alone.decision.config_us == pytest.approx(100.0)
    assert "template=mm " in str(fused.decision.config)
    assert fused.decision.default_us == pytest.approx(150.0)
    assert "50.0 us are for an epilogue" in fused.decision.reason


def compared(monkeypatch: Any) -> list[dict[str, float]]:
    """The times of choices that Inductor would compare with a fused kernel, by name; it never fuses."""
    asked: list[dict[str, float]] = []

    def refused(_: Any, node: Any, __: Any) -> FusionResult:
        if isinstance(buffer := node.get_template_node(), MultiTemplateBuffer):
            asked.append({choice.name: ms for choice, ms in buffer.choice_timings().items()})
        return FusionResult.fuse(False)

    monkeypatch.setattr(Scheduler, "speedup_by_fusion", refused)
    return asked


def test_nothing_is_compiled_for_fusion_where_the_library_is_decided(timed: Timed, monkeypatch: Any) -> None:
    asked = compared(monkeypatch)
    product()
    assert "aten::mm" in str(decisions()[0].decision.config)
    assert asked == []
    timed.ms = lambda place: 0.3 - 0.01 * place
    product(m=512)
    assert asked


def test_what_was_decided_against_is_compared_no_more_but_the_library(timed: Timed, monkeypatch: Any) -> None:
    asked = compared(monkeypatch)
    monkeypatch.setattr(product_candidates, "_epilogue_us", lambda lowered, _: 50.0 if lowered.epilogue else 0.0)
    timed.ms = lambda place: 0.1 + 0.01 * place
    product()
    library, template, *others = asked[0].values()
    assert (library, template) == (pytest.approx(0.1), pytest.approx(0.11))
    assert set(others) == {float("inf")}


def test_a_template_that_takes_nothing_in_is_decided_without_the_charge(timed: Timed, monkeypatch: Any) -> None:
    compared(monkeypatch)
    monkeypatch.setattr(product_candidates, "_epilogue_us", lambda lowered, _: 50.0 if lowered.epilogue else 0.0)
    timed.ms = lambda place: 0.1 + 0.01 * place
    product()
    (stored,) = decisions()
    assert str(stored.decision.config) == "template=aten::mm"
    timed.ms = lambda place: 0.3 - 0.01 * place
    product(m=512)
    assert "template=mm " in str(max(decisions(), key=lambda each: each.decision.decided_at).decision.config)


@pytest.mark.parametrize(
    ("follows", "has"),
    [
        (lambda y: torch.nn.functional.gelu(y), True),
        (lambda y: torch.nn.functional.gelu(y.view(2, 128, 256)) @ y.new_ones(256, 256), True),
        (lambda y: (y, torch.relu(y)), False),
        (lambda y: torch.softmax(torch.relu(y), dim=-1), False),
        (lambda y: y.view(2, 128, 256), False),
    ],
    ids=["gelu", "up to a product", "needed itself", "reduction", "none"],
)
def test_an_epilogue_is_all_that_is_done_with_a_result(timed: Timed, follows: Any, has: bool) -> None:
    lowered(lambda a, b: follows(a @ b), torch.ones(256, 128), torch.ones(128, 256))
    keys = [s.tuning_key.workload.key for s in decisions() if s.tuning_key.workload.key["a"]["shape"][-1] == 128]
    assert [key.get("epilogue", False) for key in keys] == [has]


def sure(m: int = 2048) -> None:
    lowered(lambda a, b: a @ b, torch.ones(m, 6144, dtype=torch.bfloat16), torch.ones(6144, 1408, dtype=torch.bfloat16))


def test_nothing_is_compiled_where_the_library_is_sure(timed: Timed, monkeypatch: Any) -> None:
    sure()
    assert timed.lists == []
    assert (choices.narrowing.counts.passed_on, choices.narrowing.counts.forecast) == (1, 1)
    assert decisions() == []
    monkeypatch.setattr(narrowing, "FAR_SLOWER", 4.0)
    sure(m=1024)
    assert len(timed.lists) == 1


def test_an_exhaustive_list_is_asked_for_only_where_it_may_matter(timed: Timed, monkeypatch: Any) -> None:
    sure()
    own = choices.narrowing.counts.candidates
    monkeypatch.setattr(narrowing, "EXHAUSTIVE_GAIN", math.inf)
    as_another_process(monkeypatch)
    sure()
    assert choices.narrowing.counts.candidates > 300 > 30 > own
    assert timed.lists == []


def test_what_is_stored_of_a_product_counts_before_what_its_own_list_says(timed: Timed, monkeypatch: Any) -> None:
    timed.ms = lambda place: 0.3 - 0.01 * place
    with monkeypatch.context() as unsure:
        unsure.setattr(narrowing, "FAR_SLOWER", 16.0)
        sure()
    as_another_process(monkeypatch)
    sure()
    (chosen,) = choices.narrowing.selections
    assert chosen.decided == decisions()[0].decision.config
    assert not candidates.is_library(chosen.decided)


def three_products(*, in_one_graph: bool) -> None:
    x, weights = torch.ones(256, 256), [torch.ones(256 * i, 256 * (i + 1)) for i in (1, 2, 3)]
    if in_one_graph:
        lowered(lambda x, a, b, c: torch.relu(torch.relu(torch.relu(x @ a) @ b) @ c), x, *weights)
    else:
        for weight in weights:
            product(m=256, k=len(weight), n=weight.shape[1])


@pytest.fixture
def seconds(timed: Timed, monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """What the clock of our narrowing says; it counts a second for each candidate that is timed."""
    now = [0.0]

    def ms(place: int) -> float:
        now[0] += 1.0
        return 0.1 + 0.01 * place

    timed.ms = ms
    monkeypatch.setattr(narrowing, "time", SimpleNamespace(perf_counter=lambda: now[0], time=time.time))
    return now


graphs = pytest.mark.parametrize("in_one_graph", [True, False], ids=["one graph", "three graphs"])


@graphs
@pytest.mark.usefixtures("seconds")
def test_what_a_product_took_counts_once(in_one_graph: bool) -> None:
    three_products(in_one_graph=in_one_graph)
    assert [stored.decision.spent_s for stored in decisions()] == [5.0] * 3


@graphs
def test_once_the_process_has_spent_its_total_the_library_goes_on(
    timed: Timed, seconds: list[float], set_process_total: Any, monkeypatch: pytest.MonkeyPatch, in_one_graph: bool
) -> None:
    total = TotalSpent(lambda: seconds[0])
    set_process_total(total)
    monkeypatch.setattr(narrowing, "PROCESS_TOTAL", total)
    monkeypatch.setenv("FORECAST_AUTOTUNE_BUDGET", "total=8s")
    three_products(in_one_graph=in_one_graph)
    assert len(timed.lists) == len(decisions()) == 2
    (waiting,) = store().pending()
    assert waiting.why == "the total of 8 s for this process is spent"
    *_, last = choices.narrowing.selections
    assert candidates.is_library(last.decided)


@pytest.mark.parametrize("mode", ["strict", "cached"])
def test_where_the_library_is_sure_nothing_is_left_to_be_tuned(timed: Timed, monkeypatch: Any, mode: str) -> None:
    monkeypatch.setenv("FORECAST_AUTOTUNE_MODE", mode)
    sure()
    (chosen,) = choices.narrowing.selections
    assert candidates.is_library(chosen.decided)
    assert not store().exists() or store().pending() == []


def test_all_are_timed_though_few_were_before(timed: Timed, monkeypatch: Any) -> None:
    for budget in ("2", "all", "all,60s", "all", "2"):
        monkeypatch.setenv("FORECAST_AUTOTUNE_BUDGET", budget)
        as_another_process(monkeypatch)
        product(m=2048, n=2048)
    few, every = timed.lists
    assert len(few) == 1 + 2
    assert len(every) == decisions()[0].decision.space_size


@pytest.mark.parametrize("unsure", ["all", "an epilogue", "few are summed", "float32"])
def test_templates_are_timed_where_the_library_is_not_sure(timed: Timed, monkeypatch: Any, unsure: str) -> None:
    if unsure == "all":
        monkeypatch.setenv("FORECAST_AUTOTUNE_BUDGET", "all")
    if unsure == "an epilogue":
        monkeypatch.setattr(product_candidates, "_epilogue_us", lambda *_: 50.0)
    if unsure == "few are summed":
        monkeypatch.setattr("forecast_autotune.frontends.inductor.product.LONG_ROW", 20_000)
    if unsure == "float32":
        monkeypatch.setattr("forecast_autotune.frontends.inductor.product.FORESEEN_ITEMSIZE", 4)
    sure()
    assert len(timed.lists) == 1


def test_the_decision_of_the_first_rank_is_taken(timed: Timed, monkeypatch: Any) -> None:
    picked: list[Any] = []

    def theirs(_job: Any, _how: Any, _store: Any, decision: Any) -> Any:
        (chosen,) = choices.narrowing.selections
        others = [config for config in chosen.parameters if str(config.knobs["template"]) == "mm"]
        return replace(decision, config=others[-1])

    monkeypatch.setattr(narrowing, "hold_to", theirs)
    monkeypatch.setattr(narrowing, "ranks_decide", lambda _: True)
    monkeypatch.setattr(
        select_algorithm.AlgorithmSelectorCache, "log_results", lambda *a, **_: picked.append(a[3]), raising=True
    )
    product()
    (times,) = picked
    assert min(times, key=times.__getitem__).name.startswith("triton_")


def test_a_decision_of_ranks_on_what_was_not_timed_here_is_one_warning(timed: Timed, monkeypatch: Any) -> None:
    def theirs(job: Any, _how: Any, _store: Any, decision: Any) -> Any:
        return replace(decision, config=list(job.space)[-1])

    monkeypatch.setattr(narrowing, "hold_to", theirs)
    monkeypatch.setattr(narrowing, "ranks_decide", lambda _: True)
    with pytest.warns(TuningWarning, match="has not timed what the ranks decided on"):
        product()
    assert product_request.stood_aside() == ""


def test_ranks_time_the_same_candidates_whatever_each_has_stored(timed: Timed, monkeypatch: Any) -> None:
    known: list[int] = []

    def forecast(job: Any, how: Any, store: Any) -> Any:
        known.append(len(store.related_recordings(job)))
        return first_forecasts(job, how, store)

    first_forecasts = narrowing.first_forecasts
    monkeypatch.setattr(narrowing, "first_forecasts", forecast)
    product()
    product(m=512)
    monkeypatch.setattr(narrowing, "ranks_decide", lambda _: True)
    product(m=1024)
    assert known == [0, 1, 0]


def test_what_one_rank_has_stored_all_ranks_hold_to(timed: Timed, monkeypatch: Any) -> None:
    published: list[Any] = []

    def theirs(job: Any, _how: Any, _store: Any, decision: Any) -> Any:
        published.append(decision)
        return replace(decision, config=list(job.space)[-1])

    product()
    as_another_process(monkeypatch)
    monkeypatch.setattr(narrowing, "hold_to", theirs)
    product()
    (stored,) = decisions()
    assert [decision.config for decision in published] == [stored.decision.config]
    (chosen,) = choices.narrowing.selections
    assert list(chosen.parameters) != [stored.decision.config]


@pytest.mark.parametrize("mode", ["cached", "forecast", "first"])
def test_modes_that_measure_nothing_leave_inductor_nothing_to_time(timed: Timed, monkeypatch: Any, mode: str) -> None:
    monkeypatch.setenv("FORECAST_AUTOTUNE_MODE", mode)
    product()
    assert timed.lists == []


@pytest.mark.parametrize(("dtype", "k"), [(torch.bfloat16, 256), (torch.bfloat16, 32), (torch.float32, 256)])
def test_an_unmeasured_template_is_chosen_only_if_the_library_is_forecast(
    timed: Timed, monkeypatch: Any, dtype: Any, k: int
) -> None:
    """In float32, 100 x 29 x 1024 with a bias took 28 us for the library's 16 so (H200)."""

    def on_a_template(job: Any, how: Any, **others: Any) -> Any:
        resolution = decide(job, how, **others)
        template = next(config for config in job.space if not candidates.is_library(config))
        return replace(resolution, decision=replace(resolution.decision, config=template, basis="forecast"))

    decide = narrowing.decide
    monkeypatch.setattr(narrowing, "decide", on_a_template)
    monkeypatch.setattr(narrowing, "times_the_library", lambda *_: 1.0)
    monkeypatch.setenv("FORECAST_AUTOTUNE_MODE", "forecast")
    lowered(lambda a, b: a @ b, torch.ones(256, k, dtype=dtype), torch.ones(k, 256, dtype=dtype))
    (chosen,) = choices.narrowing.selections
    is_known = dtype is torch.bfloat16 and k == 256
    assert candidates.is_library(chosen.decided) is not is_known


def test_strict_refuses_to_compile_what_is_not_decided(timed: Timed, monkeypatch: Any) -> None:
    monkeypatch.setenv("FORECAST_AUTOTUNE_MODE", "strict")
    with pytest.raises(Exception, match=r"CacheMissError: no decision for inductor\.mm"):
        product()
    assert timed.lists == []


@pytest.mark.parametrize("mode", ["strict", "cached", "strct"])
def test_a_setting_that_does_not_parse_is_an_error(timed: Timed, monkeypatch: Any, mode: str) -> None:
    monkeypatch.setenv("FORECAST_AUTOTUNE_MODE", mode)
    monkeypatch.setenv("FORECAST_AUTOTUNE_BUDGET", "4x")
    with pytest.raises(Exception, match="SettingError: FORECAST_AUTOTUNE_"):
        product()
    assert timed.lists == []
    monkeypatch.setenv("FORECAST_AUTOTUNE_MODE", "tune")
    monkeypatch.setenv("FORECAST_AUTOTUNE_BUDGET", "4")
    product()
    assert len(timed.lists) == 1


def test_without_max_autotune_nothing_is_narrowed(timed: Timed) -> None:
    with inductor_config.patch(max_autotune=False):
        torch._dynamo.reset()
        torch.compile(lambda a, b: a @ b)(torch.ones(256, 256), torch.ones(256, 256))
    assert choices.narrowing.counts.products == 0


def test_products_are_narrowed_where_they_alone_are_tuned(timed: Timed) -> None:
    with inductor_config.patch(max_autotune=False, max_autotune_gemm=True):
        product()
    (listed,) = timed.lists
    assert len(listed) == 1 + 4


@pytest.mark.parametrize("op", ["bmm", "addmm", "mm_plus_mm"])
def test_other_products_are_narrowed_too(timed: Timed, monkeypatch: Any, op: str) -> None:
    a, batch = torch.ones(256, 256), torch.ones(4, 256, 256)
    calls = {
        "bmm": (torch.bmm, batch, batch),
        "addmm": (torch.addmm, torch.ones(256), a, a),
        "mm_plus_mm": (lambda a, b, c, d: a @ b + c @ d, a, a, a, a),
    }
    lowered(*calls[op])
    (stored,) = decisions()
    assert stored.tuning_key.workload.program.name == f"inductor.{op}"
    assert str(stored.decision.config).startswith("template=aten::")
    (listed,) = timed.lists
    assert len(listed) == len(store().detail(stored).touched) in (4 + 1, 4 + 2)
    as_another_process(monkeypatch)
    lowered(*calls[op])
    assert len(timed.lists) == 1


def test_a_template_goes_on_without_the_library_that_was_listed_ahead(timed: Timed, monkeypatch: Any) -> None:
    timed.ms = lambda place: 0.3 - 0.01 * place
    a = torch.ones(256, 256)
    lowered(torch.addmm, torch.ones(256), a, a)
    (stored,) = decisions()
    assert str(stored.decision.config).startswith("template=mm ")
    as_another_process(monkeypatch)
    lowered(torch.addmm, torch.ones(256), a, a)
    assert len(timed.lists) == 1


def test_sizes_that_may_change_are_a_key_of_their_own(timed: Timed) -> None:
    a = torch.ones(256, 256)
    torch._dynamo.mark_dynamic(a, 0)
    lowered(lambda a, b: torch.relu(a @ b), a, torch.ones(256, 256))
    product()
    keys = [stored.tuning_key.workload.key for stored in decisions()]
    assert sorted(key.get("dynamic", False) for key in keys) == [False, True]


class Others(InductorChoices):
    """Somebody else's, with a state of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = 0

    def uuid(self) -> str:
        return "others"

    def _finalize_template_configs(
        self, template_choices: Any, kernel_inputs: Any, templates: Any, op_name: str, kwarg_overrides: Any = None
    ) -> list[Any]:
        self.asked += 1
        return super()._finalize_template_configs(template_choices, kernel_inputs, templates, op_name, kwarg_overrides)[
            :3
        ]


def test_somebody_elses_choices_are_asked_first_and_are_back_afterwards(timed: Timed, monkeypatch: Any) -> None:
    monkeypatch.setenv("FORECAST_AUTOTUNE_BUDGET", "1")
    fa.uninstall()
    theirs = Others()
    with inductor_config.patch(inductor_choices_class=lambda: theirs):
        V.set_choices_handler(theirs)
        fa.install(inductor=True)
        assert hook.why_not_in() == ""
        assert V.choices.uuid().startswith("others forecast_autotune ")
        product()
        assert theirs.asked == 1
        assert len(timed.lists[0]) == 2
        fa.uninstall()
        assert type(V.choices) is Others
        assert inductor_config.inductor_choices_class() is theirs
    V.set_choices_handler(InductorChoices())


def test_who_takes_our_place_is_named(timed: Timed) -> None:
    V.set_choices_handler(Others())
    assert "a Others took the place of ours" in hook.why_not_in()
    product()
    assert choices.narrowing.counts.products == 0
    V.set_choices_handler(InductorChoices())


def test_other_threads_ask_ours_too(timed: Timed) -> None:
    asked: list[bool] = []

    def ask() -> None:
        # Of torch 2.11, the tag alone
        named = f"{inductor_config.save_config_portable()} {compiler_config.cache_key_tag}"
        asked.append(choices.is_ours(V.choices) and "forecast_autotune" in named)

    for _ in range(2):
        thread = threading.Thread(target=ask)
        thread.start()
        thread.join()
        fa.uninstall()
    assert asked == [True, False]


class ReadOnly(Others):
    def __init__(self) -> None:
        vars(self)["asked"] = 0

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(f"{name} is read-only")


class Slotted(InductorChoices):
    __slots__ = ("asked",)


class Final(InductorChoices):
    def __init_subclass__(cls) -> None:
        raise TypeError("no class is derived from this one")


@pytest.mark.parametrize(
    ("kind", "why"), [(ReadOnly, ""), (Slotted, "Slotted keeps state in __slots__"), (Final, "no class is derived")]
)
def test_choices_that_ours_cannot_extend_are_left_alone_with_one_warning(
    timed: Timed, kind: type[InductorChoices], why: str
) -> None:
    fa.uninstall()
    with inductor_config.patch(inductor_choices_class=kind), warnings.catch_warnings(record=True) as given:
        warnings.simplefilter("always", TuningWarning)
        fa.install(inductor=True)
        made = [hook.make_choices() for _ in range(2)]
        assert [choices.is_ours(each) for each in made] == [not why] * 2
        assert all(isinstance(each, kind) for each in made)
        V.set_choices_handler(made[0])
        assert why in hook.why_not_in()
        fa.uninstall()
        assert type(V.choices) is kind
    assert len(given) == bool(why)
    assert all(why in str(each.message) for each in given)
    V.set_choices_handler(InductorChoices())


class Strange(InductorChoices):
    def uuid(self) -> str:
        return "strange"

    def _finalize_template_configs(self, everything: Any) -> list[Any]:
        return list(everything)


def test_a_signature_that_is_not_known_is_one_warning(timed: Timed) -> None:
    with pytest.warns(
        TuningWarning, match=r"left as Inductor lists them: Strange._finalize_template_configs .* takes \(self"
    ):
        made = choices.with_ours(Strange())
    assert made._finalize_template_configs([1, 2]) == [1, 2]
    assert made.uuid().startswith("strange forecast_autotune ")
    assert "Strange" in product_request.stood_aside()
    product()
    assert choices.narrowing.counts.products == 0


def test_a_failure_of_ours_is_one_warning_and_inductors_own_list(timed: Timed, monkeypatch: Any) -> None:
    monkeypatch.setattr(narrowing, "ProductCandidates", lambda *_, **__: 1 // 0)
    with pytest.warns(TuningWarning, match="ZeroDivisionError"):
        product()
    with warnings.catch_warnings():
        warnings.simplefilter("error", TuningWarning)
        product(m=128)
    assert all(len(listed) > 6 for listed in timed.lists)


def test_installed_says_what_was_done(timed: Timed) -> None:
    product()
    (row,) = [row for row in fa.installed() if row.package == "torch"]
    assert row.ours
    assert row.decided == 1
    assert "5 were timed" in row.why


@pytest.mark.parametrize("may_save", [True, False])
def test_a_graph_is_timed_again_once_its_decision_is_cleared(timed: Timed, monkeypatch: Any, may_save: bool) -> None:
    """Not so where the graph was kept under the name of the store that had no decision."""
    monkeypatch.setattr(torch.utils._triton, "has_triton", lambda: True)  # else no graph is kept
    monkeypatch.setattr(AsyncCompile, "triton", lambda *_, **__: SimpleNamespace(run=None))
    if may_save:
        monkeypatch.setattr(narrowing.Narrowing, "may_save_graph", lambda _: True)
    with inductor_config.patch(fx_graph_cache=True), torch._functorch.config.patch(enable_autograd_cache=False):
        product()
        shutil.rmtree(os.environ["FORECAST_AUTOTUNE_DIR"])
        as_another_process(monkeypatch)
        product()
    assert len(timed.lists) == (1 if may_save else 2)
    assert len(decisions()) == (0 if may_save else 1)


def test_a_budget_of_all_is_another_name(timed: Timed, monkeypatch: Any) -> None:
    names = set()
    for budget in ("2", "4", "all", "0"):
        monkeypatch.setenv("FORECAST_AUTOTUNE_BUDGET", budget)
        names.add(product_request.cache_name())
    assert len(names) == 3


# Processes ----------------------------------------------------------------------------------------------------------------

PROGRAM = """
import torch
torch.compile(lambda a, b: a @ b)(torch.ones(64, 64), torch.ones(64, 64))
from torch._dynamo.utils import counters
from torch._inductor.virtualized import V
hits = counters["inductor"]["fxgraph_cache_hit"], counters["aot_autograd"]["autograd_cache_hit"]
print("uuid", getattr(V.choices, "uuid", lambda: "none")())
print("hits", any(hits))
"""


def run(program: Path, folder: Path, *options: str, **environment: str) -> dict[str, str]:
    own = {"TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor"), "FORECAST_AUTOTUNE_DIR": str(folder / "store")}
    code = "import sys; from forecast_autotune.cli import main; sys.exit(main())"
    done = subprocess.run(
        [sys.executable, "-c", code, "run", *options, str(program)],
        env={**os.environ, **own, **environment},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return dict(line.split(" ", 1) for line in done.stdout.splitlines())


@pytest.mark.thorough
def test_a_warm_process_hits_and_what_is_decided_later_is_picked_up(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(textwrap.dedent(PROGRAM))
    cold, warm, other = (
        run(program, tmp_path, "--inductor", FORECAST_AUTOTUNE_MODE=m) for m in ("tune", "tune", "cached")
    )
    assert [told["hits"] for told in (cold, warm, other)] == ["False", "True", "False"]
    assert cold["uuid"] == warm["uuid"] != other["uuid"]


def test_doctor_says_whether_this_torch_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORECAST_AUTOTUNE_INDUCTOR", "1")
    (known,) = doctor.check_inductor()
    assert (known.status, known.found) == ("ok", "its candidates are narrowed wherever install() is called")
    monkeypatch.setattr(InductorChoices, "_finalize_template_configs", lambda self, listed: listed)
    (unknown,) = doctor.check_inductor()
    assert unknown.status == "problem"
    assert "takes (self, listed)" in unknown.found


def test_before_torch_212_torchs_tag_of_keys_names_our_choices(timed: Timed, monkeypatch: pytest.MonkeyPatch) -> None:
    fa.uninstall()
    monkeypatch.setattr(hook, "_names_choices_in_keys", lambda: False)
    with torch.compiler.config.patch(cache_key_tag="mine"):
        fa.install(inductor=True)
        assert torch.compiler.config.cache_key_tag == f"mine {product_request.uuid()}"
        fa.uninstall()
        assert torch.compiler.config.cache_key_tag == "mine"


IMPORTS = """
from forecast_autotune.frontends.inductor import hook
hook._names_choices_in_keys = lambda: False  # as before torch 2.12
hook.install()
import torch._inductor.select_algorithm
from torch._inductor.virtualized import V
print(type(V.choices).__name__, repr(hook.why_not_in()), torch.compiler.config.cache_key_tag.split()[0])
"""


@pytest.mark.thorough
def test_we_enter_while_inductor_is_half_imported(tmp_path: Path) -> None:
    own = {"FORECAST_AUTOTUNE_DIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", IMPORTS],
        env={**os.environ, **own},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout == "NarrowedInductorChoices '' forecast_autotune\n", done.stderr


@pytest.mark.parametrize(
    ("fitting", "knobs", "k", "itemsize"),
    [
        (True, {"BLOCK_M": 256, "BLOCK_N": 128, "BLOCK_K": 64, "num_stages": 4}, 1536, 2),
        (False, {"BLOCK_M": 256, "BLOCK_N": 128, "BLOCK_K": 64, "num_stages": 5}, 1536, 2),
        pytest.param(True, {"BLOCK_M": 256, "BLOCK_N": 128, "BLOCK_K": 64, "num_stages": 5}, 64, 2, id="not pipelined"),
        pytest.param(True, {"BLOCK_M": 256, "BLOCK_N": 128, "BLOCK_K": 64, "num_stages": 5}, 1536, 4, id="float32"),
        pytest.param(True, {"num_stages": 5}, 1536, 2, id="no tiles"),
    ],
)
def test_tiles_that_an_h100_has_no_room_for_are_not_listed(
    fitting: bool, knobs: dict[str, Any], k: int, itemsize: int
) -> None:
    product = Product(
        batch=1, m=8192, n=6144, k=k, a_by_rows=True, b_by_rows=False, itemsize=itemsize, out_itemsize=itemsize
    )
    h100 = Hardware(kind="cuda", name="NVIDIA H100", capability="9.0", warp_size=32, shared_bytes=232_448)
    assert fits(product, knobs, h100) is fitting
    assert fits(product, knobs, replace(h100, warp_size=1))  # a CPU's is a cache


def test_before_hopper_the_last_stage_of_a_tile_needs_no_room() -> None:
    product = Product(batch=1, m=8192, n=6144, k=1536, a_by_rows=True, b_by_rows=False, itemsize=2, out_itemsize=2)
    a100 = Hardware(kind="cuda", name="NVIDIA A100", capability="8.0", warp_size=32, shared_bytes=166_912)
    tiles = {"BLOCK_M": 128, "BLOCK_N": 256, "BLOCK_K": 64}
    assert [fits(product, {**tiles, "num_stages": stages}, a100) for stages in (4, 5)] == [True, False]


@pytest.mark.parametrize(
    ("small", "sizes", "tile"),
    [
        (True, (1, 8192, 6144), (64, 32)),
        pytest.param(False, (1, 8192, 6144), (64, 64), id="large enough"),
        pytest.param(False, (1, 512, 6144), (64, 32), id="few of them"),
        pytest.param(False, (1, 8192, 6144), (), id="no tiles"),
        pytest.param(False, (8192, 32, 32), (32, 32), id="as large as the result"),
        pytest.param(True, (8192, 32, 32), (16, 16), id="smaller than a small result"),
        pytest.param(False, (1, 1 << 20, 16), (64, 16), id="as wide as a narrow result"),
        pytest.param(True, (1, 1 << 20, 16), (32, 16), id="smaller, of a narrow result"),
    ],
)
def test_tiles_of_which_there_would_be_very_many_are_too_small(
    small: bool, sizes: tuple[int, int, int], tile: tuple[int, ...]
) -> None:
    batch, m, n = sizes
    product = Product(batch=batch, m=m, n=n, k=1536, a_by_rows=True, b_by_rows=False, itemsize=2, out_itemsize=2)
    tiles = dict(zip(("BLOCK_M", "BLOCK_N"), tile, strict=False))
    h100 = Hardware(kind="cuda", name="NVIDIA H100", capability="9.0", units=132)
    assert is_too_small(product, tiles, h100) is small
    assert not is_too_small(product, tiles, replace(h100, units=0))  # a device that nothing is known of


@pytest.mark.usefixtures("timed")
def test_tiles_that_are_too_small_are_no_candidates(monkeypatch: pytest.MonkeyPatch) -> None:
    product(m=16384, n=16384)
    monkeypatch.setattr(product_candidates, "is_too_small", lambda *_: False)
    monkeypatch.setattr(choices, "narrowing", narrowing.Narrowing())
    product(m=16384, n=16384)
    fewer, all_that_fit = sorted(stored.decision.space_size for stored in decisions())
    assert fewer < 0.7 * all_that_fit


def test_what_was_decided_by_timing_all_is_known_under_every_budget(timed: Timed, monkeypatch: Any) -> None:
    monkeypatch.setenv("FORECAST_AUTOTUNE_BUDGET", "all")
    product(m=2048, n=2048)
    (stored,) = decisions()
    assert stored.decision.tried == stored.decision.space_size == len(timed.lists[0])
    monkeypatch.delenv("FORECAST_AUTOTUNE_BUDGET")
    for mode in ("tune", "strict", "cached"):
        monkeypatch.setenv("FORECAST_AUTOTUNE_MODE", mode)
        as_another_process(monkeypatch)
        product(m=2048, n=2048)
        assert choices.narrowing.counts.recalled == 1
    assert len(timed.lists) == 1
    assert store().pending() == []
