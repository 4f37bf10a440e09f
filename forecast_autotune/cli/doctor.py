"""`doctor`: does this machine have what tuning needs, and what to do where it does not."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import asdict, dataclass
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from ..core.figures import counted, short
from ..store.explanation.failures_alike import failures_alike
from ._exit_codes import NOTHING, OK
from ._parsing import JSON_HELP, Subparsers, add_store_argument, new_parser
from ._store import store_folder
from .output import print_json, print_table
from .run import add_program_arguments

if TYPE_CHECKING:
    from ..core.decision import Decision
    from ..language.model import LanguageModel
    from ..remote.location import ListedSegment
    from ..settings import PackUrl, RemoteStore
    from ..store.queries import StoreFile
    from ..store.stats import StoreStats

DESCRIPTION = """\
Check compilers, torch, Triton, devices, the store and the settings, and say what to do about each problem.

With a program: run it as `run` does, and list the tuners that lived in it and in the Python processes it started: which
were decided by this package, which were left to Triton or to a package of their own, and why. What the program prints
goes to stderr. Of a process that is killed, or that ends by os._exit as forked workers do, it lists what lived when a
kernel was last launched for the first time."""

RECENT_FAILURES = 200
MAX_TOLD = 10  # decisions for which nothing ran
MIN_FREE_BYTES = 256 << 20
ANSWER_S = 10.0  # for a remote store, or a pack behind a URL, to be read
MODEL_S = 5.0  # for a language model to be found, and again to answer a prompt; loading one may take longer

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What one check found. `note` is worth knowing and needs nothing done; `problem` needs something done."""

    check: str
    status: str  # "ok", "note" or "problem"
    found: str
    advice: str = ""


