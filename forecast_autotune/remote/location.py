"""Where segments lie: a folder behind any URL that fsspec knows, with few verbs and errors that say what to do."""

from __future__ import annotations

import os
import re
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from http import HTTPStatus
from typing import Any

from ..errors import InvalidInputError, MissingExtraError, RemoteStoreError
from ..settings import without_password
from . import hub

LAYOUT = "v1"
ENDING = ".jsonl.gz"

MAX_PACKED_BYTES = 2**24
"""Of a segment; a larger one is not read. One tuning run of 16 configs takes 2 kB."""

_DIGEST = re.compile("[0-9a-f]{32}")
_LOCAL = ("file", "local")
_PACKAGES = {"s3": "s3fs", "s3a": "s3fs", "gs": "gcsfs", "gcs": "gcsfs", "hf": "huggingface_hub", "abfs": "adlfs"}
_TIME_FIELDS = ("LastModified", "last_modified", "last_commit", "uploaded_at", "mtime", "updated", "created")


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedSegment:
    """A segment as a listing shows it."""

    hardware: str  # digests
    program: str
    name: str
    size: int  # bytes
    # When the storage got it, by its own clock, in seconds since the epoch; None where it does not tell
    at: float | None

    @property
    def path(self) -> str:
        """Below the location."""
        return f"{LAYOUT}/{self.hardware}/{self.program}/{self.name}"


