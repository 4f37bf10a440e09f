from __future__ import annotations

import threading
from dataclasses import dataclass, field

from forecast_autotune.core.cached_property import cached_property


@dataclass(frozen=True)
class Counted:
    calls: list[int] = field(default_factory=list)

    @cached_property
    def value(self) -> int:
        """How often it was computed."""
        self.calls.append(1)
        return len(self.calls)


def test_a_value_is_computed_once_for_each_object() -> None:
    one, other = Counted(), Counted()
    assert (one.value, one.value, other.value) == (1, 1, 1)
    assert (len(one.calls), len(other.calls)) == (1, 1)


def test_the_class_has_the_property_and_its_docstring() -> None:
    assert isinstance(Counted.value, cached_property)
    assert Counted.value.__doc__ == "How often it was computed."


class Waiting:
    def __init__(self) -> None:
        self.asked, self.go_on = threading.Event(), threading.Event()

    @cached_property
    def value(self) -> object:
        self.asked.set()
        assert self.go_on.wait(60)
        return object()


def test_nobody_waits_for_a_thread_that_computes() -> None:
    slow, quick = Waiting(), Waiting()
    quick.go_on.set()
    thread = threading.Thread(target=lambda: slow.value)
    thread.start()
    assert slow.asked.wait(60)
    asked: list[object] = []
    beside = threading.Thread(target=lambda: asked.append(quick.value), daemon=True)
    beside.start()
    beside.join(60)
    slow.go_on.set()
    thread.join()
    assert asked == [quick.value]


def test_threads_that_compute_at_once_get_one_value() -> None:
    shared = Waiting()
    got: list[object] = []
    threads = [threading.Thread(target=lambda: got.append(shared.value)) for _ in range(4)]
    for thread in threads:
        thread.start()
    shared.go_on.set()
    for thread in threads:
        thread.join()
    assert len(got) == 4
    assert set(got) == {shared.value}
