"""Kernels of other packages, unmodified: tuned through `install()` on the rehearsal driver.

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

pytest.importorskip("torch")
pytest.importorskip("triton")

REPOSITORY = Path(__file__).parents[1]


def needs(package: str) -> None:
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed: make test-third-party")


def told_by(script: str, tmp_path: Path) -> Any:
    """What a script prints last, run in a process of its own: these packages change Triton's names as they are imported."""
    file = tmp_path / "script.py"
    file.write_text(textwrap.dedent(script))
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(REPOSITORY), os.environ.get("PYTHONPATH", "")]),
        # A busy machine would reach a limit of time first, and leave builds behind that it holds up.
        "FORECAST_AUTOTUNE_BUDGET": "all",
        "TRITON_CACHE_DIR": str(tmp_path / "triton"),
        "TRITON_DEFAULT_FP_FUSION": "1",
    }
    done = subprocess.run([sys.executable, str(file)], env=environment, text=True, capture_output=True, timeout=280)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.strip().splitlines()[-1])


def test_an_elementwise_kernel_of_liger_is_tuned_and_recalled(tmp_path: Path) -> None:
    needs("liger_kernel")
    script = """
        import json
        import torch
        import forecast_autotune as fa
        fa.install()
        from liger_kernel.ops.dyt import _dyt_fwd_kernel as kernel, liger_dyt_fwd
        from forecast_autotune.core.config import Config
        from forecast_autotune.frontends.triton.simulated_driver import rehearsal

        times = {
            Config({"BLOCK_N": n, "num_warps": w, "num_stages": s}): 20_000.0 + 10_000.0 * (n != 2048) + 5_000.0 * (w != 8)
            for n in (1024, 2048, 4096) for w in (4, 8, 16) for s in (1, 2)
        }
        x, alpha, gamma, beta = torch.randn(64, 4096), torch.ones(1), torch.ones(4096), torch.ones(4096)
        with rehearsal("H100", times) as on:
            liger_dyt_fwd(x, alpha, gamma, beta)
            liger_dyt_fwd(x, alpha, gamma, None)
        print(json.dumps([
            type(kernel).__name__, len(kernel.configs), [d.tried for d in fa.tuner_of(kernel).decisions.values()],
            kernel.best_config.kwargs, kernel.best_config.num_warps, sum(on.launches.values()), len(on.compiles),
        ]))
    """
    name, configs, measured, best, warps, launches, compiles = told_by(script, tmp_path)
    assert name == "Autotuner"
    assert configs == 18
    assert measured == [18, 18]
    assert (best, warps) == ({"BLOCK_N": 2048}, 8)
    assert launches > 36
    assert compiles == 0, "all compiled in workers"
    assert told_by(script, tmp_path)[5] == 2, "the next process launches what was decided"


def test_a_liger_kernel_whose_hook_shapes_descriptors_is_tuned(tmp_path: Path) -> None:
    needs("liger_kernel")
    script = """
        import json
        import torch
        import forecast_autotune as fa
        fa.install()
        from liger_kernel.ops.mlp import _swiglu_kernel_forward as kernel, gemm_swiglu
        from forecast_autotune.core.config import Config
        from forecast_autotune.frontends.triton.simulated_driver import rehearsal

        knobs = ("BLOCK_M", "BLOCK_N", "BLOCK_K", "GROUP_SIZE_M", "num_warps", "num_stages")
        configs = [{**c.kwargs, "num_warps": c.num_warps, "num_stages": c.num_stages} for c in kernel.configs]
        times = {Config({n: c[n] for n in knobs}): 20_000.0 + 100.0 * i for i, c in enumerate(configs)}
        x, gate, up = (torch.randn(*s).to(torch.bfloat16) for s in ((1, 256, 512), (1024, 512), (1024, 512)))
        with rehearsal("H100", times) as on:
            _, best = gemm_swiglu(x, gate, up, 1.0)
        (decision,) = fa.tuner_of(kernel).decisions.values()
        print(json.dumps([
            type(kernel).__name__, len(configs), decision.tried, best is kernel.configs[0], len(on.compiles),
            decision.failed + len(on.launches), decision.failed,
        ]))
    """
    *told, failed = told_by(script, tmp_path)
    assert told == ["Autotuner", 32, 32, True, 0, 32]
    assert failed <= 8, "what is too large for the shared memory: three stages of 128 x 128 tiles"


