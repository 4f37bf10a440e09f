"""Where a recipe's variants are built and kept, one folder each; and what stands there."""

from __future__ import annotations

import json
import logging
import os
import stat
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ..core.cached_property import cached_property
from ..core.digest import digest
from ..core.hardware import Hardware, Toolchain
from ..core.outcome import Evidence
from .cpp_headers import changed
from .cpp_recipe import Recipe, Variant, build_root
from .private_folders import is_ours, make_private, make_slot, own_root, take_from_group, write_private

log = logging.getLogger(__name__)

_OF_THE_KERNELS = ("registers", "spill_bytes", "stack_bytes", "shared_bytes")


class CppBuilds:
    """The builds of one recipe on disk.

    Args:
        recipe, toolchain, hardware: what is built, by what and for what.
        folder: where builds are kept.
    """

    def __init__(self, recipe: Recipe, toolchain: Toolchain, hardware: Hardware, folder: Path) -> None:
        self._recipe = recipe
        self._toolchain = toolchain
        self._hardware = hardware
        self._folder_of_builds = folder

    @cached_property
    def root(self) -> Path:
        """The folder to build in, made at its first use."""
        named_by = "build_directory" if self._recipe.arguments.get("build_directory") else "FORECAST_AUTOTUNE_DIR"
        return own_root(self._named_root, named_by)

    @property
    def _named_root(self) -> Path:
        """Where builds are kept, if this process may write there."""
        return Path(build_root(self._folder_of_builds, self._recipe)) / self._recipe.name

    def folder(self, variant: Variant) -> Path:
        """A variant's own folder, whether or not it is there yet: where it is built, if this process may use that."""
        there = self._named_root / variant.digest
        return there if self._evidence_in(there) is not None else self.root / variant.digest

    def slot(self, index: int) -> Path:
        """A folder in which torch builds one variant after another; see `cpp_build`.

        Builds by another toolchain or of other sources of torch's have slots of their own: ninja would rebuild all of it
        anyway, and two processes with different ones would do so in turns. Kernels that are compiled alone may be edited.
        """
        parts = (self._recipe.name, self._recipe.torchs_text, *self._recipe.flags, self._toolchain.digest)
        shared = digest(*parts, self._hardware.capability if self._recipe.is_cuda else "")[:12]
        return self.root / f"slot-{shared}-{index}"

    def library(self, variant: Variant) -> Path:
        """The library of a variant that is built.

        Raises:
            OSError, ValueError, KeyError: there is none, or its record cannot be read.
        """
        folder = self.folder(variant)
        return _library(folder, _record(folder))

    def evidence(self, variant: Variant) -> Evidence | None:
        """Evidence of a finished build; None if there is none, or none that may be loaded."""
        return self._evidence_in(self.folder(variant), tell=log.warning)

    @staticmethod
    def _evidence_in(folder: Path, tell: Callable[..., None] = log.debug) -> Evidence | None:
        try:
            record = _record(folder)
            library = _library(folder, record)
            if not all(map(is_ours, (library.stat(), folder.lstat(), folder.parent.stat()))):
                tell("%s is not this user's alone: it is not loaded but built again", library)
                return None
            if edited := changed(record.get("headers", {})):
                log.info("%s is built again: %s has changed", library, edited)
                return None
            return Evidence(**record["evidence"])
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def prepare(self, variant: Variant, slot: Path) -> None:
        """Make the folders to build in, for this user alone.

        Raises:
            OSError: they cannot be made, or others may write to one.
        """
        folder = self.folder(variant)
        make_private(folder)
        if folder.stat().st_mode & stat.S_IWGRP:
            take_from_group(folder)
            (folder / "built.json").unlink(missing_ok=True)  # it, and what it names, may be another's
        make_slot(slot)
        for place in (self.root, folder, slot):
            if not is_ours(place.stat()):
                raise OSError(f"others may write to {place}, and what is built is loaded: remove it")

    def keep(self, variant: Variant, answer: Mapping[str, Any], report: Evidence | None) -> Evidence:
        """Record that a variant is built.

        Args:
            answer: of the worker that built it; see `cpp_build.build`.
            report: what nvcc says of its kernels.
        """
        folder = self.folder(variant)
        resources = {name: getattr(report, name) for name in _OF_THE_KERNELS} if report else {}
        evidence = {"compile_s": answer["compile_s"], "code_bytes": answer["code_bytes"], **resources}
        record = folder / "built.json.partial"
        library = Path(answer["library"]).name
        write_private(record, json.dumps({"library": library, "evidence": evidence, "headers": answer["headers"]}))
        os.replace(record, folder / "built.json")  # last: what has this file is whole
        return Evidence(**evidence)


def _record(folder: Path) -> dict[str, Any]:
    return dict(json.loads((folder / "built.json").read_text()))


def _library(folder: Path, record: Mapping[str, Any]) -> Path:
    return folder / Path(str(record["library"])).name
