"""Nouns as JSON values, and back. What comes back is checked field by field; nothing in it is ever executed."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import MISSING
from dataclasses import fields as dataclass_fields
from typing import NoReturn, TypeVar, cast

from ..core.config import Config
from ..core.decision import Decision
from ..core.digest import Value, canonical_json
from ..core.forecast import Abstention, Forecast, Normal
from ..core.hardware import Hardware, Toolchain
from ..core.outcome import Failure, Measurement, Outcome, Stage
from ..core.text import shown
from ..core.workload import Program, Workload
from ..errors import InvalidInputError
from ..language.answers import LABELS, Bins

Json = dict[str, object]
_T = TypeVar("_T")

LARGEST = 10**300
"""As a number, what lies beyond cannot be calculated with."""

MAX_COUNTED = 2**53  # the largest whole number up to which floats are exact
FASTEST_US, SLOWEST_US = 1e-100, 1e100
"""Times that are no time; quotients of those between, and their squares, are finite numbers."""

KEY_DEPTH = 16  # of lists in lists in a workload's key


def to_text(value: object) -> str:
    """One line of JSON, keys in the order given.

    ASCII only: compilers print bytes that are no UTF-8, and Python carries those as lone surrogates, which neither
    SQLite nor a text file takes.

    Raises:
        ValueError: a float is NaN or infinite.
    """
    return json.dumps(value, separators=(",", ":"), ensure_ascii=True, allow_nan=False)


def to_short_text(value: Json) -> str:
    """One line of JSON without fields that hold their default, which decoding restores: 60 MB of a million rows."""
    return to_text({name: inner for name, inner in value.items() if inner != _DEFAULTS.get(name)})


def from_text(text: object, what: str) -> object:
    """Parse JSON that may have been written by anyone; a store's column may hold what is no text at all.

    Raises:
        InvalidInputError: it is no text, the text is no JSON, holds NaN or an infinity, or is nested too deeply.
    """
    if not isinstance(text, str):
        raise InvalidInputError(f"{what} is {shown(text)}: it must be text")

    def refuse(name: str) -> NoReturn:
        raise InvalidInputError(f"{what} holds {name}: numbers must be finite")

    try:
        return json.loads(text, parse_constant=refuse)
    except InvalidInputError:
        raise
    except (ValueError, RecursionError) as err:
        raise InvalidInputError(f"{what} is no JSON ({err}): it starts with {text[:40]!r}") from None


# Reading one field: each raises InvalidInputError, naming `what` the field belongs to and the value seen -------------------


def fields(value: object, what: str) -> Mapping[str, object]:
    """A JSON object, or an error that names what should have been one."""
    if not isinstance(value, dict):
        raise InvalidInputError(f"{what} is {shown(value)}: it must be a JSON object")
    return value


def text_field(data: Mapping[str, object], name: str, what: str, default: str | None = None) -> str:
    """A field that must hold text."""
    value = data.get(name, default)
    if not isinstance(value, str):
        raise InvalidInputError(f"{what} has {name} {shown(value)}: it must be text")
    return value


def refuse_surrogates(text: str, what: str) -> None:
    """A name that cannot be written as UTF-8 has no digest, so nothing could be kept under it."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise InvalidInputError(f"{what} is {text[:60]!a}: lone surrogates are no text") from None


def number_field(data: Mapping[str, object], name: str, what: str, default: float | None = None) -> float:
    """A field that must hold a finite number."""
    value = data.get(name, default)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise InvalidInputError(f"{what} has {name} {shown(value)}: it must be a number")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise InvalidInputError(f"{what} has {name} {shown(value)}: it must be finite")
    return number


def cost_field(data: Mapping[str, object], name: str, what: str) -> float:
    """Seconds that something took."""
    cost_s = number_field(data, name, what, 0.0)
    if not 0 <= cost_s <= MAX_COUNTED:
        raise InvalidInputError(f"{what} has {name} {shown(cost_s)}: it must be seconds that passed")
    return cost_s


def optional_number(data: Mapping[str, object], name: str, what: str) -> float | None:
    """A field that may be missing or null, and else must hold a finite number."""
    return None if data.get(name) is None else number_field(data, name, what)


def count_field(data: Mapping[str, object], name: str, what: str, default: int | None = None) -> int:
    """A field that must hold a whole number from 0 to `MAX_COUNTED`."""
    value = data.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= MAX_COUNTED:
        raise InvalidInputError(f"{what} has {name} {shown(value)}: it must be a whole number that counts something")
    return value


def list_field(data: Mapping[str, object], name: str, what: str) -> list[object]:
    """A field that must hold a list; a missing one is empty."""
    value = data.get(name, [])
    if not isinstance(value, list):
        raise InvalidInputError(f"{what} has {name} {shown(value)}: it must be a list")
    return value