def add_parser(subparsers: Subparsers) -> None:
    """Add the verb and its options."""
    parser = new_parser(
        subparsers,
        "doctor",
        DESCRIPTION,
        nothing="a problem was found; of a program: it failed, or no tuner was found in it",
    )
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help=JSON_HELP)
    form.add_argument(
        "--bundle",
        metavar="FILE",
        help="write what a bug report needs to a new file, or to stdout (-): versions, settings, findings, last failures "
        "and decisions; no sources, and no secrets as far as they can be told: read it before you send it",
    )
    add_store_argument(parser)
    add_program_arguments(parser)
    parser.usage = f"{parser.prog} [options] [[-m] SCRIPT [ARGS ...]]"
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Print the findings, or write the bundle; a problem gives the exit code NOTHING."""
    if arguments.program or arguments.module:
        from .program_tuners import run_and_list

        return run_and_list(arguments)
    if arguments.bundle is not None:
        from .bundle import write

        return write(arguments.bundle, arguments.dir, lambda: _examine(arguments.dir))
    findings = _examine(arguments.dir)
    if arguments.json:
        print_json([asdict(finding) for finding in findings])
    else:
        print_table(
            ("check", "status", "found", "what to do"),
            [(f.check, f.status, f.found, f.advice) for f in findings],
        )
    return NOTHING if any(f.status == "problem" for f in findings) else OK


def _examine(directory: Path | None) -> list[Finding]:
    return [finding for name, check in _checks(directory) for finding in _safely(name, check)]


def _checks(directory: Path | None) -> list[tuple[str, Callable[[], Iterable[Finding]]]]:
    # Without a folder, and with settings that do not parse, no store's folder is known.
    store = [check_store, check_frozen, check_builds, check_locks] if directory or _settings_parse() else []
    return [
        ("settings", check_settings),
        ("model", check_model),
        ("language model", check_language_model),
        ("compiler", check_compilers),
        ("torch", check_torch),
        ("inductor", check_inductor),
        ("triton", check_triton),
        ("hardware", check_hardware),
        ("store", lambda: chain.from_iterable(check(directory) for check in store)),
    ]


def _settings_parse() -> bool:
    from ..errors import InvalidInputError
    from ..settings import Settings

    try:
        Settings.from_environment(os.environ)
    except InvalidInputError:  # the settings' own check reports it
        return False
    return True


def _safely(name: str, check: Callable[[], Iterable[Finding]]) -> Iterator[Finding]:
    """A check that fails is a finding: a broken torch must not hide what is wrong with the store."""
    try:
        yield from check()
    except Exception as err:
        advice = "mend this first: the check could not be finished"
        yield Finding(check=name, status="problem", found=f"{type(err).__name__}: {err}", advice=advice)


# Checks -----------------------------------------------------------------------------------------------------------------


def check_settings() -> Iterator[Finding]:
    """Whether every FORECAST_AUTOTUNE_* variable is known and parses."""
    from ..errors import InvalidInputError
    from ..settings import Settings, unknown_variables

    for name, meant in unknown_variables().items():
        advice = f"did you mean {meant}?" if meant else "remove it: nothing reads it"
        yield Finding(check="settings", status="problem", found=f"{name} is no setting", advice=advice)
    try:
        settings = Settings.from_environment(os.environ)  # which warns of none that is listed here
    except InvalidInputError as err:
        yield Finding(check="settings", status="problem", found=str(err), advice="set it to one of these, or unset it")
        return
    names = (
        "mode",
        "surrogate",
        "answer",
        "remote_model",
        "isolate",
        "sync",
        "toolchain",
        "inductor",
        "online_cost",
        "online_cpu",
    )
    shown = {name: getattr(settings, name) for name in names}
    shown |= {"remote_model": int(settings.remote_model), "inductor": int(settings.inductor)}
    shown |= {"surrogate": settings.surrogate or "auto", "model": settings.model or "the shipped one"}
    values = ", ".join(f"{name}={value}" for name, value in shown.items())
    yield Finding(check="settings", status="ok", found=f"budget={settings.budget or 'default'}, {values}")
    if settings.remote_store is not None:
        yield _check_remote_store(settings.remote_store)
    for pack in settings.packs:
        yield _check_pack(pack)


def check_model() -> Iterator[Finding]:
    """Whether the fitted model can be read, the shipped one or the one that the settings hold, and which it is."""
    from ..core.text import error_text
    from ..errors import AutotuneError, InvalidInputError
    from ..settings import Settings
    from ..surrogates.prior import SHIPPED, held_prior, shipped_prior

    try:
        held = Settings.from_environment(os.environ).model
    except InvalidInputError:
        return  # the settings' own check reports it
    try:
        model = shipped_prior() if held is None else held_prior(held)
    except (AutotuneError, OSError) as err:
        advice = "keys that are not measured run their first config meanwhile"
        yield Finding(check="model", status="problem", found=error_text(err), advice=advice)
        return
    path = SHIPPED if held is None or held == model.version else held
    yield Finding(check="model", status="ok", found=f"{model.version}: {path}")


def check_language_model() -> Iterator[Finding]:
    """Whether the language model of the settings, where they name one, answers, and how long that takes."""
    import time

    from ..core.model_names import is_language_model
    from ..errors import InvalidInputError, MissingExtraError
    from ..settings import Settings

    try:
        settings = Settings.from_environment()
    except InvalidInputError:
        return  # the settings' own check reports it
    if settings.surrogate is None or not is_language_model(settings.surrogate):
        return
    from ..language.model import ModelError
    from ..language.named import named

    model = named(settings.surrogate)
    began = time.monotonic()
    try:
        model.open(until=began + MODEL_S)
        opened = time.monotonic()
        trouble = _trouble_asking(model, until=opened + MODEL_S)
        took = f"opened in {opened - began:.1f} s, a prompt answered in {time.monotonic() - opened:.1f} s"
    except (ModelError, MissingExtraError) as err:
        trouble, took = str(err), ""
    finally:
        model.close()
    if trouble:
        advice = "mend this; until then forecasts are made without it, as with FORECAST_AUTOTUNE_SURROGATE=auto"
        yield Finding(check="language model", status="problem", found=f"{model.name}: {trouble}", advice=advice)
        return
    slow = opened - began > settings.answer.seconds
    advice = f"FORECAST_AUTOTUNE_ANSWER={settings.answer} is less than it takes to open it: give more" if slow else ""
    yield Finding(check="language model", status="note" if slow else "ok", found=f"{model.name}: {took}", advice=advice)


def _trouble_asking(model: LanguageModel, *, until: float) -> str:
    """Why a model does not answer a prompt of few words; empty if it does."""
    from ..language.answers import from_log_probabilities
    from ..language.model import Unanswered
    from ..language.prompt import Prompt

    for _, reply in model.log_probabilities([Prompt("# Forecast\n", "bin:")], until=until):
        answer = reply if isinstance(reply, Unanswered) else from_log_probabilities(reply)
        return answer.reason if isinstance(answer, Unanswered) else ""
    return f"it gave no answer in {MODEL_S:g} s"


def _check_remote_store(remote: RemoteStore) -> Finding:
    from ..core.text import error_text
    from ..errors import AutotuneError
    from ..remote.location import Location

    try:
        known = _answered(Location(remote.url).hardware, remote)
    except AutotuneError as err:
        advice = "until it can be read, programs know what is known here; what they learn waits and is sent later"
        return Finding(check="remote", status="problem", found=error_text(err), advice=advice)
    return Finding(
        check="remote", status="ok", found=f"{remote}: it knows of {counted(len(known), 'kind')} of hardware"
    )


def _answered(ask: Callable[[], _T], by: RemoteStore | PackUrl) -> _T:
    """What a storage answers: asked in a thread, as the client of one that is silent waits for minutes.

    Raises:
        RemoteStoreError: also where it does not answer in `ANSWER_S`.
    """
    from concurrent.futures import Future, wait
    from threading import Thread

    from ..errors import RemoteStoreError

    answer: Future[_T] = Future()

    def work() -> None:
        try:
            answer.set_result(ask())
        except BaseException as err:  # raised where it is waited for
            answer.set_exception(err)

    Thread(target=work, name="forecast-autotune-doctor", daemon=True).start()
    if not wait([answer], ANSWER_S).done:
        raise RemoteStoreError(f"{by}: no answer in {ANSWER_S:g} s")
    return answer.result()


def _check_pack(pack: Path | PackUrl) -> Finding:
    from ..core.text import error_text
    from ..errors import AutotuneError
    from ..remote.trees import COPY_AGAIN, MANIFEST, missing, read_manifest
    from ..settings import PackUrl
    from ..store.jsonl import read_entries

    try:
        if isinstance(pack, PackUrl):
            named = _answered(lambda: _manifest_at(pack), pack)
            return Finding(check="pack", status="ok", found=f"{pack}: {len(named)} segments")
        if pack.is_dir():
            named = read_manifest((pack / MANIFEST).read_bytes(), str(pack / MANIFEST))
            if lacking := missing(pack, named):
                found = f"{pack} lacks {len(lacking)} of {counted(len(named), 'segment')}, the first {lacking[0].path}"
                return Finding(check="pack", status="problem", found=found, advice=COPY_AGAIN)
            return Finding(check="pack", status="ok", found=f"{pack}: {len(named)} segments")
        entries = read_entries(pack)
    except (OSError, AutotuneError) as err:
        advice = "write it again with 'forecast-autotune export', or take it out of FORECAST_AUTOTUNE_PACKS"
        return Finding(check="pack", status="problem", found=error_text(err), advice=advice)
    return Finding(check="pack", status="ok", found=f"{pack}: {len(entries)} lines")


def _manifest_at(pack: PackUrl) -> list[ListedSegment]:
    from ..remote.location import Location
    from ..remote.trees import MANIFEST, MAX_MANIFEST_BYTES, check_pinned, read_manifest

    location = Location(pack.url)
    check_pinned(pack, location)
    return read_manifest(location.read_file(MANIFEST, MAX_MANIFEST_BYTES), str(pack), digest=pack.digest)


def check_compilers() -> Iterator[Finding]:
    """Whether extensions can be built: a C++ compiler and ninja, and nvcc where CUDA is wanted."""
    import shutil

    from ..measure.probe import compiler_version, nvcc_path

    compiler = os.environ.get("CXX", "c++")
    version = compiler_version(compiler)
    if version == "not found":
        advice = "install one (for example g++), or let CXX name it: load_inline needs it"
        yield Finding(check="compiler", status="problem", found=f"{compiler} cannot be run", advice=advice)
    else:
        yield Finding(check="compiler", status="ok", found=f"{compiler}: {version}")
    nvcc = nvcc_path()
    if nvcc is None:
        advice = "only for load_inline with CUDA sources: install the CUDA toolkit, or set CUDA_HOME"
        yield Finding(check="nvcc", status="note", found="not found", advice=advice)
    else:
        yield Finding(check="nvcc", status="ok", found=f"{nvcc}: {compiler_version(nvcc)}")
    ninja = shutil.which("ninja")
    if ninja is None:
        advice = "pip install ninja, and put the environment's bin folder on PATH"
        yield Finding(check="ninja", status="problem", found="not on PATH", advice=advice)
    else:
        yield Finding(check="ninja", status="ok", found=f"{ninja}: {compiler_version(ninja)}")


def check_torch() -> Iterator[Finding]:
    """Which torch there is, and for which devices it was built."""
    try:
        import torch
    except ImportError as err:
        yield Finding(check="torch", status="problem", found=str(err), advice="pip install torch")
        return
    built = (
        f"CUDA {torch.version.cuda}"
        if torch.version.cuda
        else f"HIP {torch.version.hip}"
        if torch.version.hip
        else "CPU"
    )
    yield Finding(check="torch", status="ok", found=f"{torch.__version__}, built for {built}")


def check_inductor() -> Iterator[Finding]:
    """Whether Inductor's own candidates are to be narrowed, and if so, whether this torch is known."""
    from importlib.util import find_spec

    from ..settings import wants_inductor

    if find_spec("torch") is None:
        return
    if not wants_inductor():
        found, advice = "it lists its own candidates", "FORECAST_AUTOTUNE_INDUCTOR=1 has install() narrow them"
        yield Finding(check="inductor", status="ok", found=found, advice=advice)
        return
    from ..frontends.inductor.choices import why_unknown

    if why := why_unknown():
        advice = "torch.compile chooses as ever: unset FORECAST_AUTOTUNE_INDUCTOR, or take a torch that is known here"
        yield Finding(check="inductor", status="problem", found=why, advice=advice)
    else:
        yield Finding(check="inductor", status="ok", found="its candidates are narrowed wherever install() is called")
        yield from _check_inductors_gpus()


