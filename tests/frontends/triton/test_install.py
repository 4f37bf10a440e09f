# ruff: noqa: N803  # Triton kernels write their meta-parameters in capitals
"""install(): Triton's own tuners decide by ours; and the decorator under its public names."""

from __future__ import annotations

import copy
import gc
import itertools
import pickle
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import forecast_autotune as fa
from forecast_autotune import forecast_autotune
from forecast_autotune.core.config import Config
from forecast_autotune.errors import InvalidInputError, TuningWarning
from forecast_autotune.frontends.online.learning_threads import learners

torch = pytest.importorskip("torch")
triton = pytest.importorskip("triton")

import triton.language as tl  # noqa: E402
from triton.runtime.autotuner import Autotuner  # noqa: E402

BLOCKS = (64, 128, 256)
BEST = 128
TIMES = {Config({"BLOCK": b, "num_warps": 4}): 400.0 if b == BEST else 800.0 for b in (32, *BLOCKS, 512)}


def configs() -> list[Any]:
    return [triton.Config({"BLOCK": b}, num_warps=4) for b in BLOCKS]


@triton.jit
def scale(x_ptr, n, factor, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(x_ptr + offsets, tl.load(x_ptr + offsets, mask=offsets < n) * factor, mask=offsets < n)


class Counting(Autotuner):  # type: ignore[misc]
    """A package's class that hands launches on, after it has put what it knows into the cache."""

    known: Any = None
    asked = 0

    def run(self, *args: Any, **kwargs: Any) -> Any:
        self.asked += 1
        if self.known is not None:
            self.cache[1000, "torch.float32"] = self.known
        return super().run(*args, **kwargs)


class Database(Autotuner):  # type: ignore[misc]
    """A package's class that times what Triton's pruning leaves in a launch of its own, and keeps it where it likes."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.cache = _Rows()
        self.timed: list[Any] = []

    def run(self, *args: Any, **kwargs: Any) -> Any:
        self.nargs = dict(zip(self.arg_names, args, strict=False))
        key = self.nargs["n"]
        if key not in self.cache:
            self.timed = [
                config for config in self.prune_configs(kwargs) if self._bench(*args, config=config, **kwargs)
            ]
            self.cache[key] = self.timed[0]
        self.best_config = self.cache[key]
        launched = self.fn.run(*args, **kwargs, **self.best_config.all_kwargs())
        self.nargs = None
        return launched


class _Rows(dict[Any, Any]):
    pass


class Deaf(Autotuner):  # type: ignore[misc]
    """A package's class that launches by itself and asks nobody."""

    def run(self, *args: Any, **kwargs: Any) -> Any:
        return self.fn.run(*args, **kwargs, **self.configs[-1].all_kwargs())


def stock() -> Any:
    return triton.autotune(configs=configs(), key=["n"])(scale)


def made_by(kind: type[Any]) -> Any:
    return kind(scale, scale.arg_names, configs(), ["n"], None, None)


def call(kernel: Any, n: int = 1000) -> None:
    kernel[(4,)](torch.ones(1000), n, 2.0)


def block(kernel: Any) -> int:
    return int(kernel.best_config.kwargs["BLOCK"])


def class_as_it_is() -> dict[str, Any]:
    return dict(vars(Autotuner))


def in_list(kernel: Any) -> Any:
    """What `installed()` says of a kernel, of which its module has one alone of its class."""
    gc.collect()  # those of earlier tests
    of_it = (kernel.base_fn.__module__, type(kernel).__name__)
    return next(row for row in fa.installed() if (row.kernel.rpartition(".")[0], row.tuner.rpartition(".")[2]) == of_it)


@pytest.fixture(autouse=True)
def surroundings(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path_factory.getbasetemp() / "triton-cache"))
    monkeypatch.setenv("TRITON_DEFAULT_FP_FUSION", "1")
    monkeypatch.setenv("FORECAST_AUTOTUNE_BUDGET", "all")
    yield
    fa.uninstall()


