"""T4 files, the results of Kernel Tuner and other tuners: `{"metadata": …, "results": […]}`.

Such a file names neither kernel nor hardware, so its own name does, `<kernel>_<…>_<hardware>_T4.json.gz`: the kernel is
what stands before the first underscore, the hardware what stands after the last one, and what lies between becomes the
key. A name without an underscore is the kernel's, on hardware "unknown". Hardware that a sheet is of has its figures. The
program's language is "cuda" on AMD too: one source, which a platform may translate. The first config listed is the default.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from ...core.config import Config
from ...core.hardware import Toolchain
from ...core.job import Recording
from ...core.outcome import Failure, Measurement, Outcome, Stage
from ...core.text import shown
from ...core.workload import Program, Workload
from ...errors import InvalidInputError
from ...features.hardware_sheets import hardware_named
from ...store import encoding
from ...store.encoding import Json
from .checks import ACCEPTED, check_knobs, decode_cost, decode_times, warn_about_repeated

UNKNOWN = "unknown"  # hardware that a file's name does not give

_SECONDS_PER_UNIT = {
    **dict.fromkeys(("miliseconds", "milliseconds", "millisecond", "ms"), 1e-3),  # the first is how T4 files spell it
    **dict.fromkeys(("microseconds", "microsecond", "us"), 1e-6),
    **dict.fromkeys(("nanoseconds", "nanosecond", "ns"), 1e-9),
    **dict.fromkeys(("seconds", "second", "s"), 1.0),
}

_STAGE_OF_INVALIDITY: Mapping[str, Stage] = {
    "compile": "compile",
    "runtime": "launch",
    "timeout": "timeout",
    "correctness": "check",
    "constraints": "resources",
}


def read_t4(path: Path, document: Json) -> Recording:
    """The recording in a T4 document.

    Raises:
        InvalidInputError: it holds none, or something in it is not what it should be; names the file and the result.
    """
    results = document.get("results")
    if not isinstance(results, list):
        raise InvalidInputError(f"{path} is no trace (it has no 'results'): {ACCEPTED}")
    metadata = encoding.fields(document.get("metadata") or {}, f"{path}: metadata")
    unit = metadata.get("timeunit", "miliseconds")
    if not isinstance(unit, str) or unit.lower() not in _SECONDS_PER_UNIT:
        raise InvalidInputError(f"{path} has the time unit {shown(unit)}: accepted are {', '.join(_SECONDS_PER_UNIT)}")
    seconds = _SECONDS_PER_UNIT[unit.lower()]
    outcomes: dict[Config, Outcome] = {}
    repeated = 0
    for number, value in enumerate(results, start=1):
        what = f"{path}, result {number}"
        result = encoding.fields(value, what)
        config = encoding.decode_config(result.get("configuration"), f"{what}: configuration")
        if config in outcomes:
            repeated += 1
            continue
        if outcomes:
            check_knobs(config, tuple(next(iter(outcomes)).knobs), what)
        outcomes[config] = _outcome(result, seconds, what)
    if not outcomes:
        raise InvalidInputError(f"{path} has no results: {ACCEPTED}")
    warn_about_repeated(path, repeated)
    kernel, campaign, hardware = _names(path)
    key: dict[str, object] = {"campaign": campaign} if campaign else {}
    return Recording(
        workload=Workload(program=Program(name=kernel, language="cuda", source=""), key=key),
        hardware=hardware_named(hardware),
        toolchain=Toolchain(versions={"recorded": f"T4 {document.get('schema_version', '')}".strip()}),
        default=next(iter(outcomes)),
        outcomes=outcomes,
    )


def _outcome(result: Mapping[str, object], seconds: float, what: str) -> Outcome:
    times = encoding.fields(result.get("times") or {}, f"{what}: times")

    def cost_s(name: str) -> float:
        return decode_cost(times, name, f"{what}: times") * seconds

    runtimes = decode_times(encoding.list_field(times, "runtimes", f"{what}: times"), f"{what} has the runtime")
    compile_s = cost_s("compilation")
    # "benchmark", where given, is the runtimes with all that was done around them.
    run_s = max(sum(runtimes) * seconds, cost_s("benchmark")) + cost_s("framework") + cost_s("validation")
    invalidity = result.get("invalidity", "correct")
    if invalidity == "correct":
        if not runtimes:
            raise InvalidInputError(f"{what} is correct but has no runtimes: give at least one time for it")
        return Measurement(samples_us=tuple(r * seconds * 1e6 for r in runtimes), compile_s=compile_s, run_s=run_s)
    if not isinstance(invalidity, str) or invalidity not in _STAGE_OF_INVALIDITY:
        known = ", ".join(_STAGE_OF_INVALIDITY)
        raise InvalidInputError(f"{what} has the invalidity {shown(invalidity)}: accepted are correct, {known}")
    return Failure(
        stage=_STAGE_OF_INVALIDITY[invalidity], message=f"recorded as invalid: {invalidity}", cost_s=compile_s + run_s
    )


def _names(path: Path) -> tuple[str, str, str]:
    """Kernel, campaign and hardware out of a file's name."""
    encoding.refuse_surrogates(path.name, "the file's name, which tells a T4 file's kernel,")
    stem = re.sub(r"(_T4)?(\.json)?(\.gz)?$", "", path.name, flags=re.IGNORECASE)
    kernel, _, others = stem.partition("_")
    campaign, _, hardware = others.rpartition("_")
    return kernel or stem, campaign, hardware or UNKNOWN
