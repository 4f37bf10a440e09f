"""`--version`: this package, and what it tunes with, found without importing any of it."""

from __future__ import annotations

import argparse


class Version(argparse.Action):
    """Print the versions and end."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        """See `argparse.Action`."""
        print("\n".join(versions()))
        parser.exit()


def versions() -> list[str]:
    """A line for this package, one for each distribution that brings Triton or torch, and one for Python."""
    import platform
    from importlib.metadata import packages_distributions

    brought = packages_distributions()  # on ROCm, Triton's has another name
    lines = [f"forecast-autotune {_version_of('forecast-autotune')}"]
    for package in ("triton", "torch"):
        lines += [f"{name} {_version_of(name)}" for name in sorted(set(brought.get(package, [package])))]
    return [*lines, f"Python {platform.python_version()}"]


def _version_of(distribution: str) -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(distribution)
    except PackageNotFoundError:
        return "not installed"