# What is reached ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [stock, lambda: made_by(Counting)])
@pytest.mark.parametrize("earlier", [True, False])
def test_a_kernel_is_decided_here_and_stays_of_its_class(make: Callable[[], Any], earlier: bool) -> None:
    kernel = make() if earlier else None
    names = triton.autotune, triton.runtime.autotune, triton.runtime.autotuner.autotune, triton.runtime.Autotuner
    fa.install()
    kernel = kernel or make()
    kind = type(kernel)
    with fa.rehearsal("H100", TIMES) as on:
        call(kernel)
        (decision,) = fa.tuner_of(kernel).decisions.values()  # type: ignore[union-attr]
        assert (decision.basis, decision.config.knobs["BLOCK"], block(kernel)) == ("measured", BEST, BEST)
        before = sum(on.launches.values())
        call(kernel)
        assert sum(on.launches.values()) == before + 1
    assert type(kernel) is kind
    assert isinstance(kernel, triton.runtime.autotuner.Autotuner)
    assert names == (
        triton.autotune,
        triton.runtime.autotune,
        triton.runtime.autotuner.autotune,
        triton.runtime.Autotuner,
    )
    assert "BLOCK=128" in str(fa.tuner_of(kernel).explain())  # type: ignore[union-attr]
    assert kernel.configs_timings[kernel.configs[1]][0] < kernel.configs_timings[kernel.configs[0]][0]


def test_a_class_with_a_launch_of_its_own_times_the_decided_config_alone() -> None:
    kernel = made_by(Database)
    cache = kernel.cache
    fa.install()
    with fa.rehearsal("H100", TIMES):
        call(kernel)
    assert kernel.timed == [configs()[1]]
    assert kernel.cache is cache == {1000: configs()[1]}
    assert in_list(kernel).ours
    fa.uninstall()
    with fa.rehearsal("H100", TIMES):
        call(kernel, 2000)
    assert len(kernel.timed) == 3


def test_who_lists_configs_outside_a_launch_gets_them_all() -> None:
    kernel = made_by(Database)
    fa.install()
    kernel.nargs = {"x_ptr": torch.ones(1000), "n": 1000, "factor": 2.0}
    assert kernel.prune_configs({"grid": (4,)}) == configs()


def test_a_class_that_asks_nobody_goes_on_as_without_us_and_is_told_of() -> None:
    kernel = made_by(Deaf)
    fa.install()
    with fa.rehearsal("H100", TIMES) as on:
        call(kernel)
    assert [config["BLOCK"] for _, config in on.launches] == [256]
    row = in_list(kernel)
    assert (row.ours, row.decided) == (False, 0)
    assert "Deaf.run launches without Triton's own run" in row.why


def test_kernels_of_ours_and_their_class_are_as_before() -> None:
    before = dict(vars(fa.ForecastAutotuner))
    kernel = fa.autotune(configs=configs(), key=["n"])(scale)
    fa.install()
    with fa.rehearsal("H100", TIMES):
        call(kernel)
    assert fa.tuner_of(kernel) is kernel
    assert len(kernel.decisions) == 1
    assert dict(vars(fa.ForecastAutotuner)) == before
    assert any(row.why == "decorated by forecast_autotune" and row.ours for row in fa.installed())


def test_installing_leaves_torch_to_the_first_launch() -> None:
    program = "import sys, forecast_autotune as fa; fa.install(); print('torch' in sys.modules, fa.installed())"
    told = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert told.stdout.split() == ["False", "[]"]


def test_a_kernel_with_a_single_config_and_one_that_is_interpreted_run(monkeypatch: pytest.MonkeyPatch) -> None:
    fa.install()
    kernel = triton.autotune(configs=configs()[:1], key=["n"])(scale)
    with fa.rehearsal("H100", TIMES) as on:
        call(kernel)
        call(kernel)
    assert sum(on.launches.values()) == 2
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    interpreted = triton.autotune(configs=configs(), key=["n"])(triton.jit(scale.fn))
    x = torch.ones(1000)
    with pytest.warns(TuningWarning, match="reads what it writes to x_ptr"):
        interpreted[(16,)](x, 1000, 2.0)
    assert x.tolist() == [2.0] * 1000


