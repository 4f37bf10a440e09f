"""Proposers that need no model: other knobs, near and anywhere, a rewrite of a parent's text, skills, parents crossed."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import lru_cache

from ...core.config import Config
from ...core.digest import Value
from ..candidate import Candidate, TriedCandidate
from ..skills import step_of
from ..steps import kind_of
from .base import SearchView
from .crossing import crossed

TRIES = 30  # draws for each candidate that is wanted
FAR = 0.3  # share of knob mutations that change two knobs
BEYOND = 0.15  # share that take a knob past the values of its space
# Roles of knobs that may be doubled and halved past their space
SCALED = ("tile", "unroll", "vector", "stages", "threads")


class _Drawing:
    """A proposer that draws one candidate after the other, until enough are new."""

    name = ""

    def propose(self, view: SearchView, n: int) -> Sequence[Candidate]:
        """See `Proposer`."""
        draw = view.draw(self.name)
        found: dict[str, Candidate] = {}
        for _ in range(TRIES * n):
            if len(found) >= n:
                break
            made = self._one(view, draw)
            if made is not None and made.digest not in view.known:
                found.setdefault(made.digest, made)
        return list(found.values())

    def repair(self, view: SearchView, failed: TriedCandidate) -> Candidate | None:  # noqa: ARG002
        """See `Proposer`: what a rewrite broke is no better for another one."""
        return None

    def _one(self, view: SearchView, draw: random.Random) -> Candidate | None:
        raise NotImplementedError

    def _child(
        self, parent: Candidate, step: str, *others: Candidate, source: str | None = None, config: Config | None = None
    ) -> Candidate:
        return replace(
            parent,
            source=parent.source if source is None else source,
            config=parent.config if config is None else config,
            proposer=self.name,
            parents=(parent.digest, *(other.digest for other in others)),
            steps=(*parent.steps, step),
            by_rules=all(one.by_rules for one in (parent, *others)),
        )


class Knobs(_Drawing):
    """Other knobs for a parent's text: a config of its space that differs in one or two; now and then one past the space."""

    name = "knobs"

    def _one(self, view: SearchView, draw: random.Random) -> Candidate | None:
        parent = view.parent(draw)
        space = view.task.spaces[parent.variant]
        if draw.random() < BEYOND:
            config = _beyond(parent.config, space.roles, draw)
            if config is None:
                return None
        else:
            apart = 2 if draw.random() < FAR else 1
            near = [c for c in space if 0 < sum(c[k] != parent.config.knobs.get(k) for k in space.knobs) <= apart]
            if not near:
                return None
            config = draw.choice(near)
        return self._child(parent, _changed(parent.config, config), config=config)


class Anywhere(_Drawing):
    """Any config of any variant: of a parent's variant under its text, of others under the one that a person wrote.

    Forecasts tell configs of a known text apart well, and to tell of one more costs next to nothing. What was rewritten for
    one variant may not even be reached by another.
    """

    name = "anywhere"

    def _one(self, view: SearchView, draw: random.Random) -> Candidate | None:
        parent = view.parent(draw)
        variant = draw.choice(list(view.task.spaces))
        config = draw.choice(view.task.spaces[variant])
        if variant == parent.variant:
            if config == parent.config:
                return None
            return self._child(parent, _changed(parent.config, config), config=config)
        child = self._child(parent, f"variant={variant} {config}", source=view.task.text_of(variant), config=config)
        return replace(child, variant=variant, steps=child.steps[-1:])


def _changed(before: Config, after: Config) -> str:
    return " ".join(f"{k}={v}" for k, v in after.knobs.items() if Config({k: v}) != Config({k: before.knobs.get(k)}))


def _beyond(config: Config, roles: dict[str, str], draw: random.Random) -> Config | None:
    """A config with one number doubled or halved."""
    numbers = [k for k, v in config.knobs.items() if type(v) is int and v > 0 and roles.get(k) in SCALED]
    if not numbers:
        return None
    knob = draw.choice(numbers)
    value = config[knob]
    if not isinstance(value, int):
        return None
    scaled = value * 2 if draw.random() < 0.5 else value // 2
    return Config({**config.knobs, knob: scaled}) if scaled else None