def _check_inductors_gpus() -> Iterator[Finding]:
    """GPUs with so few units that Inductor lists none of its templates for products: there is nothing to choose."""
    import torch
    from torch._inductor.utils import is_big_gpu

    small = [i for i in range(torch.cuda.device_count()) if not is_big_gpu(i)] if torch.cuda.is_available() else []
    if small:
        found = f"for GPU {', '.join(map(str, small))} Inductor lists the library's functions alone: too few units"
        yield Finding(check="inductor", status="note", found=found, advice="products run on the library, as without us")


def check_triton() -> Iterator[Finding]:
    """Whether Triton is there once: two distributions that bring it overwrite each other's files."""
    from importlib.metadata import packages_distributions, version

    providers = sorted(set(packages_distributions().get("triton", [])))
    yield triton_finding({name: version(name) for name in providers})


def triton_finding(providers: Mapping[str, str]) -> Finding:
    """What it means that these distributions, with their versions, bring a package named triton."""
    brought = ", ".join(f"{name} {version}" for name, version in providers.items())
    if not providers:
        advice = "only for Triton kernels: pip install triton (Linux)"
        return Finding(check="triton", status="note", found="not installed", advice=advice)
    if len(providers) > 1:
        others = " ".join(name for name in providers if name != "triton")
        advice = (
            "one has overwritten files of the other. Keep the one that your torch needs: "
            f"pip uninstall -y {' '.join(providers)}, then install again {others if others else 'triton'}"
        )
        return Finding(check="triton", status="problem", found=f"brought by {brought}", advice=advice)
    return Finding(check="triton", status="ok", found=brought)


