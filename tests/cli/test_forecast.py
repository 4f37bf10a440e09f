"""`forecast`: a kernel's configs ranked for a GPU that is only named."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from talking import Talking, named_by_settings, sure_of

from forecast_autotune.cli import main
from forecast_autotune.cli._values import read_arguments, read_grid, read_value
from forecast_autotune.errors import InvalidInputError

torch = pytest.importorskip("torch")
tl = pytest.importorskip("triton.language")

PROGRAM = str(Path(__file__).parent / "programs" / "scaling.py")
CALL = ("--arg", "x_ptr=float16[1000]", "--arg", "n=1000", "--arg", "factor=2.0")


@pytest.fixture(autouse=True)
def surroundings(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path_factory.getbasetemp() / "triton-cache"))
    monkeypatch.setenv("TRITON_DEFAULT_FP_FUSION", "1")
    monkeypatch.setattr(sys, "path", list(sys.path))


def told(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> tuple[str, str]:
    assert main(["forecast", *arguments]) == code
    captured = capsys.readouterr()
    return captured.out, captured.err


def test_configs_are_ranked_for_the_usual_gpu_which_is_named(
    capsys: pytest.CaptureFixture[str], own_settings: Path
) -> None:
    out, err = told(capsys, f"{PROGRAM}:scale", *CALL)
    lines = out.splitlines()
    assert lines[0].split() == ["rank", "config", "speed-up", "interval", "fails", "source"]
    assert len(lines) == 7
    assert sum("(default)" in line for line in lines) == 1
    assert "BLOCK=64 num_warps=2 num_stages=3 num_ctas=1 (default)" in out
    if not torch.cuda.is_available():
        assert "there is no GPU here: this is for cuda:90, NVIDIA H100" in err
    assert not own_settings.exists()  # looking begins no store


@pytest.mark.parametrize(("target", "name"), [("cuda:80", "A100"), ("rtx 4090", "4090"), ("hip:gfx942", "MI300X")])
def test_the_gpu_may_be_named_in_every_way_it_is_called(
    capsys: pytest.CaptureFixture[str], target: str, name: str
) -> None:
    out, err = told(capsys, f"{PROGRAM}:scale", *CALL, "--target", target, "--json", "--grid", "cdiv(n, BLOCK)")
    found = json.loads(out)
    assert err == ""
    assert name in found["hardware"]["name"]
    assert found["key"] == {"n": 1000, "dtypes": {"x_ptr": "torch.float16"}}
    assert [c["rank"] for c in found["configs"]] == [1, 2, 3, 4, 5, 6]
    assert found["default"]["BLOCK"] == 64
    speedups = [c["log2_speedup"] for c in found["configs"]]
    assert speedups == sorted(speedups, reverse=True)
    assert all(sum(c["bins"]) == pytest.approx(1.0) for c in found["configs"])


def test_the_first_are_compiled_for_that_gpu_and_evidence_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    out, _ = told(capsys, f"{PROGRAM}:scale", *CALL, "--target", "H100", "--compile", "2", "--top", "1")
    lines = out.splitlines()
    assert len(lines) == 3
    assert all("registers" in line and "B shared" in line for line in lines[1:])
    found = json.loads(told(capsys, f"{PROGRAM}:scale", *CALL, "--compile", "1", "--json")[0])
    assert [c.get("evidence", {}).get("registers", 0) > 0 for c in found["configs"]] == [True] + [False] * 5


MATMUL = """
import triton, triton.language as tl
from forecast_autotune import forecast_autotune

print("a module that prints when it is imported")

def only_wide(configs, named, **kwargs):
    assert named["M"] == 256
    return [c for c in configs if c.kwargs["BN"] > 64]

