"""Inductor's candidates where something is in the way: each as Inductor does it without us, or better and said."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from rehearsed_inductor import Timed, as_another_process, decisions, lowered, product, store
from torch._inductor import autotune_process, select_algorithm
from torch._inductor import config as inductor_config
from torch._inductor.kernel import mm

from forecast_autotune.cli import doctor
from forecast_autotune.core.outcome import Failure, Measurement
from forecast_autotune.errors import TuningWarning
from forecast_autotune.frontends.inductor import choices, narrowing
from forecast_autotune.frontends.inductor import request as product_request

pytestmark = [  # torch's own
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings(r"ignore::UserWarning:torch\..*"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore:Could not find an active CPU backend"),
    pytest.mark.filterwarnings("error::forecast_autotune.errors.TuningWarning"),
]


# Sizes that may change -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("first", ["m", "k"])
def test_a_template_masks_what_may_be_no_multiple_of_its_tile(timed: Timed, monkeypatch: Any, first: str) -> None:
    timed.ms = lambda place: 0.3 - 0.01 * place  # templates win
    rendered: list[bool] = []

    def render(self: Any, template: Any, kwargs: dict[str, Any], *more: Any, **named: Any) -> Any:
        rendered.append(kwargs["EVEN_K"])
        return theirs(self, template, kwargs, *more, **named)

    theirs = select_algorithm.TritonTemplateKernel.render
    monkeypatch.setattr(select_algorithm.TritonTemplateKernel, "render", render)

    def compiled(size: str) -> set[bool]:
        rendered.clear()
        a, b = torch.ones(256, 256), torch.ones(256, 256)
        torch._dynamo.mark_dynamic(a, 0 if size == "m" else 1)
        if size == "k":
            torch._dynamo.mark_dynamic(b, 0)
        lowered(lambda a, b: torch.relu(a @ b), a, b)
        return set(rendered)

    even = {size: compiled(size) for size in dict.fromkeys((first, "m", "k"))}
    assert even == {"m": {True}, "k": {False}}


def test_sizes_that_nothing_is_known_of_are_narrowed_by_torchs_own_hints(timed: Timed) -> None:
    a = torch.ones(256, 256)
    torch._dynamo.decorators.mark_unbacked(a, 0)
    lowered(lambda a, b: torch.relu(a @ b), a, torch.ones(256, 256))
    (stored,) = decisions()
    assert stored.tuning_key.workload.key["dynamic"]
    (listed,) = timed.lists
    assert len(listed) == 1 + 4


def test_one_decision_serves_all_sizes_of_a_dynamic_graph(timed: Timed, monkeypatch: Any) -> None:
    def of(m: int) -> None:
        a = torch.ones(m, 256)
        torch._dynamo.mark_dynamic(a, 0)
        lowered(lambda a, b: torch.relu(a @ b), a, torch.ones(256, 256))

    of(256)
    as_another_process(monkeypatch)
    of(256)
    assert len(timed.lists) == 1
    of(4096)  # compiled anew by a process that meets this size first: Inductor's hint is another, and so is the key
    assert len(timed.lists) == 2


def test_lists_for_several_size_hints_go_on_as_they_are(timed: Timed) -> None:
    a = torch.ones(256, 256)
    torch._dynamo.mark_dynamic(a, 0)
    with inductor_config.patch(multi_kernel_hints=[64, 4096]):
        lowered(lambda a, b: torch.relu(a @ b), a, torch.ones(256, 256))
    assert choices.narrowing.counts.products == 0
    assert decisions() == []


# Where Inductor lists or times otherwise -------------------------------------------------------------------------------


def test_a_gpu_with_few_units_gets_the_library_as_ever(timed: Timed, monkeypatch: Any) -> None:
    monkeypatch.setattr(mm, "use_triton_template", lambda *_, **__: False)  # what `is_big_gpu` comes to
    product()
    lowered(torch.addmm, torch.ones(256), torch.ones(256, 256), torch.ones(256, 256))
    assert all(len(listed) <= 2 for listed in timed.lists)
    assert all(candidate.name in ("addmm", "bias_addmm") for listed in timed.lists for candidate in listed)
    assert decisions() == []


def test_doctor_says_where_inductor_lists_the_library_alone(monkeypatch: Any) -> None:
    monkeypatch.setenv("FORECAST_AUTOTUNE_INDUCTOR", "1")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch._inductor.utils, "is_big_gpu", lambda device: device == 0)
    (found,) = [finding for finding in doctor.check_inductor() if finding.status == "note"]
    assert found.found.startswith("for GPU 1 Inductor lists the library's functions alone")


def test_times_of_a_subprocess_are_kept_too(timed: Timed, monkeypatch: Any) -> None:
    cache = select_algorithm.AlgorithmSelectorCache
    monkeypatch.setattr(autotune_process, "get_tuning_process_pool", lambda: None)
    monkeypatch.setattr(cache, "benchmark_in_sub_process", timed.benchmark)
    monkeypatch.setattr(cache, "benchmark_in_current_process", lambda *_, **__: pytest.fail("timed in this process"))
    with inductor_config.patch(autotune_in_subproc=True):
        product()
    (stored,) = decisions()
    assert len(store().detail(stored).touched) == 1 + 4


def test_deterministic_is_left_to_inductor(timed: Timed) -> None:
    with inductor_config.patch(deterministic=True):
        torch._dynamo.reset()
        torch.compile(lambda a, b: a @ b)(torch.ones(256, 256), torch.ones(256, 256))
    assert choices.narrowing.counts.products == 0
    assert timed.lists == []


# A product that cannot be timed ----------------------------------------------------------------------------------------


def really_timed(timed: Timed, monkeypatch: Any, memory_ends: Any) -> list[str]:
    """Inductor's own loop over candidates, where some run out of memory; returns the names as they are timed."""
    cache = select_algorithm.AlgorithmSelectorCache
    named: list[str] = []

    def benchmark(choice: Any, _: Any) -> float:
        named.append(choice.name)
        if memory_ends(choice):
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
        return 0.1

    def in_current_process(listed: Any, *_: Any, **__: Any) -> Any:
        return cache.benchmark_choices(listed, None)

    monkeypatch.setattr(cache, "benchmark_choice", benchmark)
    monkeypatch.setattr(cache, "benchmark_in_current_process", in_current_process)
    return named


