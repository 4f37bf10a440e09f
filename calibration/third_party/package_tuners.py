"""One package: import what may hold a tuner, as on an H200 that is not there, and print its tuners as JSON.

`python -m calibration.third_party.package_tuners PACKAGE`; the last line of stdout is the answer.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import json
import os
import re
import sys
import types
import warnings
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

from calibration.record.programs.dry_run import pretended_cuda
from forecast_autotune.frontends.triton.installed import living_tuners

_TUNES = re.compile(r"autotun|libtuner", re.IGNORECASE)
_OTHERS = re.compile(r"(?:^|\.)(?:tests?|benchmarks?|examples?|__main__|setup)(?:\.|$)|\.backend\._(?!nvidia)")
"""Modules that no user of a package on an NVIDIA GPU imports."""


def modules_of(package: str) -> Iterator[str]:
    """The modules of a package whose text names a tuner, without importing one.

    Raises:
        ModuleNotFoundError: it is not there.
    """
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise ModuleNotFoundError(package)
    root = Path(next(iter(spec.submodule_search_locations)))
    for path in sorted(root.rglob("*.py")):
        parts = path.relative_to(root.parent).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        usable = all(part.isidentifier() for part in parts) and not _OTHERS.search(name)
        if usable and _TUNES.search(path.read_text(encoding="utf-8", errors="replace")):
            yield name


def import_module(name: str) -> str:
    """Import a module, without the `__init__` of packages above it that fail. Why it failed itself, or empty."""
    for bare in (False, True):
        if bare:
            for parent in _parents(name):
                if parent not in sys.modules:
                    _without_init(parent)
        try:
            importlib.import_module(name)
        except (Exception, SystemExit) as err:
            reason = f"{type(err).__name__}: {str(err).strip().partition(chr(10))[0][:120]}"
        else:
            return ""
    return reason


def _parents(name: str) -> list[str]:
    parts = name.split(".")
    return [".".join(parts[:count]) for count in range(1, len(parts))]


def _without_init(package: str) -> None:
    above, _, last = package.rpartition(".")
    folders = sys.modules[above].__path__ if above else sys.path
    module = types.ModuleType(package)
    module.__path__ = [str(Path(folder) / last) for folder in folders if (Path(folder) / last).is_dir()]
    sys.modules[package] = module


def version_of(package: str) -> str:
    """The version of the distribution that a package belongs to; empty where none says so."""
    try:
        owners = importlib.metadata.packages_distributions().get(package, [])
        return importlib.metadata.version(owners[0]) if owners else ""
    except Exception:  # a broken record of an installation
        return ""


def main(words: list[str] | None = None) -> int:
    """List the tuners of a package."""
    (package,) = sys.argv[1:] if words is None else words
    warnings.simplefilter("ignore")
    os.environ.setdefault("GEMS_VENDOR", "nvidia")
    import forecast_autotune as fa

    version = version_of(package)
    fa.install()
    with pretended_cuda(), fa.rehearsal("H200"):
        try:
            reasons = {name: import_module(name) for name in modules_of(package)}
        except ModuleNotFoundError:
            print(json.dumps({"problem": "no package of that name is installed"}))
            return 1
        for kernel in living_tuners():
            fa.tuner_of(kernel)  # one that cannot be read says so then
        tuners = [asdict(row) for row in fa.installed() if row.package == package]
    missing = {name: why for name, why in reasons.items() if why}
    found = {"package": package, "version": version, "modules": len(reasons), "missing": missing, "tuners": tuners}
    print(json.dumps(found))
    sys.stdout.flush()
    os._exit(0)  # what a half-imported package left to be done at the end is not wanted


if __name__ == "__main__":
    sys.exit(main())
