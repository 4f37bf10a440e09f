"""Packs as trees: segments in a folder or behind a URL, a manifest that pins them, and a card for people.

`manifest.json` names every segment, and a segment is named by its content: the manifest's SHA-256 pins the whole pack.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import secrets
import statistics
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from ..core.digest import digest
from ..core.figures import counted
from ..core.file_format import FileFormat
from ..core.job import Job
from ..core.text import error_text, plain
from ..core.workload import Program
from ..errors import InvalidInputError
from ..settings import PackUrl
from ..store import encoding
from ..store.encoding import from_text
from ..store.filesystem import make_folder
from ..store.jsonl import Decided, import_entries
from ..store.sqlite import SqliteStore
from . import segments
from .exchange import READ_AT_ONCE, Complain
from .location import ENDING, LAYOUT, MAX_PACKED_BYTES, ListedSegment, Location
from .segments import Contents

FORMAT = FileFormat(schema="forecast_autotune.pack", version=1)
MANIFEST, CARD = "manifest.json", "README.md"
MAX_MANIFEST_BYTES = 2**24  # 150,000 segments
COPY_AGAIN = "copy the pack there again, or write it anew with 'forecast-autotune export'"

_PATH = re.compile(rf"{LAYOUT}/([0-9a-f]{{32}})/([0-9a-f]{{32}})/([0-9a-f]{{32}}{re.escape(ENDING)})")


# Writing ----------------------------------------------------------------------------------------------------------------


def write_tree(location: Location, contents: Iterable[tuple[str, str, Contents]], *, sources: bool) -> tuple[str, int]:
    """Write a pack: segments, then the card, then the manifest; returns the manifest's SHA-256 and how many segments.

    Where nothing goes into it, nothing is written, and a pack that stands there stays.

    Args:
        contents: what it is to hold, with the digests of the hardware and the program.
        sources: whether it holds the source text of kernels.
    Raises:
        InvalidInputError: other files are there, and no pack.
        RemoteStoreError: it cannot be written there.
    """
    there = location.names()
    interrupted = LAYOUT in there and set(there) <= {LAYOUT, CARD}
    if there and MANIFEST not in there and not interrupted:
        raise InvalidInputError(f"{location.shown} holds other files ({plain(there[0])}): name a new folder")
    paths: list[str] = []
    decided: list[Decided] = []
    for hardware, program, held in contents:
        decided += [entry for entry in held.entries if isinstance(entry, Decided)]
        for data in segments.encode(hardware, program, held, sources=sources):
            name = segments.name_of(data)
            location.write(hardware, program, name, data)
            paths.append(f"{LAYOUT}/{hardware}/{program}/{name}")
    if not paths:
        return "", 0
    manifest = (json.dumps({**FORMAT.header, "segments": sorted(paths)}, indent=1) + "\n").encode()
    location.write_file(CARD, card(decided, sources=sources).encode())
    location.write_file(MANIFEST, manifest)
    return hashlib.sha256(manifest).hexdigest(), len(paths)


def card(decided: Sequence[Decided], *, sources: bool) -> str:
    """What people see of a pack: hardware, versions, programs and figures, as Markdown with a hub's header."""
    hardware = sorted({str(d.tuning_key.hardware) for d in decided})
    toolchains = sorted({str(d.tuning_key.toolchain) for d in decided})
    lines = ["---", "tags:", "- forecast-autotune", "---", "", "# Tuned kernels", ""]
    lines += [
        f"Decisions of forecast_autotune, each measured, with the outcomes that they rest on. Keys: {len(decided)}. "
        f"{'With' if sources else 'Without'} the kernels' sources.",
        "",
        "Hardware:",
        *(f"- {_cell(name)}" for name in hardware),
        "",
        "Versions:",
        *(f"- {_cell(versions)}" for versions in toolchains),
        "",
        "| program | hardware | keys | median speed-up against the default | most |",
        "| --- | --- | ---: | ---: | ---: |",
    ]
    rows: dict[tuple[str, str], list[float]] = {}
    for d in decided:
        speedup = d.decision.speedup or 1.0
        rows.setdefault((d.tuning_key.workload.program.name, str(d.tuning_key.hardware)), []).append(speedup)
    for (program, device), speedups in sorted(rows.items()):
        figures = f"{len(speedups)} | {statistics.median(speedups):.2f} | {max(speedups):.2f}"
        lines.append(f"| {_cell(program)} | {_cell(device)} | {figures} |")
    return "\n".join([*lines, ""])


def _cell(text: str) -> str:
    """A name that anybody may have chosen, as text in Markdown."""
    return re.sub(r"([\\`*_\[\]<>|#&])", r"\\\1", plain(text))