def check_hardware() -> Iterator[Finding]:
    """Which devices decisions would be made for."""
    from ..measure.probe import detect_hardware

    yield Finding(check="cpu", status="ok", found=str(detect_hardware("cpu")))
    import torch

    if not torch.cuda.is_available():
        built = torch.version.cuda or torch.version.hip
        advice = "check the driver (nvidia-smi, rocm-smi) and CUDA_VISIBLE_DEVICES" if built else ""
        yield Finding(check="gpu", status="note", found="torch sees none", advice=advice)
        return
    for index in range(torch.cuda.device_count()):
        yield Finding(check="gpu", status="ok", found=f"cuda:{index}: {detect_hardware(f'cuda:{index}')}")


def check_store(directory: Path | None) -> Iterator[Finding]:
    """Whether the store can be opened and written to, and on what kind of filesystem it lies."""
    from ..errors import StoreError
    from ..store import filesystem
    from ..store.queries import StoreFile

    folder = store_folder(directory)
    store = StoreFile(folder)
    kind = filesystem.filesystem_type(folder) or "unknown"
    network = filesystem.on_network(folder)
    filesystem_text = f"{kind}, a network filesystem: rollback journal" if network else kind
    yield Finding(check="filesystem", status="note" if network else "ok", found=filesystem_text)
    writable = _first_existing(folder)
    if not writable.is_dir():
        advice = "let FORECAST_AUTOTUNE_DIR name a folder; until then all is kept in memory alone"
        found = f"{writable} is a file, and a store is a folder"
        yield Finding(check="store", status="problem", found=found, advice=advice)
        return
    if not os.access(writable, os.W_OK):
        advice = "let FORECAST_AUTOTUNE_DIR name a folder you may write to; until then all is kept in memory alone"
        yield Finding(check="store", status="problem", found=f"{writable} cannot be written to", advice=advice)
    if not store.exists():
        yield Finding(
            check="store", status="note", found=f"none yet at {store.path}", advice="the first tuning run makes it"
        )
        return
    try:
        problems = store.check()
        stats = store.stats()
    except StoreError as err:
        yield Finding(check="store", status="problem", found=str(err), advice="see the message")
        return
    if problems:
        advice = "run 'forecast-autotune export', move the file away, and import again"
        yield Finding(check="store", status="problem", found=f"{store.path}: {problems[0]}", advice=advice)
    if not os.access(store.path, os.W_OK):
        advice = f"chmod u+w {store.path}; until then what is learned is kept in memory alone"
        yield Finding(check="store", status="problem", found=f"{store.path} cannot be written to", advice=advice)
    if os.name == "posix" and os.stat(store.path).st_mode & 0o022:
        advice = f"chmod go-w {store.path}: what it says decides which code you run"
        yield Finding(check="store", status="problem", found=f"others may write to {store.path}", advice=advice)
    if stats.unreadable:
        advice = "'forecast-autotune clear --kernel K' removes a kernel's rows"
        yield Finding(check="store", status="problem", found=f"{stats.unreadable} rows cannot be read", advice=advice)
    yield from _check_failures(store, stats)
    for aside in sorted(folder.glob(f"{filesystem.FILE_NAME}.corrupt-*")):
        if not aside.name.endswith(filesystem.COMPANIONS):
            advice = "remove it once you do not want to look into it any more"
            yield Finding(check="store", status="note", found=f"{aside.name} was set aside as broken", advice=advice)
    size, decisions = f"{stats.size_bytes / 2**10:.0f} KiB", sum(stats.decisions.values())
    summary = f"{store.path}: {size}, schema {stats.schema}, journal {stats.journal}, {decisions} decisions"
    yield Finding(check="store", status="ok", found=summary)


