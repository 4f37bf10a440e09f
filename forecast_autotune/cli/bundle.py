"""`doctor --bundle`: what a bug report needs to say of this machine, its settings and its store, and no secret of it."""

from __future__ import annotations

import contextlib
import json
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import OK
from ._shared import say

if TYPE_CHECKING:
    from .doctor import Finding

LAST = 50  # failures and decisions, the newest
PACKAGES = ("torch", "triton", "pytorch-triton-rocm", "numpy", "scikit-learn", "vllm", "transformers", "ninja")
CONTENTS = (
    "versions, settings, hardware, doctor's findings, counts of the store, its last failures and decisions. Of these: "
    "kernels' names, knobs with their values, times, first lines of messages without paths, quotations and words of the "
    "source. Not in it: sources, arguments, keys of decisions, values of other variables, names of user and machine"
)

_URL = re.compile(r"\b([a-zA-Z][a-zA-Z0-9+.-]*)://([^\s'\"]*)")
_PATH = re.compile(r"(?<![\w.])~?(?:/[^\s:,;'\"()]+)+|\b\w:\\[^\s:,;'\"]+")
_QUOTED = re.compile(r"'[^']*'|\"[^\"]*\"|`[^`']*['`]|[\u2018\u201c\u00ab][^\u2019\u201d\u00bb]*[\u2019\u201d\u00bb]")
_SECRET = re.compile(r"(?i)\b([\w-]*(?:token|secret|passw|credential|api_?key)[\w-]*)(\s*[=:]\s*)\S+")
_LONG = re.compile(r"(?=[\w+=-]*\d)[\w+=-]{20,}")
_WORD = re.compile(r"[A-Za-z_]\w{2,}")
_TELLING = re.compile(r"TOKEN|SECRET|PASS|KEY|CREDENTIAL", re.IGNORECASE)
_KINDS = ("Error", "Exception", "Warning", "Failure", "OutOfResources")
HIDDEN = "…"
_OF_KERNELS = ("failures", "decision")  # checks of doctor's that repeat messages and keys; here they are told otherwise


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
    """All there is to tell, in JSON; a part that cannot be had says why."""
    parts: dict[str, Callable[[], Any]] = {
        "contents": lambda: CONTENTS,
        "versions": _versions,
        "settings": _settings,
        "unknown_settings": _unknown_settings,
        "hardware": _hardware,
        "findings": lambda: [_finding(finding) for finding in findings if finding.check not in _OF_KERNELS],
    }
    told = {name: private(_safely(part)) for name, part in parts.items()}
    # What is told of the store is made private where the sources are known, whose words are left out.
    return {**told, "store": _safely(lambda: _store(directory))}


def _safely(part: Callable[[], Any]) -> Any:
    try:
        return part()
    except Exception as err:
        return {"missing": without_source(f"{type(err).__name__}: {err}", "")}


# Without secrets --------------------------------------------------------------------------------------------------------


