"""`remote`: look at the store that machines share, exchange with it now, tidy it, and take back what it should not hold."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import InvalidInputError
from ._exit_codes import BAD_INPUT, NOTHING, OK, exit_codes
from ._parsing import JSON_HELP, Subparsers, add_store_argument, days, new_parser
from ._store import is_missing, refuse_read_only
from .output import print_json, print_table, say

if TYPE_CHECKING:
    from ..remote.exchange import Exchange
    from ..remote.location import ListedSegment
    from ..settings import RemoteStore
    from ..store.queries import StoreFile
    from ..store.rows import StoredDecision

DESCRIPTION = """\
The store named by FORECAST_AUTOTUNE_REMOTE_STORE, which machines share. Programs exchange with it by themselves, in the
background; these commands do it now, and wait for it."""

SECONDS_A_DAY = 86_400.0
MAX_LISTED = 10  # of the kernels that a name stands for


def add_parser(subparsers: Subparsers) -> None:
    """Add the verb, with a word for each thing it does."""
    parser = new_parser(subparsers, "remote", DESCRIPTION, nothing="nothing was found: WHAT --help says what")
    words = parser.add_subparsers(dest="word", metavar="WHAT", required=True)

    def word(name: str, line: str, description: str, nothing: str = "") -> argparse.ArgumentParser:
        made: argparse.ArgumentParser = words.add_parser(
            name,
            help=line,
            description=description,
            epilog=exit_codes(nothing),
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        add_store_argument(made)
        made.add_argument("--json", action="store_true", help=JSON_HELP)
        return made

    word(
        "status",
        "what is there, and what waits here",
        "Say what the remote store holds, and what waits to be sent to it.",
        "the remote store is empty",
    )
    word(
        "push",
        "send what waits here",
        "Send all decisions of this machine that the remote store does not have, with the outcomes of their keys: the last\n"
        "step of a job in a container that ends.",
        "there is no store here; --json prints {}",
    )
    word(
        "pull",
        "read what is new",
        "Read what is new of all programs that this machine's store knows, on all hardware. Of other programs nothing can\n"
        "be read before they are met: the remote store holds digests in place of their source.",
        "there is no store here; --json prints {}",
    )
    compact = word(
        "compact",
        "write many segments anew as few",
        "Write each program's segments anew as few, then remove the old ones. What is superseded or withdrawn is left out.\n"
        "One machine does it now and then; nobody need stop meanwhile.",
    )
    compact.add_argument("--days", type=days, metavar="N", help="leave out what is older than N days")
    withdraw = word(
        "withdraw",
        "take back what is known of a key",
        "Say that all outcomes and decisions so far of some keys count no more: on every machine that reads the remote\n"
        "store, and in the store here. A machine that measured them itself keeps its own; 'clear' removes those there.",
        "nothing here is called KEY; --json prints []",
    )
    withdraw.add_argument("key", metavar="KEY", help="the whole name of a kernel, or the start of one digest")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Do what the word says."""
    from ..settings import PREFIX, Settings
    from ..store.queries import StoreFile

    settings = Settings.from_environment()
    if settings.remote_store is None:
        raise InvalidInputError(
            f"no remote store is named: set {PREFIX}REMOTE_STORE, to s3://bucket/folder for example"
        )
    directory = settings.dir if arguments.dir is None else arguments.dir
    done = {"status": _status, "push": _push, "pull": _pull, "compact": _compact, "withdraw": _withdraw}
    with ExitStack() as stack:
        exchange = _exchange(directory, settings.remote_store, stack, looks=arguments.word == "status")
        return done[arguments.word](arguments, exchange, StoreFile(directory), settings.remote_store)


def _exchange(directory: Path, remote: RemoteStore, stack: ExitStack, *, looks: bool) -> Exchange:
    """The way between the two stores; who only looks leaves a broken file as it is."""
    from ..remote.exchange import Exchange
    from ..remote.location import Location
    from ..remote.mirror import Mirror
    from ..store.sqlite import SqliteStore

    own, mirror = SqliteStore(directory, quiet=looks), Mirror(directory, remote.url)
    stack.callback(own.close)
    stack.callback(mirror.store.close)
    return Exchange(own, mirror, Location(remote.url), sources=remote.sources, complain=say)


def _status(arguments: argparse.Namespace, exchange: Exchange, store: StoreFile, remote: RemoteStore) -> int:
    listing = exchange.location.all_segments()
    waiting = removed = 0
    if store.exists():
        removed = len(exchange.removed())
        waiting = len(exchange.unsent()) + removed
    named = _names(exchange, store)
    folders: dict[tuple[str, str], list[ListedSegment]] = {}
    for segment in listing:
        folders.setdefault((segment.hardware, segment.program), []).append(segment)
    if arguments.json:
        print_json(
            {
                "url": exchange.location.shown,
                "trusted": remote.trusted,
                "sources": remote.sources,
                "waiting": waiting,
                "folders": [
                    {
                        "hardware": hardware,
                        "hardware_name": named.get(hardware),
                        "program": program,
                        "program_name": named.get(program),
                        "segments": len(of_folder),
                        "bytes": sum(s.size for s in of_folder),
                        "newest": _newest(of_folder),
                    }
                    for (hardware, program), of_folder in folders.items()
                ],
            }
        )
        return OK if listing else NOTHING
    if folders:
        print_table(
            ("hardware", "program", "segments", "kB", "newest"),
            [
                (
                    named.get(hardware, hardware[:12]),
                    named.get(program, program[:12]),
                    str(len(of_folder)),
                    f"{sum(s.size for s in of_folder) / 1000:.1f}",
                    _day(_newest(of_folder)),
                )
                for (hardware, program), of_folder in folders.items()
            ],
            right=("segments", "kB"),
        )
    size = sum(s.size for s in listing) / 1000
    believed = "believed" if remote.trusted else "tried first, not believed (',trusted' behind the URL changes that)"
    say(f"{exchange.location.shown}: {len(listing)} segments, {size:.1f} kB; its decisions are {believed}")
    gone = f"; {removed} of them are gone from there: 'remote push' alone sends them again" if removed else ""
    say(f"{waiting} decisions of this machine wait to be sent{gone}" if waiting else "nothing waits here to be sent")
    return OK if listing else NOTHING