@triton.heuristics({"EVEN": lambda args: args["K"] % 64 == 0})
@forecast_autotune(
    configs=[triton.Config({"BM": 128, "BN": bn}, num_warps=4, num_stages=s) for bn in (64, 128) for s in (2, 8)],
    key=["M", "N", "K"], prune_configs_by={"early_config_prune": only_wide},
)
@triton.heuristics({"BK": lambda args: 64})
@triton.jit
def matmul(a, b, c, M, N, K, EVEN: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    m, n, k = tl.arange(0, BM), tl.arange(0, BN), tl.arange(0, BK)
    total = tl.zeros((BM, BN), tl.float32)
    for start in range(0, K, BK):
        left = tl.load(a + m[:, None] * K + k[None, :] + start)
        right = tl.load(b + (k[:, None] + start) * N + n[None, :])
        total += tl.dot(left, right)
    tl.store(c + m[:, None] * N + n[None, :], total.to(tl.float16))

@triton.autotune(configs=[triton.Config({"BM": 16}), triton.Config({"BM": 32})], key=[],
                 prune_configs_by={"early_config_prune": lambda configs, named, **_: 1 / 0})
@triton.jit
def pruned_by_a_device(x, BM: tl.constexpr):
    tl.store(x + tl.arange(0, BM), 1.0)
"""


@pytest.fixture
def matmul(tmp_path: Path) -> str:
    (tmp_path / "products.py").write_text(MATMUL)
    return str(tmp_path / "products.py")


TENSORS = [f"--arg={name}=float16[256,256]" for name in "abc"]
SIZES = ["--arg=M=256", "--arg=N=256", "--arg=K=256"]


def test_our_tuner_with_heuristics_and_pruning_is_ranked_with_its_refusals(
    capsys: pytest.CaptureFixture[str], matmul: str
) -> None:
    grid = ["--grid", "cdiv(M,BM)*triton.cdiv(N, BN), 1"]
    out, err = told(capsys, f"{matmul}:matmul", *TENSORS, *SIZES, *grid, "--target=A100", "--compile=2")
    assert "a module that prints" in err
    assert "BN=64" not in out
    assert len(out.splitlines()) == 3
    assert "refused at resources: out of resource: shared memory" in out


def test_a_pruning_that_needs_the_device_is_skipped_and_reported(
    capsys: pytest.CaptureFixture[str], matmul: str
) -> None:
    out, err = told(capsys, f"{matmul}:pruned_by_a_device", "--arg", "x=fp32[64]", "--target=cuda:90")
    assert len(out.splitlines()) == 3
    assert "the kernel's own pruning does not run here (ZeroDivisionError: division by zero)" in err


def test_a_script_that_also_calls_its_kernel_is_read_as_far_as_it_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script = tmp_path / "first_script.py"
    script.write_text(Path(PROGRAM).read_text() + "\n\nraise RuntimeError('no GPU\\nat all')\n")
    assert main(["forecast", f"{script}:scale", *CALL]) == 0
    printed = capsys.readouterr()
    assert "BLOCK" in printed.out
    assert f"{script} is read as far as it runs here, where it stops with RuntimeError: no GPU\n" in printed.err
    assert main(["forecast", f"{script}:later", *CALL]) == 2
    assert "cannot be imported: RuntimeError: no GPU" in capsys.readouterr().err


def test_a_module_is_found_by_its_name_from_the_current_folder(matmul: str) -> None:
    code = "import sys; from forecast_autotune.cli import main; sys.exit(main())"
    arguments = ["forecast", "products:pruned_by_a_device", "--arg", "x=fp32[64]", "--target=cuda:90", "--json"]
    told = subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=True, cwd=Path(matmul).parent,
        env={**os.environ, "PYTHONSAFEPATH": "1"},
    )  # fmt: skip
    assert json.loads(told.stdout)["kernel"] == "products.pruned_by_a_device"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([f"{PROGRAM}:scale", *CALL, "--target", "H9000"], "no hardware sheet for 'H9000': did you mean "),
        ([f"{PROGRAM}:scale", "--arg", "n=1000"], "missing: x_ptr, factor; give each, such as --arg x_ptr="),
        ([f"{PROGRAM}:scale", *CALL, "--arg", "m=1"], "has no argument m: its arguments are x_ptr, n, factor, BLOCK"),
        ([f"{PROGRAM}:scale", *CALL, "--arg", "BLOCK=64"], "BLOCK of kernel scale is what its configs set"),
        ([f"{PROGRAM}:scale", *CALL, "--arg", "n=2"], "n is given twice"),
        ([f"{PROGRAM}:scale", *CALL, "--arg", "n"], "--arg n: give NAME=VALUE"),
        ([f"{PROGRAM}:scale", *CALL, "--grid", "cdiv(m, BLOCK)"], "m is not there"),
        ([f"{PROGRAM}:missing", *CALL], "has no missing: its autotuned kernels are scale"),
        ([f"{PROGRAM}:plain", *CALL], "plain is a JITFunction, not an autotuned kernel"),
        ([f"{PROGRAM}:CONFIGS", *CALL], "list is a list, not an autotuned kernel"),
        (["scale"], "'scale' names no autotuned kernel: give MODULE:KERNEL or FILE.py:KERNEL"),
        (["no.such.module:scale"], "no.such.module cannot be imported: ModuleNotFoundError"),
        (["nowhere.py:scale"], "there is no file nowhere.py"),
    ],
)
def test_bad_input_is_reported_with_the_value_and_what_is_accepted(
    capsys: pytest.CaptureFixture[str], arguments: list[str], says: str
) -> None:
    out, err = told(capsys, *arguments, code=2)
    assert out == ""
    assert says in err
    assert "Traceback" not in err


# Values -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("4096", 4096),
        ("-0x10", -16),
        ("1e-5", 1e-5),
        (".5", 0.5),
        ("True", True),
        ("none", None),
        ("leaky_relu", "leaky_relu"),
        ("'16'", "16"),
        ("nan", "nan"),
        ("__import__('os').abort()", "__import__('os').abort()"),
    ],
)
def test_a_value_is_what_it_looks_like_and_is_never_executed(text: str, value: Any) -> None:
    found = read_value(text, "x")
    assert (found, type(found)) == (value, type(value))


def test_a_tensor_has_dtype_shape_and_strides_and_no_memory() -> None:
    named = read_arguments(["a=bf16[64, 32]:1,64", "b=float8_e4m3fn[]", "c=int32[1000000,1000000]", "d=tl.float16"])
    assert (named["a"].dtype, named["a"].shape, named["a"].stride()) == (torch.bfloat16, (64, 32), (1, 64))
    assert (named["b"].dtype, named["b"].shape) == (torch.float8_e4m3fn, ())
    assert named["c"].device.type == "meta"
    assert named["d"] is tl.float16


@pytest.mark.parametrize("text", ["", "float99[4]", "float16[4", "float16[-4]", "float16[4,4]:1", "tl.dot", "nn[2]"])
def test_what_is_no_value_is_refused(text: str) -> None:
    with pytest.raises(InvalidInputError, match="--arg x="):
        read_value(text, "x")


@pytest.mark.parametrize(
    "text",
    [
        "float32[99999999999999999999]",
        "float32[9999999999,9999999999]",
        "float32[4]:99999999999999999999",
        f"float32[{'9' * 5000}]",
        "9" * 5000,
        f"0x{'9' * 5000}",
    ],
    ids=lambda text: text[:40],
)
def test_a_tensor_or_number_too_large_is_refused(text: str) -> None:
    with pytest.raises(InvalidInputError, match=r"^--arg x=.*: give .* 64 bits") as refused:
        read_value(text, "x")
    assert "\n" not in str(refused.value)
    assert len(str(refused.value)) < 300


def test_a_grid_is_computed_from_arguments_and_knobs() -> None:
    values = {"M": 1000, "BM": 64, "G": 3}
    assert read_grid("cdiv(M, BM) * G, max(1, M // 512) % 7, min(BM, G, 2) - 1")(values) == (48, 1, 1)
    assert read_grid("128")(values) == (128,)


@pytest.mark.parametrize(
    "text",
    ["", "1,2,3,4", "()", "x.y", "1.5", "M if M else 1", "f(1)", "cdiv(1)", "cdiv(1, 0)", "1 // 0", "2 ** 99", "T", "M =",
     "().__class__", "[M for M in ()]", "(" * 500 + "1" + ")" * 500, "1+" * 5000 + "1", "min(*M)", "os.cdiv(1, 2)"],
)  # fmt: skip
def test_what_is_no_grid_is_refused_and_never_executed(text: str) -> None:
    with pytest.raises(InvalidInputError, match="--grid"):
        read_grid(text)({"M": 1, "T": True})


def test_a_surrogate_may_be_named_a_language_model_too(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, own_settings: Path
) -> None:
    monkeypatch.setenv("FORECAST_AUTOTUNE_SURROGATE", "learned")
    out, _ = told(capsys, f"{PROGRAM}:scale", *CALL, "--surrogate", "roofline", "--json")
    assert all(c["source"].startswith("roofline") for c in json.loads(out)["configs"])
    with named_by_settings(Talking(lambda _: sure_of(7))) as model:
        told(capsys, f"{PROGRAM}:scale", *CALL, "--surrogate", "http://127.0.0.1:9", "--json")
        assert model.asked == []  # one program, of whose configs the launches are described
    assert not own_settings.exists()
    _, err = told(capsys, f"{PROGRAM}:scale", *CALL, "--surrogate", "http://10.0.0.7:80", code=2)
    assert "FORECAST_AUTOTUNE_REMOTE_MODEL=1" in err


def test_a_held_model_that_is_missing_is_an_error_that_names_the_setting(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORECAST_AUTOTUNE_MODEL", "3-kernels-00000000")
    out, err = told(capsys, f"{PROGRAM}:scale", *CALL, code=2)
    assert out == ""
    assert "FORECAST_AUTOTUNE_MODEL=3-kernels-00000000: the model 3-kernels-00000000 is not here" in err
