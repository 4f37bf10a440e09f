"""What editors, type checkers and help() see of the package, as a user's file outside the tree sees it."""

from __future__ import annotations

import inspect
import os
import pydoc
import re
import subprocess
import sys

import pytest

import forecast_autotune as fa
from forecast_autotune.frontends.triton.autotune import Autotune

# What mypy is to say at each line; `import triton` needs its comment because Triton has no types.
PROGRAM = """
import triton  # type: ignore[import-untyped]

import forecast_autotune as fa
from forecast_autotune import forecast_autotune

def double(x: int) -> int:
    return 2 * x

kernel = forecast_autotune(configs=[triton.Config({"BLOCK": 128})], key=["n"], budget="16,30s")(triton.jit(double))
reveal_type(kernel)  # forecast_autotune.frontends.triton.autotuner.ForecastAutotuner
reveal_type(kernel[(1, 1)])  # def (*Any, **Any) -> Any
reveal_type(kernel[lambda meta: (meta["n"],)])  # def (*Any, **Any) -> Any
reveal_type(kernel.decisions)  # dict[Any, forecast_autotune.core.decision.Decision]
reveal_type(kernel.name)  # str
reveal_type(fa.autotune)  # forecast_autotune.decorator.Decorator
reveal_type(fa.__version__)  # str
reveal_type(fa.Space.grid({"LANES": [1, 4]}))  # forecast_autotune.core.space.Space
reveal_type(fa.Config({"LANES": 4}))  # forecast_autotune.core.config.Config
reveal_type(fa.Work(flops=1, bytes=2))  # forecast_autotune.core.workload.Work
reveal_type(fa.variants([double]))  # forecast_autotune.frontends.variants.tuned_variants.TunedVariants
reveal_type(fa.load_inline("dot", "", space=fa.Space([{}])))  # types.ModuleType
reveal_type(fa.install())  # None
reveal_type(forecast_autotune.uninstall())  # None
with fa.rehearsal("H200") as device, forecast_autotune.tune_pending():
    reveal_type(device)  # forecast_autotune.frontends.triton.simulated_driver.Rehearsal
try:
    pass
except fa.NoWorkingConfigError as err:
    reveal_type(err)  # forecast_autotune.errors.NoWorkingConfigError
reveal_type(forecast_autotune.Space.grid({"LANES": [1]}))  # forecast_autotune.core.space.Space
reveal_type(forecast_autotune.variants([double]).decisions)  # dict[Any, forecast_autotune.core.decision.Decision]
fa.autotune(configs=[], buget=4)  # error: Unexpected keyword argument "buget"
fa.autotune(configs=[], budget=0.5)  # error: Argument "budget"
fa.autotune(configs=[], mode="tuned")  # error: Argument "mode"
fa.forcast_autotune  # error: Module has no attribute "forcast_autotune"
forecast_autotune.lod_inline  # error: "Decorator" has no attribute "lod_inline"
"""


SHOWN = [f"reveal_type({place}.{name})" for name in fa.__all__ for place in ("fa", "forecast_autotune")]
NAMES = "\n".join(["import forecast_autotune as fa", "from forecast_autotune import forecast_autotune", *SHOWN])
told_by_mypy = pytest.mark.xdist_group("mypy")


@pytest.fixture(scope="module")
def said_by_mypy(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[int, str]]:
    """What mypy says in strict mode of both programs, which it reads in one run; by file and line."""
    pytest.importorskip("mypy")
    folder = tmp_path_factory.mktemp("typed")
    for name, program in (("user", PROGRAM), ("names", NAMES)):
        (folder / f"{name}.py").write_text(program)
    words = [
        "--strict",
        "--no-error-summary",
        "--no-pretty",
        "--hide-error-codes",
        "--config-file=",
        "user.py",
        "names.py",
    ]
    environment = {name: value for name, value in os.environ.items() if name != "MYPYPATH"}
    done = subprocess.run(
        [sys.executable, "-m", "mypy", *words], cwd=folder, capture_output=True, text=True, env=environment
    )
    assert done.returncode in (0, 1), done.stderr
    pattern = r"^(\w+)\.py:(\d+): (?:note: Revealed type is \"(.+)\"|(error: .+))$"
    said: dict[str, dict[int, str]] = {"user": {}, "names": {}}
    for name, line, revealed, error in re.findall(pattern, done.stdout, re.MULTILINE):
        said[name][int(line)] = revealed or error
    return said