def test_a_kernel_that_nobody_holds_is_freed() -> None:
    fa.install()
    kernel = stock()
    with fa.rehearsal("H100", TIMES):
        call(kernel)
    alive = weakref.ref(kernel)
    del kernel
    gc.collect()
    assert alive() is None


# What a program does with its tuners -------------------------------------------------------------------------------------


def test_a_config_that_a_package_puts_into_the_cache_is_launched() -> None:
    kernel = made_by(Counting)
    fa.install()
    with fa.rehearsal("H100", TIMES) as on:
        for known in (triton.Config({"BLOCK": 512}), triton.Config({"BLOCK": 32})):
            kernel.known = known
            call(kernel)
    assert [config["BLOCK"] for _, config in on.launches] == [512, 32]
    assert kernel.asked == 2
    assert fa.tuner_of(kernel).decisions == {}  # type: ignore[union-attr]


def test_what_triton_tuned_before_is_not_tuned_again() -> None:
    kernel = stock()
    kernel.cache[1000, "torch.float32"] = kernel.configs[2]
    fa.install()
    with fa.rehearsal("H100", TIMES) as on:
        call(kernel)
        assert [config["BLOCK"] for _, config in on.launches] == [256]
        kernel.cache.clear()
        call(kernel)
    assert block(kernel) == BEST


def test_a_list_of_configs_that_is_changed_in_place_holds_for_new_keys() -> None:
    kernel = triton.autotune(shared := configs(), ["n"])(scale)
    fa.install()
    with fa.rehearsal("H100", TIMES):
        call(kernel)
        shared[:] = [config for config in shared if config.kwargs["BLOCK"] != BEST]
        call(kernel, 2000)
        assert kernel.best_config in shared
        call(kernel)
        assert block(kernel) == BEST, "what is decided stays"


def test_assigned_keys_tell_the_next_calls_apart() -> None:
    kernel = triton.autotune(configs(), ["factor"])(scale)
    fa.install()
    with fa.rehearsal("H100", TIMES):
        call(kernel)
        call(kernel)
        kernel.keys = ["n"]
        for n in (2000, 3000, 3000):
            call(kernel, n)
        assert [key[0] for key in kernel.cache] == [2.0, 2000, 3000]


def test_what_is_put_into_the_cache_after_a_decision_is_given_back() -> None:
    kernel = stock()
    fa.install()
    with fa.rehearsal("H100", TIMES):
        call(kernel)
        kernel.cache[1000, "torch.float32"] = kernel.configs[2]
        call(kernel, 2000)
        fa.uninstall()
        decided = {(1000, "torch.float32"): kernel.configs[2], (2000, "torch.float32"): kernel.configs[1]}
        assert kernel.cache == decided


def test_assigned_configs_and_an_assigned_cache_hold_from_the_next_call() -> None:
    kernel = stock()
    fa.install()
    with fa.rehearsal("H100", TIMES):
        call(kernel)
        kernel.configs = [triton.Config({"BLOCK": 32})]
        call(kernel)
        assert block(kernel) == 32
        kernel.configs = configs()
        kernel.cache = {(1000, "torch.float32"): kernel.configs[2]}
        call(kernel)
        assert block(kernel) == 256
        call(kernel, 2000)
        assert (block(kernel), len(kernel.cache)) == (BEST, 2)


def test_a_class_whose_cache_knows_more_than_a_dictionary_is_left_to_it() -> None:
    kernel = made_by(Counting)
    kernel.cache = _Rows({(1000, "torch.float32"): kernel.configs[2]})
    fa.install()
    with fa.rehearsal("H100", TIMES):
        call(kernel)
    assert block(kernel) == 256
    assert type(kernel.cache) is _Rows
    assert "its cache is a" in in_list(kernel).why


