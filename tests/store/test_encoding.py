from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from contracts.store_contract import HARDWARE, SPACE, TOOLCHAIN, a_decision, a_job, a_measurement

from forecast_autotune.core.config import Config
from forecast_autotune.core.decision import Decision
from forecast_autotune.core.digest import canonical_json, digest
from forecast_autotune.core.forecast import Abstention, Forecast, Normal
from forecast_autotune.core.hardware import Hardware, Toolchain
from forecast_autotune.core.outcome import STAGES, Failure, Measurement, Outcome
from forecast_autotune.core.workload import Program
from forecast_autotune.errors import InvalidInputError
from forecast_autotune.store import encoding

NOUNS = [
    (SPACE[3], encoding.encode_config, encoding.decode_config),
    (Config({}), encoding.encode_config, encoding.decode_config),
    (a_job().workload.program, encoding.encode_program, encoding.decode_program),
    (HARDWARE, encoding.encode_hardware, encoding.decode_hardware),
    (TOOLCHAIN, encoding.encode_toolchain, encoding.decode_toolchain),
    (a_measurement(), encoding.encode_outcome, encoding.decode_outcome),
    (
        Failure(stage="check", message="off by 3", cost_s=1.5, crashed=True),
        encoding.encode_outcome,
        encoding.decode_outcome,
    ),
    (Abstention("history", "nothing alike"), encoding.encode_forecast, encoding.decode_forecast),
    (None, encoding.encode_forecast, encoding.decode_forecast),
    (
        Forecast((Normal(0.5, 0.2, 0.7), Normal(-1.0, 0.0, 0.3)), "blend", 0.1, 12.5),
        encoding.encode_forecast,
        encoding.decode_forecast,
    ),
    (
        Forecast((Normal(0.5, 0.2, 0.7, "learned"), Normal(-1.0, 0.1, 0.3, "history")), "blend", 0.1, None, 1.5),
        encoding.encode_forecast,
        encoding.decode_forecast,
    ),
    (a_decision(a_job()), encoding.encode_decision, encoding.decode_decision),
    (
        a_decision(a_job(), basis="default", equivalents=(), known=2, config_us=None, default_us=None),
        encoding.encode_decision,
        encoding.decode_decision,
    ),
]


@pytest.mark.parametrize(("noun", "encode", "decode"), NOUNS)
def test_every_noun_comes_back_as_it_was(noun: Any, encode: Callable[..., Any], decode: Callable[..., Any]) -> None:
    text = encoding.to_text(encode(noun))
    assert text.isascii()
    assert "\n" not in text
    assert decode(encoding.from_text(text, "it")) == noun


SHORT = [
    (noun, encode, decode)
    for noun, encode, decode in NOUNS
    if isinstance(noun, (Outcome, Forecast, Abstention, Decision))
]
SHORT += [
    (Failure(stage="launch", message=""), encoding.encode_outcome, encoding.decode_outcome),
    (
        Measurement(samples_us=(1.0,), clock_mhz=0.0, temperature_c=0.0),
        encoding.encode_outcome,
        encoding.decode_outcome,
    ),
    (Measurement(samples_us=(1.0, 2.0), disturbance=0.25), encoding.encode_outcome, encoding.decode_outcome),
]


@pytest.mark.parametrize(("noun", "encode", "decode"), SHORT)
def test_what_is_written_in_short_comes_back_as_it_was(
    noun: Any, encode: Callable[..., Any], decode: Callable[..., Any]
) -> None:
    text = encoding.to_short_text(encode(noun))
    assert "null" not in text
    assert "false" not in text
    assert decode(encoding.from_text(text, "it")) == noun


def test_the_whole_roofline_sheet_comes_back() -> None:
    sheet = {"bandwidth_gb_per_s": 4800.5, "peak_gflops": 67e3, "l2_bytes": 1, "shared_bytes": 2, "max_threads": 3}
    hardware = Hardware(kind="cuda", name="x", warp_size=64, **sheet)  # type: ignore[arg-type]
    assert vars(encoding.decode_hardware(encoding.encode_hardware(hardware))) == vars(hardware)
    assert encoding.decode_hardware({"kind": "cpu", "name": "x"}) == Hardware(kind="cpu", name="x")


def test_a_workload_comes_back_with_its_features_and_digest() -> None:
    workload = a_job(
        key={"x": {"dtype": "float32", "shape": [512, 512]}, "n": 1}, features={"a": 1.5, "b": None}
    ).workload
    decoded = encoding.decode_workload(encoding.encode_workload(workload), workload.program)
    assert (decoded, decoded.features, decoded.digest) == (workload, workload.features, workload.digest)


def test_a_check_is_part_of_a_workload_and_left_out_where_there_is_none() -> None:
    plain = a_job().workload
    assert "check" not in encoding.encode_workload(plain)
    checked = replace(plain, check="allclose")
    decoded = encoding.decode_workload(encoding.encode_workload(checked), checked.program)
    assert (decoded, decoded.digest) == (checked, checked.digest)
    assert checked.digest not in (plain.digest, replace(plain, check="bitexact").digest)
    assert plain.digest == digest(plain.program.digest, canonical_json(plain.key), plain.timing), "as before checks"


