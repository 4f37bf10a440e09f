"""Tune a real kernel by what a language model says of it: `python -m kernel_suite.lm_demo`."""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from forecast_autotune.core.config import Config
from forecast_autotune.core.context import ForecastContext
from forecast_autotune.core.decision import Decision
from forecast_autotune.core.forecast import Abstention, Forecast, bin_of
from forecast_autotune.core.job import log2_speedups
from forecast_autotune.core.outcome import Measurement, Outcome
from forecast_autotune.core.space import Space
from forecast_autotune.errors import AutotuneError
from forecast_autotune.frontends.informed import remembering
from forecast_autotune.language.named import named
from forecast_autotune.remote.fleet_store import open_store
from forecast_autotune.settings import PREFIX, Settings
from forecast_autotune.surrogates.language_model import LanguageModelSurrogate

from .conv2d import KERNEL

OUR_MODEL = Path(__file__).parents[2] / "calibration" / "forecaster"
BUDGET = "8"
CASE = "middle_layer"
START_S = 240.0
REPORT_EVERY_S = 5.0

# Of each algorithm some: all can be built and timed in a minute.
SPACE = Space(
    [
        config
        for config in KERNEL.space
        if config["ORDER"] == "PIXELS_OUTER"
        and config["BLOCK_C"] == 64
        and config["FEATURES"] in (1, 4, 8)
        and config["VECTORS"] in (1, 2)
    ],
    default={**KERNEL.space.default.knobs, "ORDER": "PIXELS_OUTER"},
    roles=KERNEL.space.roles,
)
TOLD_KNOBS = [knob for knob in SPACE.knobs if len({config[knob] for config in SPACE}) > 1]

BINS = ("up to 1/4", "1/4 to 1/2", "1/2 to 0.71", "0.71 to 1", "1 to 1.41", "1.41 to 2", "2 to 4", "above 4")
BARS = "▁▂▃▄▅▆▇█"