def test_pruning_of_a_class_and_of_the_user_comes_first() -> None:
    class Pruning(Counting):
        def prune_configs(self, kwargs: Any) -> Any:
            assert self.nargs["n"] == 1000
            return [config for config in super().prune_configs(kwargs) if config.kwargs["BLOCK"] != BEST]

    prune = {"early_config_prune": lambda found, named, **_: found[1:] if named["n"] == 1000 else found}
    fa.install()
    kernel = triton.autotune(configs(), ["n"], prune)(scale)
    with fa.rehearsal("H100", TIMES) as on:
        call(kernel)
        call(made_by(Pruning))
    assert {config["BLOCK"] for _, config in on.launches if config["BLOCK"] == 64}
    assert {config.kwargs["BLOCK"] for config in kernel.configs_timings} == {128, 256}


@pytest.mark.parametrize("make", [stock, lambda: made_by(Counting)])
def test_a_configs_hook_reads_the_arguments_of_its_call_from_the_kernel(make: Callable[[], Any]) -> None:
    kernel, seen = make(), []
    for config in kernel.configs:
        config.pre_hook = lambda named: seen.append((named["n"], kernel.nargs["n"]))
    fa.install()
    with fa.rehearsal("H100", TIMES):
        with pytest.raises(AttributeError, match=f"'{type(kernel).__name__}' object has no attribute 'nargs'"):
            kernel.nargs  # noqa: B018
        call(kernel)
        call(kernel, 2000)
        call(kernel, 2000)
        assert set(seen) == {(1000, 1000), (2000, 2000)}
        assert block(kernel) == BEST
        assert kernel.nargs is None
        fa.uninstall()
        call(kernel, 3000)
        call(kernel, 1000)
        assert kernel.nargs is None
    assert set(seen) == {(1000, 1000), (2000, 2000), (3000, 3000)}


def test_a_grid_reads_the_arguments_of_its_call_from_the_kernel() -> None:
    kernel, x = stock(), torch.empty(4096)
    fa.install()
    with fa.rehearsal("H100", TIMES):
        for n in (1000, 2000, 2000):
            kernel[lambda meta: (triton.cdiv(kernel.nargs["n"], meta["BLOCK"]),)](x, n, 2.0)
        assert block(kernel) == BEST