def private(value: Any) -> Any:
    """The same without names of user and machine, and without what stands in addresses beside the host."""
    if isinstance(value, str):
        return _without_names(_SECRET.sub(rf"\1\2{HIDDEN}", _URL.sub(_host_alone, value)))
    if isinstance(value, Mapping):
        return {str(name): private(each) for name, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [private(each) for each in value]
    return value


def _host_alone(url: re.Match[str]) -> str:
    """An address without credentials, path and query; nothing but its kind where it holds credentials."""
    scheme, rest = url[1], url[2]
    return f"{scheme}://{HIDDEN if '@' in rest else re.split('[/?#]', rest)[0]}"


def _without_names(text: str) -> str:
    import getpass
    import platform

    homes = {os.path.expanduser("~"), os.path.realpath(os.path.expanduser("~"))}
    for home in sorted(homes - {"/", "~", ""}, key=len, reverse=True):
        text = re.sub(rf"{re.escape(home)}(?=/|\W|$)", "~", text)
    for name, value in os.environ.items():
        if _TELLING.search(name) and len(value) >= 6:
            text = text.replace(value, HIDDEN)
    with contextlib.suppress(KeyError, OSError, ImportError):  # a user without a name
        text = re.sub(rf"(?<![A-Za-z0-9]){re.escape(getpass.getuser())}(?![A-Za-z0-9])", "USER", text)
    if node := platform.node():
        text = re.sub(rf"(?<![A-Za-z0-9]){re.escape(node)}(?![A-Za-z0-9])", "HOST", text)
    return text


def without_source(message: str, source: str) -> str:
    """A message's first line without paths, quotations, and words of the source that it is about."""
    line = (message.splitlines() or [""])[0][:300]
    line = private(line)
    for pattern in (_QUOTED, _PATH, _LONG):
        line = pattern.sub(HIDDEN, line)
    words = set(_WORD.findall(source))

    def known(word: re.Match[str]) -> str:
        return HIDDEN if word[0] in words and not word[0].endswith(_KINDS) else word[0]

    return _WORD.sub(known, line)


# Parts ------------------------------------------------------------------------------------------------------------------


def _versions() -> dict[str, str]:
    import platform
    from importlib.metadata import PackageNotFoundError, version

    from ..probe import compiler_version, nvcc_path

    found = {"python": platform.python_version(), "system": platform.platform(), "kernel": platform.release()}
    found["libc"] = " ".join(platform.libc_ver())
    for package in ("forecast_autotune", *PACKAGES):
        with contextlib.suppress(PackageNotFoundError):
            found[package] = version(package)
    found["compiler"] = compiler_version(os.environ.get("CXX", "c++"))
    if (nvcc := nvcc_path()) is not None:
        found["nvcc"] = compiler_version(nvcc)
    with contextlib.suppress(OSError):
        found["driver"] = Path("/proc/driver/nvidia/version").read_text().partition("\n")[0]
    return found


def _finding(finding: Finding) -> dict[str, str]:
    """A finding of doctor's; what a problem quotes, a file's text say, is left out."""
    told = asdict(finding)
    return {**told, "found": without_source(finding.found, "")} if finding.status == "problem" else told


def _settings() -> dict[str, Any]:
    from dataclasses import fields
    from functools import partial

    from ..settings import Settings

    return {f.name: _as_text(_safely(partial(_setting, f.name))) for f in fields(Settings)}


def _setting(name: str) -> Any:
    """What the environment says of one setting, whatever it says of others."""
    from ..settings import PREFIX, Settings

    variable = PREFIX + name.upper()
    return getattr(Settings.from_environment({n: v for n, v in os.environ.items() if n == variable}), name)


def _as_text(value: object) -> Any:
    if value is None or isinstance(value, dict):
        return value
    return [str(each) for each in value] if isinstance(value, tuple) else str(value)


def _unknown_settings() -> list[str]:
    from ..settings import unknown_variables

    return list(unknown_variables())


def _hardware() -> list[str]:
    from ..probe import detect_hardware

    found = [str(detect_hardware("cpu"))]
    with contextlib.suppress(ImportError):
        import torch

        found += [str(detect_hardware(f"cuda:{index}")) for index in range(torch.cuda.device_count())]
    return found


def _store(directory: Path | None) -> dict[str, Any]:
    from ..store import filesystem
    from ..store.manage import StoreFile

    folder = directory if directory is not None else _setting("dir")
    store = StoreFile(folder)
    told: dict[str, Any] = {"path": private(str(store.path)), "filesystem": filesystem.filesystem_type(folder)}
    told["set_aside"] = sorted(private(p.name) for p in folder.glob(f"{filesystem.FILE_NAME}.corrupt-*"))
    if not store.exists():
        return told
    told["size_bytes"] = store.size_bytes()
    told["counts"] = _safely(lambda: _counts(store))
    told["decisions"] = _safely(lambda: _decisions(store))
    told["failures"] = _safely(lambda: _failures(store))
    return told


def _counts(store: Any) -> dict[str, Any]:
    stats = store.stats()
    names = ("schema", "journal", "programs", "workloads", "decisions", "superseded", "measurements", "failures")
    more = ("forecasts", "abstentions", "hits", "pending", "answers", "spent_s", "unreadable")
    return {name: getattr(stats, name) for name in (*names, *more)}


def _decisions(store: Any) -> list[dict[str, Any]]:
    return [
        private(
            {
                "program": stored.place.workload.program.name,
                "hardware": stored.place.hardware.name,
                "config": dict(stored.decision.config.knobs),
                "basis": stored.decision.basis,
                "reason": stored.decision.reason,
                "budget": stored.decision.budget,
                "space_size": stored.decision.space_size,
                "measured": stored.decision.measured,
                "failed": stored.decision.failed,
                "spent_s": stored.decision.spent_s,
                "decided_at": stored.decision.decided_at,
            }
        )
        for stored in store.decisions(limit=LAST)
    ]


def _failures(store: Any) -> list[dict[str, Any]]:
    return [
        {
            "program": private(program.name),
            "config": private(dict(config.knobs)),
            "stage": failure.stage,
            "crashed": failure.crashed,
            "transient": failure.transient,
            "cost_s": failure.cost_s,
            "message": without_source(failure.message, program.source),
            "recorded_at": recorded_at,
        }
        for program, config, failure, recorded_at in store.failures(limit=LAST)
    ]
