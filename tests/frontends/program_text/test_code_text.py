"""What a variant's program is: all that the function is made of and reaches, and nothing else."""

from __future__ import annotations

import functools
import importlib
import os
import subprocess
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402

from forecast_autotune.frontends.program_text import source  # noqa: E402
from forecast_autotune.frontends.program_text.code_text import CodeText  # noqa: E402

TABLE = {"by": 2}
KEPT: dict[int, int] = {}
calls = 0


def digest(*functions: Any) -> str:
    return CodeText(functions).program("p").digest


def by_table(x: Any) -> Any:
    return x * TABLE["by"]


def by_cache(x: Any) -> Any:
    global calls
    calls += 1
    KEPT[calls] = calls
    return x * len(KEPT)


def closing(value: Any) -> Callable[[Any], Any]:
    def f(x: Any) -> Any:
        return x * value if isinstance(value, int) else value(x)

    return f


def defaulting(value: Any) -> Callable[[Any], Any]:
    def f(x: Any, by: Any = value, *, also: Any = value) -> Any:
        return x * by * also

    return f


def attributed(value: Any) -> Callable[[Any], Any]:
    def f(x: Any) -> Any:
        return x * f.by  # type: ignore[attr-defined]

    f.by = value  # type: ignore[attr-defined]
    return f


class Scale:
    def __init__(self, by: Any) -> None:
        self.by = by
        self.called = 0
        self.seen: list[int] = []

    def __call__(self, x: Any) -> Any:
        self.called += 1
        self.seen.append(self.called)
        return x * self.by


class Slotted:
    __slots__ = ("by",)

    def __init__(self, by: Any) -> None:
        self.by = by

    def __call__(self, x: Any) -> Any:
        return x * self.by


def typed_in(value: Any) -> Any:
    """A function without source."""
    scope: dict[str, Any] = {"__name__": "__main__"}
    exec(f"def f(x): return x * {value}", scope)  # noqa: S102
    return scope["f"]


DTYPES = (torch.float64, torch.float32, torch.float16)


class Weight(torch.nn.Parameter):
    pass


class Rows(torch.Tensor):
    def __new__(cls, data: Any, held: int = 0) -> Any:
        rows = data.as_subclass(cls)
        rows.held = held
        return rows

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if isinstance(function, type(cls.shape.__get__)):  # a getter
            raise AssertionError("this code runs")
        return super().__torch_function__(function, types, args, kwargs)


class Grid(np.ndarray):  # type: ignore[type-arg]
    pass


MADE: dict[str, Callable[[int], Any]] = {
    "a lambda in a line with others": lambda n: (lambda x: x * 1, lambda x: x * 2, lambda x: x * 3)[n],
    "a function without source": typed_in,
    "what it closes over": closing,
    "a default": defaulting,
    "an attribute of it": attributed,
    "an argument of a partial": lambda n: functools.partial(closing(0), n),
    "an object's attribute": Scale,
    "an object's slot": Slotted,
    "a method's object": lambda n: Scale(n).__call__,
    "a function in a list": lambda n: closing([closing(n)]),
    "a function in a dict in a tuple": lambda n: closing(({"f": closing(n)},)),
    "a function below torch.no_grad": lambda n: torch.no_grad()(closing(n)),
    "a function below a cache": lambda n: functools.lru_cache(closing(n)),
    "a scripted module": lambda n: torch.jit.script((torch.nn.ReLU(), torch.nn.SiLU(), torch.nn.Tanh())[n]),
    "a traced graph": lambda n: torch.fx.symbolic_trace((torch.nn.ReLU(), torch.nn.SiLU(), torch.nn.Tanh())[n]),
    "a module's structure": lambda n: torch.nn.Sequential(*[torch.nn.Linear(4, 4) for _ in range(n + 1)]),
    "a module's sizes": lambda n: torch.nn.Linear(4, n + 1),
    "a weight's shape": lambda n: closing(torch.nn.Parameter(torch.ones(n))),
    "the shape of a weight of its own class": lambda n: closing(Weight(torch.ones(n))),
    "the dtype of a tensor of its own class": lambda n: closing(Rows(torch.ones(2, dtype=DTYPES[n]))),
    "what a tensor of its own class holds": lambda n: closing(Rows(torch.ones(2), held=n)),
    "the shape of a memory-mapped array": lambda n: closing(np.ones((n, 3)).view(np.memmap)),
    "the shape of an array of its own class": lambda n: closing(np.ones((n, 3)).view(Grid)),
    "a number of NumPy's": lambda n: closing(np.float32(n)),
}


@pytest.mark.parametrize("of", MADE)
@pytest.mark.filterwarnings("ignore:`torch.jit.*is deprecated", "ignore:.*torch.jit")
def test_its_digest_changes_with(of: str) -> None:
    first, same, other = MADE[of](1), MADE[of](1), MADE[of](2)
    assert digest(first) == digest(same) != digest(other)


