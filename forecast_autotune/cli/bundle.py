"""`doctor --bundle`: what a bug report needs to say of this machine, its settings and its store, and no secret of it."""

from __future__ import annotations

import contextlib
import json
import os
import re
import sys
from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ._exit_codes import OK
from .output import say

if TYPE_CHECKING:
    from ..core.config import Config
    from .doctor import Finding

LAST = 50  # failures and decisions, the newest
PACKAGES = ("torch", "triton", "pytorch-triton-rocm", "numpy", "scikit-learn", "vllm", "transformers", "ninja")
CONTENTS = (
    "versions, settings, hardware, doctor's findings, counts of the store, its last failures and decisions. Of these: "
    "kernels' names, knobs with numbers and single plain words as values, times, and of sentences the numbers and the words "
    "that this package uses itself. Not in it: sources, arguments, keys of decisions, values of other variables, paths, "
    "addresses, names of user and machine. A secret that is a number or a common word, or the name of a kernel or a knob, "
    "cannot be told from any other: read it before you send it"
)

HIDDEN = "…"
_ADDRESS = re.compile(r"\b([a-zA-Z][a-zA-Z0-9+.-]*)://([^\s'\"]*)|[^\s'\"]*[/\\][^\s'\"]*")  # or a path
_MAIL = re.compile(r"[\w.+-]+@[\w.-]+")
_QUOTED = re.compile(r"'[^']*'|\"[^\"]*\"|`[^`']*['`]|[\u2018\u201c\u00ab][^\u2019\u201d\u00bb]*[\u2019\u201d\u00bb]")
# Up to the end of the line: a pass phrase has several words.
_SECRET = re.compile(
    r"(?i)[\w-]*(?:token(?!s\b)|secret|passw|passphrase|pwd|credential|bearer|auth|dsn|key\s*[=:]|--\w*(?:pass|key)).*"
)
_LONG = re.compile(r"(?=[A-Za-z]*\d)[A-Za-z0-9]{16,}|[A-Za-z0-9]{20,}|(?=[\w+=-]*\d)(?=\w*[+=-])[\w+=-]{20,}")
_TELLING = re.compile(r"TOKEN|SECRET|PASS|PWD|KEY|AUTH|DSN|CREDENTIAL", re.IGNORECASE)
_LOCAL = re.compile(r"(?:localhost|127\.[\d.]+|\[::1\])(?::\d+)?")
_NAME = re.compile(r"[A-Za-z_][\w.]{0,60}")
_PLAIN = re.compile(r"[A-Za-z0-9_]{1,20}")
_NUMBER = re.compile(r"\d{1,10}")
_OTHERS_WORDS = """
    access accelerator address aligned alignment allocate ambiguous argument assertion bad barrier base bytes
    calledprocesserror compilationerror constraint conversion cooperative cuda cuda_error_illegal_address
    cuda_error_out_of_memory cudnn declared definition device directory does duplicate encountered error exceed
    exceeds executable expected failed fatal file hip hiperror illegal illegaladdress image incompatible index
    initializer instruction internal invalid kernel kernels ld linker local matching memory misaligned missing
    multiple name no nvcc object of operand operands operation out outofmemoryerror outofresources overflow parameter
    parse peer permission pointer ptxas ptxaserror reference register registers requested required resource resources
    returned runtime scope segmentation shape shared signal size stack static status such symbol syntax template too
    triton type types undeclared undefined unexpected unknown unresolved unspecified unsupported unterminated use
    value variable version warp
"""
# Checks of doctor that repeat messages and keys; the bundle has these in other parts
_OF_KERNELS = ("failures", "decision")


def write(target: str, directory: Path | None, examine: Callable[[], Sequence[Finding]]) -> int:
    """Write the bundle to a new file of this user's alone, or to stdout where the target is `-`.

    Raises:
        InvalidInputError: something stands there already.
        OSError: it cannot be written.
    """
    from ..errors import InvalidInputError

    def text() -> str:
        return json.dumps(collect(directory, examine()), indent=2) + "\n"

    if target == "-":
        sys.stdout.write(text())
        return OK
    try:
        number = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)  # which follows no link
    except FileExistsError:
        raise InvalidInputError(f"{target} is there already, and is not written over: name a new file") from None
    try:
        with os.fdopen(number, "w", encoding="utf-8") as file:
            file.write(text())
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(target)
        raise
    say(f"wrote {target}: {CONTENTS}")
    return OK


