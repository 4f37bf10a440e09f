"""Config files through the readers of the programs they are for, unmodified, and plugins through the servers' own loaders.

`make test-third-party` installs the packages into an environment of their own and runs this; elsewhere it is skipped.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
from moe import DEFAULT, SPACE, config, keep, layer_job

from forecast_autotune.cli import main
from forecast_autotune.core.config import Config
from forecast_autotune.core.hardware import Toolchain
from forecast_autotune.core.space import Space
from forecast_autotune.store.config_files.fused_moe import BATCH_SIZES
from forecast_autotune.store.config_files.imported import suggested

pytest.importorskip("torch")
pytest.importorskip("triton")

TESTS = Path(__file__).parent
DEVICE = "NVIDIA H100 80GB HBM3"

VLLM = """
import triton
import triton.language as tl
from half_packages import load

FUSED_MOE = "vllm.model_executor.layers.fused_moe"

class Platform:
    get_device_name = staticmethod(lambda device=0: %r)
    is_rocm = staticmethod(lambda: False)

fused_moe = load(
    f"{FUSED_MOE}.fused_moe",
    real={"vllm.envs", "vllm.utils.platform_utils", "vllm.utils.math_utils"},
    given={
        "vllm.platforms": {"current_platform": Platform},
        "vllm.triton_utils": {"triton": triton, "tl": tl},
        FUSED_MOE: {"get_config": lambda: None},
    },
)
"""

SGLANG = """
from types import SimpleNamespace
from half_packages import load