def test_a_module_table_is_part_of_a_program_and_what_calls_write_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    before = digest(by_table), digest(by_cache), digest(Scale(2))
    by_cache(1)
    (scale := Scale(2))(1)
    assert digest(by_cache) == before[1], "a cache and a counter"
    assert digest(scale) == before[2], "an object's"
    monkeypatch.setitem(TABLE, "by", 3)
    assert digest(by_table) != before[0]


def test_weights_are_no_part_of_a_module() -> None:
    torch.manual_seed(0)
    assert digest(torch.nn.Linear(4, 4)) == digest(torch.nn.Linear(4, 4))


@pytest.mark.parametrize("how", ["import beside", "from beside import f as g", "import pkg.beside", "in the function"])
def test_neighbouring_modules_are_part_of_it(how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    called = {"import beside": "beside.f", "import pkg.beside": "pkg.beside.f"}.get(how, "g")
    digests = []
    for version in ("1", "2"):
        folder = tmp_path / version
        (folder / "pkg").mkdir(parents=True)
        (folder / "pkg" / "__init__.py").touch()
        for beside in (folder / "beside.py", folder / "pkg" / "beside.py"):
            beside.write_text(f"def f(x): return x * {version}\n")
        inside = "    from beside import f as g\n" if how == "in the function" else ""
        (folder / "main_part.py").write_text(
            f"{'' if inside else how}\ndef variant(x):\n{inside}    return {called}(x)\n"
        )
        with monkeypatch.context() as patch:
            patch.syspath_prepend(folder)
            known = set(sys.modules)
            digests.append(digest(importlib.import_module("main_part").variant))
            for name in set(sys.modules) - known:
                del sys.modules[name]
    assert len(set(digests)) == 2


def test_a_line_above_and_a_folder_elsewhere_change_nothing(tmp_path: Path) -> None:
    text = "TABLE = {'a', 'b', 'c'}\ndef f(x): return (lambda y: y in TABLE and y in {'d', 'e'})(x)\n"
    shown = "import sys; sys.path.insert(0, sys.argv[1]); import m\n" + (
        "from forecast_autotune.frontends.program_text.code_text import CodeText\n"
        "print(CodeText([m.f, lambda x: x in {'d', 'e'}]).program('p').digest)"
    )
    printed = set()
    for seed, above in enumerate(("", "# a line\n\n")):
        (tmp_path / str(seed)).mkdir()
        (tmp_path / str(seed) / "m.py").write_text(above + text)
        environment = {**os.environ, "PYTHONHASHSEED": str(seed + 1)}
        command = [sys.executable, "-c", shown, str(tmp_path / str(seed))]
        printed.add(subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout)
    assert len(printed) == 1


BODIES = {
    "a function": "def f(x): return x * {0}",
    "a lambda": "g, f = lambda x: x, lambda x: x * {0}",
    "a closure": "def made(n):\n    def f(x): return x * n * {0}\n    return f\nf = made(2)",
    "a function that it calls": "def g(x): return x * {0}\ndef f(x): return g(x)",
    "a module that it imports": "def f(x):\n    import neighbour\n    return neighbour.h(x)",
}


@pytest.mark.parametrize("of", BODIES)
def test_a_file_saved_after_it_was_loaded_is_not_its_text(
    of: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)

    def saved(version: int, above: str = "") -> None:
        (tmp_path / "neighbour.py").write_text(f"{above}def h(x): return x * {version}\n")
        (tmp_path / "edited.py").write_text(f"{above}{BODIES[of].format(version)}\n")

    def loaded() -> Any:
        for name in ("edited", "neighbour"):
            sys.modules.pop(name, None)
        importlib.invalidate_caches()
        importlib.import_module("neighbour")
        return importlib.import_module("edited").f

    saved(1)
    old = loaded()
    saved(22)
    from_old = digest(old)
    saved(333)
    assert digest(old) == from_old, "whatever it is saved as"
    assert digest(loaded()) != from_old


def test_of_a_file_saved_after_it_was_loaded_the_text_that_moved_is_found(tmp_path: Path) -> None:
    file = tmp_path / "moved.py"

    def loaded(text: str) -> Any:
        file.write_text(text)
        scope: dict[str, Any] = {"__name__": "moved"}
        exec(compile(text, str(file), "exec"), scope)  # noqa: S102
        return scope["f"]

    text = "def f(x):\n    return (lambda y: y * 3)(x)  # {0}\n"
    old = loaded(text.format("old"))
    new = loaded("def g(x): return x\n\n" + text.format("new"))
    assert digest(old) == digest(new)
    assert "# new" in CodeText([old]).program("p").source


def test_a_module_that_an_import_hook_rewrote_keeps_its_text(monkeypatch: pytest.MonkeyPatch) -> None:
    def f(x: Any) -> Any:
        assert x, "which pytest compiles to something else"
        return x

    assert "assert x" in CodeText([f]).program("p").source
    file = f.__code__.co_filename
    written_at = os.stat(file).st_ctime
    monkeypatch.setattr(source, "PROCESS_BEGAN_AT", written_at - 1.0)
    assert source.may_have_changed(file)
    monkeypatch.setattr(source, "PROCESS_BEGAN_AT", written_at + 1.0)
    assert not source.may_have_changed(file)


def test_no_code_is_run_to_read_a_variant() -> None:
    def fail(*_: Any) -> Any:
        raise AssertionError("it was run")

    class Touchy:
        __getattr__ = __repr__ = __str__ = __eq__ = __bool__ = __len__ = __iter__ = fail  # type: ignore[assignment]
        __hash__ = fail  # type: ignore[assignment]
        __class__ = property(fail)  # type: ignore[assignment]
        held = property(fail)

    lazy = types.ModuleType("lazy")
    lazy.__getattr__ = fail  # type: ignore[method-assign, assignment]
    touchy = Touchy()

    def variant(x: Any) -> Any:
        return lazy.missing(touchy.held, x)

    assert digest(variant, closing(touchy), closing([touchy]))


def test_a_library_is_named_and_not_read() -> None:
    def variant(x: Any) -> Any:
        return torch.nn.functional.gelu(pytest.approx(x))

    raises = pytest.raises
    with_it = CodeText([variant, lambda: raises]).program("p").source
    assert "def approx" not in with_it
    assert "def gelu" not in with_it
    assert f"# pytest {pytest.__version__}" in with_it
    assert len(with_it) < 1_000


@pytest.mark.parametrize(
    ("made", "text"),
    [
        (lambda: torch.ones(2, 3), "Tensor(torch.float32, (2, 3))"),
        (lambda: torch.nn.Parameter(torch.ones(2)), "Parameter(torch.float32, (2,))"),
        (lambda: np.ones((2, 3)), "ndarray(float64, (2, 3))"),
        (lambda: np.float32(2), "2.0"),
        (lambda: FakeTensorMode().from_tensor(torch.ones(2)), "Tensor(torch.float32, (2,))"),
        (lambda: FakeTensorMode().from_tensor(torch.nn.Parameter(torch.ones(2))), "Parameter(torch.float32, (2,))"),
    ],
)
def test_tensors_and_arrays_stand_by_class_dtype_and_shape(made: Callable[[], Any], text: str) -> None:
    assert CodeText().text_of(made()) == text


class Sizeless(torch.Tensor):
    """Asked for its sizes by torch, which it does not say."""

    @staticmethod
    def __new__(cls) -> Any:
        return torch.Tensor._make_wrapper_subclass(cls, (2,), dispatch_sizes_strides_policy="sizes")

    @classmethod
    def __torch_dispatch__(cls, *_: Any) -> Any:
        raise ValueError("not me")


def nested(**kwargs: Any) -> Any:
    return torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], **kwargs)


