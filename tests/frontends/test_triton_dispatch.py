"""The cached call: keys from arguments, forms of call, and what makes a call look again."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from forecast_autotune.frontends.triton_dispatch import (  # noqa: E402
    DecisionCache,
    Form,
    call_form,
    make_form,
    power_of_two,
)


class Tuner:
    """What a form reads of a tuner, with a kernel that says how it was launched."""

    def __init__(self, configs: int = 2) -> None:
        self._configs = list(range(configs))
        self.best_config: Any = None
        self.missed: list[Any] = []
        self.fn = SimpleNamespace(run=lambda *args, **kwargs: (args, kwargs))

    def _miss(self, *args: Any, **kwargs: Any) -> str:
        self.missed.append((args, kwargs))
        return "missed"


def form_of(
    tuner: Tuner, *args: Any, names: tuple[str, ...] = ("x", "n", "b"), key: tuple[str, ...] = ("n",), **kwargs: Any
) -> Form:
    call = {**dict(zip(names, args, strict=False)), **kwargs}
    made = make_form(
        tuner,
        call_form(args, kwargs),
        arg_names=names,
        tensors=frozenset(n for n in names if hasattr(call.get(n), "dtype")),
        key_names=frozenset(key),
        buckets={},
        on_device=False,
    )
    assert made is not None
    return made


X, Y = torch.empty(2), torch.empty(2, dtype=torch.float16)


def test_a_known_key_is_launched_with_its_configs_keywords() -> None:
    tuner = Tuner()
    form = form_of(tuner, X, 5, grid=(1,))
    seen: list[Any] = []
    form.table[form.key(X, 5, grid=(1,))] = ("config", {"BLOCK": 64}, seen.append)
    assert form.launch(X, 5, grid=(1,)) == ((X, 5), {"grid": (1,), "BLOCK": 64})
    assert tuner.best_config == "config"
    assert seen == [{"x": X, "n": 5, "grid": (1,), "BLOCK": 64}]
    assert form.launch(X, 6, grid=(1,)) == "missed"
    assert form.launch(Y, 5, grid=(1,)) == "missed"
    assert tuner.missed == [((X, 6), {"grid": (1,)}), ((Y, 5), {"grid": (1,)})]


def test_a_tensor_where_there_was_none_is_another_key() -> None:
    form = form_of(Tuner(), X, 5, None)
    assert form.key(X, 5, None) != form.key(X, 5, X)
    assert form.key(X, 5, None) != form.key(X, 5, 3)
    assert form.key(X, 5, 3) == form.key(X, 5, 4), "no key names it"
    assert form.launch(None, 5, None) == "missed", "no tensor where there was one"


def test_calls_of_two_forms_do_not_meet() -> None:
    tuner = Tuner()
    one, other = form_of(tuner, X, n=1, b=2, key=("n", "b")), form_of(tuner, X, b=1, n=2, key=("n", "b"))
    one.table[one.key(X, n=1, b=2)] = ("config", {}, None)
    assert one.launch(X, n=1, b=2) == ((X,), {"n": 1, "b": 2})
    assert other.launch(X, b=1, n=2) == "missed"


def test_a_tuner_with_one_config_has_nothing_to_look_up_until_it_has_more() -> None:
    tuner = Tuner(configs=1)
    form = form_of(tuner, X, 5)
    form.table[form.key(X, 5)] = ("config", {"BLOCK": 64}, None)
    assert form.launch(Y, 6) == ((Y, 6), {"BLOCK": 64})
    tuner._configs.append(1)
    assert form.launch(Y, 6) == "missed"


def test_a_kernel_without_arguments_has_one_key() -> None:
    form = form_of(Tuner(), names=(), key=())
    form.table[form.key()] = ("config", {"BLOCK": 64}, None)
    assert form.launch() == ((), {"BLOCK": 64})


def test_a_value_that_cannot_be_looked_up_is_a_miss() -> None:
    assert form_of(Tuner(), X, 5).launch(X, [5]) == "missed"


@pytest.mark.parametrize(
    "form", [(1, "class"), (4,), (1, "x"), (1, "no-name"), (1, "__tuner"), (1, "grid", "lambda x")]
)
def test_names_that_cannot_be_written_out_are_left_to_the_long_way(form: tuple[Any, ...]) -> None:
    made = make_form(
        Tuner(),
        form,
        arg_names=("x", "n", "b"),
        tensors=frozenset(),
        key_names=frozenset(),
        buckets={},
        on_device=False,
    )
    assert made is None


def test_arguments_may_have_the_names_of_builtins_and_of_what_is_written_around_them() -> None:
    names = ("dict", "getattr", "_found", "key", "launch")
    form = form_of(Tuner(), X, 1, 2, 3, 4, names=names, key=("key",))
    form.table[form.key(X, 1, 2, 3, 4)] = ("config", {}, lambda named: None)
    assert form.launch(X, 1, 2, 3, 4) == ((X, 1, 2, 3, 4), {})


def test_every_change_of_the_cache_from_outside_is_heard() -> None:
    heard: list[int] = []
    cache = DecisionCache(lambda: heard.append(1), {1: "a", 2: "b", 3: "c"})
    cache.add(4, "d")
    assert not heard
    cache[1] = "e"
    del cache[1]
    cache.pop(2)
    cache.popitem()
    cache.update({5: "f"})
    cache |= {6: "g"}
    cache.clear()
    assert len(heard) == 7


def test_pow2_rounds_up_and_leaves_alone_what_is_no_number() -> None:
    assert [power_of_two(n) for n in (-3, 0, 1, 2, 3, 4, 5, 4.5, 1024, 1025)] == [1, 1, 1, 2, 4, 4, 8, 8, 1024, 2048]
    assert power_of_two(None) is None
    assert power_of_two("x") == "x"
    assert power_of_two(float("inf")) == float("inf")
