"""Segments: what they hold, and those that are cut off, of another version, or hostile."""

from __future__ import annotations

import gzip
import json
from dataclasses import replace
from typing import Any

import pytest
from contracts.store_contract import SPACE, a_decision, a_job, a_measurement

from forecast_autotune.core.job import Job
from forecast_autotune.core.outcome import Failure, Outcome
from forecast_autotune.errors import InvalidInputError
from forecast_autotune.remote import segments
from forecast_autotune.remote.location import MAX_PACKED_BYTES
from forecast_autotune.remote.segments import Contents, Withdrawn, decode, encode, name_of, not_after, since, union
from forecast_autotune.store.jsonl import Decided, Run
from forecast_autotune.store.rows import StoredOutcome, TuningKey

HARDWARE, PROGRAM = a_job().hardware.digest, a_job().workload.program.digest
NOW = 1_700_000_000.0


def a_run(job: Job | None = None, at: float = NOW, outcome: Outcome | None = None, run: str = "run-1") -> Run:
    job = job or a_job()
    stored = StoredOutcome(
        config=job.space[1],
        outcome=outcome or a_measurement(),
        forecast=None,
        default=job.space.default,
        run=run,
        recorded_at=at,
    )
    return Run(tuning_key=TuningKey.of(job), outcomes=(stored,))


def decided(job: Job | None = None, at: float = NOW, **changes: Any) -> Decided:
    job = job or a_job()
    return Decided(tuning_key=TuningKey.of(job), decision=a_decision(job, decided_at=at, **changes), superseded_at=None)


def one(contents: Contents, *, sources: bool = False) -> bytes:
    (data,) = encode(HARDWARE, PROGRAM, contents, sources=sources)
    return data


def read(data: bytes, name: str | None = None, **changes: Any) -> Contents:
    given = {"hardware": HARDWARE, "program": PROGRAM, "known": a_job().workload.program, **changes}
    return decode(data, name or name_of(data), **given)


def hand_made(*lines: object, header: object = None) -> bytes:
    """A segment with lines that no machine of ours would write."""
    header = header or {**segments.FORMAT.header, "hardware": HARDWARE, "program": PROGRAM}
    return gzip.compress("".join(json.dumps(line) + "\n" for line in (header, *lines)).encode())


def lines_of(data: bytes) -> list[dict[str, Any]]:
    return [json.loads(line) for line in gzip.decompress(data).splitlines()]


CONTENTS = Contents(
    entries=(a_run(), decided()), withdrawn=(Withdrawn(workload="1" * 32, toolchain="2" * 32, before=NOW),)
)


@pytest.mark.parametrize("sources", [False, True])
def test_contents_come_back_as_they_were(sources: bool) -> None:
    back = read(one(CONTENTS, sources=sources))
    assert set(map(str, back.entries)) == set(map(str, CONTENTS.entries))
    assert back.withdrawn == CONTENTS.withdrawn
    assert {e.tuning_key.workload.digest for e in back.entries} == {a_job().workload.digest}


def test_equal_contents_have_one_name_whatever_their_order() -> None:
    other = Contents(entries=CONTENTS.entries[::-1], withdrawn=CONTENTS.withdrawn)
    assert name_of(one(CONTENTS)) == name_of(one(other))


def test_neither_source_nor_compilers_words_leave_unless_asked_for() -> None:
    failure = Failure(stage="compile", message="CompilationError: y = secret_function(x)\n  ^ no")
    contents = Contents(entries=(a_run(outcome=failure), decided()))
    plain = gzip.decompress(one(contents))
    assert b"def rmsnorm" not in plain
    assert b"secret_function" not in plain
    (run,) = (e for e in read(one(contents)).entries if isinstance(e, Run))
    assert run.outcomes[0].outcome == Failure(stage="compile", message="CompilationError: on another machine")
    whole = gzip.decompress(one(contents, sources=True))
    assert b"def rmsnorm" in whole
    assert b"secret_function" in whole


def test_a_program_that_is_not_known_keeps_its_digest() -> None:
    (entry, _) = read(one(CONTENTS), known=None).entries
    assert entry.tuning_key.workload.program.digest == PROGRAM
    assert entry.tuning_key.workload.digest == a_job().workload.digest


def test_much_is_written_as_several_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segments, "WRITTEN_BYTES", 4_000)
    entries = [a_run(a_job(key={"n": n})) for n in range(20)]
    parts = encode(HARDWARE, PROGRAM, Contents(entries=tuple(entries)), sources=False)
    assert len(parts) > 2
    assert sum(len(read(part).entries) for part in parts) == 20


def test_nothing_to_say_is_no_segment() -> None:
    assert encode(HARDWARE, PROGRAM, Contents(), sources=False) == []


# What is refused --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 0.99])
def test_a_segment_cut_off_is_refused(share: float) -> None:
    data = one(CONTENTS)
    cut = data[: int(share * len(data))]
    with pytest.raises(InvalidInputError, match="cut off or was changed"):
        read(cut, name_of(data))
    with pytest.raises(InvalidInputError):
        read(cut)  # named by what is left of it


