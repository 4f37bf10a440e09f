"""What repositories and buckets of the Hugging Face hub need beside fsspec's verbs."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from huggingface_hub import HfApi, HfFileSystem

OPTIONS = {"expand_info": True}
"""For `HfFileSystem`: a listing is to say when each file came, by the hub's clock."""


def hide_progress() -> None:
    """Have no bars of progress drawn into the caller's terminal; to be called before the hub's package is imported."""
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")


def commit_of(fs: HfFileSystem, path: str) -> str:
    """The commit, 40 hex digits, that a repository stands at, in the revision that a path names."""
    place = fs.resolve_path(path)
    if hasattr(place, "bucket_id"):
        raise FileNotFoundError("a bucket has no commits")
    return str(_api(fs).repo_info(place.repo_id, repo_type=place.repo_type, revision=place.revision).sha)


def write(fs: HfFileSystem, path: str, data: bytes) -> None:
    """Write a file: in a repository, a commit. `HfFileSystem` itself leaves a temporary file behind when that fails."""
    place = fs.resolve_path(path)
    if hasattr(place, "bucket_id"):
        _api(fs).batch_bucket_files(place.bucket_id, add=[(data, place.path)])
        return
    _api(fs).upload_file(
        path_or_fileobj=data,
        path_in_repo=place.path_in_repo,
        repo_id=place.repo_id,
        repo_type=place.repo_type,
        revision=place.revision,
        commit_message=f"Add {place.path_in_repo}",
    )


def _api(fs: HfFileSystem) -> HfApi:
    from huggingface_hub import HfApi

    return HfApi(endpoint=fs.endpoint, token=fs.token)
