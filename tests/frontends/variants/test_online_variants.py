# ruff: noqa: N803  # Triton kernels write their meta-parameters in capitals
"""Mode `online` with variants: Triton kernels on the simulated driver, real compilers; torch operations, timed for real."""

from __future__ import annotations

import gc
import random
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import pytest

torch = pytest.importorskip("torch")
triton = pytest.importorskip("triton")

from learning_at_once import learning_at_once  # noqa: E402
from rehearsed import BEST, own_triton_cache, playing, scale  # noqa: E402

import forecast_autotune as fa  # noqa: E402
from forecast_autotune.frontends.online.learning_threads import learners  # noqa: E402

LIMIT_S = 120.0
N = 4000
SLOW_S = 20e-3  # far above the scheduler's slices on a busy machine


@pytest.fixture(autouse=True)
def at_once(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with learning_at_once(), own_triton_cache(tmp_path_factory.mktemp("triton")):
        yield


def is_learning(tuned: Any) -> bool:
    return any(entry.learning is not None for _, entry in tuned.dispatcher.table.items())


def call_until_decided(tuned: Any, call: Callable[[], Any]) -> Any:
    """Make calls as a program does; returns the decision."""
    ends = time.monotonic() + LIMIT_S
    call()
    while is_learning(tuned):
        assert time.monotonic() < ends, "undecided"
        call()
        time.sleep(0.0002)
    (decision,) = tuned.decisions.values()
    return decision


def of_block(x: Any, n: int, *, BLOCK: int) -> None:
    scale[(triton.cdiv(n, BLOCK),)](x, n, 2.0, BLOCK=BLOCK, num_warps=4)


def of_512(x: Any, n: int) -> None:
    scale[(triton.cdiv(n, 512),)](x, n, 2.0, BLOCK=512, num_warps=4)


def scaled(key: str = "n", **given: Any) -> Any:
    space = fa.Space.grid({"BLOCK": [64, 128, BEST]})
    options: dict[str, Any] = {"key": key, "check": None, "mode": "online", "name": "scaled", **given}
    return fa.variants([(of_block, space), of_512], **{"compile_ahead": True, **options})


def test_triton_variants_compile_in_the_background_and_calls_decide() -> None:
    tuned, x = scaled(), torch.empty(4096)
    with playing() as on:
        decision = call_until_decided(tuned, lambda: tuned(x, N))
        assert (decision.config["BLOCK"], decision.basis, decision.tried) == (BEST, "measured", 4)
        assert on.compiles["scale"] <= 1  # the first call's own


def test_calls_that_triton_compiles_apart_run_no_candidate() -> None:
    tuned, x = scaled(key="x"), torch.empty(4096)
    ran: dict[int, set[int]] = {1000: set(), 1024: set()}
    with playing() as on:

        def call() -> None:
            for n, blocks in ran.items():
                before = on.launches.copy()
                tuned(x, n)
                blocks |= {config["BLOCK"] for (_, config) in (on.launches - before).elements()}

        tuned(x, 1000)
        decision = call_until_decided(tuned, call)
    assert decision.config["BLOCK"] == BEST
    assert ran[1000] == {64, 128, BEST, 512}
    assert ran[1024] <= {64, BEST}  # what the key ran at first, and what was decided


def test_no_tensor_of_a_call_is_kept_while_its_kernels_are_learned(monkeypatch: pytest.MonkeyPatch) -> None:
    tuned = scaled()
    with playing():
        tuned(torch.empty(64), 60)  # imports, and what is made once
        monkeypatch.setattr(learners, "start", lambda _: None)
        gc.collect()
        gc.disable()
        try:
            for _ in range(4):
                x = torch.empty(4096)
                held = weakref.ref(x)
                tuned(x, N)
                del x
                assert held() is None
            assert is_learning(tuned)
        finally:
            gc.enable()


def doubled_slowly(x: Any) -> Any:
    time.sleep(SLOW_S)
    return x * 2


def doubled(x: Any) -> Any:
    return x + x


def doubled_wrongly(x: Any) -> Any:
    launched_wrongly.set()
    return x * 3


launched_wrongly = threading.Event()


def test_what_computes_something_else_is_never_run_in_a_call() -> None:
    tuned, x = fa.variants([doubled_slowly, doubled_wrongly, doubled], key="x", mode="online"), torch.ones(64)
    results = []
    decision = call_until_decided(tuned, lambda: results.append(tuned(x)))
    assert decision.config["variant"] == "doubled"
    assert all(torch.equal(result, 2 * x) for result in results)
    assert launched_wrongly.is_set(), "it was compared on copies"


def test_what_draws_random_numbers_is_compared_on_the_same_ones() -> None:
    def slow(x: Any) -> Any:
        time.sleep(SLOW_S)
        return torch.dropout(x * w, 0.5, True)

    w = torch.rand(64)
    tuned = fa.variants([slow, lambda x: torch.dropout(w * x, 0.5, True)], key="x", mode="online")
    with ThreadPoolExecutor(1) as pool:
        pool.submit(int).result()  # beside its thread, state is told apart by one run more
        decision = call_until_decided(tuned, lambda: tuned(torch.ones(64)))
    assert (decision.config["variant"], decision.failed) == ("<lambda>", 0)


def doubled_or_raises(x: Any) -> Any:
    raise RuntimeError("it does not run")


def test_a_variant_that_raises_is_a_failure_and_its_call_runs_another() -> None:
    tuned = fa.variants([doubled_slowly, doubled_or_raises, doubled], key="x", check=None, mode="online")
    x, results = torch.ones(64), []
    decision = call_until_decided(tuned, lambda: results.append(tuned(x)))
    assert (decision.config["variant"], decision.failed) == ("doubled", 1)
    assert all(torch.equal(result, 2 * x) for result in results)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_what_torch_compiles_at_its_first_call_is_not_tried() -> None:
    tuned = fa.variants([doubled, torch.compile(doubled_slowly)], key="x", check=None, mode="online")
    tuned(torch.ones(64))
    assert not is_learning(tuned)


def test_kernels_that_are_not_compiled_ahead_are_not_tried() -> None:
    tuned = scaled(compile_ahead=False)
    with playing():
        tuned(torch.empty(4096), N)
    assert not is_learning(tuned)


def test_an_error_that_is_the_calls_own_reaches_the_caller() -> None:
    def slow_or_error(x: Any, fail: bool) -> Any:
        if fail:
            raise ValueError("as asked")
        return doubled_slowly(x)

    def quick_or_error(x: Any, fail: bool) -> Any:
        if fail:
            raise ValueError("as asked")
        return doubled(x)

    draw = random.Random(0)
    tuned, x = fa.variants([slow_or_error, quick_or_error], key="x", check=None, mode="online"), torch.ones(64)

    def call() -> None:
        for _ in range(draw.randrange(1, 6)):
            assert torch.equal(tuned(x, False), 2 * x)
        with pytest.raises(ValueError, match="as asked"):
            tuned(x, True)

    decision = call_until_decided(tuned, call)
    assert (decision.config["variant"], decision.failed) == ("quick_or_error", 0)


@dataclass
class Record:
    total: Any


@pytest.mark.parametrize("place", ["argument", "record", "state"])
def test_a_call_that_wrote_before_its_candidate_raised_is_not_made_again(place: str) -> None:
    x = torch.zeros(64)
    given = {"argument": x, "record": Record(x), "state": torch.ones(64)}[place]

    def written(given: Any) -> Any:
        return {"argument": given, "record": getattr(given, "total", None), "state": x}[place]

    def adds(given: Any) -> Any:
        time.sleep(SLOW_S)
        return written(given).add_(1)

    def adds_and_raises(given: Any) -> Any:
        written(given).add_(1)
        raise RuntimeError("too late")

    tuned = fa.variants([adds, adds_and_raises], key=lambda given: 64, check=None, mode="online")
    calls, raised = 0, 0

    def call() -> None:
        nonlocal calls, raised
        calls += 1
        try:
            tuned(given)
        except RuntimeError:
            raised += 1

    decision = call_until_decided(tuned, call)
    assert (decision.config["variant"], raised) == ("adds", 1)
    assert torch.equal(x, torch.full((64,), float(calls)))


class Holder:
    def __init__(self) -> None:
        self.workspace = torch.zeros(4)


@pytest.mark.parametrize("drops", [False, True])
def test_a_candidate_that_makes_or_drops_tensors_and_raises_fails_no_call(drops: bool) -> None:
    own = Holder()

    def fine(x: Any, given: Any) -> Any:
        time.sleep(SLOW_S)
        return own, x

    def raises(x: Any, given: Any) -> Any:
        if drops:
            own.workspace = None
        else:
            given.table = torch.ones(2)
        raise RuntimeError("no room")

    tuned = fa.variants([fine, raises], key="x", check=None, mode="online")
    x = torch.zeros(64)
    assert call_until_decided(tuned, lambda: tuned(x, Holder())).config["variant"] == "fine"


def test_a_candidate_that_raises_while_a_thread_writes_state_fails_no_call() -> None:
    weights = torch.zeros(4)

    def fine(x: Any) -> Any:
        time.sleep(SLOW_S)
        return weights, x

    tuned, x = fa.variants([fine, lambda x: train_and_raise(x)], key="x", check=None, mode="online"), torch.zeros(64)
    with ThreadPoolExecutor(1) as other:

        def train_and_raise(x: Any) -> Any:
            other.submit(weights.add_, 1).result()
            raise RuntimeError("not for this size")

        other.submit(int).result()
        assert call_until_decided(tuned, lambda: tuned(x)).config["variant"] == "fine"


def test_keys_met_in_turns_are_all_learned() -> None:
    tuned = fa.variants([doubled_slowly, doubled], key="x", check=None, mode="online")
    sizes = [torch.ones(n) for n in (8, 16, 32)]
    ends = time.monotonic() + LIMIT_S
    while len(tuned.decisions) < len(sizes) or is_learning(tuned):
        assert time.monotonic() < ends, "undecided"
        for x in sizes:
            tuned(x)
    assert {decision.config["variant"] for decision in tuned.decisions.values()} == {"doubled"}


def keeping_what_is_saved() -> Any:
    """As a checkpoint does, which makes the call again in the backward pass."""
    return torch.autograd.graph.saved_tensors_hooks(lambda tensor: tensor.detach(), lambda tensor: tensor)


def test_a_call_whose_saved_tensors_are_kept_by_hooks_tries_no_candidate() -> None:
    def twice(x: Any) -> Any:
        return x * 2

    def added(x: Any) -> Any:
        return x + x

    tuned, x = (
        fa.variants([twice, added], key="x", mode="online", name="checkpointed"),
        torch.ones(8, requires_grad=True),
    )
    with keeping_what_is_saved():
        tuned(x)
    assert not is_learning(tuned)
    other = torch.ones(9, requires_grad=True)
    tuned(other)
    ((_, entry),) = [each for each in tuned.dispatcher.table.items() if each[1].learning is not None]
    assert entry.learning.teaches(tuned._call_of((other,), {}, (other,)))
    with keeping_what_is_saved():
        assert not entry.learning.teaches(tuned._call_of((other,), {}, (other,)))


def test_a_decision_between_a_checkpoints_passes_holds_from_the_next_step() -> None:
    from torch.utils.checkpoint import checkpoint

    ran: list[str] = []

    def saves_more(x: Any) -> Any:
        ran.append("saves_more")
        time.sleep(SLOW_S)
        return x * torch.sigmoid(x)

    def saves_less(x: Any) -> Any:
        ran.append("saves_less")
        return torch.nn.functional.silu(x)

    tuned, x = fa.variants([saves_more, saves_less], key="x", mode="online"), torch.ones(8, requires_grad=True)
    tuned(x)
    result = checkpoint(tuned, x, use_reentrant=False)
    assert call_until_decided(tuned, lambda: tuned(x)).config["variant"] == "saves_less"
    ran.clear()
    result.sum().backward()
    checkpoint(tuned, x, use_reentrant=False).sum().backward()
    assert ran == ["saves_more", "saves_less", "saves_less"]


def unchanged(tensor: Any) -> Any:
    return tensor


def test_hooks_that_live_as_long_as_their_module_keep_no_variant() -> None:
    ran: list[str] = []

    def first(x: Any) -> Any:
        ran.append("first")
        time.sleep(SLOW_S)
        return x * 2

    def second(x: Any) -> Any:
        ran.append("second")
        return x + x

    tuned, x = fa.variants([first, second], key="x", mode="online"), torch.ones(8, requires_grad=True)
    tuned(x)
    hooks = torch.autograd.graph.saved_tensors_hooks(unchanged, unchanged)
    with hooks:
        tuned(x)
    assert call_until_decided(tuned, lambda: tuned(x)).config["variant"] == "second"
    ran.clear()
    with hooks:
        tuned(x)
    assert ran == ["second"]
