"""A C++ file and the Python file beside it, as what is searched for."""

from __future__ import annotations

import re
import sys
import textwrap
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import doubling
import pytest
import torch

from forecast_autotune.cli import main
from forecast_autotune.cli.search import _target
from forecast_autotune.core.space import Space
from forecast_autotune.errors import InvalidInputError
from forecast_autotune.processes.box import lacking
from forecast_autotune.program_search.task import refuse_what_raises, task_of

CPP = """
#include <cstdint>
void scale(const float* x, float* out, int64_t n) {
    for (int64_t i = 0; i < n; ++i) out[i] = FACTOR * x[i];
}
"""
BESIDE = '''
import torch
cpp_sources = """
void scale(const float*, float*, int64_t);
void scaled(torch::Tensor x, torch::Tensor out) { scale(x.data_ptr<float>(), out.data_ptr<float>(), x.numel()); }
"""
space = {"FACTOR": [2]}
sizes = {"large": {"n": 100_000}}
held_out = {"odd": {"n": 9_999}}
corners = {"none": {"n": 0}}
tolerances = ((0.0, 0.0),)
def inputs(sizes, seed, device):
    return torch.rand(sizes["n"], generator=torch.Generator().manual_seed(seed)), torch.empty(sizes["n"])
def reference(x, out):
    return 2 * x
'''


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "scaled.cpp").write_text(CPP)
    (tmp_path / "scaled.py").write_text(textwrap.dedent(BESIDE))
    return tmp_path / "scaled.cpp"


def test_a_file_is_searched_by_what_stands_beside_it(file: Path) -> None:
    task = _target(str(file))
    assert (task.name, task.language, task.source) == ("scaled", "c++", CPP)
    assert task.seed.config["FACTOR"] == 2
    assert (dict(task.held_out), dict(task.corners)) == ({"odd": {"n": 9_999}}, {"none": {"n": 0}})
    assert task.tolerances == ((0.0, 0.0),)
    x, out = task.make_inputs({"n": 5}, 0, "cpu")
    assert torch.equal(task.reference(x, out), 2 * x)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("return 2 * x", "return x + x"),
        ("torch.rand(sizes", "torch.randn(sizes"),
        ("((0.0, 0.0),)", "((1e-5, 0.0),)"),
        ('{"n": 9_999}', '{"n": 9_998}'),
        ("x.numel()); }", "x.numel() - 1); }"),
    ],
    ids=["reference", "inputs", "tolerances", "held out", "binding"],
)
def test_what_is_measured_and_checked_by_is_of_the_task(
    file: Path, before: str, after: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        sys, "dont_write_bytecode", True
    )  # it would be taken for that of a file as long, a moment later
    beside = file.with_suffix(".py")
    digest = _target(str(file)).digest
    assert _target(str(file)).digest == digest
    assert before in beside.read_text()
    beside.write_text(beside.read_text().replace(before, after))
    assert _target(str(file)).digest != digest


def test_a_header_is_of_the_task_and_a_comment_is_not(file: Path) -> None:
    header, beside = file.with_name("factor.h"), file.with_suffix(".py")
    beside.write_text(f"{beside.read_text()}\nextra_include_paths = [{str(file.parent)!r}]\n")
    digests = []
    for comment, header_text in (("", "// 1"), ("// said twice\n", "// 1"), ("", "#define OTHER")):
        file.write_text(f'#include "factor.h"\n{comment}{CPP}')
        header.write_text(header_text)
        digests.append(_target(str(file)).digest)
    assert digests[0] == digests[1] != digests[2]


def test_what_draws_the_inputs_of_a_suites_kernel_is_of_the_task() -> None:
    def zeros(case: Any, seed: int, device: str) -> tuple[Any, ...]:
        return torch.zeros(case.sizes["n"]), torch.empty(case.sizes["n"])

    def ones(case: Any, seed: int, device: str) -> tuple[Any, ...]:
        return torch.ones(case.sizes["n"]), torch.empty(case.sizes["n"])

    def digest_of(make_inputs: Any) -> str:
        variant = SimpleNamespace(name="plain", launch=doubling.reference, space=Space.grid({"PARTS": [1, 2]}))
        kernel = SimpleNamespace(
            name="double", variants=[variant], cases=[SimpleNamespace(name="large", sizes={"n": 5})], corners=[],
            make_inputs=make_inputs, reference=doubling.reference, outputs=[SimpleNamespace(rtol=0.0, atol=0.0)], work=None,
        )  # fmt: skip
        return task_of(kernel, device="cpu").digest

    assert digest_of(zeros) == digest_of(zeros) != digest_of(ones)


@pytest.mark.parametrize(
    ("said", "complaint"),
    [
        ('sizes = {"a": 4096}', "sizes of scaled: {'a': 4096}: give numbers by name"),
        ("sizes = [4096]", r"sizes of scaled: \[4096\]: give"),
        ("held_out = 3", "held_out of scaled: 3: give"),
        ("corners = {1: {}}", "corners of scaled: {1: {}}: give"),
        ("tolerances = (1e-4, 1e-4)", r"tolerances of scaled: \(0.0001, 0.0001\): give a relative and an absolute"),
        ("def inputs(n): pass", "make_inputs of scaled: .*: give a function of sizes, a seed and a device"),
        ("reference = 3", "reference of scaled: 3: give a function"),
        ("work = 3", "work of scaled: 3: give a function"),
    ],
)
def test_a_field_of_another_form_is_named_with_its_form(file: Path, said: str, complaint: str) -> None:
    beside = file.with_suffix(".py")
    beside.write_text(f"{beside.read_text()}\n{said}\n")
    with pytest.raises(InvalidInputError, match=complaint):
        _target(str(file))