def test_flash_linear_attentions_own_tuner_and_earlier_kernels_are_tuned(tmp_path: Path) -> None:
    needs("fla")
    script = """
        import json
        import torch
        import fla.utils
        import forecast_autotune as fa
        from fla.ops.utils.cumsum import chunk_local_cumsum_scalar, chunk_local_cumsum_scalar_kernel
        fa.install()  # after one of the two, before the other
        from fla.ops.utils.softmax import softmax_fwd, softmax_fwd_kernel
        from forecast_autotune.core.config import Config
        from forecast_autotune.frontends.triton.simulated_driver import rehearsal

        def best_of(warps):
            return {Config({"num_warps": w}): 20_000.0 * max(w / warps, warps / w) for w in (1, 2, 4, 8, 16, 32)}

        kernels = chunk_local_cumsum_scalar_kernel.fn, softmax_fwd_kernel
        times = {"chunk_local_cumsum_scalar_kernel": best_of(2), "softmax_fwd_kernel": best_of(8)}
        with rehearsal("H100", times) as on:
            for _ in range(2):
                chunk_local_cumsum_scalar(torch.randn(2, 128, 4), 64)
                softmax_fwd(torch.randn(64, 512))
        print(json.dumps([
            [type(k).__name__, k.best_config.num_warps, len(k.cache)]
            + [d.tried for d in fa.tuner_of(k).decisions.values()]
            for k in kernels
        ]))
    """
    assert told_by(script, tmp_path) == [["CachedAutotuner", 2, 1, 4], ["Autotuner", 8, 1, 6]]


@pytest.mark.parametrize(("mode", "warps", "decided"), [("strict", 1, 0), ("always", 1, 0), ("disabled", 2, 1)])
def test_flash_linear_attentions_config_files_come_before_ours(
    tmp_path: Path, mode: str, warps: int, decided: int
) -> None:
    needs("fla")
    script = f"""
        import json, os
        os.environ.update(FLA_CACHE_MODE={mode!r}, FLA_CONFIG_DIR={str(tmp_path)!r})
        import torch
        import forecast_autotune as fa
        fa.install()
        import fla.utils
        from fla.ops.utils.cache import AutotuneKey
        from fla.ops.utils.cumsum import chunk_local_cumsum_scalar, chunk_local_cumsum_scalar_kernel
        from forecast_autotune.core.config import Config
        from forecast_autotune.frontends.triton.simulated_driver import rehearsal

        kernel = chunk_local_cumsum_scalar_kernel.fn
        key = (2, 4, 64, False, False, "torch.float32", "torch.float32")
        config = dict(kwargs={{}}, num_warps=1, num_stages=3, num_ctas=1)
        entries = {{AutotuneKey.key_hash(key): dict(autotune_key=list(key), config=config)}}
        with open(os.environ["FLA_CONFIG_DIR"] + "/" + kernel.kernel_name + ".json", "w") as file:
            json.dump(dict(autotune_entries=entries, default_config=config), file)
        times = {{Config({{"num_warps": w}}): 20_000.0 * max(w / 2, 2 / w) for w in (1, 2, 4, 8)}}
        with rehearsal("H100", times) as on:
            for _ in range(2):
                chunk_local_cumsum_scalar(torch.randn(2, 128, 4), 64)
        print(json.dumps([kernel.best_config.num_warps, len(fa.tuner_of(kernel).decisions)]))
    """
    assert told_by(script, tmp_path) == [warps, decided]


