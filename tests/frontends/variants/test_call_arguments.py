"""What a decision of `variants` or `load_inline` depends on beside the arguments' values, and calls that are not tuned."""

from __future__ import annotations

import dataclasses
import enum
import gc
import itertools
import random
import threading
import time
import timeit
import warnings
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any
from unittest.mock import Mock

import pytest
from toy import Toy

import forecast_autotune as fa
from forecast_autotune.errors import InvalidInputError, TuningWarning
from forecast_autotune.frontends import call_state, call_tensors, reached
from forecast_autotune.frontends.keys import device_of

torch = pytest.importorskip("torch")

LAZY_S = 0.004  # long against what a busy machine adds to a sample


def lazy(x: Any) -> Any:
    time.sleep(LAZY_S)
    return x.sin()


def quick(x: Any) -> Any:
    return x.sin()


def chosen(function: Any) -> list[str]:
    return [str(d.config["variant"]) for d in function.decisions.values()]


# Aligned, apart, under autocast, on so many threads -----------------------------------------------------------------


def test_a_decision_for_aligned_pointers_is_not_used_for_others() -> None:
    def lazy_anywhere(x: Any) -> Any:
        time.sleep(LAZY_S)
        return x * 2

    def aligned_alone(x: Any) -> Any:
        if x.data_ptr() % 16:
            raise RuntimeError("misaligned address")
        return x * 2

    double = fa.variants([lazy_anywhere, aligned_alone])
    base = torch.ones(4097)
    for x in (base[:4096], base[1:], base[1:], base[4:4100]):
        assert torch.equal(double(x), 2 * x)
    assert chosen(double) == ["aligned_alone", "lazy_anywhere", "aligned_alone"]


def test_a_vectorized_extension_is_decided_apart_for_misaligned_pointers(toy: Toy) -> None:
    module = fa.load_inline(**{**toy.arguments(), "space": toy.space(["plain", "slow"])})
    base = torch.ones(257)
    for x in (base[:256], base[1:], base[1:]):
        assert torch.equal(module.scaled(x, 2.0), 2 * x)
    assert len(module.scaled.decisions) == 2


def test_arguments_that_overlap_have_a_key_of_their_own() -> None:
    def lazy_reversed(x: Any, out: Any) -> Any:
        time.sleep(LAZY_S)
        return out.copy_(x.flip(0))

    def by_halves(x: Any, out: Any) -> Any:
        half = x.numel() // 2
        out[:half] = x[half:].flip(0)
        out[half:] = x[:half].flip(0)
        return out

    turned, x = fa.variants([lazy_reversed, by_halves]), torch.arange(4.0)
    assert turned(x, torch.empty(4)).tolist() == [3, 2, 1, 0]
    same = x.clone()
    assert turned(same, same).tolist() == [3, 2, 1, 0]
    shifted = torch.arange(20.0)
    turned(shifted[:16], shifted[4:])
    turned(shifted[4:], shifted[:16])
    turned(shifted[:4], shifted[16:])  # of one storage, and apart
    assert len(turned.decisions) == 4
    assert chosen(turned)[:2] == ["by_halves", "lazy_reversed"]


def extent(tensor: Any) -> tuple[int, int]:
    start = tensor.data_ptr()
    if not tensor.numel():
        return start, start
    span = 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return start, start + span * tensor.itemsize


def overlaps_of_every_pair(tensors: Sequence[Any]) -> tuple[tuple[int, int, bool], ...]:
    pairs = []
    for (i, (first, end)), (j, (second, other_end)) in itertools.combinations(enumerate(map(extent, tensors)), 2):
        if first < other_end and second < end:
            pairs.append((i, j, first == second) if first <= second else (j, i, False))
    return tuple(pairs)


def test_overlaps_are_those_of_every_pair_in_the_order_of_the_tensors() -> None:
    draw, base = random.Random(5), torch.zeros(64)

    def view() -> Any:
        start, count = draw.randrange(40), draw.randrange(8)
        if draw.random() < 0.3:
            return base.as_strided((count, draw.randrange(3), 2), (draw.randrange(3), draw.randrange(4), 5), start)
        return draw.choice([base, base[start:], base[:start], base[start : start + count], torch.zeros(2)])

    for _ in range(2_000):
        tensors = [view() for _ in range(draw.randrange(9))]
        tensors += draw.choices(tensors, k=draw.randrange(4)) if tensors else []
        assert call_state._overlaps(tensors) == overlaps_of_every_pair(tensors)


def test_a_tensor_given_many_times_takes_no_longer_than_its_pairs() -> None:
    tensors = [torch.zeros(4)] * 300

    def best_s(overlaps: Callable[[Sequence[Any]], object]) -> float:
        return min(timeit.repeat(lambda: overlaps(tensors), number=1, repeat=5))

    assert best_s(call_state._overlaps) < 2 * best_s(overlaps_of_every_pair)