# One pair of functions for each noun: decoding raises InvalidInputError -------------------------------------------------


def encode_config(config: Config) -> Json:
    """A config as its knobs."""
    return dict(config.knobs)


def decode_config(value: object, what: str = "config") -> Config:
    """A config from its knobs; no knob may be nested, or so large that it cannot be calculated with."""
    knobs: Mapping[str, Value] = fields(value, what)  # type: ignore[assignment]  # Config checks every knob itself
    try:
        config = Config(knobs)
    except InvalidInputError as err:
        raise InvalidInputError(f"{what}: {err}") from None
    except RecursionError:
        raise InvalidInputError(f"{what} has a knob that is nested deeply: a knob is a number, text or null") from None
    refuse_surrogates(config.text, what)
    for name, knob in config.knobs.items():
        if isinstance(knob, int) and abs(knob) > LARGEST:
            raise InvalidInputError(
                f"{what} has {name} {str(knob)[:20]}…, a number of {len(str(abs(knob)))} digits: a knob is below 1e300"
            )
    return config


def encode_program(program: Program) -> Json:
    """A program as its name, language and source."""
    return {"name": program.name, "language": program.language, "source": program.source}


def decode_program(value: object, what: str = "program") -> Program:
    """A program from its name, language and source."""
    data = fields(value, what)
    texts = {name: text_field(data, name, what) for name in ("name", "language", "source")}
    for name, text in texts.items():
        refuse_surrogates(text, f"{what}'s {name}")
    return Program(**texts)


def encode_workload(workload: Workload) -> Json:
    """The key, the timing, the check if there is one, and the features; the program is kept beside it."""
    checked = {"check": workload.check} if workload.check else {}
    return {"key": dict(workload.key), "timing": workload.timing, **checked, "features": dict(workload.features)}


def _check_key(value: object, what: str, levels: int) -> None:
    """A key may be any JSON, as long as every reader of it can walk through it and calculate with its numbers."""
    if isinstance(value, (dict, list)):
        if not levels:
            raise InvalidInputError(
                f"{what} is nested more than {KEY_DEPTH} deep: it holds types, sizes and values of arguments"
            )
        for inner in value.values() if isinstance(value, dict) else value:
            _check_key(inner, what, levels - 1)
    elif type(value) in (int, float):
        number_field({"a number": value}, "a number", what)


def decode_workload(value: object, program: Program, what: str = "workload") -> Workload:
    """A workload from what `encode_workload` returns, and its program."""
    data = fields(value, what)
    features: dict[str, Value] = {}
    features_given = fields(data.get("features", {}), f"{what}'s features")
    for name, feature in features_given.items():
        if not isinstance(feature, (bool, int, float, str, type(None))):
            raise InvalidInputError(f"{what} has feature {name} {shown(feature)}: it must be a number, text or null")
        if type(feature) in (int, float):
            number_field(features_given, name, f"{what}'s features")
        features[name] = feature
    key = dict(fields(data.get("key"), f"{what}'s key"))
    _check_key(key, f"{what}'s key", KEY_DEPTH)
    timing = text_field(data, "timing", what, "eager")
    check = text_field(data, "check", what, "")
    refuse_surrogates(canonical_json(key) + timing + check, f"{what}'s key, timing or check")
    return Workload(program=program, key=key, timing=timing, check=check, features=features)


_HARDWARE = {f.name: (str(f.type), None if f.default is MISSING else f.default) for f in dataclass_fields(Hardware)}
"""Each field of the sheet with its type and what it is when unknown; an older file lacks the newer ones."""


def encode_hardware(hardware: Hardware) -> Json:
    """A device as all fields of its sheet."""
    return {name: getattr(hardware, name) for name in _HARDWARE}


def decode_hardware(value: object, what: str = "hardware") -> Hardware:
    """A device from its sheet; fields that an older version did not write have their defaults."""
    data = fields(value, what)
    read: dict[str, Callable[..., object]] = {"str": text_field, "int": count_field, "float": number_field}
    given = {name: read[kind](data, name, what, unknown) for name, (kind, unknown) in _HARDWARE.items()}
    hardware = Hardware(**given)  # type: ignore[arg-type]  # each was read as its type
    refuse_surrogates(canonical_json(hardware.identity), what)
    return hardware


def encode_toolchain(toolchain: Toolchain) -> Json:
    """A toolchain as its components' versions."""
    return dict(toolchain.versions)


def decode_toolchain(value: object, what: str = "toolchain") -> Toolchain:
    """A toolchain from its components' versions."""
    data = fields(value, what)
    versions = {name: text_field(data, name, what) for name in data}
    refuse_surrogates(canonical_json(versions), what)
    return Toolchain(versions=versions)


