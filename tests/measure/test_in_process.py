"""Candidates on copies of the arguments: what they write is found, put back where it must be, and told."""

from __future__ import annotations

import functools
import random
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from contracts.measurer_contract import MeasurerContract
from numpy import random as numpys

from forecast_autotune.core.config import Config
from forecast_autotune.core.outcome import Failure, Measurement
from forecast_autotune.measure import buffers, copies
from forecast_autotune.measure.base import CheckError, DeviceLostError
from forecast_autotune.measure.buffers import guarded_copy, load_kernels
from forecast_autotune.measure.clocks import CpuClock, Launch
from forecast_autotune.measure.copies import BorrowedArguments, CopiedArguments, UnportableError
from forecast_autotune.measure.in_process import InProcess

torch = pytest.importorskip("torch")

DEFAULT, OTHER = Config({"which": 0}), Config({"which": 1})
Kernel = Callable[..., None]


def measurer(
    kernels: Sequence[Kernel],
    tensors: dict[str, Any],
    *,
    restored: Sequence[str] = (),
    zeroed: Sequence[str] = (),
    told: list[Sequence[str]] | None = None,
    borrowed: bool = False,
    **others: Any,
) -> InProcess:
    def arguments() -> CopiedArguments | BorrowedArguments:
        if borrowed:
            named = [{n: tensors[n] for n in names} for names in (restored, zeroed)]
            return BorrowedArguments((), tensors, restored=named[0], zeroed=named[1])
        return CopiedArguments((), tensors, restored=restored, zeroed=zeroed)

    others = {"check": None, "clock": lambda config: CpuClock(0.001), **others}
    return InProcess(
        name="kernel",
        default=DEFAULT,
        tell_reads=(lambda names: None) if told is None else told.append,
        launch=lambda config, values: Launch(call=functools.partial(kernels[config["which"]], **values[1])),
        arguments=arguments,
        **others,
    )


class TestInProcess(MeasurerContract):
    def make_measurer(self) -> InProcess:
        tensors = {"out": torch.zeros(8), "x": torch.ones(8)}
        return measurer([add_into, lambda **_: add_into(**_), raising(ValueError("a slip"))], tensors, check="allclose")

    def good(self) -> list[Config]:
        return [DEFAULT, OTHER]

    def bad(self) -> Config:
        return Config({"which": 2})


class TestInProcessOnBorrowedArguments(TestInProcess):
    def make_measurer(self) -> InProcess:
        tensors = {"out": torch.zeros(8), "x": torch.ones(8)}
        kernels = [add_into, lambda **_: add_into(**_), raising(ValueError("a slip"))]
        return measurer(kernels, tensors, check="allclose", restored=["out"], borrowed=True)


def add_into(out: Any, x: Any) -> None:
    torch.add(x, 1, out=out)


def add_in_place(x: Any) -> None:
    x.add_(1)


def test_what_is_only_written_is_neither_reported_nor_restored() -> None:
    out, x, told = torch.zeros(100), torch.arange(100.0), []
    with measurer([add_into], {"out": out, "x": x}, told=told) as measuring:
        assert isinstance(measuring.measure(DEFAULT), Measurement)
        assert measuring._arguments is not None
        assert not measuring._arguments.changed
    assert not told
    assert torch.equal(x, torch.arange(100.0))


def test_preparing_runs_no_candidate_and_leaves_what_raises_to_measuring() -> None:
    ran: list[str] = []
    sparse = torch.zeros(3, 3).to_sparse()
    with measurer([lambda x: ran.append("ran")], {"x": sparse}) as measuring:
        measuring.prepare()
        with pytest.raises(UnportableError):
            measuring.measure(DEFAULT)
    with measurer([add_in_place], {"x": (x := torch.zeros(100))}) as measuring:
        measuring.prepare()
        held = measuring._arguments
        assert isinstance(measuring.measure(DEFAULT), Measurement)
        assert measuring._arguments is held, "the copies are made once"
    assert not ran
    assert torch.equal(x, torch.zeros(100))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int32, torch.uint8, torch.float8_e4m3fn])
