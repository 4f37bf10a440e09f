"""Configs of flash-linear-attention's kernels, `FLA_CONFIG_DIR/{kernel}.json`, as fla-core 0.6.0 reads them.

A file holds, by the MD5 of its key, each tuning key with its config. It names no device: FLA keeps a folder for each.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from ...core.config import Config
from ...core.digest import Value
from ...core.job import Job
from ...core.text import shown
from ...core.workload import Workload
from ...errors import InvalidInputError
from ...features.knob_roles import TRITON_OPTIONS
from ..encoding import KEY_DEPTH, Json
from .base import ConfigFile, Export, ImportedFiles, Tuned, Where, checked_knobs, function_of, read_object

MAX_ENTRIES = 100_000

_KERNEL = re.compile(r"[A-Za-z_]\w{0,199}")
_BY_OTHERS = (
    "by a heuristic",
    "by the launcher",
)  # what some configs leave to `triton.heuristics`, or to a class above it


@dataclass(frozen=True, slots=True, kw_only=True)
class FlaKernels:
    """The config files of flash-linear-attention."""

    name: str = "fla"
    use: str = "FLA_CONFIG_DIR={folder} FLA_CACHE_MODE=strict"
    where: tuple[str, ...] = ()

    def export(self, tuned: Iterable[Tuned], where: Where) -> Export:  # noqa: ARG002
        """A file for each Triton kernel, with an entry for each key that was measured, and no config for other keys.

        Raises:
            InvalidInputError: the decisions are of several devices, which a file does not tell apart.
        """
        export = Export()
        entries: dict[str, dict[str, Json]] = {}
        tritons: dict[str, str] = {}
        devices: dict[str, str] = {}
        for one in tuned:
            workload, triton = one.tuning_key.workload, one.tuning_key.toolchain.versions.get("triton", "")
            kernel = function_of(workload)
            if workload.program.language != "triton" or _KERNEL.fullmatch(kernel) is None:
                export.leave_out(f"{workload.program.name}: it is no Triton kernel")
                continue
            try:
                key, config = _key_of(workload), _encode(one.decision.config)
            except InvalidInputError as err:
                export.leave_out(f"{kernel}: {err}")
                continue
            devices[one.tuning_key.hardware.digest] = str(one.tuning_key.hardware)
            own = entries.setdefault(kernel, {})
            if tritons.setdefault(kernel, triton) != triton:
                export.leave_out(f"{kernel}: newer decisions have Triton {tritons[kernel]}")
            elif _md5(key) in own:
                export.leave_out(f"{kernel}: a newer decision has its key")
            else:
                own[_md5(key)] = {"autotune_key": key, "config": config}
        if len(devices) > 1:
            raise InvalidInputError(
                f"decisions here are of {' and '.join(sorted(devices.values())[:3])}, and such a file names no "
                "device: choose one with --hardware"
            )
        for kernel, of_kernel in sorted(entries.items()):
            content: Json = {
                "kernel_name": kernel,
                "triton_version": tritons[kernel],
                "autotune_entries": dict(sorted(of_kernel.items())),
            }
            note = f"{len(of_kernel)} {'key' if len(of_kernel) == 1 else 'keys'} measured"
            export.files.append(ConfigFile(path=PurePosixPath(f"{kernel}.json"), content=content, note=note))
        return export

    def parse(self, path: Path) -> tuple[PurePosixPath, Json] | None:
        """See `ConfigFormat`."""
        if path.suffix != ".json" or _KERNEL.fullmatch(path.stem) is None:
            return None
        data = read_object(path)
        entries, default = data.get("autotune_entries"), data.get("default_config")
        if entries is None and default is None:
            default = data if "kwargs" in data else None  # what older versions wrote
        if not isinstance(entries, (dict, type(None))) or (entries is None and default is None):
            raise InvalidInputError(
                f"{path} has no autotune_entries, default_config or kwargs: it is no config file of FLA"
            )
        if entries and len(entries) > MAX_ENTRIES:
            raise InvalidInputError(f"{path} has {len(entries)} entries: {MAX_ENTRIES} at most are read")
        kept: Json = {}
        for number, entry in enumerate((entries or {}).values(), start=1):
            what = f"{path}, entry {number},"
            if not isinstance(entry, dict):
                raise InvalidInputError(f"{what} is {shown(entry)}: an entry is an object")
            key = _checked_key(entry.get("autotune_key"), what)
            kept[_md5(key)] = {"key": key, "config": _flat(entry.get("config"), what)}
        content: Json = {"entries": kept}
        if default is not None:
            content["default"] = _flat(default, f"{path}, default_config,")
        return PurePosixPath(path.name), content

    def suggest(self, job: Job, kept: ImportedFiles) -> list[tuple[str, Mapping[str, Value]]]:
        """As FLA's lookup in mode `full`: the key's entry, else that of a key with other numbers, else the default."""
        kernel = function_of(job.workload)
        if job.workload.program.language != "triton" or _KERNEL.fullmatch(kernel) is None:
            return []
        name = f"{kernel}.json"
        content = kept.read(name)
        if content is None:
            return []
        try:
            key = _key_of(job.workload)
        except InvalidInputError:
            return []
        entries = content.get("entries")
        known = [entry for entry in entries.values() if isinstance(entry, dict)] if isinstance(entries, dict) else []
        for fits in (key.__eq__, lambda other: _alike(other, key)):
            for entry in known:
                if fits(entry.get("key")) is True:
                    what = f"{name}, key {shown(entry['key'])},"
                    return [(what, checked_knobs(entry.get("config"), what))]
        what = f"{name}, default_config,"
        return [(what, checked_knobs(content["default"], what))] if "default" in content else []


def _key_of(workload: Workload) -> list[object]:
    """A tuning key in FLA's form: values of `key`, then the dtypes of all arguments, in the order of the call."""
    values: list[object] = []
    dtypes = workload.key.get("dtypes", {})
    for name, value in workload.key.items():
        if name not in ("given constexprs", "dtypes"):  # of which FLA's keys hold the latter alone
            if not isinstance(value, (bool, int, float, str, type(None))):
                raise InvalidInputError(f"its key holds {name}={shown(value)}, which is no plain value")
            values.append(value)
    return [*values, *(dtypes.values() if isinstance(dtypes, Mapping) else ())]