def test_random_configs_and_outcomes_come_back() -> None:
    rng = random.Random(7)
    alphabet = 'aé\x00\n"\\ \U0001f600_'

    def text() -> str:
        return "".join(rng.choices(alphabet, k=rng.randrange(6)))

    for _ in range(300):
        value = rng.choice([True, None, rng.getrandbits(80), -rng.random() * 10.0 ** rng.randrange(-300, 300), text()])
        config = Config({text(): value for _ in range(rng.randrange(4))})
        assert encoding.decode_config(encoding.from_text(encoding.to_text(dict(config.knobs)), "it")) == config
        samples = tuple(10 ** rng.uniform(-9, 9) for _ in range(rng.randrange(1, 5)))
        outcome = rng.choice(
            [Measurement(samples_us=samples, run_s=rng.random()), Failure(stage=rng.choice(STAGES), message=text())]
        )
        stored = encoding.to_text(encoding.encode_outcome(outcome))
        assert encoding.decode_outcome(encoding.from_text(stored, "it")) == outcome


MEASURED = encoding.encode_outcome(a_measurement())
FORECAST = encoding.encode_forecast(Forecast.normal(0.0, 1.0, source="x")) or {}
DECIDED = encoding.encode_decision(a_decision(a_job()))
HOSTILE = [
    (encoding.decode_config, [1], "config is"),
    (encoding.decode_config, {"a": [1]}, "knob 'a'"),
    (encoding.decode_config, {"a": "\ud800"}, "surrogates"),
    (encoding.decode_program, {"name": "f", "language": 3, "source": ""}, "language"),
    (encoding.decode_program, {"name": "\udcff", "language": "c++", "source": ""}, "surrogates"),
    (encoding.decode_program, None, "program is missing"),
    (encoding.decode_hardware, {"kind": "cpu"}, "name"),
    (encoding.decode_hardware, {"kind": "cpu", "name": "x", "units": 1.5}, "units"),
    (encoding.decode_hardware, {"kind": "cpu", "name": "x", "units": True}, "units"),
    (encoding.decode_hardware, {"kind": "cpu", "name": "x", "peak_gflops": 10**400}, "finite"),
    (encoding.decode_toolchain, {"torch": 2}, "torch"),
    (encoding.decode_outcome, {}, "samples"),
    (encoding.decode_outcome, {**MEASURED, "samples_us": 3}, "list"),
    (encoding.decode_outcome, {**MEASURED, "samples_us": []}, "samples"),
    (encoding.decode_outcome, {**MEASURED, "samples_us": [0.0]}, "positive"),
    (encoding.decode_outcome, {**MEASURED, "samples_us": [True]}, "True"),
    (encoding.decode_outcome, {**MEASURED, "samples_us": ["1"]}, "'1'"),
    (encoding.decode_outcome, {**MEASURED, "samples_us": [10**400]}, "outcome"),
    (encoding.decode_outcome, {**MEASURED, "run_s": "fast"}, "run_s"),
    (encoding.decode_outcome, {"stage": "lunch", "message": ""}, "lunch"),
    (encoding.decode_outcome, {"stage": "launch"}, "message"),
    (encoding.decode_forecast, {"source": "x"}, "components"),
    (encoding.decode_forecast, {**FORECAST, "components": [[0.0, 1.0]]}, "component"),
    (encoding.decode_forecast, {**FORECAST, "components": [[0.0, -1.0, 1.0]]}, "negative"),
    (encoding.decode_forecast, {**FORECAST, "fail_probability": 2}, "between 0 and 1"),
    (encoding.decode_forecast, {**FORECAST, "said_by": ["a", "b"]}, "one name for each"),
    (encoding.decode_forecast, {**FORECAST, "said_by": [3]}, "one name for each"),
    (encoding.decode_forecast, {**FORECAST, "said_by": "ab"}, "said_by"),
    (encoding.decode_forecast, {**FORECAST, "widened": 0}, "positive factor"),
    (encoding.decode_forecast, {**FORECAST, "widened": -1.5}, "positive factor"),
    (encoding.decode_decision, {**DECIDED, "basis": "whim"}, "whim"),
    (encoding.decode_decision, {**DECIDED, "config": None}, "config"),
    (encoding.decode_decision, {**DECIDED, "config_us": 0}, "config_us"),
    (encoding.decode_decision, {**DECIDED, "measured": "3"}, "measured"),
    (encoding.decode_decision, {**DECIDED, "equivalents": {}}, "equivalents"),
]


@pytest.mark.parametrize(("decode", "value", "named"), HOSTILE)
def test_what_is_wrong_is_named(decode: Callable[[object], object], value: object, named: str) -> None:
    with pytest.raises(InvalidInputError, match=named):
        decode(value)


@pytest.mark.parametrize("text", ["", "{", "nul", "[NaN]", "[Infinity]", "[" * 100_000, '"\\ud8', "1" * 5000])
def test_text_that_is_no_json_is_refused(text: str) -> None:
    with pytest.raises(InvalidInputError, match="the line"):
        encoding.from_text(text, "the line")


def test_a_name_that_differs_in_nothing_but_code_is_another_program() -> None:
    one, two = (Program(name="f", language="c++", source=s) for s in ("a", "b"))
    assert encoding.decode_program(encoding.encode_program(one)).digest != two.digest
    assert Toolchain(versions={"a": "1"}).digest != Toolchain(versions={"a": "2"}).digest


def test_a_forecast_of_one_component_without_scaling_keeps_its_old_format() -> None:
    assert set(FORECAST) == {"source", "components", "fail_probability", "default_us"}
