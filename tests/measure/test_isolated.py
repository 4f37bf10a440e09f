"""Candidates that misbehave in every way, in real processes, on a real extension."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from contracts.measurer_contract import MeasurerContract
from toy import Toy

from forecast_autotune.core.config import Config
from forecast_autotune.core.outcome import Failure, Measurement, Outcome
from forecast_autotune.core.timing_limits import TimingLimits
from forecast_autotune.measure import arguments, isolated
from forecast_autotune.measure.arguments import Arguments, snapshot
from forecast_autotune.measure.base import CheckError
from forecast_autotune.measure.clocks import CpuClock, Launch
from forecast_autotune.measure.copies import CopiedArguments, UnportableError
from forecast_autotune.measure.in_process import InProcess, InProcessAttempt
from forecast_autotune.measure.isolated import Isolated, extension_trials
from forecast_autotune.measure.sampling import EARLY_STOP_SAMPLES
from forecast_autotune.processes import worker
from forecast_autotune.processes.fork_server import fork_server


@contextlib.contextmanager
def measuring(toy: Toy, function: str, args: tuple[Any, ...], log: Path, check: Any = "allclose") -> Iterator[Isolated]:
    with isolated_measurer(toy, function, args, log, check=check) as measurer:
        yield measurer


def isolated_measurer(
    toy: Toy,
    function: str,
    args: tuple[Any, ...],
    log: Path,
    *,
    default: str = "plain",
    check: Any = "allclose",
    describe: Callable[[Config, Any], dict[str, Any]] | None = None,
) -> Isolated:
    def described(config: Any, _: object) -> dict[str, Any]:
        return {"extension": toy.compiler().extension(config).as_json(), "function": function}

    return Isolated(
        job=extension_trials,
        describe=describe or described,
        name=function,
        default=toy.config(default),
        arguments=args,
        check=check,
        log=log / "trials.log",
        one_each=True,
    )


def outcome_of(toy: Toy, mode: str, log: Path, function: str = "scaled") -> Outcome:
    x = torch.arange(5000, dtype=torch.float32)
    args = {"scaled": (x, 2.0), "scale_into": (torch.zeros_like(x), x, 2.0), "scale_in_place": (x, 2.0)}[function]
    with measuring(toy, function, args, log) as measurer:
        return measurer.measure(toy.config(mode))


class TestIsolated(MeasurerContract):
    @pytest.fixture(autouse=True)
    def _in_reach(self, toy: Toy, tmp_path: Path) -> Iterator[None]:
        self.toy, self.log = toy, tmp_path
        with contextlib.ExitStack() as self.open:
            yield

    def make_measurer(self) -> Isolated:
        return self.open.enter_context(measuring(self.toy, "scaled", (torch.ones(5000), 2.0), self.log))

    def good(self) -> list[Config]:
        return [self.toy.config("plain"), self.toy.config("slow")]

    def bad(self) -> Config:
        return self.toy.config("segfaults")


def test_a_good_variant_is_timed(toy: Toy, tmp_path: Path) -> None:
    outcome = outcome_of(toy, "plain", tmp_path)
    assert isinstance(outcome, Measurement)
    assert len(outcome.samples_us) >= 5
    assert outcome.run_s > 0


def test_a_slower_variant_measures_slower(toy: Toy, tmp_path: Path) -> None:
    with measuring(toy, "scaled", (torch.ones(20_000), 2.0), tmp_path, check=None) as measurer:
        plain = measurer.measure(toy.config("plain"))
        assert isinstance(plain, Measurement)
        slower = measurer.measure(toy.config("slower"), TimingLimits(early_stop_us=4 * plain.median_us))
    assert isinstance(slower, Measurement)
    assert slower.median_us > 4 * plain.median_us
    assert len(slower.samples_us) <= EARLY_STOP_SAMPLES, "what cannot win is not timed further"


@pytest.mark.parametrize(
    ("mode", "function", "stage", "crashed", "says"),
    [
        ("segfaults", "scaled", "launch", True, "SIGSEGV"),
        ("aborts", "scaled", "launch", True, "SIGABRT"),
        ("corrupts_heap", "scaled", "launch", True, "SIG"),
        ("raises", "scaled", "launch", False, "RuntimeError: this variant raises"),
        ("computes_nonsense", "scaled", "check", False, "1 of 5000 elements differ"),
        ("computes_nonsense", "scale_into", "check", False, "1 of 5000 elements differ"),
        ("computes_nonsense", "scale_in_place", "check", False, "1 of 5000 elements differ"),
        ("overruns", "scale_into", "check", False, "wrote 32 bytes past the end of tensor argument 0"),
        ("overruns", "scale_in_place", "check", False, "wrote 32 bytes past the end of tensor argument 0"),
    ],
)
def test_a_bad_variant_becomes_a_failure(
    toy: Toy, tmp_path: Path, mode: str, function: str, stage: str, crashed: bool, says: str
) -> None:
    outcome = outcome_of(toy, mode, tmp_path, function)
    assert isinstance(outcome, Failure)
    assert (outcome.stage, outcome.crashed) == (stage, crashed)
    assert says in outcome.message
    assert outcome.cost_s > 0


def test_a_variant_computing_nothing_fails_though_the_answer_is_in_place(toy: Toy, tmp_path: Path) -> None:
    x = torch.arange(5000, dtype=torch.float32)
    with measuring(toy, "scale_into", (2 * x, x, 2.0), tmp_path) as measurer:
        assert isinstance(measurer.measure(toy.config("slow")), Measurement)
        outcome = measurer.measure(toy.config("computes_nothing"))
    assert isinstance(outcome, Failure)
    assert outcome.stage == "check"


def test_a_hanging_variant_is_killed_after_a_time_that_the_default_sets(
    toy: Toy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(isolated, "TIMEOUT_FLOOR_S", 0.5)
    began = time.monotonic()
    outcome = outcome_of(toy, "hangs", tmp_path)
    assert isinstance(outcome, Failure)
    assert (outcome.stage, outcome.crashed) == ("timeout", True)
    assert time.monotonic() - began < isolated.DEFAULT_TIMEOUT_S


def test_a_good_variant_of_large_arguments_is_timed_where_memory_is_short(
    toy: Toy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker, "WATCH_S", 0.001)
    args = torch.zeros(4 << 20), torch.ones(4 << 20), 2.0
    for module in (isolated, arguments):  # less than the worker holds before any candidate: torch, and its copies
        monkeypatch.setattr(module, "usable_memory_bytes", lambda: 150 << 20)
    with measuring(toy, "scale_into", args, tmp_path, check=None) as measurer:
        assert isinstance(measurer.measure(toy.config("slow")), Measurement)


def test_a_variant_that_takes_the_last_memory_is_ended_and_may_be_retried(
    toy: Toy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker, "WATCH_S", 0.001)
    # Little enough for a small container: what a machine has is not to matter.
    monkeypatch.setattr(isolated, "usable_memory_bytes", lambda: 512 << 20)
    with measuring(toy, "scaled", (torch.ones(8 << 20), 2.0), tmp_path) as measurer:
        assert isinstance(measurer.measure(toy.config("plain")), Measurement)
        monkeypatch.setattr(isolated, "usable_memory_bytes", lambda: 8 << 20)
        outcome = measurer.measure(toy.config("slow"))
    assert isinstance(outcome, Failure)
    assert (outcome.stage, outcome.crashed, outcome.transient) == ("launch", False, True)
    assert "MiB that it could have, and was ended" in outcome.message


def test_no_worker_outlives_its_trial(toy: Toy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(isolated, "TIMEOUT_FLOOR_S", 0.5)
    outcome_of(toy, "hangs", tmp_path)
    server = fork_server()._process
    assert server is not None
    for _ in range(1200):
        children = Path(f"/proc/{server.pid}/task/{server.pid}/children").read_text().split()
        if not children:
            break
        time.sleep(0.05)
    assert not children


def test_the_arguments_of_the_caller_are_never_touched(toy: Toy, tmp_path: Path) -> None:
    x = torch.arange(100, dtype=torch.float32)
    with measuring(toy, "scale_in_place", (x, 2.0), tmp_path) as measurer:
        assert isinstance(measurer.measure(toy.config("plain")), Measurement)
    assert torch.equal(x, torch.arange(100, dtype=torch.float32))


def test_an_in_place_kernel_starts_every_repeat_from_the_original() -> None:
    seen = []

    def double(x: torch.Tensor) -> None:
        seen.append(float(x[0]))
        x.mul_(2)

    taken = snapshot([torch.ones(4)])
    arguments = Arguments(taken.layout, taken.file, taken.size)
    attempt = InProcessAttempt(lambda: Launch(call=lambda: double(*arguments.values())), arguments, CpuClock())
    taken.close()
    outputs = attempt.run().outputs
    assert outputs is not None
    (output,) = outputs.tensors
    assert output.tolist() == [2.0] * 4
    assert len(attempt.time().samples_us) >= 5
    assert set(seen) == {1.0}


class Script:
    """A caller that wants the same of two candidates, and reads the numbers that they return."""

    def __init__(self, file: int) -> None:
        run = {"detect": False, "blank": [], "compared": True}
        self.files, self.returned = [file], list[list[float]]()
        self._commands = [*([{"candidate": {}}, run, {"time": {}}, run] * 2), {"end": True}]

    def receive(self) -> dict[str, Any]:
        return self._commands.pop(0)

    def send(self, message: dict[str, Any], files: Sequence[int] = ()) -> None:
        assert "raised" not in message
        if "outputs" in message:
            (tensor,) = Arguments(message["outputs"], files[0], message["bytes"]).values()
            self.returned.append(tensor.tolist())


def test_every_run_in_a_worker_draws_the_same_random_numbers(tmp_path: Path) -> None:
    umask, taken = os.umask(0o077), snapshot([torch.ones(4)])
    caller = Script(taken.file)
    request = {"layout": taken.layout, "bytes": taken.size, "threads": torch.get_num_threads()}
    isolated.serve_trials(caller, request, lambda *_: (Launch(call=lambda: torch.rand(4)), CpuClock()))
    os.umask(umask)
    taken.close()
    assert len(caller.returned) == 4
    assert all(numbers == caller.returned[0] for numbers in caller.returned)


def test_without_the_defaults_outputs_nothing_is_compared_with_a_warning(
    toy: Toy, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with isolated_measurer(toy, "scaled", (torch.ones(100), 2.0), tmp_path, default="segfaults") as measurer:
        assert isinstance(measurer.measure(toy.config("computes_nonsense")), Measurement)
        assert isinstance(measurer.measure(toy.config("plain")), Measurement)
    assert "nothing can be compared" in caplog.text


def test_what_the_default_raises_too_is_not_kept_against_a_config(toy: Toy, tmp_path: Path) -> None:
    with measuring(toy, "scaled", ("no tensor", 2.0), tmp_path) as measurer:
        outcomes = [measurer.measure(toy.config(mode)) for mode in ("plain", "slow")]
    assert all(isinstance(o, Failure) and o.transient and not o.crashed for o in outcomes)


def test_a_library_that_is_gone_is_not_held_against_its_config(toy: Toy, tmp_path: Path) -> None:
    def described(config: Config, _: object) -> dict[str, Any]:
        extension = toy.compiler().extension(toy.config("plain"))
        if config == toy.config("slow"):
            extension = replace(extension, path=str(tmp_path / "gone" / "toy.so"))
        return {"extension": extension.as_json(), "function": "scaled"}

    with isolated_measurer(toy, "scaled", (torch.ones(5000), 2.0), tmp_path, describe=described) as measurer:
        assert isinstance(measurer.measure(toy.config("plain")), Measurement)
        outcome = measurer.measure(toy.config("slow"))
        assert isinstance(outcome, Failure)
        assert outcome.transient
        assert "toy.so was removed before it was loaded" in outcome.message
        assert isinstance(measurer.measure(toy.config("slower")), Measurement)


def test_what_a_candidate_prints_goes_to_the_log(toy: Toy, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    outcome_of(toy, "plain", tmp_path)
    assert "scale runs as mode 0" in (tmp_path / "trials.log").read_text()
    assert (tmp_path / "trials.log").stat().st_mode & 0o777 == 0o600
    assert "scale runs" not in "".join(capfd.readouterr())


def test_a_check_of_the_users_own_sees_both_outputs(toy: Toy, tmp_path: Path) -> None:
    seen = []

    def check(got: list[torch.Tensor], expected: list[torch.Tensor]) -> bool:
        seen.append((got[0], expected[0]))
        return bool((got[0] - expected[0]).abs().max() < 1)

    x = torch.ones(10)
    with measuring(toy, "scaled", (x, 2.0), tmp_path, check) as measurer:
        assert isinstance(measurer.measure(toy.config("slow")), Measurement)
        outcome = measurer.measure(toy.config("computes_nonsense"))
    assert isinstance(outcome, Failure)
    assert outcome.message == "the check said no"
    assert torch.equal(seen[0][1], 2 * x)


def test_a_check_that_raises_fails_the_candidate_not_the_caller(toy: Toy, tmp_path: Path) -> None:
    def check(got: list[torch.Tensor], expected: list[torch.Tensor]) -> None:
        assert torch.equal(got[0], expected[0]), "not what I wanted"

    with measuring(toy, "scaled", (torch.ones(10), 2.0), tmp_path, check) as measurer:
        outcome = measurer.measure(toy.config("computes_nonsense"))
    assert isinstance(outcome, Failure)
    assert "not what I wanted" in outcome.message


def test_a_check_that_the_default_fails_too_is_an_error_that_says_so(toy: Toy, tmp_path: Path) -> None:
    def check(got: list[torch.Tensor], expected: list[torch.Tensor]) -> None:
        raise KeyError("a slip in the check")

    with (
        measuring(toy, "scaled", (torch.ones(10), 2.0), tmp_path, check) as measurer,
        pytest.raises(CheckError, match=r"fails on the default config's own outputs.*a slip in the check"),
    ):
        measurer.measure(toy.config("slow"))


def test_arguments_that_cannot_be_copied_are_named(toy: Toy, tmp_path: Path) -> None:
    with (
        measuring(toy, "scaled", (torch.ones(3).to_sparse(), 2.0), tmp_path) as measurer,
        pytest.raises(UnportableError, match="argument 0 is a Tensor"),
    ):
        measurer.measure(toy.config("plain"))


def test_descriptors_are_closed(toy: Toy, tmp_path: Path) -> None:
    outcome_of(toy, "plain", tmp_path)
    before = len(os.listdir("/proc/self/fd"))
    for mode in ("plain", "segfaults", "computes_nonsense"):
        outcome_of(toy, mode, tmp_path)
    assert len(os.listdir("/proc/self/fd")) <= before + 1


def test_in_process_times_and_checks_alike(toy: Toy) -> None:
    compiler = toy.compiler()
    with InProcess(
        name="scale_into",
        launch=lambda config, values: Launch(
            call=lambda: compiler.extension(config).function("scale_into")(*values[0])
        ),
        clock=lambda _: CpuClock(),
        default=toy.config("plain"),
        arguments=lambda: CopiedArguments((torch.zeros(1000), torch.ones(1000), 2.0)),
        check="allclose",
    ) as measurer:
        assert isinstance(measurer.measure(toy.config("slow")), Measurement)
        wrong, overrun, raised = (measurer.measure(toy.config(m)) for m in ("computes_nonsense", "overruns", "raises"))
    assert [o.stage for o in (wrong, overrun, raised) if isinstance(o, Failure)] == ["check", "check", "launch"]


def test_in_process_what_one_config_spoils_is_restored_for_the_next() -> None:
    made: list[CopiedArguments] = []

    def laid_out() -> CopiedArguments:
        made.append(CopiedArguments((torch.zeros(100), torch.ones(100))))
        return made[-1]

    def function(config: Config) -> Any:
        def call(out: torch.Tensor, x: torch.Tensor) -> None:
            assert out.shape == x.shape == (100,)
            out.copy_(x * 2)
            if config["does"] == "overruns":
                out.as_strided((1,), (1,), out.storage_offset() + 120).zero_()
                made[-1].buffers[1].pristine.zero_()
            if config["does"] == "raises":
                raise ValueError("no more")
            if config["does"] == "reshapes":
                out.unsqueeze_(0)
                raise ValueError("of a shape of its own")

        return call

    runs, again, overruns, last, raises, reshapes, end = (
        Config({"does": does}) for does in ("runs", "again", "overruns", "last", "raises", "reshapes", "end")
    )
    with InProcess(
        name="double",
        launch=lambda config, values: Launch(call=lambda: function(config)(*values[0])),
        clock=lambda _: CpuClock(),
        default=runs,
        arguments=laid_out,
        check="allclose",
    ) as measurer:
        assert isinstance(measurer.measure(runs), Measurement)
        assert isinstance(measurer.measure(again), Measurement)
        assert len(made) == 1
        assert isinstance(measurer.measure(overruns), Failure)
        assert isinstance(measurer.measure(last), Measurement)
        assert len(made) == 2
        assert isinstance(measurer.measure(raises), Failure)
        assert isinstance(measurer.measure(reshapes), Failure)
        assert isinstance(measurer.measure(end), Measurement)
