"""What an object file holds as machine code, as one digest: the same for programs that came out alike.

nvcc names what is private to a text by a hash of the text and its folder, and notes for which options a cubin was made: none
of that is code.
"""

from __future__ import annotations

import hashlib
import re
import struct
from collections.abc import Iterator
from pathlib import Path

_MAGIC = b"\x7fELF\x02\x01\x01"  # 64 bits, the lowest byte first
_FATBIN = b".nv_fatbin"
_NOTE, _NO_BITS = 7, 8  # kinds of sections (elf.h)
_NAMED_BY_HASH = re.compile(rb"(_GLOBAL__N__|_INTERNAL_|tmpxft_)[0-9a-f]{8}")


def code_digest(path: Path) -> str:
    """32 hex digits over the machine code of an object file, a GPU's within it too, and over what it refers to."""
    found = hashlib.sha256()
    for part in _parts(path.read_bytes()):
        found.update(hashlib.sha256(_NAMED_BY_HASH.sub(rb"\1", part)).digest())
    return found.hexdigest()[:32]


def _parts(elf: bytes) -> Iterator[bytes]:
    """The sections of an object, notes left out; in place of binaries for a GPU, the sections of each."""
    for name, kind, data in _sections(elf):
        cubins = [match.start() for match in re.finditer(re.escape(_MAGIC), data)] if name == _FATBIN else []
        if kind != _NOTE and not cubins:
            yield name + b"\0" + data
        for start in cubins:
            yield from _parts(data[start:])


def _sections(elf: bytes) -> Iterator[tuple[bytes, int, bytes]]:
    """Name, kind and content of each section; of one that takes no room in the file, its size."""
    table = struct.unpack_from("<Q", elf, 40)[0]
    size, count, of_names = struct.unpack_from("<HHH", elf, 58)
    headers = [struct.unpack_from("<IIQQQQ", elf, table + i * size) for i in range(count)]
    names = headers[of_names][4]
    for name, kind, _, _, offset, length in headers:
        content = str(length).encode() if kind == _NO_BITS else elf[offset : offset + length]
        yield elf[names + name : elf.index(b"\0", names + name)], kind, content
