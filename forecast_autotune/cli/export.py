"""`export`: decisions and outcomes as readable JSON lines, or decisions in the files that other programs read."""

from __future__ import annotations

import argparse
import os
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import InvalidInputError
from ._exit_codes import NOTHING, OK
from ._parsing import FORMATS, Subparsers, add_store_argument, new_parser
from ._store import hardware_meant, is_missing, store_of, warn_unreadable
from .output import say

if TYPE_CHECKING:
    from ..store.queries import StoreFile

REASONS = 5  # printed: a store has decisions of many kernels, most of which a format has no place for


def add_parser(subparsers: Subparsers) -> None:
    """Add the verb and its options."""
    parser = new_parser(
        subparsers,
        "export",
        "Write all decisions and outcomes as JSON lines, for `import` elsewhere or for FORECAST_AUTOTUNE_PACKS. They\n"
        "hold the source text of the kernels. The file is written whole or not at all. Answers of language models stay:\n"
        "they belong to a model that runs here.\n\n"
        "To a folder or a URL that fsspec knows, write measured decisions and their outcomes as a tree of small files with\n"
        "a card for people and a manifest; digests stand for sources unless --sources asks for them. It prints what\n"
        "FORECAST_AUTOTUNE_PACKS takes: of a URL, the manifest's digest pins it.\n\n"
        "With --format, write measured decisions in the config files of another program, into the folder DIR: fused\n"
        "mixture-of-experts configs of vLLM and SGLang, or kernels' configs of flash-linear-attention. A file of the same\n"
        "name there is replaced. Batch sizes that were not measured get the default's config.",
        nothing="there is no store yet, or nothing measured goes into a tree or into files of --format",
    )
    parser.add_argument(
        "file",
        metavar="FILE|DIR|URL",
        help="where to; in gzip when the name ends in .gz; a URL, or a folder's name that ends in /, gets a tree",
    )
    parser.add_argument("--sources", action="store_true", help="a tree: with the source text of the kernels")
    parser.add_argument("--format", choices=FORMATS, help="whose config files to write into DIR")
    parser.add_argument("--kernel", metavar="K", help="with --format: only kernels with this in their name")
    parser.add_argument("--hardware", metavar="H", help="with --format: only hardware with this in its name")
    parser.add_argument(
        "--where",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="with --format vllm or sglang: what keys do not say themselves, as E=8, N=n/2 (half of the key's n) or "
        "dtype=fp8_w8a8; K=4096 leaves out what was tuned for another K. NAME is M, E, N, K, dtype, block_shape, "
        "per_channel_quant, down or device_name",
    )
    add_store_argument(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Write the file, or the files."""
    if arguments.format is None and (arguments.kernel or arguments.hardware or arguments.where):
        raise InvalidInputError(
            "--kernel, --hardware and --where choose what --format writes: an export without it is whole"
        )
    target = str(arguments.file)
    if arguments.format is not None and ("://" in target or arguments.sources):
        raise InvalidInputError(
            "--format writes config files, which hold no sources, into a folder of this machine: name one"
        )
    if target == "-":
        raise InvalidInputError("an export is written whole or not at all, so not to stdout: name a file")
    store = store_of(arguments)
    if is_missing(store):
        return NOTHING
    if arguments.format is not None:
        return _write_config_files(Path(target), store, arguments)
    if "://" in target or target.endswith("/"):
        return _write_tree(target, store, sources=arguments.sources)
    lines = store.export(Path(target))
    warn_unreadable(store)
    say(f"wrote {lines} lines to {target}")
    return OK


def _write_tree(target: str, store: StoreFile, *, sources: bool) -> int:
    from ..remote.exchange import Exchange
    from ..remote.location import Location
    from ..remote.mirror import Mirror
    from ..remote.trees import write_tree
    from ..settings import is_url
    from ..store.sqlite import SqliteStore

    if "://" in target and not is_url(target):
        raise InvalidInputError(f"{target!r} is no URL: give one that fsspec knows (file:/// and a path), or a folder")
    if "://" not in target and os.pathsep in target:
        raise InvalidInputError(f"{os.pathsep!r} separates paths in FORECAST_AUTOTUNE_PACKS: name a folder without it")
    # fsspec takes a path as it is: nothing in it may be percent-encoded.
    location = Location(target.rstrip("/") if "://" in target else f"file://{Path(target).absolute()}")
    with SqliteStore(store.path.parent) as own:
        exchange = Exchange(own, Mirror(None, location.url), location, sources=sources, complain=say)
        digest, count = write_tree(location, exchange.everything(), sources=sources)
    if not count:
        say("nothing is written: decisions of rehearsals, and those that were not measured, go into no tree")
        return NOTHING
    named = f"{location.shown}#{digest}" if "://" in target else str(Path(target).absolute())
    print(named)
    say(f"wrote {count} segments; FORECAST_AUTOTUNE_PACKS takes what is printed")
    return OK


def _write_config_files(folder: Path, store: StoreFile, arguments: argparse.Namespace) -> int:
    from ..store.config_files import FORMATS as BY_NAME
    from ..store.config_files.base import Where, write

    known = BY_NAME[arguments.format]
    where = Where(arguments.where, known.where)
    with closing(store.each_tuned(kernel=arguments.kernel, hardware=arguments.hardware)) as tuned:
        export = known.export(tuned, where)
    warn_unreadable(store)
    for file in export.files:
        write(folder, file)
        say(f"{folder / file.path}: {file.note}")
    reasons = sorted(export.left_out.items(), key=lambda reason: -reason[1])
    for why, count in reasons[:REASONS]:
        say(f"left out {count} {'decision' if count == 1 else 'decisions'}, {why}")
    if rest := sum(count for _, count in reasons[REASONS:]):
        say(f"left out {rest} more decisions; --kernel K looks at one kernel alone")
    if not export.files:
        why = hardware_meant(store, arguments.hardware)
        if not why and not export.left_out:
            asked = (("kernel", arguments.kernel), ("hardware", arguments.hardware))
            named = [f"{name!r} in the name of the {what}" for what, name in asked if name]
            why = ": they take decisions that were measured on a GPU, and here are none"
            why += f" with {' and '.join(named)}" if named else ""
        say(f"nothing measured here goes into files of {known.name}{why}")
        return NOTHING
    say(f"they are read under {known.use.format(folder=folder.absolute())}")
    return OK