def test_hooks_of_two_threads_read_the_arguments_of_their_own_calls() -> None:
    kernel, seen, both = stock(), [], threading.Barrier(2)

    def hook(named: dict[str, Any]) -> None:
        if decided:
            both.wait(60)
        seen.append((named["n"], kernel.nargs["n"]))
        if decided:
            both.wait(60)

    decided = False
    for config in kernel.configs:
        config.pre_hook = hook
    fa.install()
    with fa.rehearsal("H100", TIMES):
        for n in (1000, 2000):
            call(kernel, n)
        seen.clear()
        decided = True
        threads = [threading.Thread(target=call, args=(kernel, n)) for n in (1000, 2000)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert sorted(seen) == [(1000, 1000), (2000, 2000)]


def test_a_benchmark_of_the_programs_own_times_the_configs() -> None:
    asked = []

    def bench(kernel_call: Any, quantiles: Any) -> list[float]:
        kernel_call()
        asked.append(quantiles)
        return [float(len(asked))] * 3

    fa.install()
    kernel = triton.autotune(configs(), ["n"], do_bench=bench)(scale)
    with fa.rehearsal("H100", TIMES):
        call(kernel)
    assert len(asked) >= 3
    assert block(kernel) == 64


@pytest.mark.parametrize("options", [{}, {"reset_to_zero": ["x_ptr"], "restore_value": ["x_ptr"]}])
def test_hooks_that_are_assigned_to_a_kernel_are_called(options: dict[str, Any]) -> None:
    before, after = set(), set()
    fa.install()
    kernel = triton.autotune(configs=configs(), key=["n"], **options)(scale)
    with fa.rehearsal("H100", TIMES):
        call(kernel)
        kernel.pre_hook = lambda named, reset_only=False: before.add(named["BLOCK"])
        kernel.post_hook = lambda named, exception: after.add(named["BLOCK"])
        call(kernel, 2000)
    assert before == after == set(BLOCKS)


def test_copies_and_what_was_pickled_before_are_reached_on_their_own() -> None:
    fa.install()
    kernel = stock()
    plain = pickle.dumps(Autotuner(Launched(), ["n"], configs(), ["n"], None, None, pre_hook=hook, post_hook=hook))
    with fa.rehearsal("H100", TIMES) as on:
        call(kernel)
        copied = copy.copy(kernel)
        before = sum(on.launches.values())
        call(copied)
        assert sum(on.launches.values()) == before + 1, "it has the decisions of the first"
        assert fa.tuner_of(copied) is not fa.tuner_of(kernel)
        copied.cache.clear()
        assert len(kernel.cache) == 1
        assert copy.deepcopy(fa.tuner_of(kernel)) is None, "a copy gets its own at its first launch"
        unpickled = pickle.loads(plain)  # noqa: S301  # ours
        unpickled.run(1000, grid=(1,))


@pytest.mark.parametrize(("inner", "error"), [({"BLOCK": 64}, "Conflicting meta-parameters"), ({}, "multiple values")])
def test_a_kernel_that_is_decorated_twice_fails_as_without_us(inner: dict[str, Any], error: str) -> None:
    below = [triton.Config(inner, num_warps=warps) for warps in (2, 4)]
    for installed in (False, True):
        if installed:
            fa.install()
        twice = triton.autotune(configs(), ["n"])(triton.autotune(below, ["n"])(scale))
        with fa.rehearsal("H100", 400.0), pytest.raises((ValueError, TypeError), match=error):
            call(twice)


class Launched:
    """A kernel that can be pickled, as Triton's own JIT functions cannot."""

    def run(self, *args: Any, **kwargs: Any) -> None:
        pass

    @property
    def fn(self) -> Any:
        return hook


def hook(*args: Any, **kwargs: Any) -> None:
    pass


def test_a_tuner_that_cannot_be_read_is_left_to_triton_with_one_warning(caplog: pytest.LogCaptureFixture) -> None:
    class Odd:
        kwargs: dict[str, Any] = {}  # noqa: RUF012
        pre_hook = None

        def __init__(self, block: int) -> None:
            self.block = block

    kernel = stock()
    kernel.configs = [Odd(64), Odd(128)]
    kernel.cache[1000, "torch.float32"] = configs()[0]
    fa.install()
    with fa.rehearsal("H100", TIMES) as on:
        warned = r"scale is left to Triton's own tuner: .* is no triton.Config.*; to see the traceback"
        with pytest.warns(fa.TuningWarning, match=warned), caplog.at_level("DEBUG", "forecast_autotune"):
            call(kernel)
        call(kernel)
    assert "Traceback" in caplog.text
    assert [config["BLOCK"] for _, config in on.launches] == [64]
    assert sum(on.launches.values()) == 2


def test_a_misspelt_parameter_in_another_package_warns_and_breaks_nothing() -> None:
    fa.install()
    kernel = triton.autotune(configs=[*configs(), triton.Config({"BLOK": 64})], key=["n"])(scale)
    kernel.cache[1000, "torch.float32"] = kernel.configs[0]
    with fa.rehearsal("H100", TIMES), pytest.warns(fa.TuningWarning, match="did you mean 'BLOCK'"):
        call(kernel)
    with pytest.raises(InvalidInputError, match="did you mean 'BLOCK'"):
        fa.autotune(configs=[*configs(), triton.Config({"BLOK": 64})], key=["n"])(scale)


# uninstall() -------------------------------------------------------------------------------------------------------------


def test_uninstalling_gives_every_class_method_and_attribute_back() -> None:
    kernels = [stock(), made_by(Counting), made_by(Database), made_by(Deaf)]
    the_class, derived = class_as_it_is(), [dict(vars(type(kernel))) for kernel in kernels]
    attributes = [dict(vars(kernel)) for kernel in kernels]
    for _ in range(2):
        fa.install()
        fa.install()
    kernels.append(stock())
    attributes.append(dict(vars(kernels[-1])))
    with fa.rehearsal("H100", TIMES) as on:
        for kernel in kernels:
            call(kernel)
        fa.uninstall()
        fa.uninstall()
        assert class_as_it_is() == the_class
        assert [dict(vars(type(kernel))) for kernel in kernels[:4]] == derived
        of_a_launch = {"best_config", "configs_timings", "bench_time", "nargs", "do_bench", "asked", "timed"}
        for kernel, before in zip(kernels, attributes, strict=True):
            after = vars(kernel)
            assert after.keys() - of_a_launch == before.keys() - of_a_launch
            assert all(after[name] is before[name] for name in before.keys() - of_a_launch)
            assert len(kernel.cache) == (not isinstance(kernel, Deaf))
        before_it = sum(on.launches.values())
        for kernel in kernels:
            call(kernel)
            assert isinstance(kernel, Deaf) or block(kernel) == BEST
        assert sum(on.launches.values()) == before_it + len(kernels), "what was decided stays decided"
    assert fa.tuner_of(kernels[0]) is None
    assert not any(
        row.ours for row in fa.installed() if row.package == __name__.partition(".")[0] and row.tuner[:6] == "triton"
    )


def test_a_method_that_somebody_changed_since_is_left_to_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Autotuner, "run", Autotuner.run)  # what it is to be again in the end
    kernel = stock()
    fa.install()
    theirs = Deaf.run
    monkeypatch.setattr(Autotuner, "run", theirs)
    with fa.rehearsal("H100", TIMES):
        call(kernel)
    assert "Deaf.run took the place of Autotuner.run" in in_list(kernel).why
    fa.uninstall()
    assert Autotuner.run is theirs
    assert "prune_configs" in vars(Autotuner)
    assert Autotuner.__hash__ is object.__hash__