def test_thousands_of_views_of_one_buffer_are_not_compared_pair_by_pair() -> None:
    base = torch.zeros(4_000)

    def best_s(count: int) -> float:
        views = [base[:1], *(base[i : i + 1] for i in range(count))]
        return min(timeit.repeat(lambda: call_state._overlaps(views), number=1, repeat=5))

    assert best_s(4_000) < 30 * best_s(400)


class AttrDict(dict[str, Any]):
    """As in many programs: an entry named `values` or `items` hides the method."""

    def __init__(self, **entries: Any) -> None:
        super().__init__(**entries)
        self.__dict__ = self


class PublicDict(dict[str, Any]):
    """Hides entries, but not from `values()`."""

    def __iter__(self) -> Iterator[str]:
        return (key for key in super().__iter__() if not key.startswith("_"))

    def items(self) -> Any:
        return [(key, self[key]) for key in self]


def test_a_dict_may_hold_an_entry_named_values() -> None:
    def lazy_top(top: AttrDict) -> Any:
        return lazy(top.values)

    def quick_top(top: AttrDict) -> Any:
        return quick(top.values)

    function, top = fa.variants([lazy_top, quick_top]), AttrDict(values=torch.ones(4), indices=torch.arange(4))
    assert torch.equal(function(top), top.values.sin())
    assert chosen(function) == ["quick_top"]
    assert list(call_tensors.labelled_tensors([top], ["top"])) == ["top[values]", "top[indices]"]


def test_a_dict_with_an_entry_named_items_leaves_a_call_untuned_at_worst() -> None:
    batch = AttrDict(items=torch.ones(4))
    function = fa.variants([lambda batch: batch["items"].sin(), lambda batch: batch["items"].sin() + 0])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TuningWarning)
        assert torch.equal(function(batch), batch["items"].sin())


def test_a_dict_of_its_own_class_is_taken_as_its_items() -> None:
    shown = PublicDict(_cached=torch.ones(9)[1:], x=torch.ones(8))
    assert call_tensors.leaves_of_call([shown]) == [shown["x"]]
    assert call_tensors.labelled_tensors([shown], ["d"]) == {"d[x]": shown["x"]}
    function = fa.variants([lambda d: lazy(d["x"]), lambda d: quick(d["x"])])
    assert torch.equal(function(shown), shown["x"].sin())
    assert [decision.basis for decision in function.decisions.values()] == ["measured"]


