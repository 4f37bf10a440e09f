"""`warm`: compile ahead of a start what the keys that are known will run."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from ..core.figures import as_duration, counted
from ._exit_codes import NOTHING, OK
from ._loading import load_module, without_arguments
from ._parsing import JSON_HELP, Subparsers, add_store_argument, new_parser
from ._store import refuse_file
from .output import print_json, print_table, say, with_progress

if TYPE_CHECKING:
    from ..frontends.warming import Warmed
    from ..settings import Settings
    from ..store.rows import TuningKey

DESCRIPTION = """\
Compile what the keys that were met before will run, ahead of a start that would compile them one after the other: in a new
container, under another toolchain. All keys side by side on all cores, into Triton's cache and the folder of builds.
Nothing is launched.

SCRIPT is a file or a module: the keys of the kernels that it defines or imports. It is imported, as Python imports it,
up to the first kernel it would launch. Without one, or with a STORE's folder: all keys of the hardware here whose kernels
stand in modules that Python finds.

What a key runs is what its first call would: the stored decision, else the best forecast or the default. What cannot be
compiled ahead is listed with the reason. Ctrl-C keeps what is done."""

TELL_EVERY_S = 10.0  # how far it has come, where no bar is shown


def add_parser(subparsers: Subparsers) -> None:
    """Add the verb and its options."""
    parser = new_parser(
        subparsers,
        "warm",
        DESCRIPTION,
        nothing="there was nothing to compile, or something failed or is left to its first launch",
    )
    parser.add_argument("what", nargs="?", metavar="SCRIPT|STORE", help="a script, a module, or a store's folder")
    parser.add_argument(
        "--hardware",
        metavar="H",
        help="hardware with this in its name, which need not be here (default: that of this machine); extensions are "
        "built for what is here alone",
    )
    parser.add_argument("--json", action="store_true", help=JSON_HELP)
    add_store_argument(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Compile, and print what became of each key; NOTHING where nothing was to be compiled, or not all could be."""
    from ..settings import PREFIX, Settings
    from ..store.filesystem import FILE_NAME
    from ..store.queries import StoreFile

    script: str | None = arguments.what
    folder: Path | None = arguments.dir
    if script is not None and (place := Path(script) / FILE_NAME).is_file():
        script, folder = None, place.parent
    with _environment({f"{PREFIX}DIR": None if folder is None else str(folder.absolute())}):
        settings = Settings.from_environment()
        refuse_file(StoreFile(settings.dir))  # where there is none, packs may know of keys
        rows, interrupted = _warm(settings, script, arguments.hardware)
    if arguments.json:
        print_json([_as_json(row) for row in rows])
    elif rows:
        _print(rows)
    results = Counter(row.result for row in rows)
    if rows:
        took = as_duration(sum(row.seconds for row in rows if row.result == "compiled"))
        say(
            f"{counted(results['compiled'], 'config')} compiled, {took} of the compilers' time; {results['there']} there "
            f"before; {results['failed']} failed; {results['left']} left to the first launch"
        )
    if interrupted:
        raise KeyboardInterrupt
    return OK if rows and not results["failed"] and not results["left"] else NOTHING


