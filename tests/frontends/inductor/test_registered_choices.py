"""Factories registered beside ours, as from torch 2.15 on; before it, a stand-in with the same functions."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from rehearsed_inductor import Timed, product
from torch._inductor import choices as torch_choices
from torch._inductor import config as inductor_config
from torch._inductor.choices import InductorChoices
from torch._inductor.virtualized import V

import forecast_autotune as fa
from forecast_autotune.frontends.inductor import choices, hook

pytestmark = [  # torch's own
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings(r"ignore::UserWarning:torch\..*"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore:Could not find an active CPU backend"),
]

Factory = Callable[[], Any]
registered: dict[str, Factory] = {}


class Composed(InductorChoices):
    """The first of several that has a method of its own answers for it (torch 2.15, `_ComposedInductorChoices`)."""

    def __init__(self, each: list[Any]) -> None:
        self.each = each

    def __getattribute__(self, name: str) -> Any:
        default = getattr(InductorChoices, name, None)
        if name.startswith("__") or not callable(default):
            return object.__getattribute__(self, name)
        each = object.__getattribute__(self, "each")
        first = next((one for one in each if getattr(type(one), name) is not default), None)
        return object.__getattribute__(self, name) if first is None else getattr(first, name)

    def uuid(self) -> Any:
        return tuple(one.uuid() for one in self.each)


def create_inductor_choices(factory: Factory | None) -> Any:
    made = [each() for each in [*([factory] if factory else []), *registered.values()]]
    return made[0] if len(made) == 1 else Composed(made) if made else InductorChoices()


def register_inductor_choices(key: str, factory: Factory) -> None:
    registered[key] = factory
    V.set_choices_handler(create_inductor_choices(inductor_config.inductor_choices_class))


def unregister_inductor_choices(key: str) -> None:
    registered.pop(key, None)
    V.set_choices_handler(create_inductor_choices(inductor_config.inductor_choices_class))


def registered_inductor_choices() -> tuple[tuple[str, Factory], ...]:
    return tuple(registered.items())


@pytest.fixture
def registers(timed: Timed, monkeypatch: pytest.MonkeyPatch) -> Iterator[Timed]:
    """A torch with which one can register, before our choices are in."""
    fa.uninstall()
    V.set_choices_handler(InductorChoices())
    if not hasattr(torch_choices, "register_inductor_choices"):
        for function in (
            create_inductor_choices,
            register_inductor_choices,
            registered_inductor_choices,
            unregister_inductor_choices,
        ):
            monkeypatch.setattr(torch_choices, function.__name__, function, raising=False)
    yield timed
    fa.uninstall()
    for key, _ in torch_choices.registered_inductor_choices():
        torch_choices.unregister_inductor_choices(key)
    V.set_choices_handler(InductorChoices())


class Fuses(InductorChoices):
    """Somebody's who decides on something else."""

    def uuid(self) -> str:
        return "fuses"

    @staticmethod
    def should_use_cooperative_reduction(features: Any) -> bool:
        raise AssertionError(features)


class Lists(InductorChoices):
    """Somebody's with a list of its own."""

    asked = 0

    def uuid(self) -> str:
        return "lists"

    def _finalize_template_configs(
        self, template_choices: Any, kernel_inputs: Any, templates: Any, op_name: str, kwarg_overrides: Any = None
    ) -> list[Any]:
        Lists.asked += 1
        return super()._finalize_template_configs(template_choices, kernel_inputs, templates, op_name, kwarg_overrides)


def narrowed(timed: Timed) -> bool:
    product()
    return len(timed.lists[-1]) == 1 + 4 and choices.narrowing.counts.products == 1


def test_ours_is_registered_and_the_place_in_the_configuration_stays_free(registers: Timed) -> None:
    fa.install(inductor=True)
    assert inductor_config.inductor_choices_class is None
    assert [key for key, _ in torch_choices.registered_inductor_choices()] == ["forecast_autotune"]
    assert hook.why_not_in() == ""
    assert narrowed(registers)
    fa.uninstall()
    assert torch_choices.registered_inductor_choices() == ()
    assert type(V.choices) is InductorChoices


def test_who_decides_on_something_else_still_does(registers: Timed) -> None:
    torch_choices.register_inductor_choices("fuses", Fuses)
    fa.install(inductor=True)
    assert V.choices.should_use_cooperative_reduction == Fuses.should_use_cooperative_reduction
    assert hook.why_not_in() == ""
    assert narrowed(registers)
    fa.uninstall()
    assert [key for key, _ in torch_choices.registered_inductor_choices()] == ["fuses"]
    assert type(V.choices) is Fuses


@pytest.mark.parametrize("place", ["registered", "configured", "set by hand"])
def test_who_lists_itself_is_asked_first(registers: Timed, place: str) -> None:
    Lists.asked = 0
    if place == "registered":
        torch_choices.register_inductor_choices("lists", Lists)
    with inductor_config.patch(inductor_choices_class=Lists if place == "configured" else None):
        if place != "registered":
            V.set_choices_handler(Lists())
        fa.install(inductor=True)
        assert hook.why_not_in() == ""
        assert narrowed(registers)
        assert Lists.asked == 1
        assert "lists" in str(V.choices.uuid())
        fa.uninstall()
        assert type(V.choices) is Lists
        assert inductor_config.inductor_choices_class is (Lists if place == "configured" else None)


def test_who_takes_the_place_in_the_configuration_later_is_named(registers: Timed) -> None:
    fa.install(inductor=True)
    with inductor_config.patch(inductor_choices_class=Lists):
        V.set_choices_handler(torch_choices.create_inductor_choices(Lists))  # as in a new thread
        assert hook.why_not_in() == "a Lists took the place of ours"
        fa.uninstall()
        assert type(V.choices) is Lists


def test_what_was_put_in_place_before_one_could_register_moves(registers: Timed) -> None:
    inductor_config.inductor_choices_class = hook.make_choices  # while Inductor's choices were not imported yet
    try:
        fa.install(inductor=True)
        assert inductor_config.inductor_choices_class is None
    finally:
        inductor_config.inductor_choices_class = None
    assert narrowed(registers)


def test_this_torch_composes_as_the_stand_in_does() -> None:
    if not hasattr(torch_choices, "register_inductor_choices"):
        assert tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2]) < (2, 15)
        return
    torch_choices.register_inductor_choices("lists", Lists)
    torch_choices.register_inductor_choices("fuses", Fuses)
    try:
        assert choices.asked(V.choices).uuid() == "lists"
        assert not choices.is_ours(V.choices)
    finally:
        for key in ("lists", "fuses"):
            torch_choices.unregister_inductor_choices(key)
        V.set_choices_handler(InductorChoices())