def _encode(config: Config) -> Json:
    """A config in the form of `triton.Config`'s fields."""
    kwargs: Json = {}
    for name, value in config.knobs.items():
        if name in TRITON_OPTIONS or value in _BY_OTHERS:
            continue
        if value is None:
            raise InvalidInputError(f"its config leaves {name} open, and a file must set every knob")
        kwargs[name] = value
    given = {name: config.knobs.get(name, default) for name, default in TRITON_OPTIONS.items()}
    if given["ir_override"] is not None:
        raise InvalidInputError("its config is told apart by a hook or an ir_override, which no file can hold")
    return {"kwargs": kwargs, **given}


def _flat(value: object, what: str) -> dict[str, Value]:
    """A config of a file as knobs."""
    if not isinstance(value, dict) or not isinstance(value.get("kwargs"), dict):
        raise InvalidInputError(
            f"{what} has the config {shown(value)}: it is an object with kwargs, num_warps, num_stages"
        )
    options = {name: value[name] for name in TRITON_OPTIONS if value.get(name) is not None}
    return checked_knobs({**value["kwargs"], **options}, f"{what} config")


def _checked_key(value: object, what: str, levels: int = KEY_DEPTH) -> list[object]:
    if not isinstance(value, list) or not levels:
        raise InvalidInputError(f"{what} has the autotune_key {shown(value)}: it is a list of values")
    for inner in value:
        if isinstance(inner, list):
            _checked_key(inner, what, levels - 1)
        elif isinstance(inner, dict):
            raise InvalidInputError(f"{what} has an object in its autotune_key: it is a list of values")
    return value


def _md5(key: object) -> str:
    """What FLA names an entry by."""
    text = json.dumps(key, separators=(",", ":"), sort_keys=True)
    return hashlib.md5(text.encode(), usedforsecurity=False).hexdigest()


def _alike(one: object, other: object) -> bool:
    """Whether two keys differ in numbers alone."""
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_alike, one, other))
    numbers = all(isinstance(value, (int, float)) and not isinstance(value, bool) for value in (one, other))
    return numbers or one == other


FLA = FlaKernels()
