"""Settings: the only reader of `FORECAST_AUTOTUNE_*`."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from .core.budget import Budget
from .errors import InvalidInputError

PREFIX = "FORECAST_AUTOTUNE_"

_CHOICES = {
    "MODE": ("tune", "cached", "forecast", "first", "strict"),
    "ISOLATE": ("auto", "0", "1"),
    "TOOLCHAIN": ("exact", "any"),
    "SYNC": ("store", "rank0", "none"),
    "SURROGATE": ("auto", "history", "learned", "roofline"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What the environment says, checked; a field is None where it says nothing and the front end's default holds."""

    budget: str | None = None
    mode: str = "tune"
    dir: Path = field(default_factory=lambda: default_dir())
    packs: tuple[Path, ...] = ()
    surrogate: str = "auto"
    isolate: str = "auto"
    toolchain: str = "exact"
    sync: str = "store"

    @classmethod
    def from_environment(
        cls, environment: Mapping[str, str] | None = None, *, mode: str | None = None, surrogate: str | None = None
    ) -> Settings:
        """Read `FORECAST_AUTOTUNE_*`; `mode` and `surrogate` hold where it says nothing of them.

        Raises:
            InvalidInputError: a value does not parse; names the variable, the value and the accepted forms.
        """
        env = os.environ if environment is None else environment
        values: dict[str, object] = {}
        for name, given in (("MODE", mode), ("SURROGATE", surrogate)):
            if given is not None and given not in _CHOICES[name]:
                raise InvalidInputError(f"{name.lower()}={given!r}: accepted are {', '.join(_CHOICES[name])}")
            if given is not None:
                values[name.lower()] = given
        for name, accepted in _CHOICES.items():
            text = env.get(PREFIX + name, "").strip()
            if text and text not in accepted:
                raise InvalidInputError(f"{PREFIX}{name}={text!r}: accepted are {', '.join(accepted)}")
            if text:
                values[name.lower()] = text
        if text := env.get(PREFIX + "BUDGET", "").strip():
            try:
                Budget(text)
            except InvalidInputError as err:
                raise InvalidInputError(f"{PREFIX}BUDGET: {err}") from None
            values["budget"] = text
        if text := env.get(PREFIX + "DIR", "").strip():
            values["dir"] = Path(text).expanduser()
        if text := env.get(PREFIX + "PACKS", "").strip():
            values["packs"] = tuple(Path(p).expanduser() for p in text.split(os.pathsep) if p)
        return cls(**values)  # type: ignore[arg-type]


def default_dir() -> Path:
    """The platform's cache folder for this user; removing it costs time, nothing else."""
    import platformdirs

    return Path(platformdirs.user_cache_dir("forecast_autotune", appauthor=False))


def child_environment(changes: Mapping[str, str | None]) -> dict[str, str]:
    """The environment with changes for a process to start; None takes a variable out."""
    return {name: value for name, value in {**os.environ, **changes}.items() if value is not None}


def unknown_variables(environment: Mapping[str, str] | None = None) -> dict[str, str | None]:
    """Variables that start like ours and are none of them, each with the name it was perhaps meant to be."""
    import difflib

    env = os.environ if environment is None else environment
    known = [PREFIX + name.upper() for name in Settings.__dataclass_fields__]
    strange = [name for name in env if name.upper().startswith(PREFIX) and name not in known]
    return {name: next(iter(difflib.get_close_matches(name.upper(), known, 1, 0.6)), None) for name in sorted(strange)}
