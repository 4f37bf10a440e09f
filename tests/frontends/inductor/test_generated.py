"""Kernels that Inductor generates: what their configs took is stored, and Inductor's table answers by it elsewhere."""

from __future__ import annotations

import copy
import importlib.util
import math
import pickle
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from forked import exit_status_of_child
from torch._inductor import config as inductor_config
from torch._inductor.async_compile import AsyncCompile
from torch._inductor.compile_worker import utils as compile_worker
from torch._inductor.runtime import triton_heuristics
from torch._inductor.runtime.hints import HeuristicType
from triton import Config as TritonConfig

import forecast_autotune as fa
from forecast_autotune.errors import TuningWarning
from forecast_autotune.features.hardware_sheets import sheet_for
from forecast_autotune.frontends.inductor import generated, hook
from forecast_autotune.frontends.inductor import request as product_request
from forecast_autotune.frontends.inductor.generated import GeneratedKernels, LookupTable, hash_of
from forecast_autotune.frontends.inductor.request import GENERATED, cache_name
from forecast_autotune.settings import Settings
from forecast_autotune.store.queries import StoreFile
from forecast_autotune.store.sqlite import open_local_store

pytestmark = [  # torch's own
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings(r"ignore::UserWarning:torch\..*"),
]

SOURCE = """
import triton
import triton.language as tl


@triton.jit
def triton_poi_fused_add_0(in_ptr0, out_ptr0, xnumel, XBLOCK : tl.constexpr):
    xnumel = 1048576
    xindex = tl.program_id(0) * XBLOCK + tl.arange(0, XBLOCK)
    tl.store(out_ptr0 + xindex, tl.load(in_ptr0 + xindex) + 1.0)
"""
SIZES = {"x": 1048576}
TYPES = {"in_ptr0": "*fp32", "out_ptr0": "*fp32", "xnumel": "i32", "XBLOCK": "constexpr"}
SMALL, LARGE, SPILLS = (TritonConfig({"XBLOCK": block}, num_warps=4, num_stages=1) for block in (256, 512, 1024))
SPLIT = TritonConfig({"XBLOCK": 512, "RSPLIT": 8}, num_warps=4, num_stages=1)  # a knob that the table does not tell
TIMES_MS = {SMALL: 0.02, LARGE: 0.01, SPILLS: math.inf}


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Inductor with our choices installed, on an H200 that nobody asks, and a store of their own."""
    folder = tmp_path / "store"
    monkeypatch.setenv("FORECAST_AUTOTUNE_DIR", str(folder))
    monkeypatch.setattr(product_request, "_aside", "")
    monkeypatch.setattr(generated, "detect_hardware", lambda _: sheet_for("H200"))
    fresh(monkeypatch)
    fa.install(inductor=True)
    try:
        yield folder
    finally:
        fa.uninstall()


def fresh(monkeypatch: pytest.MonkeyPatch) -> GeneratedKernels:
    """As in a process that begins."""
    made = GeneratedKernels()
    monkeypatch.setattr(generated, "kernels", made)
    if isinstance(table := inductor_config.autotune_lookup_table, LookupTable):
        table._stored_config = made.stored_for_compiling
    return made


def function(tmp_path: Path, name: str = "triton_poi_fused_add_0") -> Any:
    path = tmp_path / f"{name}.py"
    path.write_text(SOURCE.replace("triton_poi_fused_add_0", name))
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return getattr(module, name)


def looked_up(fn: Any, sizes: Any = None, *, types: Any = None, device: str = "type='cuda', index=0") -> Any:
    """The config that Inductor's table tells where it has a kernel compiled, by its text as Inductor writes it."""
    meta = (
        f"triton_meta={{'signature': {types or TYPES}, 'device': DeviceProperties({device}, cc=90), 'constants': {{}}}}"
    )
    told: list[Any] = []

    class Pool:
        @generated.with_signature_noted
        def triton(self, kernel_name: str, source_code: str) -> None:
            told.append(triton_heuristics.lookup_autotune_config(sizes or SIZES, fn))

    Pool().triton("triton_", f"@triton_heuristics.pointwise(size_hints={sizes or SIZES}, {meta})\n@triton.jit\n")
    return told[0]


