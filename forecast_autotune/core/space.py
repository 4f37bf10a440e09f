"""Space: the configs a decision is made among."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from ..errors import InvalidInputError
from .config import Config
from .digest import Value, digest
from .text import shown

ROLES = ("threads", "tile", "unroll", "stages", "vector", "order", "algorithm", "flag")
"""What a knob may stand for: threads that work side by side, elements of one block, copies of a loop body, depth of a
pipeline, elements per load, nesting of loops, which algorithm, a compiler flag."""

MAX_CONFIGS = 200_000  # forecasting so many takes about two seconds; a larger grid wants constraints


class Space(Sequence[Config]):
    """Ordered configs without duplicates, the default first.

    Args:
        configs: configs, or mappings of knobs.
        default: the config every other is compared with; the first one if not given.
        roles: knob name to one of `ROLES`, for surrogates that know what such a knob does.
    Raises:
        InvalidInputError: no configs, configs with different knobs, a default or a role for what is not there.
    """

    def __init__(
        self,
        configs: Iterable[Config | Mapping[str, Value]],
        *,
        default: Config | Mapping[str, Value] | None = None,
        roles: Mapping[str, str] | None = None,
    ) -> None:
        knobs_alone = isinstance(configs, Mapping) and all(isinstance(knob, str) for knob in configs)
        if knobs_alone or isinstance(configs, (Config, str)) or not isinstance(configs, Iterable):
            raise InvalidInputError(
                f"{shown(configs)} is no list of configs: give a list, such as [{{'LANES': 1}}, {{'LANES': 2}}], or all "
                "combinations of some values, such as Space.grid({'LANES': [1, 2]})"
            )
        ordered = list(dict.fromkeys(_as_config(c) for c in configs))
        if not ordered:
            raise InvalidInputError("the space is empty: give at least one config, or loosen the constraints")
        self.knobs = tuple(ordered[0].knobs)
        for config in ordered:
            if config.knobs.keys() != ordered[0].knobs.keys():
                raise InvalidInputError(
                    f"config {config} has the knobs {sorted(config.knobs)}, the first has {sorted(self.knobs)}: "
                    "every config of a space sets the same knobs"
                )
        if default is not None:
            chosen = _as_config(default)
            if chosen not in set(ordered):
                raise InvalidInputError(
                    f"the default ({chosen}) is not in the space of {len(ordered)} configs: add it, or name one that is"
                )
            ordered.remove(chosen)
            ordered.insert(0, chosen)
        self.roles = dict(roles or {})
        for knob, role in self.roles.items():
            if knob not in self.knobs:
                raise InvalidInputError(f"role for {knob!r}: the space's knobs are {', '.join(self.knobs)}")
            if role not in ROLES:
                raise InvalidInputError(f"role {role!r} of knob {knob!r}: accepted are {', '.join(ROLES)}")
        self._configs = tuple(ordered)
        self._index = {config: i for i, config in enumerate(ordered)}
        self.digest = digest(ordered[0].text, *sorted(c.text for c in ordered[1:]))

    @classmethod
    def grid(
        cls,
        knobs: Mapping[str, Sequence[Value]],
        *,
        default: Config | Mapping[str, Value] | None = None,
        constraints: Iterable[Callable[..., bool]] = (),
        roles: Mapping[str, str] | None = None,
    ) -> Space:
        """Every combination of the knobs' values for which all constraints hold, the last knob varying fastest.

        A constraint is a callable whose parameters are knob names, such as `lambda BM, BN: BM * BN <= 16384`. It is
        asked as soon as its knobs are set, so that a grid far larger than its valid part is not walked in full.

        Raises:
            InvalidInputError: as `Space`; also a knob without values, a constraint on an unknown knob, or a grid of
                more than `MAX_CONFIGS` valid configs.
        """
        for name, values in knobs.items():
            if isinstance(values, (str, bytes)) or not isinstance(values, Sequence) or not values:
                raise InvalidInputError(f"knob {name!r} has {values!r}: give a non-empty list of values")
        names = list(knobs)
        ready: list[list[tuple[Callable[..., bool], tuple[str, ...]]]] = [[] for _ in names]
        for constraint in constraints:
            needs = tuple(inspect.signature(constraint).parameters)
            unknown = [n for n in needs if n not in knobs]
            if unknown or not needs:
                raise InvalidInputError(
                    f"a constraint takes {', '.join(needs) or 'nothing'}: its parameters are names out of "
                    f"{', '.join(names)}"
                )
            ready[max(names.index(n) for n in needs)].append((constraint, needs))

        def extend(depth: int, chosen: dict[str, Value]) -> Iterator[Config]:
            if depth == len(names):
                yield Config(chosen)
                return
            for value in knobs[names[depth]]:
                chosen[names[depth]] = value
                if all(constraint(**{n: chosen[n] for n in needs}) for constraint, needs in ready[depth]):
                    yield from extend(depth + 1, chosen)
            chosen.pop(names[depth], None)

        configs: list[Config] = []
        for config in extend(0, {}):
            if len(configs) == MAX_CONFIGS:
                raise InvalidInputError(
                    f"the grid over {', '.join(names)} has more than {MAX_CONFIGS} valid configs: add constraints"
                )
            configs.append(config)
        return cls(configs, default=default, roles=roles)

    @property
    def default(self) -> Config:
        """The config that all others are compared with."""
        return self._configs[0]

    def index(self, config: object, start: int = 0, stop: int | None = None) -> int:
        """Position of a config; the default is at 0.

        Raises:
            ValueError: the config is not in the space.
        """
        place = self._index.get(config)  # type: ignore[call-overload]
        if place is None or place < start or (stop is not None and place >= stop):
            raise ValueError(f"config {config} is not in the space")
        return int(place)

    def __getitem__(self, i):  # type: ignore[no-untyped-def]
        return self._configs[i]

    def __len__(self) -> int:
        return len(self._configs)

    def __iter__(self) -> Iterator[Config]:
        return iter(self._configs)

    def __contains__(self, config: object) -> bool:
        return config in self._index

    def __repr__(self) -> str:
        return f"Space({len(self)} configs over {', '.join(self.knobs)}; default {self.default})"


def _as_config(value: Config | Mapping[str, Value]) -> Config:
    if isinstance(value, Config):
        return value
    if isinstance(value, Mapping):
        return Config(value)
    if hasattr(value, "all_kwargs"):
        raise InvalidInputError(f"triton.Config({value.kwargs}) is no config of a space: write {value.kwargs}")
    raise InvalidInputError(f"{shown(value)} is no config: give a Config or a mapping of knob names to values")