def test_a_decided_call_looks_at_the_class_alone_of_what_containers_hold(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looked_into: list[object] = []
    whether_holds = call_tensors.holds_leaves
    for module in (call_tensors, call_state):
        monkeypatch.setattr(module, "holds_leaves", lambda v: looked_into.append(v) or whether_holds(v))  # type: ignore[func-returns-value]
    total = fa.variants([lambda xs, more: xs[0] + more["n"], lambda xs, more: more["n"] + xs[0]], budget="2")
    xs, more = [torch.ones(2) for _ in range(50)], {"n": 1, "names": ("a", "b")}
    total(xs, more)
    looked_into.clear()
    total(xs, more)
    assert len(looked_into) <= 4, "the first argument, and each container"


def test_labels_stand_by_the_tensors_that_they_name() -> None:
    @dataclasses.dataclass
    class Pair:
        x: Any
        y: Any

    xs: list[Any] = [torch.ones(1), (2, torch.ones(2))]
    xs.append(xs)
    values = [xs, {"a": 1, "b": torch.ones(3)}, Pair(None, torch.ones(4)), torch.ones(5)]
    labels = {
        label: len(tensor) for label, tensor in call_tensors.labelled_tensors(values, ["xs", "d", "pair"]).items()
    }
    assert labels == {"xs[0]": 1, "xs[1][1]": 2, "d[b]": 3, "pair.y": 4, "3": 5}
    assert [len(tensor) for tensor in call_tensors.tensors_of_call(values)] == [1, 2, 3, 4, 5]


def test_under_autocast_a_variant_that_heeds_it_is_chosen() -> None:
    weight = torch.randn(64, 64)

    def lazy_linear(x: Any) -> Any:
        time.sleep(LAZY_S)
        return torch.nn.functional.linear(x, weight)

    def by_hand(x: Any) -> Any:
        return (x[:, None, :] * weight).sum(-1)

    linear, x = fa.variants([lazy_linear, by_hand]), torch.randn(4, 64)
    assert linear(x).dtype == torch.float32
    for dtype in (torch.bfloat16, torch.float16):
        with torch.autocast("cpu", dtype):
            assert linear(x).dtype == dtype
    assert len(linear.decisions) == 3


def test_the_number_of_threads_is_part_of_the_key_on_the_cpu() -> None:
    twice = fa.variants([lazy, quick])
    before = torch.get_num_threads()
    try:
        for count in (1, 3, 3):
            torch.set_num_threads(count)
            twice(torch.ones(4))
    finally:
        torch.set_num_threads(before)
    assert len(twice.decisions) == 2


def test_tensors_in_lists_tuples_and_dicts_count_for_key_and_device() -> None:
    class OnAGpu:
        is_cuda = True

        def get_device(self) -> int:
            return 1

    gpu = OnAGpu()
    assert [device_of((v,)) for v in (gpu, [gpu], {"a": (2, gpu)}, [2], 3)] == ["cuda:1"] * 3 + ["cpu"] * 2

    def lazy_sum(parts: Any) -> Any:
        time.sleep(LAZY_S)
        return parts["a"][0] + parts["a"][1]

    both = fa.variants([lazy_sum, lambda parts: parts["a"][0] + parts["a"][1]])
    base = torch.ones(9)
    for a, b in ((4, 4), (8, 8)):
        assert torch.equal(both({"a": [torch.ones(a), torch.ones(b)]}), torch.full((a,), 2.0))
    both({"a": [base[:8], base[1:]]})
    assert len(both.decisions) == 3, "by shape, by alignment and overlap"


def test_which_tensors_autograd_follows_is_part_of_the_key() -> None:
    def lazy_product(x: Any, w: Any) -> Any:
        time.sleep(LAZY_S)
        return x * w

    product = fa.variants([lazy_product, lambda x, w: x * w.detach()], key="x, w")
    for follows in ((False, False), (True, False), (True, True), (True, True), (False, True)):
        x, w = (torch.ones(4, requires_grad=f) for f in follows)
        assert [t.requires_grad and t.grad is None for t in (x, w)] == list(follows)
        result = product(x, w)
        if any(follows):
            result.sum().backward()
        assert [t.grad is not None for t in (x, w)] == list(follows)
    assert chosen(product) == ["<lambda>", "<lambda>", "lazy_product", "lazy_product"]
    key = product.job((x, w)).workload.key
    assert key["autograd"] == ["w"]


def test_which_weights_are_frozen_is_part_of_the_key() -> None:
    linear, scale = torch.nn.Linear(4, 4), torch.ones(4)

    def lazily(x: Any) -> Any:
        time.sleep(LAZY_S)
        return linear(x) * scale

    def for_frozen_bias(x: Any) -> Any:
        return torch.nn.functional.linear(x, linear.weight, linear.bias.detach()) * scale.detach()

    tuned, x = fa.variants([lazily, for_frozen_bias]), torch.ones(2, 4)
    linear.bias.requires_grad_(False)
    tuned(x)
    linear.bias.requires_grad_(True)
    tuned(x).sum().backward()
    assert linear.bias.grad is not None
    linear.bias = torch.nn.Parameter(torch.zeros(4), requires_grad=False)
    scale.requires_grad_(True)
    tuned(x).sum().backward()
    assert scale.grad is not None
    assert tuned.job((x,)).workload.key["autograd of weights"] == {"all but": ["linear.bias"]}
    with torch.no_grad():
        tuned(x)
    assert chosen(tuned) == ["for_frozen_bias", "lazily", "lazily", "for_frozen_bias"]


@pytest.mark.parametrize("by", [lambda weight: weight, id, lambda weight: (id(weight), "mean")])
def test_a_dict_by_weights_has_the_same_key_in_every_process(by: Callable[[Any], Any]) -> None:
    def made() -> tuple[Any, Any]:
        weights = [torch.nn.Parameter(torch.ones(4)) for _ in range(2)]
        means = {by(weight): torch.zeros(4) for weight in weights}
        tuned = fa.variants([lambda x: x * weights[0] + means[by(weights[0])], lambda x: x + weights[1]])
        return weights, tuned.job((torch.ones(4),)).workload.key

    (_held, key), (_, other) = made(), made()
    assert len(key["autograd of weights"]["all but"]) == 2
    assert key == other


def test_gradients_decide_apart_though_the_weights_are_reached_unseen() -> None:
    def weight() -> Any:
        return globals()["UNSEEN"]

    tuned, x = (
        fa.variants([lambda x: time.sleep(LAZY_S) or x * weight(), lambda x: x * weight().detach()]),
        torch.ones(4),
    )
    with torch.no_grad():
        tuned(x)
    assert tuned(x).requires_grad
    assert [tuned.job((x,)).workload.key.get("gradients"), len(tuned.decisions)] == [None, 2]


UNSEEN = torch.ones(4, requires_grad=True)


class Adapter(torch.nn.Module):
    def __init__(self, base: Any) -> None:
        super().__init__()
        self.base, self.scale = base, torch.nn.Parameter(torch.ones(8))

    def forward(self, x: Any) -> Any:
        return self.base(x) * self.scale


def test_a_module_that_is_replaced_after_a_call_is_found() -> None:
    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(8, 8)
            self.tuned = fa.variants([self.lazily, self.detached])

        def lazily(self, x: Any) -> Any:
            time.sleep(LAZY_S)
            return self.layer(x)

        def detached(self, x: Any) -> Any:
            return self.layer(x).detach()

    net, x = Net().requires_grad_(requires_grad=False), torch.ones(2, 8)
    assert not net.tuned(x).requires_grad
    net.layer = Adapter(net.layer)
    assert net.tuned(x).requires_grad


@pytest.mark.parametrize("how", ["the first child", "the first parameter", "a parametrization"])
def test_what_a_module_is_given_first_after_a_call_is_found(how: str) -> None:
    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.adapters, self.scale = torch.nn.Linear(8, 8), torch.nn.ModuleDict(), 1.0
            self.tuned = fa.variants([self.lazily, self.detached])

        def adapted(self, x: Any) -> Any:
            return sum((each(x) for each in self.adapters.values()), self.layer(x)) * self.scale

        def lazily(self, x: Any) -> Any:
            time.sleep(LAZY_S)
            return self.adapted(x)

        def detached(self, x: Any) -> Any:
            return self.adapted(x).detach()

    net, x = Net().requires_grad_(requires_grad=False), torch.ones(2, 8)
    assert not net.tuned(x).requires_grad
    if how == "the first child":
        net.adapters["low_rank"] = torch.nn.Linear(8, 8)
    elif how == "the first parameter":
        del net.scale
        net.scale = torch.nn.Parameter(torch.ones(8))
    else:
        torch.nn.utils.parametrize.register_parametrization(net.layer, "weight", Adapter(torch.nn.Identity()))
    assert net.tuned(x).requires_grad


def test_a_weight_that_is_replaced_is_found() -> None:
    held, x = {"w": torch.ones(8)}, torch.ones(2, 8)
    tuned = fa.variants([lambda x: time.sleep(LAZY_S) or x * held["w"], lambda x: x * held["w"].detach()])
    for follows in (False, True, True):
        held["w"] = torch.ones(8, requires_grad=follows)
        assert tuned(x).requires_grad == follows
    assert len(tuned.decisions) == 2


def test_modes_and_weights_of_what_it_is_bound_to_are_part_of_the_key() -> None:
    class Dropping(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.drop, self.w = torch.nn.Dropout(0.5), torch.nn.Parameter(torch.ones(1000))

        def lazily(self, x: Any) -> Any:
            time.sleep(LAZY_S)
            return self.drop(x * self.w)

        forward = fa.variants([lazily, lambda self, x: x * self.w.detach()], key="x")

    net, x = Dropping().eval(), torch.ones(1000)
    with torch.no_grad():
        assert net(x).all()
        net.drop.train()  # alone: MC dropout
        assert not net(x).all()
        key = Dropping.forward.job((net, x)).workload.key
        assert key["training"] == {"all but": ["Dropping"]}
    assert net.eval()(x).requires_grad
    assert len(Dropping.forward.decisions) == 3


@dataclasses.dataclass
class Batch:
    x: Any


def test_tensors_of_a_dataclass_are_part_of_the_key() -> None:
    tuned = fa.variants([lambda b: time.sleep(LAZY_S) or b.x * 2, lambda b: b.x.detach() * 2], key=lambda b: b.x.shape)
    tuned(Batch(torch.ones(4)))
    assert tuned(Batch(torch.ones(4, requires_grad=True))).requires_grad
    assert tuned.job((Batch(torch.ones(4, requires_grad=True)),)).workload.key["autograd"] == ["b.x"]


@dataclasses.dataclass
class Node:
    x: Any
    others: list[Any] = dataclasses.field(default_factory=list)

    @property
    def unread(self) -> Any:
        raise RuntimeError("not there yet")


def test_dataclasses_that_share_parts_or_form_long_chains_are_visited_once() -> None:
    nodes = [Node(torch.ones(4)) for _ in range(2000)]
    for i, node in enumerate(nodes):
        node.others = [nodes[(i + step) % len(nodes)] for step in (1, 2, 3)]
    tuned = fa.variants([lambda n: time.sleep(LAZY_S) or n.x * 2, lambda n: n.x.mul(2)], key=lambda n: n.x.shape)
    with pytest.warns(TuningWarning, match="copying these fails: RecursionError"):
        assert torch.equal(tuned(nodes[0]), 2 * nodes[0].x)
    nodes[-1].x.requires_grad_()
    assert tuned.job((nodes[0],)).workload.key["autograd"], "of the last one that the first reaches"


def test_a_field_that_raises_when_it_is_read_is_passed_over() -> None:
    kind = dataclasses.make_dataclass("Lazy", ["x", "unread"])
    lazy_one = kind(torch.ones(4), None)
    kind.unread = Node.unread
    tuned = fa.variants([lambda r: r.x.sin(), lambda r: torch.sin(r.x)], key=lambda r: r.x.shape)
    with pytest.warns(TuningWarning, match="copying these fails: RuntimeError: not there yet"):
        assert torch.equal(tuned(lazy_one), lazy_one.x.sin())


def test_tensors_that_come_and_go_cost_a_few_walks_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    walks: list[object] = []
    walk = reached.weights_reached
    monkeypatch.setattr(reached, "weights_reached", lambda roots: walks.append(None) or walk(roots))
    last: dict[str, Any] = {}

    def keeps(x: Any) -> Any:
        last["result"] = x.detach() * 2
        return last["result"] + x

    tuned = fa.variants([keeps, lambda x: 3 * x])
    for _ in range(50):
        tuned(torch.ones(4))
    few = len(walks)
    for _ in range(50):
        tuned(torch.ones(4))
    assert len(walks) == few <= 2 * reached.MAX_IDLE_WALKS


def test_a_block_that_keeps_a_history_has_one_key() -> None:
    class Block(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w, self.history = torch.nn.Parameter(torch.ones(4)), [torch.zeros(())]
            self.tuned = fa.variants([self.lazily, self.quickly])

        def lazily(self, x: Any) -> Any:
            time.sleep(LAZY_S)
            return x * self.w

        def quickly(self, x: Any) -> Any:
            return torch.mul(x, self.w)

    block = Block()
    for _ in range(5):
        block.history.append(block.tuned(torch.ones(4)).detach().norm())
        del block.history[0]
    assert len(block.tuned.decisions) == 1


def test_what_a_program_builds_elsewhere_is_compiled_as_ever() -> None:
    tuned = fa.variants([lambda x: x.sin(), torch.sin])
    tuned(torch.ones(4))

    class Block(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = torch.nn.ReLU()

        def forward(self, x: Any) -> Any:
            return self.inner(x)

    compiled = torch.compile(lambda x: Block()(x) + 1, backend="eager", fullgraph=True)
    assert torch.equal(compiled(torch.ones(4)), torch.full((4,), 2.0))


def test_a_conjugate_view_runs_the_default_whatever_the_key_says() -> None:
    tuned = fa.variants([lambda x: x.resolve_conj() * 1, lambda x: x * 1], key=lambda x: x.shape)
    x = torch.ones(4, dtype=torch.complex64)
    tuned(x)
    with pytest.warns(TuningWarning, match="conjugate or negative view"):
        assert torch.equal(tuned(x.conj()), x)
    assert torch.equal(tuned(torch._neg_view(x)), -x)
    assert len(tuned.decisions) == 1


def test_a_tensor_subclass_is_decided_apart() -> None:
    class Logged(torch.Tensor):
        pass

    tuned = fa.variants([quick, torch.sin], key=lambda x: x.shape)
    x = torch.ones(4)
    tuned(x)
    tuned(torch.nn.Parameter(x, requires_grad=False))
    assert len(tuned.decisions) == 1
    tuned(x.as_subclass(Logged))
    assert len(tuned.decisions) == 2
    assert tuned.job((x.as_subclass(Logged),)).workload.key["tensor subclasses"]["x"].endswith("Logged")


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
def test_a_scripted_module_is_followed_by_its_weights_and_mode() -> None:
    scripted, x = torch.jit.script(torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Dropout())).eval(), torch.ones(4)
    tuned = fa.variants([lambda x: scripted(x) * 1, lambda x: scripted(x)])
    tuned(x)
    scripted[0].bias.requires_grad_(False)
    assert "scripted.0.bias" in tuned.job((x,)).workload.key["autograd of weights"]["all but"]
    assert "scripted.1" in tuned.job((x,)).workload.key["training"]["all but"]


# As an object -------------------------------------------------------------------------------------------------------


class Scales(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(8))
        self.tuned = fa.variants([self.lazily, self.quickly])

    def lazily(self, x: Any) -> Any:
        time.sleep(LAZY_S)
        return x * self.weight

    def quickly(self, x: Any) -> Any:
        return torch.mul(x, self.weight)


def test_methods_that_an_attribute_of_their_object_tunes_are_tuned() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        scales = Scales()
        scales.tuned(torch.ones(8))
    assert chosen(scales.tuned) == ["quickly"]


def test_a_copied_module_runs_its_own_weights() -> None:
    import copy

    scales, x = Scales(), torch.ones(8)
    with torch.no_grad():
        copied = copy.deepcopy(scales)
        scales.weight.fill_(5)
        for _ in range(2):
            assert (float(scales.tuned(x)[0]), float(copied.tuned(x)[0])) == (5, 1)
        assert copy.deepcopy(copied.tuned)(x).tolist() == [1] * 8


module_level = fa.variants([quick, torch.sin])


def test_it_is_pickled_by_its_name_or_by_what_it_is_made_of() -> None:
    import copy
    import pickle

    assert pickle.loads(pickle.dumps(module_level)) is module_level  # noqa: S301  # pickled here
    assert copy.deepcopy(module_level) is module_level
    unnamed = pickle.loads(pickle.dumps(fa.variants([quick, torch.sin], name="unnamed")))  # noqa: S301
    assert (unnamed.name, unnamed.callables) == ("unnamed", (quick, torch.sin))
    scales = Scales()
    with torch.no_grad():
        scales.weight.fill_(3)
    assert pickle.loads(pickle.dumps(scales)).tuned(torch.ones(8)).tolist() == [3] * 8  # noqa: S301


def test_it_binds_as_a_method() -> None:
    class Doubles:
        factor = 2

        def slowly(self, x: Any) -> Any:
            time.sleep(LAZY_S)
            return x * self.factor

        double = fa.variants([slowly, lambda self, x: x * self.factor], key="x")

    assert Doubles().double(torch.ones(3)).tolist() == [2] * 3
    assert chosen(Doubles.double) == ["<lambda>"]


def test_a_module_may_be_the_first_variant_and_is_called_by_name() -> None:
    linear = torch.nn.Linear(8, 8)

    def mine(input: Any) -> Any:  # noqa: A002
        return torch.nn.functional.linear(input, linear.weight, linear.bias)

    tuned, x = fa.variants([linear, mine]), torch.ones(2, 8)
    torch.testing.assert_close(tuned(x), linear(x))
    torch.testing.assert_close(tuned(input=x), linear(x))
    assert len(tuned.decisions) == 1
    assert tuned.name == "Linear"


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_tuned_method_and_a_tuned_attribute_are_compiled() -> None:
    torch._dynamo.reset()
    scales, x = Scales(), torch.ones(8)
    scales.lazily = scales.quickly  # Dynamo cannot trace time.sleep
    scales.tuned = fa.variants([scales.quickly, scales.quickly])
    compiled = torch.compile(lambda x: scales.tuned(x) + 1, backend="eager", fullgraph=True)
    assert compiled(x).tolist() == [2] * 8
    torch._dynamo.reset()


@pytest.mark.filterwarnings("ignore:.*jit.*:DeprecationWarning")
@pytest.mark.parametrize("key", [None, "x", lambda x, scale: int(x.shape[0])])
@pytest.mark.parametrize("is_decided", [True, False])
def test_torch_records_the_variant_that_is_decided(key: Any, is_decided: bool) -> None:
    def lazily(x: Any, scale: float = 2.0) -> Any:
        time.sleep(LAZY_S)
        return (x * scale).relu()

    def quickly(x: Any, scale: float = 2.0) -> Any:
        return torch.clamp(x * scale, min=0)

    tuned, x = fa.variants([lazily, quickly], key=key), torch.ones(8)
    if is_decided:
        tuned(x)
    recorded = torch.jit.trace(lambda x: tuned(x), x, check_trace=False)
    assert "clamp" in recorded.code
    assert "relu" not in recorded.code
    assert chosen(tuned) == ["quickly"]


@pytest.mark.filterwarnings("ignore:.*jit.*:DeprecationWarning")
def test_torch_records_the_default_of_what_has_no_key() -> None:
    tuned = fa.variants([lambda x, odd: x.sin(), lambda x, odd: torch.sin(x).relu()], check=None)
    with pytest.warns(TuningWarning, match="runs its default"):
        recorded = torch.jit.trace(lambda x: tuned(x, Odd()), torch.ones(8), check_trace=False)
    assert "relu" not in recorded.code
    assert not tuned.decisions


class Odd:
    """Nothing that a key can hold."""


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_method_of_a_class_breaks_the_graph_and_nothing_else(caplog: pytest.LogCaptureFixture) -> None:
    class Doubles:
        double = fa.variants([lambda self, x: x * 2, lambda self, x: x + x], key="x")

    torch._dynamo.reset()
    doubles = Doubles()
    with caplog.at_level("WARNING", logger="torch._dynamo"):
        compiled = torch.compile(lambda x: doubles.double(x=x) + 1, backend="eager")
        assert compiled(torch.ones(8)).tolist() == [3] * 8
    assert not [r for r in caplog.records if r.name.startswith("torch") and r.levelname == "WARNING"]
    torch._dynamo.reset()


# Calls that are not tuned -------------------------------------------------------------------------------------------


def detached(x: Any) -> Any:
    return x.detach().sin()


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
def test_under_transforms_the_default_runs_and_nothing_is_decided() -> None:
    from torch.autograd import forward_ad

    x = torch.randn(4, 3)
    tuned = fa.variants([lazy, detached])
    with torch.no_grad():
        tuned(x)
    before = dict(tuned.decisions)
    assert chosen(tuned) == ["detached"]
    ways: list[Callable[[Any], Any]] = [
        lambda f: torch.vmap(f)(x),
        lambda f: torch.func.grad(lambda x: f(x).sum())(x),
        lambda f: torch.func.jvp(f, (x,), (x,))[1],
        lambda f: torch.vmap(torch.func.grad(lambda x: f(x).sum()))(x),
    ]
    for way in ways:
        torch.testing.assert_close(way(tuned), way(quick))
    with forward_ad.dual_level(), torch.no_grad():
        tangent = forward_ad.unpack_dual(tuned(forward_ad.make_dual(x, x))).tangent
        torch.testing.assert_close(tangent, x.cos() * x)
    assert tuned.decisions == before


def test_a_tensor_as_a_key_is_refused_and_what_to_return_is_named() -> None:
    for key in (lambda x: x.sum(), lambda x: (x.shape, x)):
        with pytest.raises(
            InvalidInputError, match=r"the key holds tensor.*Of a tensor return its dtype, shape or strides"
        ):
            fa.variants([lazy, quick], key=key)(torch.ones(4))


def freed(tensor: Any) -> Any:
    tensor.untyped_storage().resize_(0)
    return tensor


def strange() -> dict[str, Callable[[], Any]]:
    import numpy as np

    return {
        "numpy": lambda: np.ones(3),
        "sparse": lambda: torch.eye(3).to_sparse(),
        "csr": lambda: torch.eye(3).to_sparse_csr(),
        "nested": lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]),
        "jagged": lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged),
        "quantized": lambda: torch.quantize_per_tensor(torch.ones(8), 0.1, 0, torch.qint8),
        "conjugate": lambda: torch.ones(2, dtype=torch.complex64).conj(),
        "of less than a byte": lambda: torch.ones(2, dtype=torch.uint8).view(torch.uint4),
        "freed": lambda: freed(torch.ones(2)),
        "set": lambda: {1, 2},
        "slice": lambda: slice(1, 2),
        "generator": torch.Generator,
        "object": object,
        "module": lambda: torch.nn.Linear(2, 2),
    }