def encode_forecast(forecast: Forecast | Abstention | None) -> Json | None:
    """A forecast as its components, or an abstention as its reason."""
    if forecast is None:
        return None
    if isinstance(forecast, Abstention):
        return {"source": forecast.source, "abstains": forecast.reason}
    encoded: Json = {
        "source": forecast.source,
        "components": [[c.mean, c.sigma, c.weight] for c in forecast.components],
        "fail_probability": forecast.fail_probability,
        "default_us": forecast.default_us,
    }
    # As they are missing in what earlier versions wrote.
    if any(c.source for c in forecast.components):
        encoded["said_by"] = [c.source for c in forecast.components]
    if forecast.sigma_scale != 1.0:
        encoded["widened"] = forecast.sigma_scale
    return encoded


def decode_forecast(value: object, what: str = "forecast") -> Forecast | Abstention | None:
    """A forecast or an abstention; None stays None."""
    if value is None:
        return None
    data = fields(value, what)
    source = text_field(data, "source", what)
    if "abstains" in data:
        return Abstention(source, text_field(data, "abstains", what))
    components = []
    bells = list_field(data, "components", what)
    said_by = list_field(data, "said_by", what) if "said_by" in data else [""] * len(bells)
    if len(said_by) != len(bells) or not all(isinstance(name, str) for name in said_by):
        raise InvalidInputError(f"{what} has said_by {shown(said_by)}: it must be one name for each of its components")
    for given, name in zip(bells, said_by, strict=True):
        if not isinstance(given, list) or len(given) != 3:
            raise InvalidInputError(f"{what} has component {shown(given)}: it must be [mean, sigma, weight]")
        named = dict(zip(("mean", "sigma", "weight"), given, strict=True))
        mean, sigma, weight = (number_field(named, n, f"{what}'s component") for n in named)
        components.append(Normal(mean, sigma, weight, str(name)))
    fail_probability = number_field(data, "fail_probability", what, 0.0)
    widened = number_field(data, "widened", what, 1.0)
    default_us = optional_number(data, "default_us", what)
    return _named(what, Forecast(tuple(components), source, fail_probability, default_us, widened).checked)


def names_tensors(workload: Workload) -> bool:
    """Whether the features of a call hold sizes of tensors, as `x_0` is the first of x."""
    return any(name.rpartition("_")[2].isdecimal() for name in workload.features)


def encode_static_features(features: Mapping[str, float]) -> Json:
    """A config's static features to six digits, enough for estimates; any that is not finite is left out."""
    return {name: float(f"{value:.6g}") for name, value in features.items() if math.isfinite(value)}


def decode_static_features(value: object, what: str = "described") -> dict[str, float]:
    """A config's static features: finite numbers by name."""
    data = fields(value, what)
    return {
        name: number if type(number) is float and math.isfinite(number) else number_field(data, name, what)
        for name, number in data.items()
    }


def encode_outcome(outcome: Outcome) -> Json:
    """A measurement as its samples and costs, or a failure, whose `stage` comes first."""
    if isinstance(outcome, Failure):
        return {
            "stage": outcome.stage,
            "message": outcome.message,
            "cost_s": outcome.cost_s,
            "crashed": outcome.crashed,
            **({"transient": True} if outcome.transient else {}),
        }
    return {
        "samples_us": list(outcome.samples_us),
        "compile_s": outcome.compile_s,
        "run_s": outcome.run_s,
        "clock_mhz": outcome.clock_mhz,
        "temperature_c": outcome.temperature_c,
        **({"disturbance": outcome.disturbance} if outcome.disturbance else {}),
    }


def decode_outcome(value: object, what: str = "outcome") -> Outcome:
    """A measurement, or a failure where there is a `stage`."""
    data = fields(value, what)
    if "stage" in data:
        stage = cast("Stage", text_field(data, "stage", what))  # which the failure checks
        message = text_field(data, "message", what)
        cost_s = cost_field(data, "cost_s", what)
        flags = {name: data.get(name, False) is True for name in ("crashed", "transient")}
        return _named(what, lambda: Failure(stage=stage, message=message, cost_s=cost_s, **flags))
    samples = list_field(data, "samples_us", what)
    if any(type(s) is not float and type(s) is not int for s in samples):
        wrong = next(s for s in samples if type(s) is not float and type(s) is not int)
        raise InvalidInputError(f"{what} has the sample {shown(wrong)}: times are positive finite microseconds")
    if wrong_times := [s for s in samples if not FASTEST_US < s < SLOWEST_US]:  # type: ignore[operator]
        raise InvalidInputError(
            f"{what} has the sample {shown(wrong_times[0])}: times are positive finite microseconds"
        )
    compile_s = cost_field(data, "compile_s", what)
    run_s = cost_field(data, "run_s", what)
    clock_mhz = optional_number(data, "clock_mhz", what)
    temperature_c = optional_number(data, "temperature_c", what)
    disturbance = optional_number(data, "disturbance", what) or 0.0
    return _named(
        what,
        lambda: Measurement(
            samples_us=tuple(float(s) for s in samples),  # type: ignore[arg-type]
            compile_s=compile_s,
            run_s=run_s,
            clock_mhz=clock_mhz,
            temperature_c=temperature_c,
            disturbance=disturbance,
        ),
    )