def collect(directory: Path | None, findings: Sequence[Finding]) -> dict[str, Any]:
    """The whole bundle as JSON values; a part that cannot be collected says why."""
    parts: dict[str, Callable[[], Any]] = {
        "contents": lambda: CONTENTS,
        "versions": _versions,
        "settings": _settings,
        "unknown_settings": _unknown_settings,
        "hardware": _hardware,
        "findings": lambda: [_finding(finding) for finding in findings if finding.check not in _OF_KERNELS],
    }
    return {name: _or_why_not(part) for name, part in {**parts, "store": lambda: _store(directory)}.items()}


def _or_why_not(part: Callable[[], Any]) -> Any:
    try:
        return part()
    except Exception as err:
        return {"missing": sentence(f"{type(err).__name__}: {err}")}


# Without secrets --------------------------------------------------------------------------------------------------------


def sentence(text: str, source: str = "") -> str:
    """The first line of a message, with only numbers and known words left.

    A message may quote anything, so the words that may pass are listed, not those that may not: this package's own and those
    of compilers, without the words of `source`.
    """
    line = _QUOTED.sub(HIDDEN, _without_secrets((text.splitlines() or [""])[0][:300]))
    of_the_source = {word.lower() for word in re.findall(r"[A-Za-z_]\w{2,}", source) if not word.endswith("Error")}
    words = (_vocabulary() - of_the_source).union(_OTHERS_WORDS.split())

    def known(word: re.Match[str]) -> str:
        return word[0] if _NUMBER.fullmatch(word[0]) or word[0].lower() in words else HIDDEN

    return re.sub(r"\w+", known, line)


def private(text: str) -> str:
    """The name or version of something public, without what looks like a secret."""
    return _LONG.sub(HIDDEN, _without_secrets(text))


def name(text: str) -> str:
    """The name of a kernel or a knob; hidden where it does not look like a name."""
    return text if _NAME.fullmatch(text) and text == _LONG.sub(HIDDEN, _without_names(text)) else HIDDEN


def knob(value: object) -> Any:
    """The value of a knob: a number or a short plain word; anything else is hidden."""
    if value is None or isinstance(value, (bool, int, float)):
        return value
    text = str(value)
    return text if _PLAIN.fullmatch(text) and text == private(text) else HIDDEN


def place(path: Path) -> str:
    """A path, of which only whether it lies in the home folder is shown."""
    return f"~/{HIDDEN}" if path.is_absolute() and _without_names(str(path)).startswith("~") else HIDDEN


def _config(config: Config) -> dict[str, Any]:
    return {
        name(each): HIDDEN if isinstance(value, str) and _TELLING.search(each) else knob(value)
        for each, value in config.knobs.items()
    }


def _without_secrets(text: str) -> str:
    text = _without_names(text)
    for pattern, instead in ((_ADDRESS, _host_alone), (_MAIL, HIDDEN), (_SECRET, HIDDEN)):
        text = pattern.sub(instead, text)
    return text


def _host_alone(match: re.Match[str]) -> str:
    """An address of this machine without credentials, path and query; of others and of paths nothing."""
    host = re.split("[/?#]", match[2] or "")[0]
    return f"{match[1]}://{host}" if _LOCAL.fullmatch(host) else HIDDEN


def _without_names(text: str) -> str:
    import getpass
    import platform

    homes = {os.path.expanduser("~"), os.path.realpath(os.path.expanduser("~"))}
    for home in sorted(homes - {"/", "~", ""}, key=len, reverse=True):
        text = re.sub(rf"{re.escape(home)}(?=/|\W|$)", "~", text)
    telling = [value for variable, value in os.environ.items() if _TELLING.search(variable) and len(value) >= 6]
    for value in sorted(telling, key=len, reverse=True):
        text = text.replace(value, HIDDEN)
    with contextlib.suppress(KeyError, OSError, ImportError):  # a user without a name
        text = re.sub(rf"(?<![A-Za-z0-9]){re.escape(getpass.getuser())}(?![A-Za-z0-9])", "USER", text)
    if node := platform.node():
        text = re.sub(rf"(?<![A-Za-z0-9]){re.escape(node)}(?:\.[\w-]+)*(?![A-Za-z0-9])", "HOST", text)
    return text


@lru_cache(maxsize=1)
def _vocabulary() -> frozenset[str]:
    """Words of this package's files, of Python's errors, and of what compilers and devices say; none of a user's."""
    import builtins

    ours = "".join(path.read_text(encoding="utf-8") for path in Path(__file__).parents[1].rglob("*.py"))
    return frozenset(re.findall(r"\w+", f"{ours} {' '.join(dir(builtins))} user host".lower()))


# Parts ------------------------------------------------------------------------------------------------------------------