# Reading ----------------------------------------------------------------------------------------------------------------


def read_manifest(data: bytes, name: str, *, digest: str = "") -> list[ListedSegment]:
    """The segments that a manifest names.

    Args:
        name: for the messages.
        digest: the SHA-256 that it must have; empty where it is pinned otherwise.
    Raises:
        InvalidInputError: it is another one, or none.
    """
    if len(data) > MAX_MANIFEST_BYTES:
        raise InvalidInputError(f"{name} has more than {MAX_MANIFEST_BYTES} bytes: it is not read")
    if digest and (seen := hashlib.sha256(data).hexdigest()) != digest:
        raise InvalidInputError(
            f"{name} has the digest {seen}, not {digest} as it is pinned: it was changed, or is cut off"
        )
    value = encoding.fields(from_text(data.decode(errors="replace"), name), name)
    FORMAT.check(
        value, Path(name), accepted="a pack is written by 'forecast-autotune export'", remedy="export it again"
    )
    found = []
    for path in encoding.list_field(value, "segments", name):
        match = _PATH.fullmatch(path) if isinstance(path, str) else None
        if match is None:
            raise InvalidInputError(f"{name} names {str(path)[:100]!r}, which is no segment's path")
        found.append(ListedSegment(hardware=match[1], program=match[2], name=match[3], size=0, at=None))
    return found


def check_pinned(pack: PackUrl, location: Location) -> None:
    """Refuse a pack at a branch or a tag of a hub's: what it decides tomorrow nobody has looked at.

    Raises:
        InvalidInputError: it is one; says at which commit it stands.
        RemoteStoreError: the hub cannot be asked.
    """
    if not pack.pinned:
        pinned = pack.url.replace(f"@{pack.revision}", f"@{location.commit()}", 1)
        raise InvalidInputError(
            f"{pack.revision!r} is a branch or a tag, which may name something else tomorrow, so its decisions are not "
            f"believed: it stands at {pinned} now; have FORECAST_AUTOTUNE_PACKS name that, once you have looked at it"
        )


def pack_folder(directory: Path, pack: PackUrl) -> Path:
    """Where the copy of a pack lies in a store's folder."""
    return directory / "packs" / digest(pack.url, pack.digest)


def is_copied(folder: Path, pack: PackUrl, program: Program) -> bool:
    """Whether the copy of a pinned pack holds all that the pack has of a program."""
    if not pack.pinned:
        return False
    try:
        listed = _manifest_of_copy(folder, pack)
    except (OSError, InvalidInputError):  # not copied yet, or damaged on this disk
        return False
    return not missing(folder, _of(program, listed))


def _manifest_of_copy(folder: Path, pack: PackUrl) -> list[ListedSegment]:
    path = folder / MANIFEST
    return read_manifest(path.read_bytes(), str(path), digest=pack.digest)


def _of(program: Program, listed: Sequence[ListedSegment]) -> list[ListedSegment]:
    return [segment for segment in listed if segment.program == program.digest]


def missing(folder: Path, listed: Sequence[ListedSegment]) -> list[ListedSegment]:
    """The segments that are not in the folder of a pack."""
    return [segment for segment in listed if not (folder / segment.path).exists()]


def decided_in_tree(folder: Path, complain: Complain) -> Iterator[Decided]:
    """The decisions of a pack in a folder, for commands; segments that are not there, of a copy, are passed over.

    Raises:
        OSError, InvalidInputError: there is no manifest, or it is none.
    """
    manifest = folder / MANIFEST
    for segment in read_manifest(manifest.read_bytes(), str(manifest)):
        contents = _read_segment(folder, segment, None, complain)
        yield from (entry for entry in (contents.entries if contents else ()) if isinstance(entry, Decided))


def _read_segment(folder: Path, segment: ListedSegment, program: Program | None, complain: Complain) -> Contents | None:
    """What a segment of a pack in a folder holds, nothing where it is not as it must be; None where it is not there."""
    path = folder / segment.path
    try:
        if path.stat().st_size > MAX_PACKED_BYTES:
            raise InvalidInputError(f"{path} has more than {MAX_PACKED_BYTES} bytes")
        return segments.decode(
            path.read_bytes(), segment.path, hardware=segment.hardware, program=segment.program, known=program
        )
    except FileNotFoundError:
        return None
    except (OSError, InvalidInputError) as err:
        complain(f"a segment of pack {folder} is left out: {error_text(err)}")
        return Contents()


