"""`forecast`: rank a kernel's configs for a GPU without touching one."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..core.figures import as_duration, as_times
from ..core.model_names import FORMS
from ..errors import MissingExtraError
from ..settings import SURROGATES
from ._exit_codes import OK
from ._loading import load_named
from ._parsing import JSON_HELP, Subparsers, add_store_argument, count, new_parser
from .output import print_facts, print_json, print_table, say

if TYPE_CHECKING:
    from ..core.config import Config
    from ..core.forecast import Abstention, Forecast
    from ..core.hardware import Hardware
    from ..core.outcome import Evidence, Failure
    from ..frontends.triton.offline_forecast import OfflineCall

DEFAULT_TARGET = "cuda:90"

DESCRIPTION = """\
Rank the configs of an autotuned Triton kernel for a GPU that need not be here. Nothing is launched; what the store
knows of the kernel is used, unless FORECAST_AUTOTUNE_MODE is forecast. The module is imported, as Python imports it.

  forecast-autotune forecast kernels.py:matmul --target H100 \\
      --arg a_ptr='float16[4096,4096]' --arg b_ptr='float16[4096,4096]' --arg c_ptr='float16[4096,4096]' \\
      --arg M=4096 --arg N=4096 --arg K=4096 --grid 'cdiv(M,BLOCK_M)*cdiv(N,BLOCK_N)' --compile 8

A forecast is a speed-up against the kernel's first config, with one standard deviation either side, and the chance that
the config does not run. A value is 4096, 1e-5, true, none, text, tl.float16, or a tensor as DTYPE[SHAPE], with strides
as DTYPE[SHAPE]:STRIDES. Nothing in values and grid is executed."""


def add_parser(subparsers: Subparsers) -> None:
    """Add the verb and its options."""
    parser = new_parser(subparsers, "forecast", DESCRIPTION)
    parser.add_argument("kernel", metavar="MODULE:KERNEL", help="a module's name or a .py file, and the kernel in it")
    parser.add_argument("--arg", action="append", default=[], metavar="N=V", help="an argument of the kernel's call")
    parser.add_argument(
        "--target",
        metavar="GPU",
        help="such as H100, 'RTX 4090', cuda:90, hip:gfx942 (default: the GPU here, else cuda:90)",
    )
    parser.add_argument("--grid", metavar="X[,Y[,Z]]", help="the launch grid, computed from arguments and knobs")
    parser.add_argument(
        "--surrogate",
        metavar="S",
        help=f"{', '.join(SURROGATES)}, or a language model ({FORMS}); default: as FORECAST_AUTOTUNE_SURROGATE says",
    )
    parser.add_argument("--compile", type=count, default=0, metavar="N", help="also compile the first N")
    parser.add_argument("--top", type=count, metavar="N", help="show the first N only")
    parser.add_argument("--json", action="store_true", help=JSON_HELP)
    add_store_argument(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Forecast every config and print them ranked.

    Raises:
        InvalidInputError: an argument, the grid or the kernel's name does not parse, the module cannot be imported, or the
            fitted model is none.
    """
    from ._values import read_arguments, read_grid

    grid = None if arguments.grid is None else read_grid(arguments.grid)
    named = read_arguments(arguments.arg)
    kernel = load_named(arguments.kernel, "autotuned kernel", _is_autotuned)
    hardware = _hardware(arguments.target)
    from ..frontends.triton.offline_forecast import OfflineCall

    call = OfflineCall(kernel, named, hardware=hardware, grid=grid)
    if grid is not None:
        grid({**call.call.named, **call.job.space.default.knobs})  # so that what is wrong with it is reported
    if call.note:
        say(call.note)
    ranked = _ranked(call, arguments.dir, arguments.surrogate)
    built = dict(call.compiled([config for config, _ in ranked[: arguments.compile]])) if arguments.compile else {}
    shown = ranked[: max(arguments.top, arguments.compile)] if arguments.top else ranked
    if arguments.json:
        print_json(_as_json(call, shown, built))
    else:
        workload = call.job.workload
        say(f"{workload} on {hardware}: {len(ranked)} configs, the default first listed; nothing was measured")
        _print(call, shown, built)
    return OK


def _is_autotuned(value: Any) -> bool:
    return hasattr(value, "configs") and hasattr(value, "arg_names")


def _hardware(target: str | None) -> Hardware:
    """The GPU that is named, else the one in this machine, else the usual one, with a line that says so."""
    from ..features.hardware_sheets import sheet_for

    if target is not None:
        return sheet_for(target)
    try:
        import torch
        import triton  # noqa: F401  # everything below needs it
    except ImportError as err:
        raise MissingExtraError(
            f"{err.name} is not installed, and a forecast reads kernels with it: pip install {err.name}"
        ) from err
    if torch.cuda.is_available():
        from ..measure.probe import detect_hardware

        return detect_hardware("cuda")
    sheet = sheet_for(DEFAULT_TARGET)
    say(f"there is no GPU here: this is for {DEFAULT_TARGET}, {sheet}; --target names another")
    return sheet