FUSED_MOE = "sglang.srt.layers.moe.moe_runner.triton_utils"
running = SimpleNamespace(deterministic=SimpleNamespace(enable_deterministic_inference=False))
configs = load(
    f"{FUSED_MOE}.fused_moe_triton_config",
    given={
        "sglang.srt.runtime_context": {"get_exec": lambda: running},
        "sglang.srt.utils": {"get_device_name": lambda: %r, "is_hip": lambda: False},
        FUSED_MOE: {"get_config": lambda: None},
    },
)
"""


def needs(package: str) -> None:
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed: make test-third-party")


def told_by(tmp_path: Path, *parts: str, **environment: str) -> Any:
    """What a script prints last, run in a process of its own."""
    file = tmp_path / "script.py"
    file.write_text("import json\n" + "\n".join(textwrap.dedent(part) for part in parts))
    paths = [str(TESTS.parent), str(TESTS / "support"), str(TESTS), os.environ.get("PYTHONPATH", "")]
    own = {"PYTHONPATH": os.pathsep.join(paths), "TRITON_CACHE_DIR": str(tmp_path / "triton")}
    done = subprocess.run(
        [sys.executable, str(file)],
        env={**os.environ, **own, **environment},
        text=True,
        capture_output=True,
        timeout=280,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.strip().splitlines()[-1])


def command(*words: object) -> None:
    assert main([str(word) for word in words]) == 0


# Files that are written -----------------------------------------------------------------------------------------------


def test_vllm_reads_what_was_decided_and_defaults_elsewhere(tmp_path: Path) -> None:
    needs("vllm")
    for tokens, best in ((1, SPACE[1]), (64, SPACE[3]), (5000, SPACE[5])):
        keep(tmp_path / "store", layer_job({"M": tokens}), best)
    command("export", "--dir", tmp_path / "store", "--format", "vllm", tmp_path / "out")
    script = """
        read = fused_moe.get_moe_configs(8, 14336, None)
        def run(tokens):
            return fused_moe.try_get_optimal_moe_config((8, 28672, 4096), (8, 4096, 14336), 2, None, tokens)
        print(json.dumps([read, [run(tokens) for tokens in (1, 2, 60, 70, 9000)], fused_moe.get_moe_configs(8, 7168, None)]))
    """
    read, run, other = told_by(tmp_path, VLLM % DEVICE, script, VLLM_TUNED_CONFIG_FOLDER=str(tmp_path / "out"))
    assert {int(tokens) for tokens in read} == {*BATCH_SIZES, 5000}
    best = {"1": {**DEFAULT, "num_warps": 8}, "64": {**DEFAULT, "BLOCK_SIZE_M": 32, "num_warps": 8}}
    best["5000"] = {**DEFAULT, "BLOCK_SIZE_M": 64, "num_warps": 8}
    assert read == {tokens: best.get(tokens, DEFAULT) for tokens in read}
    assert run == [best["1"], DEFAULT, best["64"], best["64"], best["5000"]]
    assert other != read, "another layer's file is another"


@pytest.mark.parametrize(
    ("key", "where", "asked"),
    [
        ({"w2": "torch.float8_e4m3fn"}, ["dtype=fp8_w8a8", "block_shape=128,128"], (8, 14336, "fp8_w8a8", 128, 128)),
        ({"w2": "torch.float32"}, [], (8, 14336, "float32")),
        ({"w2": "torch.int8"}, ["dtype=int8_w8a16"], (8, 14336, "int8_w8a16")),
    ],
)
def test_both_readers_find_a_quantized_layer(
    tmp_path: Path, key: dict[str, str], where: list[str], asked: tuple[Any, ...]
) -> None:
    needs("vllm")
    needs("sglang")
    import triton

    here = Toolchain(versions={"triton": triton.__version__})
    keep(tmp_path / "store", layer_job({"M": 8, "dtypes": key}, toolchain=here), SPACE[1])
    stated = [word for statement in where for word in ("--where", statement)]
    for name, module, reader, variable in (
        ("vllm", VLLM, "fused_moe", "VLLM_TUNED_CONFIG_FOLDER"),
        ("sglang", SGLANG, "configs", "SGLANG_MOE_CONFIG_DIR"),
    ):
        command("export", "--dir", tmp_path / "store", "--format", name, tmp_path / name, *stated)
        script = f"print(json.dumps({reader}.get_moe_configs(*{asked!r})))"
        read = told_by(tmp_path, module % DEVICE, script, **{variable: str(tmp_path / name)})
        assert read["8"] == {**DEFAULT, "num_warps": 8}
        assert len(read) == len(BATCH_SIZES)


def test_sglang_reads_its_own_tritons_folder_then_the_newest(tmp_path: Path) -> None:
    needs("sglang")
    import triton

    def read(*versions: str) -> Any:
        for version, best in zip(versions, SPACE[1:], strict=False):
            job = layer_job({"M": 8}, toolchain=Toolchain(versions={"triton": version}))
            keep(tmp_path / "store", job, best)
        command("export", "--dir", tmp_path / "store", "--format", "sglang", tmp_path / "out")
        script = "print(json.dumps(configs.get_moe_configs(8, 14336, None)))"
        return told_by(tmp_path, SGLANG % DEVICE, script, SGLANG_MOE_CONFIG_DIR=str(tmp_path / "out"))["8"]

    assert read("3.2.0", "3.10.0") == {**DEFAULT, "BLOCK_SIZE_M": 32}, "SPACE[2], of the newest"
    assert read("3.2.0", "3.10.0", triton.__version__) == {**DEFAULT, "BLOCK_SIZE_M": 32, "num_warps": 8}


KERNEL = """
import torch
import forecast_autotune as fa
from forecast_autotune.core.config import Config

blocks = [dict(BLOCK_SIZE_M=m, BLOCK_SIZE_N=64, BLOCK_SIZE_K=32, GROUP_SIZE_M=g) for m in (16, 32) for g in (1, 8)]
tuned = fa.autotune(
    configs=[triton.Config(b, num_warps=4, num_stages=3) for b in blocks], key=["N", "K", "num_valid_tokens", "top_k"]
)(fused_moe.fused_moe_kernel)

def product(a, b, c, top_k):
    E, n, k = b.shape
    sorted_ids = torch.zeros(512, dtype=torch.int32)
    expert_ids, padded = torch.zeros(32, dtype=torch.int32), torch.zeros(1, dtype=torch.int32)
    tuned[lambda meta: (triton.cdiv(512, meta["BLOCK_SIZE_M"]) * triton.cdiv(n, meta["BLOCK_SIZE_N"]),)](
        a, b, c, None, None, None, torch.ones(a.shape[0] * top_k), sorted_ids, expert_ids, padded,
        n, k, 512, c.shape[0] * c.shape[1], a.stride(0), a.stride(1), b.stride(0), b.stride(2), b.stride(1),
        c.stride(1), c.stride(2), 0, 0, 0, 0, 0, 0, 0, 0, 0,
        naive_block_assignment=False, SPLIT_K=1, MUL_ROUTED_WEIGHT=top_k == 1, top_k=top_k, compute_type=tl.bfloat16,
        use_fp8_w8a8=False, use_int8_w8a8=False, use_int8_w8a16=False, per_channel_quant=False, HAS_BIAS=False,
        SWAP_AB=False,
    )