class Location:
    """A folder of segments behind a URL. fsspec is imported at the first use; credentials are where it looks for them.

    Every method raises:
        InvalidInputError: the URL names no storage that fsspec knows.
        MissingExtraError: the package for its scheme is not installed.
        RemoteStoreError: the storage cannot be reached, or refuses.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        self.shown = without_password(url)
        self._opened: tuple[Any, str] | None = None

    def after_fork_in_child(self) -> None:
        """Open it anew at the next call: connections of another process cannot be used after a fork."""
        self._opened = None

    def segments(self, hardware: str, program: str) -> list[ListedSegment]:
        """The segments of one program on one hardware; none where nobody has written any."""
        infos = self._list(f"{LAYOUT}/{hardware}/{program}")
        return [found for info in infos if (found := _listed(info)) is not None]

    def hardware(self) -> list[str]:
        """Digests of the hardware that anything is known of."""
        names = (str(info["name"]).rstrip("/").rpartition("/")[2] for info in self._list(LAYOUT))
        return sorted(name for name in names if _DIGEST.fullmatch(name))

    def all_segments(self) -> list[ListedSegment]:
        """Every segment there is; for commands, as it lists the whole location."""
        if not self._list(LAYOUT):  # `find` of some storages takes a server that cannot be reached for an empty one
            return []
        with self._reached("list") as (fs, root):
            infos = fs.find(f"{root}/{LAYOUT}", detail=True).values()
        return sorted((s for info in infos if (s := _listed(info)) is not None), key=lambda s: s.path)

    def read(self, segments: Sequence[ListedSegment]) -> Iterator[tuple[ListedSegment, bytes]]:
        """The bytes of segments, read side by side; one that somebody has removed meanwhile is left out.

        Of one with more than `MAX_PACKED_BYTES` it is one byte more: enough for `segments.decode` to refuse it.
        """
        with self._reached("read") as (fs, root):
            answers = _read(fs, [f"{root}/{s.path}" for s in segments], MAX_PACKED_BYTES)
        for segment, answer in zip(segments, answers, strict=True):
            if isinstance(answer, FileNotFoundError):
                continue
            if isinstance(answer, BaseException):
                raise self._error("read", answer)
            yield segment, answer

    def write(self, hardware: str, program: str, name: str, data: bytes) -> None:
        """Write a segment. One that is cut off by a crash has the wrong content for its name, and readers see that."""
        with self._reached("write to") as (fs, root):
            _put(fs, f"{root}/{LAYOUT}/{hardware}/{program}/{name}", data)

    def names(self) -> list[str]:
        """What lies beside the segments, and the folder of them."""
        return [str(info["name"]).rstrip("/").rpartition("/")[2] for info in self._list("")]

    def read_file(self, name: str, most_bytes: int) -> bytes:
        """The bytes of a file that lies beside the segments.

        Raises:
            InvalidInputError: also where it has more than `most_bytes`.
        """
        with self._reached("read") as (fs, root):
            (answer,) = _read(fs, [f"{root}/{name}"], most_bytes)
            if isinstance(answer, BaseException):
                raise answer
        if len(answer) > most_bytes:
            raise InvalidInputError(f"{self.shown}/{name} has more than {most_bytes} bytes: it is not read")
        return answer

    def write_file(self, name: str, data: bytes) -> None:
        """Write a file beside the segments."""
        with self._reached("write to") as (fs, root):
            _put(fs, f"{root}/{name}", data)

    def commit(self) -> str:
        """The commit, 40 hex digits, that a repository on a hub stands at, in the revision that the URL names."""
        with self._reached("read") as (fs, root):
            return hub.commit_of(fs, root)

    def remove(self, segments: Sequence[ListedSegment]) -> None:
        """Remove segments; those that are gone already are no error."""
        for segment in segments:
            with self._reached("remove from") as (fs, root):
                try:
                    fs.rm_file(f"{root}/{segment.path}")
                except Exception as err:
                    if not isinstance(err, FileNotFoundError) and _status_of(err) != HTTPStatus.NOT_FOUND:
                        raise

    def _list(self, below: str) -> list[dict[str, Any]]:
        with self._reached("list") as (fs, root):
            fs.invalidate_cache()  # some keep listings; another machine may have written since
            try:
                infos: list[dict[str, Any]] = fs.ls(f"{root}/{below}".rstrip("/"), detail=True)
            except FileNotFoundError as err:
                # No bucket, no repository or revision, or none that this user may see.
                if err.__cause__ is not None and (_is_hub(fs) or "s3" in fs.protocol):
                    raise
                return []
        return infos

    @contextmanager
    def _reached(self, verb: str) -> Iterator[tuple[Any, str]]:
        try:
            yield self._open()
        except (InvalidInputError, MissingExtraError, RemoteStoreError):
            raise
        except Exception as err:  # each storage has errors of its own, and not all are OSErrors
            raise self._error(verb, err) from err

    def _open(self) -> tuple[Any, str]:
        if self._opened is None:
            try:
                import fsspec
            except ImportError:
                raise MissingExtraError("pip install 'forecast-autotune[remote]'") from None
            scheme = self.url.partition("://")[0].rpartition("::")[2]
            options = {"auto_mkdir": True} if scheme in _LOCAL else hub.OPTIONS if scheme == "hf" else {}
            hub.hide_progress()
            try:
                # An instance of our own: a cached one may have been made before a fork.
                fs, root = fsspec.url_to_fs(self.url, skip_instance_cache=True, **options)
            except ImportError:
                package = _PACKAGES.get(scheme, f"the package that fsspec names for {scheme}://")
                raise MissingExtraError(f"pip install {package}: {self.shown} needs it") from None
            except ValueError as err:
                raise InvalidInputError(f"{self.shown}: {err}") from None
            self._opened = fs, str(root).rstrip("/")
        return self._opened

    def _error(self, verb: str, err: BaseException) -> RemoteStoreError:
        what = f"cannot {verb} {self.shown} ({type(err).__name__}: {str(err)[:300]})"
        if isinstance(err, PermissionError) or _status_of(err) in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
            return RemoteStoreError(f"{what}: look at its permissions, and at the credentials that fsspec finds here")
        if isinstance(err, FileNotFoundError):
            return RemoteStoreError(f"{what}: look at its spelling, and whether the bucket or folder is there")
        return RemoteStoreError(what)


def _read(fs: Any, paths: Sequence[str], most_bytes: int) -> list[bytes | BaseException]:
    """The bytes of files, or why one cannot be read; of a larger one `most_bytes` and one more."""
    if fs.async_impl:
        from fsspec.asyn import sync

        answers: list[bytes | BaseException] = sync(fs.loop, _read_side_by_side, fs, paths, most_bytes + 1)
        return answers
    return [_read_part(fs, path, most_bytes + 1) for path in paths]


async def _read_side_by_side(fs: Any, paths: Sequence[str], length: int) -> list[bytes | BaseException]:
    import asyncio

    if "http" in fs.protocol:
        reading = [_read_stream(fs, path, length) for path in paths]
    else:
        reading = [fs._cat_file(path, start=0, end=length) for path in paths]
    return await asyncio.gather(*reading, return_exceptions=True)


def _read_part(fs: Any, path: str, length: int) -> bytes | BaseException:
    try:
        return bytes(fs.cat_file(path, start=0, end=length))
    except Exception as err:  # each storage has errors of its own
        return err


async def _read_stream(fs: Any, url: str, length: int) -> bytes:
    """What a web server sends: it need not know of ranges, and its answer may never end."""
    session = await fs.set_session()
    async with session.get(fs.encode_url(url), **fs.kwargs) as answer:
        if answer.status == HTTPStatus.NOT_FOUND:
            raise FileNotFoundError(url)
        answer.raise_for_status()
        data = bytearray()
        while len(data) < length and (part := await answer.content.read(length - len(data))):
            data += part
        return bytes(data)


def _put(fs: Any, path: str, data: bytes) -> None:
    if _is_hub(fs):
        hub.write(fs, path, data)
    elif fs.protocol in (
        _LOCAL,
        *_LOCAL,
    ):  # whole at once, as object stores do: another machine reads what is there so far
        partial = f"{path}.{uuid.uuid4().hex}"
        try:
            fs.pipe_file(partial, data)
            os.replace(partial, path)
        except BaseException:
            with suppress(OSError):
                os.unlink(partial)
            raise
    else:
        fs.pipe_file(path, data)


def _is_hub(fs: Any) -> bool:
    return bool(fs.protocol == "hf")


def _status_of(err: BaseException) -> int | None:
    """Of an answer over HTTP that was an error."""
    status = getattr(getattr(err, "response", None), "status_code", None)
    return status if isinstance(status, int) else None


def _listed(info: dict[str, Any]) -> ListedSegment | None:
    """A segment of a listing; None for what is none: folders, and what somebody else has put there."""
    parts = str(info["name"]).split("/")[-3:]
    if info.get("type") != "file" or len(parts) != 3:
        return None
    hardware, program, name = parts
    if not all(_DIGEST.fullmatch(part) for part in (hardware, program, name.removesuffix(ENDING))):
        return None
    return ListedSegment(
        hardware=hardware, program=program, name=name, size=int(info.get("size") or 0), at=_time_of(info)
    )


def _time_of(info: dict[str, Any]) -> float | None:
    for field in _TIME_FIELDS:
        value = info.get(field)
        value = getattr(value, "date", value) if field == "last_commit" else value
        if isinstance(value, datetime):
            return value.timestamp()
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            return float(value)
        if isinstance(value, str):
            try:
                return datetime.fromisoformat(value.replace("Z", "+00:00")).timestamp()
            except ValueError:
                continue
    return None