def test_uninstalling_ends_the_threads_that_learn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORECAST_AUTOTUNE_MODE", "online")
    kernel = stock()
    fa.install()
    with fa.rehearsal("H100", TIMES):
        call(kernel)
        assert learners._threads
        fa.uninstall()
        ends = time.monotonic() + 120
        while learners._threads:
            assert time.monotonic() < ends
            time.sleep(0.01)


def test_a_wrapper_around_ours_is_found_and_survives_uninstalling(monkeypatch: pytest.MonkeyPatch) -> None:
    import functools

    monkeypatch.setattr(Autotuner, "run", Autotuner.run)
    kernel = stock()
    fa.install()
    ours, seen = Autotuner.run, []

    @functools.wraps(ours)
    def wrapper(self: Any, *args: Any, **kwargs: Any) -> Any:
        seen.append(self)
        return ours(self, *args, **kwargs)

    monkeypatch.setattr(Autotuner, "run", wrapper)
    with fa.rehearsal("H100", TIMES):
        call(kernel)
        assert in_list(kernel).ours
        fa.uninstall()
        call(kernel)
        call(kernel, 2000)
    assert seen == [kernel] * 3
    assert block(kernel) == BEST


def test_a_thread_in_triton_s_own_launch_ends_it_while_another_is_reached() -> None:
    inside, go_on = threading.Event(), threading.Event()

    def bench(kernel_call: Any, quantiles: Any) -> list[float]:
        inside.set()
        assert go_on.wait(60)
        kernel_call()
        return [1.0] * 3

    kernel = triton.autotune(configs(), ["n"], do_bench=bench)(scale)
    with fa.rehearsal("H100", TIMES):
        failed: list[BaseException] = []

        def in_thread() -> None:
            try:
                call(kernel)
            except BaseException as err:
                failed.append(err)

        thread = threading.Thread(target=in_thread)
        thread.start()
        assert inside.wait(60)
        fa.install()
        kernel.do_bench = lambda *_, **__: [1.0] * 3
        call(kernel, 2000)
        assert len(fa.tuner_of(kernel).decisions) == 1  # type: ignore[union-attr]
        go_on.set()
        thread.join(60)
        assert not failed
        assert len(kernel.cache) == 2