@pytest.mark.filterwarnings("ignore:.*(nested|quantize|Sparse):UserWarning")
@pytest.mark.parametrize("kind", strange())
def test_a_call_that_cannot_be_tuned_runs_its_default_with_one_warning(kind: str) -> None:
    tuned = fa.variants([lambda x: torch.ones(2), lambda x: torch.zeros(2) + 1])
    made = strange()[kind]()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(2):
            assert tuned(made).tolist() == [1, 1]
    assert [str(w.message).partition(":")[0] for w in caught if w.category is TuningWarning] == [
        f"{__name__}.<lambda> runs its default where it cannot be tuned"
    ]
    assert not tuned.decisions


def test_a_call_short_of_memory_for_copies_leaves_its_key_to_be_tuned(monkeypatch: pytest.MonkeyPatch) -> None:
    def slow(x: Any) -> Any:
        time.sleep(LAZY_S)
        return x.sin()

    tuned, x = fa.variants([slow, lambda x: x.sin()]), torch.ones(2)
    with monkeypatch.context() as short:
        short.setattr(torch.Tensor, "clone", Mock(side_effect=torch.OutOfMemoryError("CUDA out of memory")))
        tuned(x)
    tuned(x)
    assert chosen(tuned) == ["<lambda>"]


def test_a_freed_weight_that_variants_fill_is_no_configs_failure() -> None:
    weight = freed(torch.ones(2))

    def filled(x: Any) -> Any:
        weight.untyped_storage().resize_(8)
        return x * weight.fill_(3)

    tuned, x = fa.variants([filled, lambda x: filled(x)]), torch.ones(2)
    with pytest.warns(TuningWarning, match="filled is not tuned.*weight is a tensor that is freed"):
        assert tuned(x).tolist() == [3, 3]
    assert not tuned.outcomes((x,))