def test_what_a_gpu_is_to_load_ahead_runs_for_every_dtype(dtype: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    (buffer,) = CopiedArguments((), {"x": torch.full((64,), 60, dtype=torch.uint8).view(dtype)}).buffers
    before, copies = buffer.memory.clone(), []

    def copied(*arguments: Any, **options: Any) -> Any:
        copies.append(guarded_copy(*arguments, **options))
        return copies[-1]

    monkeypatch.setattr(torch.Tensor, "is_cuda", True)
    monkeypatch.setattr(buffers, "guarded_copy", copied)
    load_kernels([buffer])
    assert [copy.memory.dtype for copy in copies] == [dtype], "it looks at a copy of its own"
    assert torch.equal(buffer.memory.view(torch.uint8), before.view(torch.uint8))


def test_a_kernel_that_reads_its_output_is_reported_and_finds_the_original() -> None:
    x, told, seen = torch.zeros(100), [], set()

    def adds(x: Any) -> None:
        seen.add(float(x[0]))
        x.add_(1)

    with measurer([adds, adds], {"x": x}, told=told) as measuring:
        assert isinstance(measuring.measure(DEFAULT), Measurement)
        seen.clear()
        assert isinstance(measuring.measure(OTHER), Measurement)
    assert told == [("x",)]
    assert seen == {0.0}
    assert torch.equal(x, torch.zeros(100)), "the same as before it was borrowed"


def test_what_follows_from_a_state_that_is_put_back_is_not_suspected() -> None:
    told: list[Sequence[str]] = []

    def step(state: Any, out: Any) -> None:
        out.copy_(state.mul_(0.5))

    tensors = {"state": torch.linspace(1, 2, 100), "out": torch.zeros(100)}
    with measurer([step, step], tensors, restored=["state"], told=told) as measuring:
        assert isinstance(measuring.measure(DEFAULT), Measurement)
        assert measuring._arguments is not None
        assert [b.name for b in measuring._arguments.buffers if b.restored] == ["state"]
    assert not told


def test_an_idempotent_in_place_kernel_is_detected_as_well() -> None:
    told: list[Sequence[str]] = []
    x = torch.linspace(-1, 1, 100)
    before = x.clone()
    with measurer([lambda x: x.copy_(torch.where(x > 0, x, 0.0))], {"x": x}, told=told) as measuring:
        measuring.measure(DEFAULT)
    assert told == [("x",)]
    assert torch.equal(x, before)


@pytest.mark.parametrize("number", [0.0, 1.0, 2.0])
def test_an_in_place_kernel_on_equal_numbers_is_detected_and_compared(number: float) -> None:
    for kernel in (lambda x: x.add_(1), lambda x: x.add_(x + 1), lambda x: x.mul_(3).sub_(1)):
        told: list[Sequence[str]] = []
        with measurer([kernel] * 2, {"x": torch.full((100,), number)}, told=told, check="allclose") as measuring:
            assert all(isinstance(measuring.measure(config), Measurement) for config in (DEFAULT, OTHER))
        assert told == [("x",)]


@pytest.mark.parametrize("check", [None, "allclose"])
def test_a_kernel_writing_part_of_its_output_reads_none_and_keeps_the_rest(check: str | None) -> None:
    told: list[Sequence[str]] = []
    out = torch.arange(100.0)

    def half(out: Any) -> None:
        out[:50].fill_(7)

    with measurer([half, half], {"out": out}, told=told, check=check) as measuring:
        assert isinstance(measuring.measure(DEFAULT), Measurement)
        assert isinstance(measuring.measure(OTHER), Measurement)
    assert not told
    assert torch.equal(out[50:], torch.arange(50.0, 100.0))


def test_numbers_that_may_be_indices_are_never_replaced_by_others() -> None:
    seen = set()

    def counts(x: Any) -> None:
        seen.add(int(x[0]))
        x.add_(1)

    told: list[Sequence[str]] = []
    x = torch.full((10,), 3, dtype=torch.int32)
    with measurer([counts], {"x": x}, told=told) as measuring:
        measuring.measure(DEFAULT)
    assert told == [("x",)]
    assert seen == {3, 4}, "the original, and what one run makes of it"


def test_a_kernel_that_never_gives_the_same_twice_is_not_accused() -> None:
    told: list[Sequence[str]] = []
    unknown = torch.Generator()
    with measurer([lambda out: out.normal_(generator=unknown)], {"out": torch.zeros(100)}, told=told) as measuring:
        measuring.measure(DEFAULT)
    assert not told


@pytest.mark.parametrize("check", ["allclose", "bitexact"])
def test_every_run_that_is_compared_draws_the_same_random_numbers(check: str) -> None:
    def noise(out: Any) -> None:
        out.copy_(torch.randn(100) * random.random() + numpys.rand())

    drawn, told = [], []
    tensors = {"out": torch.zeros(100)}
    with measurer([noise, lambda out: noise(out)], tensors, told=told, check=check) as measuring:
        for config in (DEFAULT, OTHER):
            state = torch.get_rng_state(), random.getstate()
            assert isinstance(measuring.measure(config), Measurement)
            assert (torch.get_rng_state().tolist(), random.getstate()) == (state[0].tolist(), state[1])
            drawn.append(torch.rand(1))  # as another thread may, between two candidates
    assert drawn[0] != drawn[1]
    assert not told


def test_noise_from_a_generator_that_is_reached_is_not_taken_for_reading() -> None:
    reached, told = torch.Generator(), []
    with InProcess(
        name="kernel",
        default=DEFAULT,
        check="allclose",
        tell_reads=told.append,
        launch=lambda _, values: Launch(call=lambda: values[1]["out"].normal_(generator=reached) and None),
        clock=lambda _: CpuClock(0.001),
        arguments=lambda: CopiedArguments((), {"out": torch.zeros(1)}, generators=[reached]),
    ) as measuring:
        assert all(isinstance(measuring.measure(config), Measurement) for config in (DEFAULT, OTHER))
    assert not told


def test_restore_value_and_reset_to_zero_are_honoured_without_a_warning() -> None:
    x, total, told, seen = torch.full((4,), 5.0), torch.full((4,), 9.0), [], set()

    def accumulates(x: Any, total: Any) -> None:
        seen.add((float(x[0]), float(total[0])))
        total.add_(x)
        x.mul_(2)

    with measurer(
        [accumulates], {"x": x, "total": total}, restored=["x"], zeroed=["total"], told=told, borrowed=True
    ) as measuring:
        measuring.measure(DEFAULT)
    assert seen == {(5.0, 0.0)}
    assert torch.equal(x, torch.full((4,), 5.0))


@pytest.mark.parametrize("borrowed", [False, True])
def test_declared_tensors_are_restored_even_if_the_kernel_never_reads_them(borrowed: bool) -> None:
    x, seen = torch.full((4,), 5.0), set()

    def overwrites(x: Any) -> None:
        seen.add(float(x[0]))
        x.fill_(7)

    with measurer([overwrites], {"x": x}, restored=["x"], borrowed=borrowed) as measuring:
        measuring.measure(DEFAULT)
        seen.clear()
        measuring.measure(DEFAULT)
    assert seen == {5.0}
    assert x.tolist() == [5.0] * 4


def test_a_probing_run_that_raises_is_nobodys_failure() -> None:
    def guarded(x: Any) -> None:
        if x[0] != 4:
            raise ValueError("not what it was called with")
        x.sqrt_()

    told: list[Sequence[str]] = []
    with measurer([guarded], {"x": torch.full((4,), 4.0)}, told=told, check="allclose") as measuring:
        assert isinstance(measuring.measure(DEFAULT), Measurement)
    assert not told


def test_a_kernel_never_meets_nan_where_tensors_are_returned() -> None:
    met = []

    def returns(out: Any, x: Any) -> Any:
        met.extend(bool(t.isnan().any()) for t in (out, x))
        return torch.add(x, 1, out=out)

    tensors = {"out": torch.zeros(8), "x": torch.ones(8)}
    with measurer([returns, returns], tensors, check="allclose") as measuring:
        assert all(isinstance(measuring.measure(c), Measurement) for c in (DEFAULT, OTHER))
    assert not any(met)


def test_restoring_is_no_part_of_what_is_timed() -> None:
    x = torch.zeros(30_000_000)  # copying 120 MB takes milliseconds
    with measurer([lambda x: x[:1].add_(1)], {"x": x}, restored=["x"]) as measuring:
        outcome = measuring.measure(DEFAULT)
    assert isinstance(outcome, Measurement)
    assert outcome.median_us < 1000


def test_a_config_computing_nothing_fails_though_the_answer_is_in_place() -> None:
    x = torch.arange(100.0)
    out = torch.zeros(100)
    with measurer([add_into, lambda out, x: None], {"out": out, "x": x}, check="allclose") as measuring:
        assert isinstance(measuring.measure(DEFAULT), Measurement)
        add_into(out, x)
        outcome = measuring.measure(OTHER)
    assert isinstance(outcome, Failure)
    assert outcome.stage == "check"


def test_an_output_that_holds_the_answer_already_is_found_all_the_same() -> None:
    x = torch.arange(100.0)
    out = x + 1
    kernels = [add_into, lambda out, x: None, add_into]
    told: list[Sequence[str]] = []
    right = Config({"which": 2})
    with measurer(kernels, {"out": out, "x": x}, check="allclose", told=told) as measuring:
        assert isinstance(measuring.measure(DEFAULT), Measurement)
        nothing = measuring.measure(OTHER)
        assert isinstance(measuring.measure(right), Measurement)
    assert isinstance(nothing, Failure)
    assert nothing.stage == "check"
    assert not told
    assert torch.equal(x, torch.arange(100.0))
    assert torch.equal(out, x + 1)


@pytest.mark.parametrize("slip", [lambda out, x: torch.add(x, 2, out=out), lambda out, x: add_into(out[:90], x[:90])])
def test_a_wrong_candidate_fails(slip: Kernel) -> None:
    tensors = {"out": torch.zeros(100), "x": torch.arange(100.0)}
    with measurer([add_into, slip], tensors, check="allclose") as measuring:
        outcome = measuring.measure(OTHER)
    assert isinstance(outcome, Failure)
    assert (outcome.stage, outcome.transient) == ("check", False)


def test_a_check_that_the_default_does_not_pass_is_an_error() -> None:
    def check(got: Any, expected: Any) -> bool:
        raise TypeError("a slip in the check")

    tensors = {"out": torch.zeros(10), "x": torch.ones(10)}
    with (
        measurer([add_into], tensors, check=check) as measuring,
        pytest.raises(CheckError, match="a slip in the check"),
    ):
        measuring.measure(DEFAULT)


def test_views_of_one_tensor_are_distinguished_and_restored() -> None:
    base = torch.arange(24.0).reshape(4, 6)
    before = base.clone()
    rows, columns = base[1:3], base.t()[2:, ::2]
    with measurer([lambda rows, columns: rows.add_(1)], {"rows": rows, "columns": columns}) as measuring:
        assert isinstance(measuring.measure(DEFAULT), Measurement)
    assert torch.equal(base, before)


@pytest.mark.parametrize("err", [KeyboardInterrupt(), RuntimeError("a slip"), RuntimeError("CUDA out of memory")])
def test_what_ends_a_look_half_way_leaves_the_tensors_as_they_were(err: BaseException) -> None:
    x, runs = torch.zeros(100), []

    def adds(x: Any) -> None:
        runs.append(1)
        if len(runs) == 2:
            raise err
        x.add_(1)

    with measurer([adds, adds], {"x": x}) as measuring:
        if isinstance(err, KeyboardInterrupt):
            with pytest.raises(KeyboardInterrupt):
                measuring.measure(DEFAULT)
        else:
            measuring.measure(DEFAULT)
            measuring.measure(OTHER)
    assert torch.equal(x, torch.zeros(100))


def test_where_the_default_does_not_run_the_first_that_does_is_looked_at() -> None:
    told: list[Sequence[str]] = []
    x = torch.zeros(100)
    with measurer([raising(ValueError("not this one")), add_in_place], {"x": x}, told=told) as measuring:
        assert isinstance(measuring.measure(DEFAULT), Failure)
        assert isinstance(measuring.measure(OTHER), Measurement)
    assert told == [("x",)]
    assert torch.equal(x, torch.zeros(100))


def test_gaps_between_a_tensors_elements_are_untouched_and_cost_no_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(copies, "usable_memory_bytes", lambda: 1 << 20)
    base = torch.zeros(1000, 1000)

    def first_column(x: Any) -> None:
        x.add_(1)
        base[:, 1].add_(1)  # in a gap: somebody else's

    with measurer([first_column], {"x": base[:, 0]}, restored=["x"], borrowed=True) as measuring:
        assert isinstance(measuring.measure(DEFAULT), Measurement)
    assert not base[:, 0].any()
    assert base[0, 1] > 5


def test_what_autograd_has_saved_does_not_count_as_changed() -> None:
    weight = torch.ones(10, requires_grad=True)
    x = weight.sin()
    y = x * x  # saves x
    with measurer([lambda x: None], {"x": x}, restored=["x"]) as measuring:
        assert isinstance(measuring.measure(DEFAULT), Measurement)
    y.sum().backward()
    assert weight.grad is not None


def test_outputs_are_taken_before_a_hook_of_the_users_puts_them_back() -> None:
    x = torch.zeros(10)
    kernels = [add_in_place, lambda x: x.add_(2)]
    with InProcess(
        name="kernel",
        default=DEFAULT,
        check="allclose",
        launch=lambda config, values: Launch(
            call=lambda: kernels[config["which"]](*values[0]), after=lambda: values[0][0].zero_()
        ),
        clock=lambda config: CpuClock(0.001),
        arguments=lambda: CopiedArguments((x,)),
    ) as measuring:
        assert isinstance(measuring.measure(DEFAULT), Measurement)
        outcome = measuring.measure(OTHER)
    assert isinstance(outcome, Failure)
    assert outcome.stage == "check"


def test_a_check_that_would_compare_nothing_is_an_error() -> None:
    with (
        measurer([lambda x: None], {"x": torch.zeros(4)}, check="allclose") as measuring,
        pytest.raises(CheckError, match="has nothing to compare"),
    ):
        measuring.measure(DEFAULT)


def test_a_default_known_to_crash_is_not_run_to_compare_others_with() -> None:
    runs: list[int] = []
    with measurer([lambda x: runs.append(0), add_in_place], {"x": torch.zeros(4)}, check="allclose") as measuring:
        measuring.skip_default()
        assert isinstance(measuring.measure(OTHER), Measurement)
    assert not runs


def test_one_memory_under_two_names_is_reported_under_both() -> None:
    told: list[Sequence[str]] = []
    x = torch.zeros(10)
    with measurer([lambda x, out: out.copy_(x + 1)], {"x": x, "out": x}, told=told) as measuring:
        measuring.measure(DEFAULT)
    assert told == [("x, out",)]


def test_more_to_restore_than_memory_is_refused_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copies, "usable_memory_bytes", lambda: 1 << 20)
    x = torch.zeros(1 << 20)
    with (
        measurer([add_in_place], {"x": x}, restored=["x"], borrowed=True) as measuring,
        pytest.raises(UnportableError, match="a copy of x to restore takes 4 MiB, and 1 MiB are free"),
    ):
        measuring.measure(DEFAULT)
    assert not x.any()