def test_flag_gems_times_the_decided_config_and_its_database_keeps_it(tmp_path: Path) -> None:
    needs("flag_gems")
    package = """
        import triton
        import triton.language as tl
        from flag_gems.utils import libtuner
        from flag_gems.utils.libentry import LibTuner

        asked = []

        @LibTuner.register_policy("noting")
        def noting(bench, configs, args, kwargs):
            timings = {config: bench(config) for config in configs}
            asked.append(len(timings))
            return min(timings, key=timings.get), timings

        @libtuner([triton.Config({"BLOCK": b}) for b in (64, 128, 256)], key=["n"], strategy=["log"], policy="noting")
        @triton.jit
        def scale(x_ptr, n, BLOCK: tl.constexpr):
            offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
            tl.store(x_ptr + offsets, tl.load(x_ptr + offsets, mask=offsets < n) * 2, mask=offsets < n)
    """
    (tmp_path / "of_a_package.py").write_text(textwrap.dedent(package))
    script = f"""
        import json, os, sys
        os.environ.update(GEMS_VENDOR="nvidia", HOME={str(tmp_path)!r})
        sys.path.insert(0, {str(tmp_path)!r})
        import torch
        import forecast_autotune as fa
        from calibration.record.programs.dry_run import pretended_cuda
        from forecast_autotune.core.config import Config

        times = {{Config({{"BLOCK": b}}): 20_000.0 * (1 + (b != 128)) for b in (64, 128, 256)}}
        with pretended_cuda(), fa.rehearsal("H200", times) as on:
            import of_a_package
            from of_a_package import asked, scale
            fa.install()
            for n in (1000, 1000, 1024):  # one key of its strategy
                scale[lambda meta: (4,)](torch.ones(1000), n)
            decided = len(fa.tuner_of(scale).decisions)
            print(json.dumps([asked, scale.best_config.kwargs, decided, type(scale.cache).__name__]))
    """
    assert told_by(script, tmp_path) == [[1], {"BLOCK": 128}, 1, "ConfigCache"]
    assert told_by(script, tmp_path) == [[], {"BLOCK": 128}, 0, "ConfigCache"], "its database knew"


def answer_of_the_verb(*words: str) -> Any:
    done = subprocess.run(
        [sys.executable, "-m", "calibration", "third-party", "--json", *words],
        cwd=REPOSITORY,
        env={**os.environ, "TRITON_DEFAULT_FP_FUSION": "1"},
        text=True,
        capture_output=True,
        timeout=280,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize(
    ("package", "least", "own"),
    [("fla", 250, "CachedAutotuner"), ("liger_kernel", 12, ""), ("flag_gems", 120, "LibTuner"), ("torchao", 45, "")],
)
def test_every_tuner_of_a_package_is_reached(package: str, least: int, own: str, tmp_path: Path) -> None:
    needs(package)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOME", str(tmp_path))  # FlagGems makes a database in it as it is imported
        (found,) = answer_of_the_verb("--list", package)
    assert [tuner for tuner in found["tuners"] if not tuner["ours"]] == []
    assert len(found["tuners"]) >= least
    assert any(own in tuner["tuner"] for tuner in found["tuners"])
    assert len(found["missing"]) < found["modules"] / 2


def test_the_table_of_steps_has_keys_of_both_tuners_side_by_side() -> None:
    needs("fla")
    (found,) = answer_of_the_verb("--rehearse", "--budget", "2", "gated_norm")
    stock, ours = found["stock"], found["ours"]
    assert len(stock["timings_ms"]) == len(stock["chosen"]) == 2
    assert ours["timings_ms"] == {}, "nothing was timed by Triton's own tuner"
    assert ours["chosen"].keys() == stock["timings_ms"].keys()
    assert all(ours["chosen"][key] in times for key, times in stock["timings_ms"].items())
    assert len(found["untuned"]["chosen"]) == 0
    assert all(
        found[way][name] > 0 for way in ("stock", "untuned", "ours") for name in ("first_s", "steady_ms", "host_ms")
    )