@pytest.mark.parametrize(
    ("fields", "complaint"),
    [
        ({"make_inputs": lambda *_: torch.ones(3)}, "make_inputs of double returns a Tensor: give a function of sizes"),
        (
            {"make_inputs": lambda sizes, *_: (sizes["m"],)},
            "make_inputs of double, given 3 arguments for the size 'large', raises KeyError: 'm'",
        ),
        (
            {"reference": lambda x: x},
            "reference of double, given 2 arguments for the size 'large', raises TypeError: .*takes 1 positional",
        ),
        ({"work": lambda x: x}, "work of double, given 2 arguments for the size 'large', raises TypeError"),
    ],
    ids=["no tuple", "inputs", "reference", "work"],
)
def test_a_function_that_raises_is_named(fields: dict[str, Any], complaint: str) -> None:
    with pytest.raises(InvalidInputError, match=complaint):
        refuse_what_raises(doubling.task(**fields))


def test_the_file_beside_it_prints_to_stderr_and_sees_no_arguments_of_ours(
    file: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    beside = file.with_suffix(".py")
    monkeypatch.setattr("sys.argv", ["forecast-autotune", "search", str(file)])
    beside.write_text(
        f"import argparse\nargparse.ArgumentParser().parse_args()\nprint('loading')\n{beside.read_text()}"
    )
    assert _target(str(file)).name == "scaled"
    assert capsys.readouterr() == ("", "loading\n")


def test_a_file_without_macros_has_one_config(file: Path) -> None:
    beside = file.with_suffix(".py")
    beside.write_text(beside.read_text().replace("space =", "other ="))
    assert not _target(str(file)).seed.config.knobs


def test_what_is_missing_is_named(file: Path) -> None:
    beside = file.with_suffix(".py")
    beside.write_text(beside.read_text().replace("def reference", "def other"))
    with pytest.raises(
        InvalidInputError, match=r"scaled.py has no reference: beside scaled.cpp it must say cpp_sources"
    ):
        _target(str(file))
    beside.unlink()
    with pytest.raises(InvalidInputError, match=r"no file .*scaled.py: a search of scaled.cpp needs it"):
        _target(str(file))
    with pytest.raises(InvalidInputError, match=r"no file .*other.cc"):
        _target(str(file.with_name("other.cc")))
    with pytest.raises(InvalidInputError, match=r"no file kernel.cu: a search of kernel.cu needs it"):
        _target("kernel.cu")


@pytest.mark.thorough
@pytest.mark.timeout(600)
@pytest.mark.skipif(bool(lacking(may_start=True)), reason=f"no box here: {lacking(may_start=True)}")
def test_a_file_is_searched(file: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["search", str(file), "--budget", "4", "--dir", str(tmp_path / "store")]) in (0, 1)
    out, err = capsys.readouterr()
    assert out.startswith("program")
    assert re.search(r"scaled: [2-4] measured, [2-8] built, 0 failed", err), err


DIFFERENTIABLE = '''
import torch
cpp_sources = """
#include <torch/extension.h>
void scale(const float*, float*, int64_t);
torch::Tensor made(const torch::Tensor& x) {
    auto out = torch::empty_like(x);
    scale(x.data_ptr<float>(), out.data_ptr<float>(), x.numel());
    return out;
}
struct Scaled : torch::autograd::Function<Scaled> {
    static torch::Tensor forward(torch::autograd::AutogradContext*, torch::Tensor x) { return made(x); }
    static torch::autograd::tensor_list backward(torch::autograd::AutogradContext*, torch::autograd::tensor_list g) {
        return {made(g[0])};
    }
};
torch::Tensor scaled(torch::Tensor x) { return Scaled::apply(x); }
"""
space = {"FACTOR": [2]}
sizes = {"large": {"n": 100_000}}
corners = {"none": {"n": 0}}
def inputs(sizes, seed, device):
    return (torch.rand(sizes["n"], generator=torch.Generator().manual_seed(seed)).requires_grad_(),)
def reference(x):
    return 2 * x
'''


@pytest.mark.thorough
@pytest.mark.timeout(600)
@pytest.mark.skipif(bool(lacking(may_start=True)), reason=f"no box here: {lacking(may_start=True)}")
def test_a_file_is_searched_with_its_backward_pass(
    file: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    beside, searched = file.with_suffix(".py"), ["search", str(file), "--budget", "2", "--dir", str(tmp_path / "store")]
    beside.write_text(DIFFERENTIABLE)
    assert main(searched) in (0, 1)
    assert re.search(r"scaled: 2 measured, [2-8] built, 0 failed", capsys.readouterr().err)


@pytest.mark.thorough
@pytest.mark.timeout(600)
@pytest.mark.skipif(bool(lacking(may_start=True)), reason=f"no box here: {lacking(may_start=True)}")
def test_a_file_that_writes_to_an_argument_is_not_differentiated(
    file: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    beside = file.with_suffix(".py")
    beside.write_text(beside.read_text().replace("manual_seed(seed))", "manual_seed(seed)).requires_grad_()"))
    assert main(["search", str(file), "--budget", "2", "--dir", str(tmp_path / "store")]) == 2
    assert "scaled require gradients, and it returns None, where the reference" in capsys.readouterr().err