@pytest.mark.thorough
@told_by_mypy
def test_a_strict_type_checker_sees_what_users_get(said_by_mypy: dict[str, dict[int, str]]) -> None:
    said = said_by_mypy["user"]
    expected = {}
    for number, line in enumerate(PROGRAM.splitlines(), start=1):
        if comment := re.search(r"  # (?!type: ignore)(.+)$", line):
            expected[number] = comment[1]
    assert set(said) == set(expected)
    for number, says in expected.items():
        assert said[number].startswith(says) if says.startswith("error") else said[number] == says


@pytest.mark.thorough
@told_by_mypy
def test_a_type_checker_sees_every_public_name_in_both_places(said_by_mypy: dict[str, dict[int, str]]) -> None:
    said = list(said_by_mypy["names"].values())
    assert len(said) == len(SHOWN)
    assert not [text for text in said if text == "Any" or text.startswith("error")]
    assert said[::2] == said[1::2]


# The decorator's arguments ------------------------------------------------------------------------------------------------


def explained(docstring: str) -> list[str]:
    """The names that a docstring's Args explain, in order."""
    section = re.search(r"^Args:\n(.*?)^\S", inspect.cleandoc(docstring), re.MULTILINE | re.DOTALL)
    assert section is not None
    return re.findall(r"^    (\w+): ", section[1], re.MULTILINE)


def test_every_argument_of_the_decorator_is_explained_in_order() -> None:
    signature = inspect.signature(fa.forecast_autotune)
    assert explained(Autotune.__call__.__doc__ or "") == list(signature.parameters)
    shown = pydoc.render_doc(fa.forecast_autotune, renderer=pydoc.plaintext)
    for name, parameter in signature.parameters.items():
        assert f"{name}: {parameter.annotation!r} = {parameter.default!r}" in shown
        assert f"    {name}: " in shown


def test_the_decorator_takes_what_the_tuner_takes() -> None:
    pytest.importorskip("triton")
    ours = inspect.signature(fa.forecast_autotune).parameters
    of_tuner = dict(inspect.signature(fa.ForecastAutotuner).parameters)
    for given_by_the_decorator in ("fn", "arg_names"):
        del of_tuner[given_by_the_decorator]
    assert set(ours) == set(of_tuner)
    for name, parameter in of_tuner.items():
        assert ours[name].kind == parameter.kind
        if name not in ("configs", "key"):  # the tuner, like Triton's, has no defaults for these
            assert (ours[name].annotation, ours[name].default) == (parameter.annotation, parameter.default)


def test_every_argument_reaches_the_tuner(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("triton")
    from forecast_autotune.frontends.triton import autotuner

    class Kernel:
        arg_names = ("x",)

    taken = inspect.signature(autotuner.ForecastAutotuner)
    handed: dict[str, object] = {}
    monkeypatch.setattr(
        autotuner, "ForecastAutotuner", lambda *args, **kwargs: handed.update(taken.bind(*args, **kwargs).arguments)
    )
    given: dict[str, object] = {name: object() for name in inspect.signature(fa.forecast_autotune).parameters}
    kernel = Kernel()
    fa.forecast_autotune(**given)(kernel)  # type: ignore[arg-type]  # marks that are looked for again
    assert handed == {"fn": kernel, "arg_names": ("x",), **given}


@pytest.mark.parametrize("name", ["load_inline", "variants", "rehearsal"])
def test_functions_explain_their_own_arguments(name: str) -> None:
    function = getattr(fa, name)
    own = [n for n, p in inspect.signature(function).parameters.items() if not n.startswith("torch_")]
    named = explained(function.__doc__)
    assert [n for n in own if n in named] == named
    assert set(own) - set(named) <= {"name", "cpp_sources"}  # as torch explains them


def test_a_signature_and_help_load_nothing_heavy() -> None:
    program = (
        "import inspect, pydoc, sys; from forecast_autotune import forecast_autotune as f; inspect.signature(f); "
        "pydoc.render_doc(f); print(sorted({'torch', 'triton', 'numpy'} & set(sys.modules)))"
    )
    told = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert told.stdout.strip() == "[]"