def _versions() -> dict[str, str]:
    import platform
    from importlib.metadata import PackageNotFoundError, version

    from ..measure.probe import compiler_version, nvcc_path

    versions = {"python": platform.python_version(), "system": platform.system(), "machine": platform.machine()}
    versions["kernel"] = re.split("[^0-9.]", platform.release())[0]  # what follows may be the name of whose it is
    versions["libc"] = " ".join(platform.libc_ver())
    for package in ("forecast_autotune", *PACKAGES):
        with contextlib.suppress(PackageNotFoundError):
            versions[package] = version(package)
    versions["compiler"] = compiler_version(os.environ.get("CXX", "c++"))
    if (nvcc := nvcc_path()) is not None:
        versions["nvcc"] = compiler_version(nvcc)
    with contextlib.suppress(OSError):
        versions["driver"] = Path("/proc/driver/nvidia/version").read_text().partition("\n")[0]
    return {of: private(version) for of, version in versions.items()}


def _finding(finding: Finding) -> dict[str, str]:
    return {
        "check": finding.check,
        "status": finding.status,
        "found": sentence(finding.found),
        "advice": sentence(finding.advice),
    }


def _settings() -> dict[str, Any]:
    from dataclasses import fields
    from functools import partial

    from ..settings import Settings

    return {f.name: _as_text(_or_why_not(partial(_setting, f.name))) for f in fields(Settings)}


def _setting(name: str) -> Any:
    """One setting as the environment has it, even where another does not parse."""
    from ..settings import PREFIX, Settings, remote_model_permission

    variable = PREFIX + name.upper()
    environment = remote_model_permission() | {n: v for n, v in os.environ.items() if n == variable}
    return getattr(Settings.from_environment(environment), name)


def _as_text(value: object) -> Any:
    if value is None or isinstance(value, (bool, dict)):  # a dict says why there is none
        return value
    if isinstance(value, tuple):
        return [_as_text(each) for each in value]
    return place(value) if isinstance(value, Path) else sentence(str(value))


def _unknown_settings() -> list[str]:
    from ..settings import unknown_variables

    return [private(variable) for variable in unknown_variables()]


def _hardware() -> list[str]:
    from ..measure.probe import detect_hardware

    devices = [private(str(detect_hardware("cpu")))]
    with contextlib.suppress(ImportError):
        import torch

        devices += [private(str(detect_hardware(f"cuda:{index}"))) for index in range(torch.cuda.device_count())]
    return devices


def _store(directory: Path | None) -> dict[str, Any]:
    from ..store import filesystem
    from ..store.queries import StoreFile

    folder = directory if directory is not None else _setting("dir")
    store = StoreFile(folder)
    facts: dict[str, Any] = {"path": place(store.path), "filesystem": filesystem.filesystem_type(folder)}
    facts["set_aside"] = sum(1 for _ in folder.glob(f"{filesystem.FILE_NAME}.corrupt-*"))
    if not store.exists():
        return facts
    facts["size_bytes"] = store.size_bytes()
    facts["counts"] = _or_why_not(lambda: _counts(store))
    facts["decisions"] = _or_why_not(lambda: _decisions(store))
    facts["failures"] = _or_why_not(lambda: _failures(store))
    return facts


def _counts(store: Any) -> dict[str, Any]:
    stats = store.stats()
    names = ("schema", "journal", "programs", "workloads", "decisions", "superseded", "measurements", "failures")
    more = ("forecasts", "abstentions", "hits", "pending", "answers", "spent_s", "unreadable")
    return {name: getattr(stats, name) for name in (*names, *more)}


def _decisions(store: Any) -> list[dict[str, Any]]:
    return [
        {
            "program": name(stored.tuning_key.workload.program.name),
            "hardware": private(stored.tuning_key.hardware.name),
            "config": _config(stored.decision.config),
            "basis": sentence(stored.decision.basis),
            "reason": sentence(stored.decision.reason, stored.tuning_key.workload.program.source),
            "budget": sentence(stored.decision.budget, stored.tuning_key.workload.program.source),
            "space_size": stored.decision.space_size,
            "measured": stored.decision.tried,
            "failed": stored.decision.failed,
            "spent_s": stored.decision.spent_s,
            "decided_at": stored.decision.decided_at,
        }
        for stored in store.decisions(limit=LAST)
    ]


def _failures(store: Any) -> list[dict[str, Any]]:
    return [
        {
            "program": name(program.name),
            "config": _config(config),
            "stage": failure.stage,
            "crashed": failure.crashed,
            "transient": failure.transient,
            "cost_s": failure.cost_s,
            "message": sentence(failure.message, program.source),
            "recorded_at": recorded_at,
        }
        for program, config, failure, recorded_at in store.failures(limit=LAST)
    ]