def _ranked(call: OfflineCall, folder: Path | None, named: str | None) -> list[tuple[Config, Forecast | Abstention]]:
    """Forecasts by the surrogate named, else that of the settings, with what the store knows; no store is created."""
    from dataclasses import replace

    from ..frontends.informed import remembering
    from ..remote.fleet_store import open_store
    from ..settings import Settings, check_surrogate
    from ..store.queries import StoreFile
    from ..store.sqlite import SqliteStore
    from ..surrogates.by_name import make_surrogate
    from ..surrogates.learned import check_model

    settings = Settings.from_environment()
    if named is not None:
        check_surrogate(named, "--surrogate", remote_model=settings.remote_model)
    settings = replace(settings, dir=folder or settings.dir, surrogate=named or settings.surrogate)
    surrogate = make_surrogate(settings.surrogate or "auto", answer=settings.answer, model=settings.model)
    check_model(surrogate)
    known = StoreFile(settings.dir).exists() or bool(settings.packs)
    store = open_store(settings) if known else SqliteStore.in_memory()
    return call.ranked(surrogate if settings.mode == "forecast" else remembering(surrogate, store), store)


def _print(
    call: OfflineCall,
    ranked: list[tuple[Config, Forecast | Abstention]],
    built: dict[Config, Evidence | Failure],
) -> None:
    from ..core.config import Config, split_common
    from ..core.forecast import Forecast
    from ..core.layout import terminal_width

    default, sources = call.job.space.default, {forecast.source for _, forecast in ranked}
    common, shown = Config({}), [config for config, _ in ranked]
    if terminal_width(sys.stdout) is not None:  # a pipe gets whole lines
        common, shown = split_common(shown)
        facts = [("forecast by", source) for source in sources if len(sources) == 1]
        print_facts([*facts, *([("all with", _shown(common))] if common.knobs else [])])
    else:
        sources.add("")  # so that each line names its own
    columns = ["rank", "config", "speed-up", "interval", "fails"]
    columns += [name for name, wanted in (("source", len(sources) > 1), ("compiled", bool(built))) if wanted]
    table = []
    for rank, ((config, forecast), knobs) in enumerate(zip(ranked, shown, strict=True), start=1):
        row = [str(rank), _shown(knobs) + (" (default)" if config == default else "")]
        if isinstance(forecast, Forecast):
            low, high = forecast.mean - forecast.sigma, forecast.mean + forecast.sigma
            row += [as_times(forecast.mean), f"{as_times(low)} to {as_times(high)}", f"{forecast.fail_probability:.0%}"]
            row += [forecast.source] if len(sources) > 1 else []
        elif len(sources) > 1:
            row += ["", "", "", f"{forecast.source} abstains: {forecast.reason}"]
        else:
            row += ["", f"abstains: {forecast.reason}", ""]
        table.append([*row, _compiled_words(built.get(config))] if built else row)
    print_table(columns, table, right=("rank", "speed-up", "fails"))


def _shown(config: Config) -> str:
    """A config without the options that it leaves alone."""
    return " ".join(f"{name}={value}" for name, value in config.knobs.items() if value is not None)


def _compiled_words(built: Evidence | Failure | None) -> str:
    from ..core.outcome import Failure

    if built is None:
        return ""
    if isinstance(built, Failure):
        return f"refused at {built.stage}: {built.message}"
    facts = (
        ("registers", built.registers),
        ("B spilled", built.spill_bytes if built.spill_bytes is not None else built.stack_bytes),
        ("B shared", built.shared_bytes),
    )
    return (
        ", ".join(f"{value} {name}" for name, value in facts if value is not None) + f", {as_duration(built.compile_s)}"
    )


def _as_json(
    call: OfflineCall,
    ranked: list[tuple[Config, Forecast | Abstention]],
    built: dict[Config, Evidence | Failure],
) -> dict[str, object]:
    from dataclasses import asdict

    from ..core.forecast import Forecast
    from ..core.outcome import Failure
    from ..features.hardware_sheets import target_of

    def one(rank: int, config: Config, forecast: Forecast | Abstention) -> dict[str, object]:
        row: dict[str, object] = {"rank": rank, "config": dict(config.knobs), "source": forecast.source}
        if isinstance(forecast, Forecast):
            row |= {
                "log2_speedup": forecast.mean,
                "sigma": forecast.sigma,
                "bins": forecast.bins(),
                "fail_probability": forecast.fail_probability,
            }
        else:
            row["abstained"] = forecast.reason
        if (compiled := built.get(config)) is not None:
            row["failure" if isinstance(compiled, Failure) else "evidence"] = {
                name: dict(value) if name == "instructions" else value for name, value in asdict(compiled).items()
            }
        return row

    job = call.job
    return {
        "kernel": job.workload.program.name,
        "key": dict(job.workload.key),
        "hardware": job.hardware.identity,
        "target": target_of(job.hardware),
        "default": dict(job.space.default.knobs),
        "configs": [one(rank, config, forecast) for rank, (config, forecast) in enumerate(ranked, start=1)],
    }