def encode_answer(answer: Bins) -> Json:
    """A language model's answer as probabilities of the eight bins."""
    return {"probabilities": list(answer.probabilities), "raw_sum": answer.raw_sum}


def decode_answer(value: object, what: str = "answer") -> Bins:
    """A language model's answer: eight probabilities that sum to 1."""
    data = fields(value, what)
    given = list_field(data, "probabilities", what)
    shares = [number_field({"probability": share}, "probability", what) for share in given]
    if len(shares) != len(LABELS) or min(shares) < 0 or abs(math.fsum(shares) - 1.0) > 1e-6:
        raise InvalidInputError(f"{what} has probabilities {shown(given)}: they must be {len(LABELS)} that sum to 1")
    raw_sum = number_field(data, "raw_sum", what)
    if raw_sum < 0:
        raise InvalidInputError(f"{what} has raw_sum {raw_sum}: it must not be negative")
    return Bins(probabilities=tuple(shares), raw_sum=raw_sum)


_DECISION_COUNTS = {  # a count's name in JSON to that in `Decision`
    "space_size": "space_size", "forecast": "forecast", "compiled": "compiled", "measured": "tried", "failed": "failed",
}  # fmt: skip
_DECISION_SECONDS = ("spent_s", "waiting_s", "compiling_s", "timing_s")
_SECONDS_OF_CALLS = ("explored_s", "saved_s")  # written where real calls were timed

_DEFAULTS: Json = {
    **dict.fromkeys(("compile_s", "run_s", "cost_s", "fail_probability", *_DECISION_COUNTS, *_DECISION_SECONDS), 0),
    "crashed": False,
    "equivalents": [],
}
"""What a missing field of outcomes, forecasts and decisions stands for, where that is not None."""


def encode_decision(decision: Decision) -> Json:
    """A decision as all of its fields."""
    return {
        "config": encode_config(decision.config),
        "basis": decision.basis,
        "reason": decision.reason,
        "equivalents": [encode_config(c) for c in decision.equivalents],
        "space_digest": decision.space_digest,
        "budget": decision.budget,
        **{name: getattr(decision, attribute) for name, attribute in _DECISION_COUNTS.items()},
        **{name: getattr(decision, name) for name in _DECISION_SECONDS},
        "config_us": decision.config_us,
        "default_us": decision.default_us,
        "run": decision.run,
        "decided_at": decision.decided_at,
        **({"model": decision.model} if decision.model else {}),
        **({"known": decision.known} if decision.known else {}),
        **{name: seconds for name in _SECONDS_OF_CALLS if (seconds := getattr(decision, name))},
    }


def decode_decision(value: object, what: str = "decision") -> Decision:
    """A decision; counts and costs that are missing are 0."""
    data = fields(value, what)
    values: dict[str, object] = {
        attribute: count_field(data, name, what, 0) for name, attribute in _DECISION_COUNTS.items()
    }
    values["known"] = count_field(data, "known", what, 0)
    for name in ("config_us", "default_us"):
        time_us = optional_number(data, name, what)
        if time_us is not None and not FASTEST_US < time_us < SLOWEST_US:
            raise InvalidInputError(f"{what} has {name} {time_us}: times are positive finite microseconds")
        values[name] = time_us
    values |= {name: text_field(data, name, what) for name in ("basis", "reason", "space_digest", "budget")}
    values |= {name: text_field(data, name, what, "") for name in ("run", "model")}
    values |= {name: cost_field(data, name, what) for name in (*_DECISION_SECONDS, *_SECONDS_OF_CALLS)}
    values["decided_at"] = number_field(data, "decided_at", what, 0.0)
    values["config"] = decode_config(data.get("config"), f"{what}'s config")
    values["equivalents"] = tuple(
        decode_config(c, f"{what}'s equivalent") for c in list_field(data, "equivalents", what)
    )
    return _named(what, lambda: Decision(**values))  # type: ignore[arg-type]


def _named(what: str, build: Callable[[], _T]) -> _T:
    """Build a noun that checks its own values, and say in its complaint which one it was."""
    try:
        return build()
    except (InvalidInputError, OverflowError) as err:
        raise InvalidInputError(f"{what}: {err}") from None