@pytest.mark.filterwarnings("ignore:.*nested:UserWarning")
def test_tensors_without_plain_sizes_stand_by_dimensions_and_layout() -> None:
    for _ in range(2):  # torch counts those that are jagged in their sizes
        assert CodeText().text_of(nested(layout=torch.jagged)) == (
            "NestedTensor(torch.float32, 2 dimensions, torch.jagged)"
        )
    assert CodeText().text_of(nested()) == "Tensor(torch.float32, 2 dimensions, torch.strided)"
    assert "torch.float32, None dimensions, torch.strided" in CodeText().text_of(Sizeless())


def test_a_spread_tensor_stands_by_placements_and_mesh() -> None:
    distributed = pytest.importorskip("torch.distributed.tensor")
    from torch.testing._internal.distributed.fake_pg import FakeStore

    torch.distributed.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    try:
        mesh = distributed.init_device_mesh("cpu", (2,))
        weight = torch.nn.Parameter(distributed.distribute_tensor(torch.ones(4, 3), mesh, [distributed.Shard(0)]))
        assert CodeText().text_of(weight) == "DTensor(torch.float32, (4, 3), (Shard(dim=0),) on a mesh of (2,))"
    finally:
        torch.distributed.destroy_process_group()


def test_what_holds_itself_is_read_once() -> None:
    ring: list[Any] = []
    ring.append(ring)

    def f(x: Any) -> Any:
        return g(x, ring)

    def g(x: Any, held: Any) -> Any:
        return f(x) if held else x

    text = CodeText([f]).program("p").source
    assert (text.count("def f("), text.count("def g(")) == (1, 1)