def test_a_thread_that_is_tuning_ends_that_while_another_uninstalls() -> None:
    inside, go_on = threading.Event(), threading.Event()

    def bench(kernel_call: Any, quantiles: Any) -> list[float]:
        inside.set()
        assert go_on.wait(60)
        kernel_call()
        return [1.0] * 3

    fa.install()
    kernel = triton.autotune(configs(), ["n"], do_bench=bench)(scale)
    before = dict(vars(kernel))
    with fa.rehearsal("H100", TIMES):
        failed: list[BaseException] = []

        def in_thread() -> None:
            try:
                call(kernel)
            except BaseException as err:
                failed.append(err)

        thread = threading.Thread(target=in_thread)
        thread.start()
        assert inside.wait(60)
        fa.uninstall()
        go_on.set()
        thread.join(60)
        assert not failed
        assert kernel.cache is before["cache"]
        call(kernel)


@pytest.mark.thorough
def test_threads_that_launch_bear_any_number_of_installs_and_lists() -> None:
    the_class, failed, kernels, done = class_as_it_is(), [], [], threading.Event()

    def launches() -> None:  # kernels of its own, for Triton's own launches are for one thread
        mine = [stock(), made_by(Counting), made_by(Database)]
        kernels.extend(mine)
        try:
            for i in itertools.count():
                call(mine[i % 3], 1000 + i // 10 % 3)
                if i % 50 == 0:
                    mine[0].cache.clear()
                if done.is_set():
                    break
        except BaseException as err:
            failed.append(err)

    with fa.rehearsal("H100", TIMES):
        threads = [threading.Thread(target=launches) for _ in range(3)]
        for thread in threads:
            thread.start()
        for i in range(100):
            fa.install(skip=[__name__] if i % 5 == 0 else ())
            fa.installed()
            fa.uninstall()
        done.set()
        for thread in threads:
            thread.join()
    assert failed == []
    assert class_as_it_is() == the_class
    assert {type(kernel.cache) for kernel in kernels} == {dict, _Rows}
    assert not [name for kernel in kernels for name in vars(kernel) if name.startswith("_forecast")]


# only= and skip= ---------------------------------------------------------------------------------------------------------


def test_packages_are_chosen_by_name_and_chosen_again() -> None:
    here = __name__
    kernel = stock()
    with fa.rehearsal("H100", TIMES):
        for left in ({"skip": here}, {"only": ["fla", "liger_kernel"]}, {"only": here, "skip": (here,)}):
            fa.install(**left)  # type: ignore[arg-type]
            assert fa.tuner_of(kernel) is None
            assert "install(" in in_list(kernel).why
        copied = copy.copy(kernel)
        fa.install(only=here)
        assert fa.tuner_of(copied) is not None
        call(kernel)
        assert len(fa.tuner_of(kernel).decisions) == 1  # type: ignore[union-attr]
        tuner = fa.tuner_of(kernel)
        fa.install()
        assert fa.tuner_of(kernel) is tuner
        fa.install(skip=here)
        assert type(kernel.cache) is dict
        assert fa.tuner_of(kernel) is None


@pytest.mark.parametrize("given", ["flash-linear-attention", "", 5, ["fla", None], ["fla..ops"]])
@pytest.mark.parametrize("parameter", ["only", "skip"])
def test_what_is_no_modules_name_is_refused(given: Any, parameter: str) -> None:
    before = class_as_it_is()
    with pytest.raises(InvalidInputError, match=rf"{parameter}=.* of install\(\): .* is no module's name"):
        fa.install(**{parameter: given})
    assert class_as_it_is() == before


# Torch -------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("given", "left"), [({"configs_top_k": 1}, 1), ({"configs_top_k": 1, "top_k": 2}, 2)])
def test_torchs_word_for_top_k_is_honoured(given: dict[str, Any], left: int) -> None:
    prune = {"perf_model": lambda **named: named["BLOCK"], "early_config_prune": None, **given}
    kernel = fa.autotune(configs=configs(), key=[], prune_configs_by=prune)(scale)
    kernel.nargs = {}
    assert [c.kwargs["BLOCK"] for c in kernel.prune_configs({})] == [64, 128][:left]


def test_a_bad_setting_is_raised_and_the_kernel_is_tuned_once_it_is_mended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fa.install()
    kernel = stock()
    with fa.rehearsal("cuda:90", times=400.0):
        monkeypatch.setenv("FORECAST_AUTOTUNE_ISOLATE", "maybe")
        with pytest.raises(fa.SettingError, match="FORECAST_AUTOTUNE_ISOLATE='maybe': accepted are auto, 0, 1"):
            call(kernel)
        monkeypatch.delenv("FORECAST_AUTOTUNE_ISOLATE")
        call(kernel)
        assert fa.tuner_of(kernel) is not None


def test_what_torch_decorates_again_while_it_traces_is_ours_and_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch._higher_order_ops.triton_kernel_wrap import kernel_side_table
    from torch.fx.experimental.proxy_tensor import make_fx
    from torch.library import wrap_triton

    monkeypatch.setenv("FORECAST_AUTOTUNE_BUDGET", "2")
    fa.install()
    kernel = stock()

    def traced_call(x: Any) -> Any:
        # An option at the call makes torch decorate the kernel again, `configs_top_k` among its arguments.
        wrap_triton(kernel)[(4,)](x, 1000, 2.0, num_warps=8)
        return x

    with fa.rehearsal("cuda:90", times=400.0) as on:
        traced = make_fx(traced_call)(torch.ones(1000))
        again = list(kernel_side_table.id_to_kernel.values())[-1]
        traced(torch.ones(1000))
        assert fa.tuner_of(again) is not None
    assert type(again) is Autotuner
    assert again is not kernel
    assert {c.num_warps for c in again.configs} == {8}
    assert {config.knobs["num_warps"] for _, config in on.launches} == {8}


def test_dynamo_prunes_and_decorates_again_with_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORECAST_AUTOTUNE_MODE", "first")
    monkeypatch.setattr("torch.utils._triton.has_triton", lambda: True)
    fa.install()
    prune = {"early_config_prune": lambda found, named, **_: found[1:]}
    kernel = triton.autotune(configs=configs(), key=["n"], prune_configs_by=prune)(scale)

    @torch.compile(backend="eager", fullgraph=True)
    def compiled(x: Any) -> Any:
        kernel[(4,)](x, 1000, 2.0)
        return x + 1

    with fa.rehearsal("cuda:90", times=400.0) as on:
        assert compiled(torch.ones(1000)).shape == (1000,)
    ((_, config),) = on.launches
    assert config["BLOCK"] == 128


# The public names ---------------------------------------------------------------------------------------------------------


def test_the_decorator_decorates_and_carries_every_public_name() -> None:
    kernel = forecast_autotune(configs=configs(), key=["n"], budget=4)(scale)
    assert type(kernel) is forecast_autotune.ForecastAutotuner
    assert forecast_autotune is fa.autotune is fa.forecast_autotune
    for name in fa.__all__:
        assert getattr(forecast_autotune, name) is getattr(fa, name)
    assert set(fa.__all__) <= set(dir(forecast_autotune))
    with pytest.raises(AttributeError, match="has no attribute 'missing'; it has"):
        forecast_autotune.missing  # noqa: B018
    assert pickle.loads(pickle.dumps(forecast_autotune)) is forecast_autotune  # noqa: S301
    assert copy.deepcopy(forecast_autotune) is forecast_autotune


@pytest.mark.parametrize("function", [scale, lambda x: x])
def test_a_decorator_without_its_call_says_how_to_write_it(function: Any) -> None:
    with pytest.raises(InvalidInputError, match=r"write @autotune\(configs=\[…\], key=\[…\]\) above it"):
        forecast_autotune(function)