def test_a_segment_with_a_flipped_bit_is_refused() -> None:
    data = bytearray(one(CONTENTS))
    name = name_of(bytes(data))
    data[len(data) // 2] ^= 1
    with pytest.raises(InvalidInputError, match="cut off or was changed"):
        read(bytes(data), name)


def test_a_segment_of_another_format_or_version_is_refused() -> None:
    with pytest.raises(InvalidInputError, match="schema 'theirs'"):
        read(hand_made(header={"schema": "theirs"}))
    newer = {**segments.FORMAT.header, "version": 2, "hardware": HARDWARE, "program": PROGRAM}
    with pytest.raises(InvalidInputError, match=r"version 2.*reads 1: update"):
        read(hand_made(header=newer))


def test_a_segment_in_the_wrong_folder_is_refused() -> None:
    with pytest.raises(InvalidInputError, match="another program or hardware than the folder"):
        read(one(CONTENTS), hardware="f" * 32)
    line = lines_of(one(Contents(entries=(decided(a_job(source="other")),)), sources=True))[1]
    with pytest.raises(InvalidInputError, match="line 2: it is about another program"):
        read(hand_made(line))


def test_one_broken_line_and_nothing_is_taken() -> None:
    good = lines_of(one(Contents(entries=(decided(),))))[1]
    for broken in (
        {"line": "exec"},
        [],
        {**good, "decision": {**good["decision"], "basis": "magic"}},
        {"line": "withdrawn"},
    ):
        with pytest.raises(InvalidInputError, match="line 3"):
            read(hand_made(good, broken))


def test_a_bomb_is_refused_before_it_is_unpacked(monkeypatch: pytest.MonkeyPatch) -> None:
    bomb = gzip.compress(b'{"schema": "' + b" " * 2**28)
    assert len(bomb) < MAX_PACKED_BYTES
    with pytest.raises(InvalidInputError, match="more than 128 MiB"):
        read(bomb)
    with pytest.raises(InvalidInputError, match="it is not read"):
        read(bytes(MAX_PACKED_BYTES + 1))


# What is merged ---------------------------------------------------------------------------------------------------------


def test_a_clock_hours_ahead_does_not_make_a_decision_the_newest() -> None:
    ahead = Contents(entries=(decided(at=NOW + 36_000), a_run(at=NOW + 36_000)))
    told, run = not_after(ahead, NOW).entries
    assert isinstance(told, Decided)
    assert told.decision.decided_at == NOW
    assert isinstance(run, Run)
    assert run.outcomes[0].recorded_at == NOW
    withdrawn = Withdrawn(workload="1" * 32, toolchain="2" * 32, before=NOW + 36_000)
    assert not_after(Contents(withdrawn=(withdrawn,)), NOW).withdrawn == (replace(withdrawn, before=NOW),)
    for off_s in (-1.0, segments.CLOCK_SLACK_S):
        right = Contents(entries=(decided(at=NOW + off_s),))
        assert not_after(right, NOW) == right


def test_the_union_is_the_same_in_any_order_and_taken_twice() -> None:
    parts = [
        Contents(entries=(a_run(), decided(at=NOW))),
        Contents(entries=(a_run(run="run-2"), decided(at=NOW + 1, config=SPACE[3]))),
        Contents(entries=(decided(at=NOW + 1, config=SPACE[2]),)),
    ]
    first = union(parts)
    assert sum(isinstance(e, Decided) for e in first.entries) == 1
    assert sum(isinstance(e, Run) for e in first.entries) == 2
    for order in ([2, 1, 0], [1, 2, 0, 1], [0, 0, 2, 1]):
        again = union([parts[i] for i in order])
        assert set(map(str, again.entries)) == set(map(str, first.entries))


def test_what_is_withdrawn_leaves_the_union_and_what_is_newer_stays() -> None:
    workload, _, toolchain = TuningKey.of(a_job()).digests
    withdrawn = Withdrawn(workload=workload, toolchain=toolchain, before=NOW)
    old = Contents(entries=(a_run(at=NOW - 5), decided(at=NOW)))
    elsewhere = Contents(entries=(decided(a_job(key={"n": 1}), at=NOW - 9),))
    newer = Contents(entries=(a_run(at=NOW + 5, run="later"),))
    kept = union([old, Contents(withdrawn=(withdrawn,)), elsewhere, newer])
    assert set(map(str, kept.entries)) == {str(elsewhere.entries[0]), str(newer.entries[0])}
    assert kept.withdrawn == (withdrawn,)


def test_what_is_too_old_goes() -> None:
    young = a_run(at=NOW)
    both = replace(young, outcomes=(*a_run(at=NOW - 10).outcomes, *young.outcomes))
    withdrawn = (*CONTENTS.withdrawn, replace(CONTENTS.withdrawn[0], before=NOW - 10))  # else others send it again
    kept = since(Contents(entries=(both, decided(at=NOW - 10)), withdrawn=withdrawn), NOW)
    assert kept == Contents(entries=(young,), withdrawn=withdrawn)
