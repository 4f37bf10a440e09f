"""The cached call: keys from arguments, forms of call, and what makes a call look again."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")
triton = pytest.importorskip("triton")

from forecast_autotune.frontends.key_table import Entry, KeyTable  # noqa: E402
from forecast_autotune.frontends.triton.decision_cache import DecisionCache  # noqa: E402
from forecast_autotune.frontends.triton.launch_codegen import (  # noqa: E402
    Form,
    Launch,
    call_form,
    make_form,
)
from forecast_autotune.frontends.triton.tuner_options import power_of_two  # noqa: E402


class Tuner:
    """What a form reads of a tuner, with a kernel that says how it was launched."""

    def __init__(self, configs: int = 2) -> None:
        self._configs = [BLOCK, PLAIN][:configs]
        self.best_config: Any = None
        self.missed: list[Any] = []
        self.fn = SimpleNamespace(run=lambda *args, **kwargs: (args, kwargs))

    def _launch(self, config: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return "hooked", config, args, kwargs

    def _miss(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
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


def launch(form: Form, *args: Any, **kwargs: Any) -> Any:
    return form.launch(args, kwargs)


def key(form: Form, *args: Any, **kwargs: Any) -> Any:
    return form.key(args, kwargs)


PLAIN, BLOCK = triton.Config({}), triton.Config({"BLOCK": 64})
X, Y = torch.empty(2), torch.empty(2, dtype=torch.float16)


def test_a_known_key_is_launched_with_its_configs_keywords() -> None:
    tuner = Tuner()
    form = form_of(tuner, X, 5, grid=(1,))
    config = triton.Config({"BLOCK": 64})
    form.table[key(form, X, 5, grid=(1,))] = Launch.of(config)
    assert launch(form, X, 5, grid=(1,)) == ((X, 5), {"grid": (1,), **config.all_kwargs()})
    assert tuner.best_config is config
    assert launch(form, X, 6, grid=(1,)) == "missed"
    assert launch(form, Y, 5, grid=(1,)) == "missed"
    assert tuner.missed == [((X, 6), {"grid": (1,)}), ((Y, 5), {"grid": (1,)})]


def test_a_config_that_was_changed_since_is_read_once_more() -> None:
    for change in (lambda config: setattr(config, "num_warps", 8), lambda config: config.kwargs.update(BLOCK=32)):
        form = form_of(Tuner(), X, 5)
        config = triton.Config({"BLOCK": 64})
        form.table[key(form, X, 5)] = Launch.of(config)
        assert launch(form, X, 5) != "missed"
        change(config)
        assert launch(form, X, 5) == "missed"


def test_a_config_with_a_hook_is_launched_by_the_tuner() -> None:
    form = form_of(Tuner(), X, 5, grid=(1,))
    config = triton.Config({"BLOCK": 64}, pre_hook=print)
    form.table[key(form, X, 5, grid=(1,))] = Launch.of(config)
    assert launch(form, X, 5, grid=(1,)) == ("hooked", config, (X, 5), {"grid": (1,)})


def test_a_tensor_where_there_was_none_is_another_key() -> None:
    form = form_of(Tuner(), X, 5, None)
    assert key(form, X, 5, None) != key(form, X, 5, X)
    assert key(form, X, 5, None) != key(form, X, 5, 3)
    assert key(form, X, 5, 3) == key(form, X, 5, 4), "no key names it"
    assert launch(form, None, 5, None) == "missed", "no tensor where there was one"


def test_calls_of_two_forms_do_not_meet() -> None:
    tuner = Tuner()
    one, other = form_of(tuner, X, n=1, b=2, key=("n", "b")), form_of(tuner, X, b=1, n=2, key=("n", "b"))
    one.table[key(one, X, n=1, b=2)] = Launch.of(PLAIN)
    assert launch(one, X, n=1, b=2) == ((X,), {"n": 1, "b": 2, **PLAIN.all_kwargs()})
    assert launch(other, X, b=1, n=2) == "missed"


def test_a_tuner_with_one_config_has_nothing_to_look_up_until_it_has_more() -> None:
    tuner = Tuner(configs=1)
    form = form_of(tuner, X, 5)
    form.table[key(form, X, 5)] = Launch.of(BLOCK)
    assert launch(form, Y, 6) == ((Y, 6), BLOCK.all_kwargs())
    tuner._configs.append(PLAIN)
    assert launch(form, Y, 6) == "missed"
    tuner._configs[:] = [PLAIN]
    assert launch(form, Y, 6) == "missed", "it is another one"


def test_a_kernel_without_arguments_has_one_key() -> None:
    form = form_of(Tuner(), names=(), key=())
    form.table[key(form)] = Launch.of(BLOCK)
    assert launch(form) == ((), BLOCK.all_kwargs())


def test_a_value_that_cannot_be_looked_up_is_a_miss() -> None:
    assert launch(form_of(Tuner(), X, 5), X, [5]) == "missed"


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


def test_arguments_may_be_named_like_builtins_or_the_generated_codes_names() -> None:
    names = ("dict", "getattr", "_found", "key", "launch")
    form = form_of(Tuner(), X, 1, 2, 3, 4, names=names, key=("key",))
    form.table[key(form, X, 1, 2, 3, 4)] = Launch.of(PLAIN)
    assert launch(form, X, 1, 2, 3, 4) == ((X, 1, 2, 3, 4), PLAIN.all_kwargs())


def test_the_cache_is_a_view_of_the_table_and_what_a_program_puts_in_stays() -> None:
    forgotten: list[int] = []
    table = KeyTable(lambda: forgotten.append(1), max_keys=4)
    cache = DecisionCache(table)
    cache[1] = "a"
    cache.update({2: "b"})
    cache |= {3: "c"}
    assert len(forgotten) == 3, "whoever holds an old answer is told of each change"
    for key in range(10, 30):
        table.add((key, None), Entry(launcher=key, awaits_measuring=False), version=table.version)
    assert [cache[1], cache[2], cache[3]] == ["a", "b", "c"]
    assert len(cache) <= 3 + 4
    assert (29,) in cache
    assert (10,) not in cache
    del cache[1]
    assert cache.pop(2) == "b"
    assert dict(cache)[3] == "c"
    cache.clear()
    assert not cache


def test_pow2_rounds_up_and_leaves_alone_what_is_no_number() -> None:
    assert [power_of_two(n) for n in (-3, 0, 1, 2, 3, 4, 5, 4.5, 1024, 1025)] == [1, 1, 1, 2, 4, 4, 8, 8, 1024, 2048]
    assert power_of_two(None) is None
    assert power_of_two("x") == "x"
    assert power_of_two(float("inf")) == float("inf")
