"""A store's file opened for the command: for reading or for writing, with errors that say what to do."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import StoreError
from . import filesystem, schema
from .database import connect, is_broken, open_file, read_only, refuse_damaged, transaction

if TYPE_CHECKING:
    import sqlite3


@contextmanager
def reading(path: Path) -> Iterator[sqlite3.Connection]:
    """The store in a file, in this version's schema; the file stays as it is.

    Raises:
        StoreError: there is none, or it cannot be used.
    """
    _refuse_missing(path)
    with _explaining(path), read_only(path) as connection:
        if schema.version_of(connection) == schema.VERSION:
            yield connection
            return
        # An older file is copied, in memory or, if large, in a file without a name; the copy gets this version's schema.
        with closing(connect("")) as copy:
            connection.backup(copy)
            schema.migrate(copy)
            yield copy


@contextmanager
def writing(path: Path, *, create: bool = False) -> Iterator[sqlite3.Connection]:
    """The store in a file, brought to this version's schema.

    Raises:
        StoreError: there is none, unless it is to be created; or it cannot be used.
    """
    if not create:
        _refuse_missing(path)
    with _explaining(path):
        connection = open_file(path, "auto")
        try:
            refuse_damaged(connection)
            yield connection
        finally:
            connection.close()


def is_marked_read_only(path: Path) -> bool:
    """Whether the file's header forbids writing, as damage may have it."""
    import sqlite3

    uri = f"{path.absolute().as_uri()}?mode=rw"  # without a mode, a file removed just now would be created again
    with _explaining(path), closing(connect(uri, uri=True, wait_s=0.0)) as connection:
        try:
            with transaction(connection):
                return False
        except sqlite3.OperationalError as err:
            return "readonly" in str(err)


def _refuse_missing(path: Path) -> None:
    if filesystem.identity_of(path) is None:
        raise StoreError(f"there is no store at {path}: nothing has been tuned here yet")


@contextmanager
def _explaining(path: Path) -> Iterator[None]:
    """Turn what is wrong with the file into a `StoreError`."""
    import sqlite3

    if path.is_symlink():
        raise StoreError(f"store {path} is a symbolic link, which is not followed: name the folder it leads to")
    try:
        yield
    except schema.NewerSchemaError as err:
        raise StoreError(
            f"store {path} has schema {err.version}, this version reads up to {schema.VERSION}: "
            "update forecast_autotune, or run 'forecast-autotune export' with the newer version"
        ) from None
    except schema.NotAStoreError:
        raise StoreError(f"{path} is no store of this package: move it away, or name another folder") from None
    except sqlite3.DatabaseError as err:
        hint = (
            "the next tuning run sets it aside and begins a fresh one"
            if is_broken(err)
            else "check the folder's permissions, the disk's space, and what else has it open"
        )
        raise StoreError(f"store {path} cannot be used ({err}): {hint}") from None