def _names(exchange: Exchange, store: StoreFile) -> Mapping[str, str]:
    """Names of hardware and programs by digest, as far as they are known on this machine."""
    from ..store.queries import StoreFile

    named: dict[str, str] = {}
    folder = exchange.mirror.folder
    for file in (store, *([] if folder is None else [StoreFile(folder)])):
        if file.exists():
            for stored in file.each_decision():
                tuning_key = stored.tuning_key
                named[tuning_key.hardware.digest] = tuning_key.hardware.name
                named[tuning_key.workload.program.digest] = tuning_key.workload.program.name
    return named


def _newest(listing: Sequence[ListedSegment]) -> float | None:
    return max((s.at for s in listing if s.at is not None), default=None)


def _day(at: float | None) -> str:
    from datetime import datetime

    return "-" if at is None else datetime.fromtimestamp(at).strftime("%Y-%m-%d %H:%M")


def _push(arguments: argparse.Namespace, exchange: Exchange, store: StoreFile, _: RemoteStore) -> int:
    if is_missing(store, {} if arguments.json else None):
        return NOTHING
    exchange.forget_removed()
    sent = exchange.push()
    if arguments.json:
        print_json({"decisions": sent})
    say(f"sent {sent} decisions to {exchange.location.shown}")
    return OK


def _pull(arguments: argparse.Namespace, exchange: Exchange, store: StoreFile, _: RemoteStore) -> int:
    if is_missing(store, {} if arguments.json else None):
        return NOTHING
    kept_in = exchange.mirror.store
    refuse_read_only((store.path.parent, *filter(None, (kept_in.directory, kept_in.path))), "what is read")
    outcomes, decisions = exchange.pull_known()
    if arguments.json:
        print_json({"outcomes": outcomes, "decisions": decisions})
    say(f"read {outcomes} outcomes and {decisions} decisions that were not here")
    return OK


def _compact(arguments: argparse.Namespace, exchange: Exchange, _: StoreFile, __: RemoteStore) -> int:
    from ..store.rows import now

    if arguments.days is not None and not arguments.days >= 0:
        raise InvalidInputError(f"--days {arguments.days}: give a number that is not negative")
    since = None if arguments.days is None else now() - arguments.days * SECONDS_A_DAY
    written, removed = exchange.compact(since=since)
    if arguments.json:
        print_json({"written": [s.path for s in written], "removed": [s.path for s in removed]})
    else:
        for segment in removed:
            print(segment.path)
    say(f"wrote {len(written)} segments and removed {len(removed)}")
    return OK


def _kernel(stored: StoredDecision) -> str:
    return stored.tuning_key.workload.program.name


def _withdraw(arguments: argparse.Namespace, exchange: Exchange, store: StoreFile, _: RemoteStore) -> int:
    from ..store.queries import StoreFile

    folder = exchange.mirror.folder
    files = [file for file in (store, *([] if folder is None else [StoreFile(folder)])) if file.exists()]
    found = [stored for file in files for stored in file.find(arguments.key)]
    of_name = [stored for stored in found if _kernel(stored) == arguments.key]
    meant = of_name or [stored for stored in found if stored.digest.startswith(arguments.key.lower())]
    digests = len({stored.digest for stored in meant})
    kernels = sorted({_kernel(stored) for stored in meant or found})
    if found and not of_name and digests != 1:
        if digests:
            say(f"{digests} digests start with {arguments.key!r}; nothing is withdrawn: give more of one")
        else:
            say(f"{arguments.key!r} is no kernel's whole name and no digest's start; nothing is withdrawn")
        say(f"it stands for {', '.join(kernels[:MAX_LISTED])}{' and others' if len(kernels) > MAX_LISTED else ''}")
        return BAD_INPUT
    named: dict[str, StoredDecision] = {}
    for stored in meant:
        held = named.get(stored.digest)
        if held is None or stored.decision.decided_at > held.decision.decided_at:
            named[stored.digest] = stored
    if not named:
        say(f"nothing here is called {arguments.key!r}: 'forecast-autotune list' names keys; 'remote pull' reads more")
        if arguments.json:
            print_json([])
        return NOTHING
    exchange.withdraw(named.values())
    if arguments.json:
        print_json(sorted(named))
    for stored in named.values():
        say(f"withdrawn: {stored.tuning_key.workload} on {stored.tuning_key.hardware}")
    return OK