class Kernel(triton_heuristics.CachingAutotuner):
    """One of Inductor's, whose configs take given times."""

    def __init__(self, fn: Any, kind: HeuristicType = HeuristicType.POINTWISE, **meta: Any) -> None:
        self.fn, self.size_hints, self.heuristic_type, self.custom_kernel = fn, SIZES, kind, False
        self.inductor_meta, self.device_props = meta, SimpleNamespace(type="cuda", index=0)
        self.triton_meta = {"signature": TYPES}
        self.times_ms = dict(TIMES_MS)

    @property
    def launchers(self) -> list[Any]:
        return [SimpleNamespace(config=config) for config in self.times_ms]

    def time(self, kernels: GeneratedKernels, by_our_clock: bool = True) -> None:
        """As `autotune_to_one_config`, with the times of a device."""

        def autotune(_: Any) -> None:
            for launcher in self.launchers:
                kernels.note_time(self, launcher, self.times_ms[launcher.config] if by_our_clock else None)

        generated.with_times_kept(autotune)(self)


def test_inductor_looks_up_what_another_process_has_timed(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fn = function(tmp_path)
    assert looked_up(fn) is None
    Kernel(fn).time(generated.kernels)
    (stored,) = StoreFile(store).decisions(kernel=GENERATED)
    assert stored.decision.config.knobs == {"XBLOCK": 512, "num_warps": 4, "num_stages": 1}
    assert stored.decision.tried == 3
    assert len(StoreFile(store).failures(limit=9)) == 1
    assert looked_up(fn) is None  # what a process was told, it is told again
    kernels = fresh(monkeypatch)
    found = looked_up(fn)
    assert (found.kwargs, found.num_warps, found.num_stages) == ({"XBLOCK": 512}, 4, 1)
    assert looked_up(fn, {"x": 4096}) is None
    assert looked_up(fn, types={**TYPES, "in_ptr0": "*i8"}) is None
    assert looked_up(fn, device="type='xpu', index=0") is None
    assert triton_heuristics.lookup_autotune_config(SIZES, fn) is None  # nothing is compiled now
    assert kernels.text == "of the kernels that Inductor generated 0 were timed, 1 took a stored config"


def test_the_same_kernel_under_another_name_is_known(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Kernel(function(tmp_path)).time(generated.kernels)
    fresh(monkeypatch)
    assert looked_up(function(tmp_path, "triton_poi_fused_mul_7")) is not None
    assert looked_up(function(tmp_path, "triton_poi_mul_7")) is None


def test_the_hash_is_inductors_own_of_the_text_that_is_compiled(store: Path, tmp_path: Path) -> None:
    (text,) = SOURCE.split("@triton.jit\n")[1:]
    of_text = triton_heuristics.generate_lookup_hash_from_source_code(str(SIZES), text)
    assert hash_of(Kernel(function(tmp_path))) == of_text


def test_a_pack_answers_on_another_machine(store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fn = function(tmp_path)
    Kernel(fn).time(generated.kernels)
    StoreFile(store).export(tmp_path / "pack.jsonl")
    monkeypatch.setenv("FORECAST_AUTOTUNE_DIR", str(tmp_path / "another"))
    assert looked_up(fn) is None
    monkeypatch.setenv("FORECAST_AUTOTUNE_PACKS", str(tmp_path / "pack.jsonl"))
    fresh(monkeypatch)
    assert looked_up(fn).kwargs == {"XBLOCK": 512}


def test_a_pack_of_a_faster_machine_leaves_what_is_decided_here(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel = Kernel(function(tmp_path))
    kernel.times_ms = {SMALL: 0.016, LARGE: 0.008, SPILLS: 0.0088}
    kernel.time(generated.kernels)
    StoreFile(store).export(tmp_path / "pack.jsonl")
    monkeypatch.setenv("FORECAST_AUTOTUNE_DIR", str(tmp_path / "here"))
    kernel.times_ms = {SMALL: 0.02, LARGE: 0.01}
    kernel.time(generated.kernels)
    monkeypatch.setenv("FORECAST_AUTOTUNE_PACKS", str(tmp_path / "pack.jsonl"))
    fresh(monkeypatch)
    assert looked_up(kernel.fn).kwargs == {"XBLOCK": 512}


def test_timing_again_with_other_configs_decides_anew_and_counts_as_a_use(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel = Kernel(function(tmp_path))
    kernel.time(generated.kernels)
    kernel.times_ms = {SMALL: 0.02, SPILLS: 0.01}
    kernel.time(generated.kernels)
    fresh(monkeypatch)
    assert looked_up(kernel.fn).kwargs == {"XBLOCK": 1024}
    open_local_store(Settings.from_environment()).close()  # as when the process ends
    (stored,) = StoreFile(store).decisions(kernel=GENERATED)
    assert stored.hits == 1


def test_a_fork_of_the_program_is_told_what_is_stored(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fn = function(tmp_path)
    Kernel(fn).time(generated.kernels)
    fresh(monkeypatch)
    assert exit_status_of_child(lambda: looked_up(fn).kwargs == {"XBLOCK": 512}) == 0


def test_a_stored_config_is_where_the_search_by_knobs_ends(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    searched: list[Any] = []

    def search(kernel: Any, launcher: Any) -> Any:
        searched.append(launcher)
        found = SimpleNamespace(config=TritonConfig({"XBLOCK": 512}, num_warps=8, num_stages=1))
        generated.kernels.note_time(kernel, launcher, 0.01)
        generated.kernels.note_time(kernel, found, 0.008)
        return found

    kernel = Kernel(function(tmp_path), coordinate_descent_tuning=True)
    kernel.time(generated.kernels)
    assert not StoreFile(store).exists()  # it is not done yet
    found = generated.searched_unless_stored(search)(kernel, kernel.launchers[0])
    (stored,) = StoreFile(store).decisions(kernel=GENERATED)
    assert stored.decision.tried == 4
    assert stored.decision.config.knobs == {"XBLOCK": 512, "num_warps": 8, "num_stages": 1}
    fresh(monkeypatch)
    assert generated.searched_unless_stored(search)(kernel, found) is found
    assert found.config.found_by_coordesc  # Inductor asks no more
    assert len(searched) == 1
    assert generated.searched_unless_stored(search)(kernel, kernel.launchers[0]) is not kernel.launchers[0]
    assert len(searched) == 2


@pytest.mark.parametrize(
    ("runs", "varies"),
    [
        ("what is stored", False),
        ("another config", True),
        ("two configs", True),
        ("what varies nothing", True),
        ("deterministic", True),
        ("on another device", True),
    ],
)
def test_a_reduction_that_runs_what_is_stored_is_given_no_smaller_blocks(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, runs: str, varies: bool
) -> None:
    Kernel(function(tmp_path), HeuristicType.REDUCTION).time(generated.kernels)
    fresh(monkeypatch)
    kernel = Kernel(function(tmp_path), HeuristicType.REDUCTION)
    best, other = sorted(kernel.launchers, key=lambda launcher: kernel.times_ms[launcher.config])[:2]
    kernel.compile_results = {"another config": [other], "two configs": [best, other]}.get(runs, [best])
    if runs == "what varies nothing":
        kernel.heuristic_type = HeuristicType.POINTWISE
    if runs == "deterministic":
        monkeypatch.setattr(torch, "are_deterministic_algorithms_enabled", lambda: True)
    if runs == "on another device":
        kernel.device_props = SimpleNamespace(type="xpu", index=0)
    varied: list[Any] = []
    generated.varied_unless_stored(varied.append)(kernel)
    assert varied == [kernel] * varies
    assert generated.kernels.recalled_count == 0  # nothing was answered
    assert not product_request.stood_aside()
    assert StoreFile(store).exists()


def test_a_reduction_that_is_timed_without_its_smaller_blocks_is_not_kept(store: Path, tmp_path: Path) -> None:
    Kernel(function(tmp_path), HeuristicType.REDUCTION, dynamic_scale_rblock=False).time(generated.kernels)
    assert not StoreFile(store).exists()


@pytest.mark.parametrize(
    "what", ["another clock", "a template", "a user's", "one config", "other settings", "the first is wanted"]
)
def test_what_the_table_cannot_tell_is_left_to_inductor(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    fn = function(tmp_path)
    kernel = Kernel(fn, HeuristicType.TEMPLATE if what == "a template" else HeuristicType.REDUCTION)
    kernel.custom_kernel = what == "a user's"
    if what == "one config":
        kernel.times_ms = {LARGE: 0.01}
    if what == "other settings":
        kernel.times_ms[SPLIT] = 0.005
    kernel.time(generated.kernels, by_our_clock=what != "another clock")
    fresh(monkeypatch)
    if what == "the first is wanted":
        monkeypatch.setenv("FORECAST_AUTOTUNE_MODE", "first")
    assert looked_up(fn) is None


@pytest.mark.parametrize("where", ["in a compile worker", "deterministic", "batch invariant", "torch is deterministic"])
def test_nothing_is_answered_where_nothing_may_vary(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    fn = function(tmp_path)
    Kernel(fn).time(generated.kernels)
    fresh(monkeypatch)
    name = where.replace(" ", "_")
    settings = {name: True} if hasattr(inductor_config, name) else {}
    if where in ("deterministic", "batch invariant") and not settings:
        pytest.skip(f"this torch has no {name}")
    with monkeypatch.context() as patch, inductor_config.patch(settings):
        if where == "in a compile worker":
            patch.setattr(compile_worker, "_IN_TOPLEVEL_PROCESS", False)
        elif where == "torch is deterministic":
            patch.setattr(torch, "are_deterministic_algorithms_enabled", lambda: True)
        assert looked_up(fn) is None
    assert looked_up(fn) is not None


def test_each_device_is_told_what_was_stored_of_its_own(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        generated, "detect_hardware", lambda device: sheet_for("H200" if device == "cuda:0" else "A100")
    )
    fn = function(tmp_path)
    Kernel(fn).time(generated.kernels)
    assert looked_up(fn, device="type='cuda', index=1") is None
    fresh(monkeypatch)
    assert looked_up(fn).kwargs == {"XBLOCK": 512}


def test_a_config_that_is_none_of_ours_stops_no_timing(store: Path, tmp_path: Path) -> None:
    kernel = Kernel(function(tmp_path))
    theirs = TritonConfig({"KNOB": (16, torch.float32)}, num_warps=4, num_stages=1)
    kernel.times_ms[theirs] = 0.001
    kernel.time(generated.kernels)
    assert not StoreFile(store).exists()


def test_a_store_that_cannot_be_asked_leaves_inductor_alone(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fn = function(tmp_path)

    def fails(_: str) -> Any:
        raise RuntimeError("no device")

    monkeypatch.setattr(generated, "detect_hardware", fails)
    with pytest.warns(TuningWarning, match="no device"):
        assert looked_up(fn) is None


def test_a_kernel_that_cannot_be_kept_runs_all_the_same(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(generated, "open_store", lambda _: 1 / 0)
    kernel = Kernel(function(tmp_path))
    with pytest.warns(TuningWarning, match="ZeroDivisionError"):
        kernel.time(generated.kernels)


def test_what_is_stored_changes_no_key_of_inductors_caches(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def settings() -> bytes:
        return pickle.dumps(inductor_config.save_config_portable(ignore_private_configs=False))

    before, named = settings(), cache_name()
    Kernel(function(tmp_path)).time(generated.kernels)
    fresh(monkeypatch)
    assert looked_up(function(tmp_path)) is not None
    assert settings() == before
    assert cache_name() == named


def test_the_table_holds_what_somebody_put_in_and_is_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    entry = {"XBLOCK": 64, "num_warps": 1, "num_stages": 1}
    seen: list[Any] = []
    with inductor_config.patch(autotune_lookup_table={"theirs": entry}):
        fa.install(inductor=True)
        try:
            table = inductor_config.autotune_lookup_table
            assert isinstance(table, LookupTable)
            assert table["theirs"] == entry
            assert "another" not in table
            with pytest.raises(KeyError):
                table["another"]
            thread = threading.Thread(target=lambda: seen.append(inductor_config.autotune_lookup_table))
            thread.start()
            thread.join()
            assert isinstance(seen[0], LookupTable)
            assert dict(seen[0].items()) == {}
            for copied in (copy.deepcopy(table), copy.copy(table)):
                assert isinstance(copied, LookupTable)
                assert copied is not table
                assert copied == table
            assert "autotune_lookup_table" in inductor_config.codegen_config()
            assert pickle.loads(pickle.dumps(table)) == {"theirs": entry}  # noqa: S301  # our own
        finally:
            fa.uninstall()
        assert type(inductor_config.autotune_lookup_table) is dict
        assert inductor_config.autotune_lookup_table == {"theirs": entry}


def test_the_methods_that_time_generated_kernels_are_as_they_are_known() -> None:
    """Else nothing of them is kept: what is patched is looked at first."""
    fa.install(inductor=True)
    try:
        torch._dynamo.reset()
        torch.compile(lambda x: x + 1)(torch.ones(4))
        kernel = triton_heuristics.CachingAutotuner
        assert kernel.autotune_to_one_config.__wrapped__ is not None
        assert kernel.coordinate_descent_tuning.__wrapped__ is not None
        assert AsyncCompile.triton.__wrapped__ is not None
    finally:
        fa.uninstall()
    assert hook.why_not_in() == ""
    assert "torch._inductor" in sys.modules
