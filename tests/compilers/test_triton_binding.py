"""A call by its parameters' names: the same whichever way its arguments were given."""

from __future__ import annotations

from forecast_autotune.compilers.triton_binding import bind_call, defaults_of

NAMES = ("x", "y", "n", "BLOCK", "EVEN")


def test_positions_keywords_and_both_bind_alike_in_the_kernels_order() -> None:
    by_position = bind_call(NAMES, {}, (1, 2, 3), {"grid": (4,)})
    by_keyword = bind_call(NAMES, {}, (), {"n": 3, "grid": (4,), "y": 2, "x": 1})
    mixed = bind_call(NAMES, {}, (1,), {"grid": (4,), "n": 3, "y": 2})
    assert by_position == by_keyword == mixed
    assert list(by_keyword.arguments.items()) == [("x", 1), ("y", 2), ("n", 3)]


def test_defaults_fill_what_the_call_leaves_out_and_nothing_else() -> None:
    bound = bind_call(NAMES, {"n": 7, "EVEN": False}, (1,), {"EVEN": True})
    assert bound.arguments == {"x": 1, "n": 7, "EVEN": True}


def test_what_is_no_parameter_is_an_option_of_the_launch() -> None:
    bound = bind_call(NAMES, {}, (1,), {"grid": (4,), "warmup": False, "num_warps": 8, "BLOCK": 64})
    assert bound.arguments == {"x": 1, "BLOCK": 64}
    assert bound.options == {"grid": (4,), "warmup": False, "num_warps": 8}


def test_a_call_with_too_many_arguments_is_bound_as_far_as_it_goes() -> None:
    assert bind_call(("x",), {}, (1, 2, 3), {}).arguments == {"x": 1}


def test_defaults_are_read_off_a_plain_function_too() -> None:
    def kernel(x, n=7, *, BLOCK=64):  # type: ignore[no-untyped-def]  # noqa: N803  # as kernels write it
        pass

    assert defaults_of(kernel) == {"n": 7, "BLOCK": 64}