@pytest.mark.parametrize("key", [None, "x", lambda x, more: (x.shape, x.dtype)])
def test_what_torch_fx_traces_is_the_default_alone(key: Any) -> None:
    def default(x: Any, more: Any) -> Any:
        return x.sin() + more[0]

    tuned = fa.variants([default, lambda x, more: more[0] + x.sin()], key=key)
    with pytest.warns(TuningWarning, match="runs its default where it cannot be tuned: torch.fx traces the call"):
        graph = torch.fx.symbolic_trace(lambda x, y: tuned(x, more=[y]))
    assert [str(node.target).rpartition(".")[2] for node in graph.graph.nodes] == [
        "x", "y", "sin", "<built-in function add>", "output",
    ]  # fmt: skip
    assert not tuned.decisions


class Learned(torch.nn.Module):
    def __init__(self, key: Any) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(8))
        self.part = fa.variants([self.first, self.second], key=key)

    def first(self, n: int) -> Any:
        return self.weight.sin()[:n]

    def second(self, n: int) -> Any:
        return self.weight[:n].sin()

    def forward(self, x: Any) -> Any:
        return x + self.part(4)


def refused(*_: Any) -> Any:
    raise TypeError("a traced value is no number")


@pytest.mark.parametrize("key", [None, refused])
def test_what_torch_fx_traces_is_seen_where_no_argument_shows_it(key: Any) -> None:
    module = Learned(key)
    with pytest.warns(TuningWarning, match="runs its default where it cannot be tuned: torch.fx traces the call"):
        graph = torch.fx.symbolic_trace(module)
    assert [str(node.target).rpartition(".")[2] for node in graph.graph.nodes] == [
        "x", "weight", "sin", "<built-in function getitem>", "<built-in function add>", "output",
    ]  # fmt: skip
    assert not module.part.decisions