class DemoError(Exception):
    """The demo cannot go on; the message says why and what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuned:
    """What one run of tuning came to: what the model said of each config, what was measured, what was decided."""

    answers: Mapping[Config, Forecast | Abstention]
    outcomes: Mapping[Config, Outcome]
    decision: Decision

    @property
    def forecasts(self) -> dict[Config, Forecast]:
        """Those of configs that the model was asked about: that the default is as fast as itself it was not."""
        return {c: f for c, f in self.answers.items() if isinstance(f, Forecast) and c != SPACE.default}

    @property
    def abstentions(self) -> list[Abstention]:
        return [a for a in self.answers.values() if isinstance(a, Abstention)]


def main(argv: Sequence[str] | None = None) -> int:
    """Serve a model, tune by it, compare with measuring everything; the last line is JSON."""
    parser = argparse.ArgumentParser(prog="make lm-demo", description=main.__doc__)
    parser.add_argument("--model", type=Path, default=OUR_MODEL, metavar="FOLDER", help="a model that vLLM can serve")
    model: Path = parser.parse_args(argv).model
    try:
        with tempfile.TemporaryDirectory(prefix="forecast_autotune_") as folder:
            result = run(model, Path(folder))
    except KeyboardInterrupt:
        print("\nEnded before its time; the server is stopped.", file=sys.stderr)
        return 130
    except (DemoError, AutotuneError) as err:
        print(f"make lm-demo: {err}", file=sys.stderr)
        return 1
    print(json.dumps(result))
    return 0


def run(model: Path, folder: Path) -> dict[str, object]:
    """The whole demo, its files in a folder; returns what the last line tells."""
    import torch

    case = next(c for c in KERNEL.cases if c.name == CASE)
    inputs = KERNEL.make_inputs(case, 0)
    builds = Settings.from_environment().dir / "builds"  # kept, for they are the same whoever tunes
    sizes = ", ".join(f"{name} {size}" for name, size in case.sizes.items())
    print(f"A float32 convolution in C++ ({sizes}), {len(SPACE)} configs of three algorithms, budget {BUDGET}.")
    print(f"The model in {model} forecasts them.")
    if model == OUR_MODEL:
        print("It has learned from kernels on GPUs alone and has seen no CPU: what it says here is a guess from afar.")
    with served(model, folder / "server.log") as url:
        print("\nTuning by what it says.", flush=True)
        if not (builds / f"kernel_suite_{KERNEL.name}").exists():
            print("The first build compiles torch's headers once, about half a minute; later ones take a second.")
        tuned = tune(inputs, builds, folder / "tuned", budget=BUDGET, surrogate=url)
    torch.testing.assert_close(inputs[-1], KERNEL.reference(*inputs), rtol=KERNEL.rtol, atol=KERNEL.atol)
    if not tuned.forecasts:
        raise DemoError(f"the model answered nothing: {tuned.abstentions[0].reason}")
    tell(tuned)
    print(f"\nMeasuring all {len(SPACE)}, to compare; the server is stopped.", flush=True)
    everything = tune(inputs, builds, folder / "everything", budget="all", surrogate="auto")
    # Minutes lie between the two runs, and another program may have begun or ended: what they chose is timed side by side.
    chosen = Space([SPACE.default, everything.decision.config, tuned.decision.config], roles=SPACE.roles)
    again = tune(inputs, builds, folder / "again", space=chosen, budget="all", surrogate="auto")
    slowdown = compare(tuned, everything, again)
    return {
        "model": str(model),
        "forecasts": len(tuned.forecasts),
        "abstentions": len(tuned.abstentions),
        "measured": tuned.decision.tried,
        "slowdown_vs_exhaustive": round(slowdown, 4),
    }


def tune(
    inputs: tuple[Any, ...], builds: Path, store: Path, *, space: Space = SPACE, budget: str, surrogate: str
) -> Tuned:
    """Call the kernel for the first time, with a store of its own."""
    chosen = {"DIR": str(store), "BUDGET": budget, "SURROGATE": surrogate, "MODE": "tune", "PACKS": ""}
    os.environ.update({PREFIX + name: value for name, value in chosen.items()})
    # On two cores that others used too, a model of 16 million weights took 6 s; on slower ones, too, it shall be heard.
    os.environ.setdefault(f"{PREFIX}ANSWER", "logits,60s")
    function: Any = KERNEL.tuned(space=space, build_directory=str(builds))
    function(*inputs)
    job, settings = function.tuned.job(inputs), Settings.from_environment()
    if not function.decisions:
        raise DemoError("the kernel could not be tuned; the warning above says why")
    answers: dict[Config, Forecast | Abstention] = {}
    if surrogate != "auto":  # asked again, it says what it said: its answers are kept in the store
        model = LanguageModelSurrogate(named(surrogate), answer=settings.answer.form, seconds=settings.answer.seconds)
        answer = remembering(model, open_store(settings)).start(ForecastContext(job=job)).predict({}, {})
        answers = dict(zip(space, answer, strict=True))
    (decision,) = function.decisions.values()
    return Tuned(answers=answers, outcomes=function.tuned.outcomes(inputs), decision=decision)


def tell(tuned: Tuned) -> None:
    """Print what the model said of the configs that were measured, what came out, and what was decided."""
    measured = log2_speedups(tuned.outcomes, SPACE.default)
    width = max(len(_text(c)) for c in SPACE)
    print(f"It forecast {len(tuned.forecasts)} configs and abstained from {len(tuned.abstentions)}.")
    print(
        "Of those then measured, how likely each bin of speed-up over the default was to it, from up to 1/4 to above 4:"
    )
    for config in sorted(measured.keys() & tuned.forecasts.keys(), key=lambda c: -tuned.forecasts[c].mean):
        bins = tuned.forecasts[config].bins()
        likeliest = bins.index(max(bins))
        bar = "".join(BARS[min(7, int(8 * p))] for p in bins)
        hit = "so it was" if bin_of(measured[config]) == likeliest else "not so"
        print(
            f"  {_text(config):{width}}  {bar}  {BINS[likeliest]:>11} ({bins[likeliest]:3.0%} sure)"
            f"   measured {2 ** measured[config]:.2f}x: {hit}"
        )
    decision = tuned.decision
    print(f"Decided: {_text(decision.config)}, {decision.speedup or 1:.2f}x the default's speed")
    print(f"  why     {decision.reason}")
    print(f"  effort  {decision.compiled} built, {decision.tried} timed, {decision.spent_s:.1f} s")


def compare(tuned: Tuned, everything: Tuned, again: Tuned) -> float:
    """Print how a decision and the forecasts hold against measuring everything; returns the slow-down of the decided.

    `again` has the times of what both chose and of the default, side by side.
    """
    decided, best = tuned.decision.config, everything.decision.config
    times_us = {c: o.median_us for c, o in again.outcomes.items() if isinstance(o, Measurement)}
    for config in (SPACE.default, decided, best):
        if config not in times_us:
            raise DemoError(f"{_text(config)} ran before and then failed, and there is nothing to compare: try again")
    slowdown = times_us[decided] / times_us[best]
    print(f"  effort  {everything.decision.tried} timed, {everything.decision.spent_s:.1f} s")
    print("What each chose, timed once more, side by side:")
    print(f"  all measured  {times_us[best]:9.1f} us   {_text(best)}")
    print(
        f"  {tuned.decision.tried} measured    {times_us[decided]:9.1f} us   {_text(decided)}, {slowdown:.3f} times that"
    )
    print(f"  the default   {times_us[SPACE.default]:9.1f} us")
    measured = {c: bin_of(s) for c, s in log2_speedups(everything.outcomes, SPACE.default).items()}
    likeliest = {c: f.bins().index(max(f.bins())) for c, f in tuned.forecasts.items() if c in measured}
    right = sum(measured[c] == b for c, b in likeliest.items())
    commonest = max(sum(measured[c] == b for c in likeliest) for b in range(8))
    print(f"The bin that the model held for the likeliest was right for {right} of {len(likeliest)} configs;")
    print(f"to name the commonest bin for all would have been right for {commonest}.")
    return slowdown


def _text(config: Config) -> str:
    """A config by the knobs that differ, as one writes an algorithm."""
    algorithm, *others = TOLD_KNOBS
    return f"{config[algorithm]} {' '.join(f'{knob}={config[knob]}' for knob in others)}"


# Serving ----------------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def served(model: Path, log: Path) -> Iterator[str]:
    """Serve a model with vLLM, to this machine alone: its URL, once it answers. The server does not outlive the block."""
    if not (model / "config.json").is_file():
        raise DemoError(f"there is no model in {model}: name a folder in Hugging Face's format with --model FOLDER")
    if importlib.util.find_spec("vllm") is None:
        raise DemoError(f"vLLM is not installed for {sys.executable}: 'make lm-demo' makes an environment that has it")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", str(model)]
    command += ["--host", "127.0.0.1", "--port", str(port), "--dtype", "float32", "--enforce-eager", "--seed", "0"]
    command += ["--structured-outputs-config", '{"backend":"xgrammar","disable_any_whitespace":true}']
    environment = {**os.environ, "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1"}
    with log.open("wb") as out:
        process = subprocess.Popen(command, stdout=out, stderr=out, env=environment, start_new_session=True)
    url = f"http://127.0.0.1:{port}"
    try:
        _await_health(url, process, log)
        yield url
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # its children, too, which would not all hear a gentler word
        process.wait()


def _await_health(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    import httpx

    print(f"vLLM begins to serve it at {url}; that takes 15 to 40 seconds.", flush=True)
    began = reported = time.monotonic()
    with httpx.Client(trust_env=False, timeout=2) as client:
        while True:
            now = time.monotonic()
            if process.poll() is not None or now - began > START_S:
                end = "ended" if process.poll() is not None else f"does not answer after {START_S:.0f} s"
                raise DemoError(f"vLLM {end}; it last said:\n{log.read_text(errors='replace')[-2000:]}")
            with contextlib.suppress(httpx.HTTPError):
                if client.get(f"{url}/health").status_code == 200:
                    break
            if now - reported >= REPORT_EVERY_S:
                print(f"  {now - began:3.0f} s", flush=True)
                reported = now
            time.sleep(0.2)
    print(f"  it answers after {time.monotonic() - began:.0f} s", flush=True)


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    for ends in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(ends, _interrupt)  # or the server would outlive this process
    sys.exit(main())