def _warm(settings: Settings, script: str | None, hardware: str | None) -> tuple[list[Warmed], bool]:
    """What became of the keys, and whether Ctrl-C came before all were done."""
    from ..frontends.warming import (
        BY_FIRST_CALL,
        Warmed,
        count_kernels,
        find_kernels,
        import_kernels_of,
        nothing_launched,
        of_variants,
        warm,
        why_unknown,
    )

    not_imported: dict[str, str] = {}
    name = ""
    # What modules print is no part of the result.
    with contextlib.redirect_stdout(sys.stderr), without_arguments(script or ""), nothing_launched():
        if script is not None:
            before = count_kernels()
            name = load_module(script, "FILE.py", is_enough=lambda _: count_kernels() > before).__name__
        keys = _known_keys(settings, hardware)
        if script is None:
            not_imported = import_kernels_of(keys)
    found, unknown = find_kernels(keys, script=name)
    rows: list[Warmed] = []
    if script is None:
        rows += [Warmed(tuning_key=k, config=None, result="left", why=why_unknown(k, not_imported)) for k in unknown]
    else:
        variants = of_variants(unknown, script=name)
        rows += [Warmed(tuning_key=k, config=None, result="left", why=BY_FIRST_CALL) for k in variants]
    if script is not None and keys and not found and not rows:
        say(f"of the kernels of {script} no key is known: run it once")
    try:
        for row in with_progress(_told(warm(found), len(found)), len(found), "compiling"):
            rows.append(row)  # one by one: what is done when Ctrl-C comes is printed
    except KeyboardInterrupt:
        return rows, True
    return rows, False


def _known_keys(settings: Settings, hardware: str | None) -> list[TuningKey]:
    """The newest call of each key on hardware that is here, or that is named."""
    from ..core.digest import canonical_json
    from ..frontends.inductor.request import is_inductors
    from ..frontends.warming import hardware_present
    from ..remote.coverage import known_here

    present = hardware_present()
    newest: dict[tuple[str, str, str], tuple[float, TuningKey]] = {}
    elsewhere: Counter[str] = Counter()
    inductors = False
    for known in known_here(settings, settings.dir, say):
        tuning_key = known.tuning_key
        if is_inductors(tuning_key.workload.program):
            inductors = True
            continue
        device, program = tuning_key.hardware, tuning_key.workload.program.name
        if device.digest not in present if hardware is None else hardware.lower() not in device.name.lower():
            elsewhere[device.name] += 1
            continue
        key = program, canonical_json(dict(tuning_key.workload.key)), device.digest
        newest[key] = max((known.at, tuning_key), newest.get(key, (0.0, tuning_key)), key=lambda each: each[0])
    if not newest and elsewhere:
        say(f"the keys that are known are of {', '.join(sorted(elsewhere))}: --hardware H compiles for what is named")
    elif not newest and inductors:
        say("the keys that are known are torch.compile's own choices: its caches keep what it has compiled")
    elif not newest:
        say(f"no key is known in {settings.dir}")
    return [tuning_key for _, tuning_key in newest.values()]


def _told(rows: Iterator[Warmed], total: int) -> Iterator[Warmed]:
    """The rows; where no bar is shown, with a line now and then on how far it has come and how long it will take."""
    began = told_at = time.monotonic()
    for count, row in enumerate(rows, start=1):
        yield row
        now = time.monotonic()
        if now - told_at > TELL_EVERY_S and not sys.stderr.isatty():
            told_at = now
            left_s = (now - began) / count * max(0, total - count)
            say(f"{count} of {max(total, count)} done, about {as_duration(left_s)} left")


@contextlib.contextmanager
def _environment(changes: dict[str, str | None]) -> Iterator[None]:
    """The environment with these changes; None leaves a name as it is."""
    before = {name: os.environ.get(name) for name, value in changes.items() if value is not None}
    os.environ.update({name: value for name, value in changes.items() if value is not None})
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _print(rows: list[Warmed]) -> None:
    print_table(
        ("kernel and key", "hardware", "config", "result", "took", "why"),
        [
            (
                str(row.tuning_key.workload),
                row.tuning_key.hardware.name,
                "" if row.config is None else str(row.config),
                row.result,
                as_duration(row.seconds) if row.result == "compiled" else "",
                row.why,
            )
            for row in rows
        ],
        right=("took",),
    )


def _as_json(row: Warmed) -> dict[str, object]:
    tuning_key = row.tuning_key
    return {
        "kernel": tuning_key.workload.program.name,
        "key": dict(tuning_key.workload.key),
        "hardware": tuning_key.hardware.name,
        "config": None if row.config is None else dict(row.config.knobs),
        "result": row.result,
        "why": row.why,
        "seconds": row.seconds,
    }