def test_a_trace_of_torch_fx_in_another_thread_keeps_no_call_from_tuning() -> None:
    begun, may_end = threading.Event(), threading.Event()

    def traced(x: Any) -> Any:
        begun.set()
        may_end.wait(60)
        return x.sin()

    tuned = fa.variants([lambda x: x.sin(), lambda x: x.sin() + 0])
    tracing = threading.Thread(target=torch.fx.symbolic_trace, args=(traced,))
    tracing.start()
    try:
        assert begun.wait(60)
        tuned(torch.ones(8))
    finally:
        may_end.set()
        tracing.join()
    assert len(tuned.decisions) == 1


def test_what_make_fx_traces_is_tuned() -> None:
    from torch.fx.experimental.proxy_tensor import make_fx

    tuned = fa.variants([lambda x: x.sin(), lambda x: x.sin() + 0])
    make_fx(lambda x: tuned(x))(torch.ones(8))
    assert len(tuned.decisions) == 1


class Mode(enum.Enum):
    FAST = 1


def test_enums_complex_numbers_and_dtypes_are_parts_of_a_key() -> None:
    def first(x: Any) -> Any:
        time.sleep(LAZY_S)
        return torch.ones(2)

    tuned = fa.variants([first, lambda x: torch.ones(2)])
    for x in (Mode.FAST, 1j, torch.float32, None, 1 << 80, {"a": torch.ones(1)}):
        tuned(x)
    assert len(tuned.decisions) == 6