class Tree:
    """A pack in a folder, of which the segments of a program are read when it is first met. No method raises.

    Args:
        folder: with a manifest.
        complain: gets why something is left out.
        toolchain: as `SqliteStore`.
        is_copy: whether it is made meanwhile, see `PackCopy`: then the manifest may come later.
    """

    def __init__(self, folder: Path, *, complain: Complain, toolchain: str = "exact", is_copy: bool = False) -> None:
        self.folder = folder
        self.is_copy = is_copy
        self.store = SqliteStore(None, toolchain=toolchain)
        self._complain = complain
        self._reset()

    def _reset(self) -> None:
        self._taken: set[str] = set()
        self._looked: set[tuple[str, int]] = set()
        self._manifest: list[ListedSegment] | None = None

    def prepare(self, job: Job, generation: int = 0) -> SqliteStore:
        """What the pack holds of a job's program, in a store in memory.

        Args:
            generation: it is looked into again when this has changed.
        """
        program = job.workload.program
        if (program.digest, generation) not in self._looked:
            self._looked.add((program.digest, generation))
            contents = [held for segment in self._segments_of(program) if (held := self._read(segment, program))]
            if contents:
                self.store.connection.write(lambda opened: [import_entries(opened, held.entries) for held in contents])
        return self.store

    def after_fork_in_child(self) -> None:
        """Read it again: what was read is the parent's."""
        self._reset()

    def _segments_of(self, program: Program) -> Iterator[ListedSegment]:
        if self._manifest is None:
            path = self.folder / MANIFEST
            try:
                self._manifest = read_manifest(path.read_bytes(), str(path))
            except (OSError, InvalidInputError) as err:
                if self.is_copy and isinstance(err, FileNotFoundError):
                    return
                self._manifest = []
                self._complain(f"pack {self.folder} is left out: {error_text(err)}")
        for segment in _of(program, self._manifest):
            if segment.path not in self._taken:
                yield segment

    def _read(self, segment: ListedSegment, program: Program) -> Contents | None:
        contents = _read_segment(self.folder, segment, program, self._complain)
        if contents is not None:
            self._taken.add(segment.path)
        elif not self.is_copy:
            self._complain(f"a segment of pack {self.folder} is left out: {segment.path} is missing, {COPY_AGAIN}")
        return contents


class PackCopy:
    """The way from a pack behind a URL to a copy on this disk; in the place of an `Exchange`, and it sends nothing.

    Every method raises what `Location` raises, and InvalidInputError for a pack that is not the pinned one.

    Args:
        folder: of the copy.
        pack: where it is.
        complain: gets what the pack lacks.
    """

    def __init__(self, folder: Path, pack: PackUrl, complain: Complain) -> None:
        self.folder = folder
        self._complain = complain
        self.pack = pack
        self.location = Location(pack.url)

    def after_fork_in_child(self) -> None:
        """Begin anew in the child of a fork."""
        self.location.after_fork_in_child()

    def close(self) -> None:
        """Nothing to end here."""

    def pull(self, hardware: str, program: Program, *, fresh_s: float = 0.0) -> None:  # noqa: ARG002  # as `Exchange`
        """Copy what the pack holds of a program, on all hardware, and is not here yet."""
        listed = _of(program, self._manifest())
        wanted = missing(self.folder, listed)
        for start in range(0, len(wanted), READ_AT_ONCE):
            for segment, data in self.location.read(wanted[start : start + READ_AT_ONCE]):
                if segments.name_of(data) != segment.name:
                    raise InvalidInputError(f"{segment.path} of {self.location.shown} is cut off or was changed")
                _write(self.folder / segment.path, data)
        if lacking := missing(self.folder, listed):
            what = f"{counted(len(lacking), 'segment')} of {program.name}"
            self._complain(f"pack {self.location.shown} lacks {what}, the first {lacking[0].path}: {COPY_AGAIN}")

    def pull_from_other_hardware(self, hardware: str, program: Program, *, fresh_s: float) -> None:
        """`pull` has copied that too."""

    def push(self) -> None:
        """Nothing is sent to a pack."""

    def _manifest(self) -> list[ListedSegment]:
        check_pinned(self.pack, self.location)
        try:
            return _manifest_of_copy(self.folder, self.pack)
        except (OSError, InvalidInputError):  # not copied yet, or damaged on this disk
            data = self.location.read_file(MANIFEST, MAX_MANIFEST_BYTES)
            found = read_manifest(data, f"{self.location.shown}/{MANIFEST}", digest=self.pack.digest)
            _write(self.folder / MANIFEST, data)
            return found


def _write(path: Path, data: bytes) -> None:
    """Write a file whole or not at all."""
    make_folder(path.parent)
    unfinished = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    with open(os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(data)
    os.replace(unfinished, path)
