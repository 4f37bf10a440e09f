"""`export`: decisions and outcomes as readable JSON lines, or decisions in the files that other programs read."""

from __future__ import annotations

import argparse
from contextlib import closing
from pathlib import Path

from ..errors import InvalidInputError
from ._exit_codes import NOTHING, OK
from ._parsing import FORMATS, Subparsers, add_store_argument, new_parser
from ._store import hardware_meant, is_missing, store_of, warn_unreadable
from .output import say

REASONS = 5  # printed: a store has decisions of many kernels, most of which a format has no place for


def add_parser(subparsers: Subparsers) -> None:
    """Add the verb and its options."""
    parser = new_parser(
        subparsers,
        "export",
        "Write all decisions and outcomes as JSON lines, for `import` elsewhere or for FORECAST_AUTOTUNE_PACKS. They\n"
        "hold the source text of the kernels. The file is written whole or not at all. Answers of language models stay:\n"
        "they belong to a model that runs here.\n\n"
        "With --format, write measured decisions in the config files of another program, into the folder DIR: fused\n"
        "mixture-of-experts configs of vLLM and SGLang, or kernels' configs of flash-linear-attention. A file of the same\n"
        "name there is replaced. Batch sizes that were not measured get the default's config.",
    )
    parser.add_argument("file", type=Path, metavar="FILE|DIR", help="where to; in gzip when the name ends in .gz")
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
    store = store_of(arguments)
    if is_missing(store):
        return NOTHING
    if arguments.format is not None:
        return _write_config_files(arguments)
    lines = store.export(arguments.file)
    warn_unreadable(store)
    say(f"wrote {lines} lines to {arguments.file}")
    return OK


def _write_config_files(arguments: argparse.Namespace) -> int:
    from ..store.config_files import FORMATS as BY_NAME
    from ..store.config_files.base import Where, write

    known, store = BY_NAME[arguments.format], store_of(arguments)
    where = Where(arguments.where, known.where)
    with closing(store.each_tuned(kernel=arguments.kernel, hardware=arguments.hardware)) as tuned:
        export = known.export(tuned, where)
    warn_unreadable(store)
    for file in export.files:
        write(arguments.file, file)
        say(f"{arguments.file / file.path}: {file.note}")
    reasons = sorted(export.left_out.items(), key=lambda reason: -reason[1])
    for why, count in reasons[:REASONS]:
        say(f"left out {count} {'decision' if count == 1 else 'decisions'}, {why}")
    if rest := sum(count for _, count in reasons[REASONS:]):
        say(f"left out {rest} more decisions; --kernel K looks at one kernel alone")
    if not export.files:
        say(f"nothing measured here goes into files of {known.name}{hardware_meant(store, arguments.hardware)}")
        return NOTHING
    say(f"they are read under {known.use.format(folder=arguments.file.absolute())}")
    return OK
