"""What decides on kernels, as texts for the keys of torch's caches: stored decisions and packs."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

from ..remote.mirror import mirror_folder
from ..remote.trees import MANIFEST
from ..settings import PackUrl, Settings
from ..store.queries import StoreFile
from ..store.rows import StoredDecision


def stored_decisions(settings: Settings, name: str) -> Iterator[StoredDecision]:
    """Decisions on programs whose name holds this one, in the store and in what was read of a remote one that is trusted."""
    folders = [settings.dir]
    if settings.remote_store is not None and settings.remote_store.trusted:
        folders.append(mirror_folder(settings.dir, settings.remote_store.url))
    for known in map(StoreFile, folders):
        if known.exists():
            yield from known.decisions(kernel=name)


def pack_version(pack: Path | PackUrl) -> str:
    """What changes with what a pack holds: one behind a URL is pinned, a folder's manifest names all that is in it."""
    if isinstance(pack, PackUrl):
        return str(pack)
    try:
        return hashlib.sha256((pack / MANIFEST if pack.is_dir() else pack).read_bytes()).hexdigest()
    except OSError:
        return ""  # it is left out