def test_where_memory_is_short_for_copies_nothing_is_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copies, "usable_memory_bytes", lambda: 1 << 20)
    x = torch.zeros(1 << 20)
    with (
        measurer([add_in_place], {"x": x}) as measuring,
        pytest.raises(UnportableError, match="copies of the arguments, which takes 80 MiB, and 1 MiB are free"),
    ):
        measuring.measure(DEFAULT)
    assert not x.any()


def test_only_the_default_is_run_more_than_it_is_timed() -> None:
    runs = []
    tensors = {"out": torch.zeros(10), "x": torch.ones(10)}
    kernels = [lambda out, x: runs.append(0) or add_into(out, x), lambda out, x: runs.append(1) or add_into(out, x)]
    with measurer(kernels, tensors, clock=lambda config: CountingClock()) as measuring:
        measuring.measure(DEFAULT)
        measuring.measure(OTHER)
    assert runs.count(0) == 3, "a look takes a second run"
    assert runs.count(1) == 2


class CountingClock(CpuClock):
    def measure(self, launch: Launch, **_: Any) -> Measurement:
        launch.once()
        return Measurement(samples_us=(1.0,))


class LostClock(CpuClock):
    def synchronize(self) -> None:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")


def test_a_config_that_destroys_the_context_ends_measuring_and_fails_alone() -> None:
    with measurer([add_in_place, add_in_place], {"x": torch.zeros(4)}, clock=lambda c: LostClock()) as m:
        outcome = m.measure(OTHER)
        assert isinstance(outcome, Failure)
        assert (outcome.crashed, outcome.transient) == (True, False)
        assert "illegal memory access" in outcome.message
        with pytest.raises(DeviceLostError, match="took the device's context"):
            m.measure(DEFAULT)