class Rewrites(_Drawing):
    """One rewrite of a parent's text."""

    name = "rewrite"

    def _one(self, view: SearchView, draw: random.Random) -> Candidate | None:
        parent = view.parent(draw)
        steps = rewrites_of(parent.language)(parent.source, view.task.entries.get(parent.variant, ""))
        if not steps:
            return None
        label, source = draw_rewrite(steps, draw)
        return self._child(parent, label, source=source)


def draw_rewrite(steps: Iterable[tuple[str, str]], draw: random.Random) -> tuple[str, str]:
    """One of several rewrites, each kind as likely as another, however many places it has."""
    by_kind: dict[str, list[tuple[str, str]]] = {}
    for step in steps:
        by_kind.setdefault(kind_of(step[0]), []).append(step)
    return draw.choice(by_kind[draw.choice(sorted(by_kind))])


class Skilled(_Drawing):
    """A skill of an earlier search, wherever its step can be taken in a parent's text or knobs."""

    name = "skill"

    def propose(self, view: SearchView, n: int) -> Sequence[Candidate]:
        """See `Proposer`."""
        return super().propose(view, n) if view.skills else []

    def _one(self, view: SearchView, draw: random.Random) -> Candidate | None:
        parent = view.parent(draw)
        ways: list[Candidate] = []
        for skill in view.fitting(parent):
            if skill.knob in parent.config.knobs:
                config = Config({**parent.config.knobs, skill.knob: skill.after})
                if config in view.task.spaces[parent.variant]:
                    ways.append(self._child(parent, f"{skill.knob}={skill.after}", config=config))
            for label, source in rewrites_of(parent.language)(parent.source, view.task.entries.get(parent.variant, "")):
                what, _, how = step_of(label)
                if (what, how) == (skill.knob, skill.after):
                    ways.append(self._child(parent, label, source=source))
        return draw.choice(ways) if ways else None


class Crossover(_Drawing):
    """Knobs of two parents, or the changes of two texts that come of one."""

    name = "crossover"

    def _one(self, view: SearchView, draw: random.Random) -> Candidate | None:
        if len(view.ran) < 2:
            return None
        one, other = (t.candidate for t in draw.sample(view.ran[: max(4, len(view.ran) // 2)], 2))
        if one.variant != other.variant:
            return None
        space = view.task.spaces[one.variant]
        knobs: dict[str, Value] = {k: draw.choice((one, other)).config.knobs.get(k) for k in space.knobs}
        config = Config(knobs)
        if config not in space:
            config = one.config
        source = None
        if one.source != other.source:
            source = crossed(view.task.text_of(one.variant), one.source, other.source)
            if source is None and draw.random() < 0.5:
                source = other.source
        steps = (*one.steps, *(step for step in other.steps if step not in one.steps))
        child = self._child(one, "", other, source=source or one.source, config=config)
        return replace(child, steps=(*steps, f"crossed with {other.digest[:8]}"))


def rewrites_of(language: str) -> Callable[[str, str], Sequence[tuple[str, str]]]:
    """Every rewrite of a text by one step, in a language; of what one function of it reaches, where that is known."""
    return {"triton": _triton, "cuda": _cuda}.get(language, _cpp)


@lru_cache(maxsize=64)
def _cuda(source: str, entry: str) -> Sequence[tuple[str, str]]:  # noqa: ARG001
    from .cuda_rewrites import rewrites

    return _once(rewrites(source))


@lru_cache(maxsize=64)
def _cpp(source: str, entry: str) -> Sequence[tuple[str, str]]:  # noqa: ARG001
    from .cpp_rewrites import rewrites

    return _once(rewrites(source))


@lru_cache(maxsize=64)
def _triton(source: str, entry: str) -> Sequence[tuple[str, str]]:
    from .triton_rewrites import rewrites

    return _once(rewrites(source, entry))


def _once(steps: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    return list({source: (step, source) for step, source in steps}.values())