def test_a_load_inline_function_runs_its_default_on_what_cannot_be_copied(toy: Toy) -> None:
    module = fa.load_inline(**{**toy.arguments(), "space": toy.space(["plain", "slow"])})
    with pytest.warns(
        TuningWarning, match="toy.same runs its default where it cannot be tuned: x is a tensor that is sparse_coo"
    ):
        assert module.same(torch.ones(3).to_sparse()) is not None
    x = torch.ones(4)
    assert torch.vmap(module.same)(torch.ones(2, 4)).shape == (2, 4)
    with pytest.raises(TypeError, match="cannot be pickled"):
        module.same.__reduce__()
    assert torch.equal(module.same(x), x)


# A winner that was recalled -----------------------------------------------------------------------------------------


def test_a_recalled_variant_that_has_become_wrong_gives_way_to_the_default() -> None:
    broken = threading.Event()  # what no digest sees

    def slow(x: Any) -> Any:
        time.sleep(LAZY_S)
        return x + 1

    def fast(x: Any) -> Any:
        return x + (7 if broken.is_set() else 1)

    assert torch.equal(fa.variants([slow, fast], name="shifted")(torch.ones(9)), torch.full((9,), 2.0))
    shifted = fa.variants([slow, fast], name="shifted")  # as a new process would
    assert torch.equal(shifted(torch.ones(9)), torch.full((9,), 2.0))
    assert chosen(shifted) == ["fast"], "right, so it stays"
    broken.set()
    shifted = fa.variants([slow, fast], name="shifted")
    with pytest.warns(TuningWarning, match="not variant=fast, which was recalled: output 0"):
        assert torch.equal(shifted(torch.ones(9)), torch.full((9,), 2.0))
    assert torch.equal(shifted(torch.ones(9)), torch.full((9,), 2.0))
    assert chosen(shifted) == ["slow"]


# What a tuning run held ---------------------------------------------------------------------------------------------


def test_nothing_keeps_the_tensors_of_a_call_alive_when_it_is_over(toy: Toy) -> None:
    module = fa.load_inline(**{**toy.arguments(), "space": toy.space(["plain", "slow"])})
    raising = fa.variants([quick, lambda x: 1 / 0])
    functions: list[Callable[[Any], Any]] = [
        fa.variants([lazy, quick], name="kept"),
        fa.variants([lazy, quick], name="kept"),  # recalled
        fa.variants([lazy, quick], name="first", mode="first"),
        fa.variants([lazy, quick], name="forecast", mode="forecast"),
        raising,
        lambda x: module.scaled(x, 2.0),
    ]
    gc.collect()
    gc.disable()
    try:
        for function in functions:
            x = torch.ones(64)
            alive = weakref.ref(x)
            function(x)
            del x
            assert alive() is None
    finally:
        gc.enable()