def _check_failures(store: StoreFile, stats: StoreStats) -> Iterator[Finding]:
    """What tuning met in this store that somebody may want to see to."""
    if stats.pending:
        advice = "'forecast-autotune pending' names them, 'forecast-autotune tune-pending SCRIPT' measures them"
        yield Finding(check="pending", status="note", found=f"{stats.pending} keys wait to be measured", advice=advice)
    recent = store.failures(limit=RECENT_FAILURES)
    for alike in failures_alike((program.name, failure) for program, _, failure, _ in recent):
        summary = f"{alike.count} at {alike.stage}, of {', '.join(alike.of[:3])}, last: {alike.message[:200]}"
        yield Finding(check="failures", status="note", found=summary, advice=f"{alike.follows}; {alike.advice}")
    with closing(store.each_decision()) as decisions:
        nothing_ran = [*islice((s for s in decisions if _nothing_ran(s.decision)), MAX_TOLD)]
    for stored in nothing_ran:
        summary = f"{stored.tuning_key.workload}: the first config is run, {stored.decision.reason}"
        advice = f"'forecast-autotune show {short(stored.digest)}' tells how each failed"
        yield Finding(check="decision", status="problem", found=summary, advice=advice)


def _nothing_ran(decision: Decision) -> bool:
    return decision.basis == "default" and decision.config_us is None and decision.failed > 0