class OutOfResources(Exception):  # noqa: N818  # Triton's own name
    pass


class CompilationError(Exception):
    pass


class CompileTimeAssertionFailure(CompilationError):  # noqa: N818
    pass


def raising(err: Exception) -> Kernel:
    def kernel(**_: Any) -> None:
        raise err

    return kernel


@pytest.mark.parametrize("kind", [OutOfResources, CompilationError, CompileTimeAssertionFailure])
def test_what_is_the_configs_own_doing_is_kept(kind: type[Exception]) -> None:
    with measurer([raising(kind("too large"))], {"x": torch.zeros(4)}) as measuring:
        outcome = measuring.measure(DEFAULT)
    assert isinstance(outcome, Failure)
    assert not outcome.transient
    assert outcome.stage == ("resources" if kind is OutOfResources else "launch")
    assert outcome.refused is (kind is not CompilationError)  # no warning where the config rules itself out


@pytest.mark.parametrize(
    "err",
    [
        RuntimeError("Triton Error [CUDA]: out of memory"),
        RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 20 bytes"),
        MemoryError(),
    ],
)
def test_a_lack_of_memory_is_never_held_against_a_config(err: Exception) -> None:
    with measurer([add_in_place, raising(err)], {"x": torch.zeros(4)}) as measuring:
        measuring.measure(DEFAULT)
        outcome = measuring.measure(OTHER)
    assert isinstance(outcome, Failure)
    assert outcome.transient


@pytest.mark.parametrize("err", [KeyError("BM"), RuntimeError("a slip")])
def test_an_error_of_one_config_is_kept_and_one_the_default_shares_is_not(err: Exception) -> None:
    for default, transient in ((add_in_place, False), (raising(err), True), (raising(ValueError("other")), True)):
        with measurer([default, raising(err)], {"x": torch.zeros(4)}) as measuring:
            measuring.measure(DEFAULT)
            outcome = measuring.measure(OTHER)
        assert isinstance(outcome, Failure)
        assert outcome.transient is transient