def time_us(block):
    return 20_000.0 + 10_000.0 * (block["BLOCK_SIZE_M"] != 32) + 1_000.0 * block["GROUP_SIZE_M"]

times = {Config({**block, "num_warps": 4, "num_stages": 3}): time_us(block) for block in blocks}
E, N, K = 4, 128, 64
with fa.rehearsal("H100", {"fused_moe_kernel": times}) as on:
    for M in (24, 96):
        x, w1, w2 = (torch.zeros(s, dtype=torch.bfloat16) for s in ((M, K), (E, 2 * N, K), (E, K, N)))
        product(x, w1, torch.zeros(M, 2, 2 * N, dtype=torch.bfloat16), 2)
        product(torch.zeros(2 * M, N, dtype=torch.bfloat16), w2, torch.zeros(M, 2, K, dtype=torch.bfloat16), 1)
print(json.dumps([(d.config.knobs, d.tried) for d in tuned.decisions.values()]))
"""


def test_vllms_own_kernel_tuned_here_gives_the_file_it_looks_for(tmp_path: Path) -> None:
    needs("vllm")
    store = tmp_path / "rehearsed"
    decided = told_by(tmp_path, VLLM % DEVICE, KERNEL, FORECAST_AUTOTUNE_DIR=str(store))
    assert [measured for _, measured in decided] == [4] * 4
    # A rehearsal goes into no config file: here it stands for the device whose sheet it had.
    command("export", "--dir", store, tmp_path / "all.jsonl")
    text = (tmp_path / "all.jsonl").read_text().replace('"kind":"stub"', '"kind":"cuda"')
    rehearsed = next(json.loads(line)["hardware"]["name"] for line in text.splitlines()[1:])
    (tmp_path / "all.jsonl").write_text(text.replace(rehearsed, DEVICE))
    command("import", "--dir", tmp_path / "store", tmp_path / "all.jsonl")
    command("export", "--dir", tmp_path / "store", "--format", "vllm", tmp_path / "out")
    script = "print(json.dumps(fused_moe.get_moe_configs(4, 128, None)))"
    read = told_by(tmp_path, VLLM % DEVICE, script, VLLM_TUNED_CONFIG_FOLDER=str(tmp_path / "out"))
    first, best = ({**DEFAULT, "BLOCK_SIZE_M": m, "BLOCK_SIZE_K": 32} for m in (16, 32))
    assert read == {tokens: best if tokens in ("24", "96") else first for tokens in read}
    assert {"24", "96"} <= set(read)
    command("export", "--dir", tmp_path / "store", "--format", "sglang", tmp_path / "sglang")
    names = sorted(file.name for file in (tmp_path / "sglang").rglob("*.json"))
    layer = f"E=4,N=128,device_name={DEVICE.replace(' ', '_')}"
    assert names == [f"{layer}.json", f"{layer}_down.json"]


FLA = """
import torch
import forecast_autotune as fa
OURS
from fla.ops.utils.cumsum import chunk_local_cumsum_scalar, chunk_local_cumsum_scalar_kernel as heuristics
from forecast_autotune.core.config import Config

kernel = heuristics.fn
times = {Config({"num_warps": w}): 20_000.0 * max(w / 4, 4 / w) for w in (1, 2, 4, 8)}
def launched(heads):
    with fa.rehearsal("H100", {"chunk_local_cumsum_scalar_kernel": times}) as on:
        chunk_local_cumsum_scalar(torch.randn(2, 128, heads), 64)
    return [type(kernel).__name__, kernel.best_config.num_warps, sum(on.launches.values())]