def check_frozen(directory: Path | None) -> Iterator[Finding]:
    """Whether programs in mode online may try nothing."""
    from ..store.frozen import is_frozen

    folder = store_folder(directory)
    if is_frozen(folder):
        found = f"programs with the store in {folder} explore nothing"
        advice = "'forecast-autotune freeze --undo' lets them explore again"
        yield Finding(check="frozen", status="note", found=found, advice=advice)


def check_builds(directory: Path | None) -> Iterator[Finding]:
    """Whether extensions can be built into their folder, and only this user can write to it."""
    import shutil

    folder = store_folder(directory) / "builds"
    if not folder.is_dir():
        return
    if not os.access(folder, os.W_OK | os.X_OK):
        advice = f"chmod u+rwx {folder}; until then no variant of load_inline is built"
        yield Finding(check="builds", status="problem", found=f"{folder} cannot be written to", advice=advice)
    elif os.name == "posix" and folder.stat().st_mode & 0o022:
        advice = f"chmod go-w {folder}: what is built there is loaded into your programs"
        yield Finding(check="builds", status="problem", found=f"others may write to {folder}", advice=advice)
    if (free := shutil.disk_usage(folder).free) < MIN_FREE_BYTES:
        advice = (
            "make room: a variant takes up to 100 MiB while it is built; 'forecast-autotune prune' removes old ones"
        )
        yield Finding(check="builds", status="problem", found=f"{free >> 20} MiB are free for {folder}", advice=advice)


def check_locks(directory: Path | None) -> Iterator[Finding]:
    """Whether somebody is tuning now, for whom others wait; a lock is free as soon as its process is gone."""
    folder = store_folder(directory)
    if held := sum(map(_is_held, folder.glob("locks/*"))):
        advice = "nothing, if it goes on; of a process that hangs, end that one: its locks are free at once"
        yield Finding(
            check="locks", status="note", found=f"{held} held by live processes, which tune now", advice=advice
        )


def _is_held(lock: Path) -> bool:
    import fcntl

    try:
        file = os.open(lock, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)  # a pipe in its place is not waited for
    except OSError:
        return False
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    finally:
        os.close(file)
    return False


def _first_existing(folder: Path) -> Path:
    for path in (folder, *folder.absolute().parents):
        if path.exists():
            return path
    return folder