def test_a_candidate_that_runs_out_of_memory_leaves_no_lasting_mark(timed: Timed, monkeypatch: Any) -> None:
    named = really_timed(timed, monkeypatch, lambda choice: choice.name.startswith("triton_"))
    product()
    (stored,) = decisions()
    assert str(stored.decision.config) == "template=aten::mm"
    assert stored.decision.failed == 4
    outcomes = [each.outcome for each in store().detail(stored).touched]
    assert sum(isinstance(outcome, Measurement) for outcome in outcomes) == 1
    assert {outcome.transient for outcome in outcomes if isinstance(outcome, Failure)} == {True}
    assert len(named) == 5


def test_a_library_that_runs_out_of_memory_is_not_chosen(timed: Timed, monkeypatch: Any) -> None:
    really_timed(timed, monkeypatch, lambda choice: choice.name == "mm")
    product()
    (stored,) = decisions()
    assert str(stored.decision.config).startswith("template=mm ")


def test_where_nothing_can_be_timed_nothing_is_decided(timed: Timed, monkeypatch: Any) -> None:
    named = really_timed(timed, monkeypatch, lambda _: True)
    with pytest.raises(Exception, match="NoValidChoicesError"):
        product()
    assert decisions() == []
    assert product_request.stood_aside() == ""
    as_another_process(monkeypatch)
    really_timed(timed, monkeypatch, lambda _: False)
    product()
    (stored,) = decisions()
    assert stored.decision.basis == "measured"
    assert len(named) == 5


def test_times_that_cannot_be_kept_are_one_warning(timed: Timed, monkeypatch: Any) -> None:
    def record(*_: Any, **__: Any) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(narrowing.SqliteStore, "record_outcome", record)
    with pytest.warns(TuningWarning, match="disk full"):
        product()
    assert "disk full" in product_request.stood_aside()
    product(m=512)
    assert len(timed.lists[-1]) > 6