"""


def test_fla_launches_at_once_what_was_decided_here(tmp_path: Path) -> None:
    needs("fla")
    store, out = tmp_path / "rehearsed", tmp_path / "out"
    ours, theirs = FLA.replace("OURS", "fa.install()"), FLA.replace("OURS", "")
    name, warps, launches = told_by(tmp_path, ours, "print(json.dumps(launched(4)))", FORECAST_AUTOTUNE_DIR=str(store))
    assert (name, warps) == ("CachedAutotuner", 4)
    assert launches > 4
    command("export", "--dir", store, tmp_path / "all.jsonl")
    text = (tmp_path / "all.jsonl").read_text().replace('"kind":"stub"', '"kind":"cuda"')
    (tmp_path / "all.jsonl").write_text(text)
    command("import", "--dir", tmp_path / "store", tmp_path / "all.jsonl")
    command("export", "--dir", tmp_path / "store", "--format", "fla", out)
    script = """
        from fla.ops.utils import cache
        read = cache.KernelConfigFile.from_file(cache.get_fla_config_dir() / "chunk_local_cumsum_scalar_kernel.json")
        print(json.dumps([launched(4), launched(8), len(read.autotune_entries), read.default_config]))
    """
    decided, other, entries, default = told_by(
        tmp_path, theirs, script, FLA_CONFIG_DIR=str(out), FLA_CACHE_MODE="strict"
    )
    assert decided == ["CachedAutotuner", 4, 1], "by FLA alone, without us: one launch, nothing tuned"
    assert other[2] > 4, "a key that is in no file is tuned"
    assert (entries, default) == (1, None)
    command("import", "--dir", tmp_path / "elsewhere", "--format", "fla", out)
    elsewhere = {"FORECAST_AUTOTUNE_DIR": str(tmp_path / "elsewhere"), "FORECAST_AUTOTUNE_BUDGET": "2"}
    _, warps, _ = told_by(tmp_path, ours, "print(json.dumps(launched(4)))", **elsewhere)
    assert warps == 4, "of four configs two were tried: the first, and the one that the file names"


# Files that are taken in ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("package", "folder"),
    [
        ("vllm", "model_executor/layers/fused_moe/configs"),
        ("sglang", "srt/layers/moe/moe_runner/triton_utils/configs"),
    ],
)
def test_all_files_that_a_server_ships_are_taken_in(tmp_path: Path, package: str, folder: str) -> None:
    needs(package)
    found = importlib.util.find_spec(package)
    assert found is not None
    assert found.origin is not None
    shipped = Path(found.origin).parent / folder
    command("import", "--dir", tmp_path / "store", "--format", package, shipped)
    device = DEVICE.replace(" ", "_")
    # Of those that SGLang has for several versions of Triton, the one for the newest.
    file = sorted(shipped.rglob(f"E=8,N=4096,device_name={device}.json"))[-1]
    rows = json.loads(file.read_text())
    for tokens in (1, 50, 4096):
        wanted = rows[
            str(min((int(known) for known in rows if known.isdigit()), key=lambda known: abs(known - tokens)))
        ]
        space = Space([config(BLOCK_SIZE_M=7), Config({**SPACE[0].knobs, **wanted})])
        job = layer_job({"M": tokens, "N": 4096}, space=space)
        assert suggested(tmp_path / "store", job) == (space[1],)


# Plugins --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("package", "name", "loader", "given"),
    [
        ("vllm", "vllm.plugins", "load_general_plugins", "{'vllm.envs': {'VLLM_PLUGINS': None}}"),
        (
            "sglang",
            "sglang.srt.plugins",
            "load_plugins",
            "{'sglang.srt.environ': {'envs': SimpleNamespace(SGLANG_PLUGINS=Unset, SGLANG_PLATFORM=Unset)}}",
        ),
    ],
)
def test_a_server_that_loads_its_plugins_tunes_by_ours_only_where_asked_to(
    tmp_path: Path, package: str, name: str, loader: str, given: str
) -> None:
    needs(package)
    script = f"""
        import sys
        from types import SimpleNamespace
        from half_packages import load

        class Unset:
            get = staticmethod(lambda: None)

        plugins = load({name!r}, real={{"sglang.srt.plugins.hook_registry"}}, given={given})
        plugins.{loader}()
        loaded = sorted(name for name in ("torch", "triton", "forecast_autotune.frontends") if name in sys.modules)
        import triton
        print(json.dumps([loaded, triton.runtime.Autotuner.run.__code__.co_filename.rpartition("/")[2]]))
    """
    assert told_by(tmp_path, script, FORECAST_AUTOTUNE_MODE="") == [[], "autotuner.py"]
    assert told_by(tmp_path, script, FORECAST_AUTOTUNE_MODE="cached")[1] == "install.py"
