"""What people see while it tunes, on a terminal, in a pipe and in a notebook; and that it never harms a program."""

from __future__ import annotations

import contextvars
import io
import logging
import os
import re
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from collecting import without_collecting
from contracts.store_contract import a_decision, a_job
from deadline import DeadlineError, deadline_in
from recorded import job_of
from small_runs import Fixed, Memory, recorded_as
from terminal import screen_after, shown_by

from forecast_autotune.core.budget import Budget
from forecast_autotune.core.config import Config
from forecast_autotune.core.hardware import Hardware
from forecast_autotune.core.job import Job, Progress
from forecast_autotune.core.outcome import Outcome
from forecast_autotune.core.space import Space
from forecast_autotune.core.timing_limits import IN_FULL, TimingLimits
from forecast_autotune.measure.replay import Replay
from forecast_autotune.tuning import progress, progress_text
from forecast_autotune.tuning.loop import tune
from forecast_autotune.tuning.policies import Exhaustive
from forecast_autotune.tuning.progress import Run, show_progress
from forecast_autotune.tuning.progress_text import cells, cut, live_line
from forecast_autotune.tuning.screens import Terminal

CPU = Hardware(kind="cpu", name="a CPU")
SPACE = Space([{"LANES": lanes, "FAST": 1} for lanes in (1, 4, 16)])


class Stream(io.StringIO):
    """A stderr that notes what comes, and from which thread."""

    def __init__(self, *, terminal: bool) -> None:
        super().__init__()
        self.terminal = terminal
        self.writers: list[str] = []

    def isatty(self) -> bool:
        return self.terminal

    def write(self, text: str) -> int:
        self.writers.append(threading.current_thread().name)
        return super().write(text)


def set_stderr(stream: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have progress go there; pytest sets `sys.stderr` itself between a fixture and its test."""
    monkeypatch.setattr(progress, "sys", SimpleNamespace(stderr=stream))


@pytest.fixture(autouse=True)
def new_board(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.delenv("RANK", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(progress, "_board", progress._Board())
    yield
    progress._board.finish()


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every run takes 0 seconds, however busy the machine is."""
    monkeypatch.setattr(Run, "elapsed_s", property(lambda _: 0.0))


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Stream:
    stream = Stream(terminal=True)
    set_stderr(stream, monkeypatch)
    return stream


@pytest.fixture
def pipe(monkeypatch: pytest.MonkeyPatch) -> Stream:
    stream = Stream(terminal=False)
    set_stderr(stream, monkeypatch)
    return stream


def job(name: str = "scale.twice", **changes: Any) -> Job:
    return a_job(name=name, **{"space": SPACE, "hardware": CPU, **changes})


def tell(run: Run | None, doing: str = "building", **changes: Any) -> None:
    """Report to a run as its loop does."""
    assert run is not None
    values = {"job": job(), "forecast": 3, "compiled": 0, "tried": 0, "limit": 16.0, "spent_s": 0.0}
    run(Progress(doing=doing, **{**values, "best": None, "best_speedup": None, **changes}))


def close(run: Run | None, tuned: Job | None = None, *, here: bool = True, **changes: Any) -> None:
    """Decide a key as its front door does."""
    assert run is not None
    tuned = tuned or job()
    best = {"config": Config({"LANES": 16, "FAST": 1}), "config_us": 10.0, "default_us": 103.0}
    counts = {"tried": 3, "space_size": len(tuned.space), "decided_at": time.time(), "equivalents": ()}
    run.tuned(tuned, a_decision(tuned, **{**best, **counts, **changes}), measured_here=here, is_stored=True)


def tune_keys(*keys: Job, **changes: Any) -> None:
    for each in keys:
        with show_progress("a kernel") as run:
            close(run, each, **changes)


def keys(count: int, name: str = "matmul") -> list[Job]:
    return [job(name, key={"n": n}) for n in range(count)]


def ticker_once_begun() -> progress._Ticker:
    ticker = progress._board._ticker
    assert ticker is not None
    assert ticker._begun.wait(60)
    return ticker


def let_the_pause_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have many keys summed up as after `PAUSE_S`: the run that ends here has the wait begin anew, and it takes no time."""
    monkeypatch.setattr(progress, "PAUSE_S", 0.0)
    with show_progress("a kernel"):
        pass
    ticker_once_begun().join(60)


# On a terminal ------------------------------------------------------------------------------------------------------

DRAWN = """
import os, signal, sys, threading, time
from forecast_autotune.tuning import progress, screens
from forecast_autotune.tuning.progress import show_progress

progress.FIRST_S, screens.Terminal.every_s = 0.0, 0.01

def await_line(after_s=0.0):
    since = time.monotonic() + after_s
    while progress._board._drawn < since:
        assert time.monotonic() < since + 60, "no line is drawn"
        time.sleep(0.01)
    with progress._board._drawing:  # until it is written
        pass
"""  # for programs that wait until a live line has been drawn, again and so many seconds later

SLOW = """
with show_progress("kernel slow"):
    await_line()
    await_line(after_s=1.0)
print("done")
"""


def on_a_terminal(program: str, folder: Path) -> tuple[int, str]:
    """A program's exit code and what it sends to a terminal of 80 columns."""
    inherited = {name: value for name, value in os.environ.items() if name != "COLUMNS"}
    command = [sys.executable, "-c", DRAWN + program]
    return shown_by(command, {**inherited, "TERM": "xterm"}, folder, columns=80)


def test_a_terminal_sees_a_line_that_ticks_and_goes(tmp_path: Path) -> None:
    code, sent = on_a_terminal(SLOW, tmp_path)
    assert code == 0
    assert len(set(re.findall(r"kernel slow: preparing, \d s", sent))) >= 2
    assert screen_after(sent) == ["done"]
    assert "\x1b[?25l" not in sent, "the cursor is never hidden, so it need not come back"


@pytest.mark.usefixtures("at_once")
def test_a_line_says_what_is_done_how_far_how_long_and_the_best(terminal: Stream) -> None:
    with show_progress("a kernel") as run:
        tell(run, "timing", tried=2, best=SPACE[2], best_speedup=1.832, seconds_left=30.0, timing=True)
    assert "scale.twice: timing, 2 of 3 tried, 0 of at most 30 s, best 1.83x" in terminal.getvalue()


def test_a_line_says_that_the_default_is_waited_for_beyond_the_limit() -> None:
    facts = {
        "doing": "building",
        "forecast": 3,
        "compiled": 0,
        "tried": 0,
        "limit": 16,
        "best": None,
        "best_speedup": None,
    }
    for elapsed_s, says in ((8.0, "8 of at most 8 s"), (10.0, "10 s, beyond its 8 s for the default's build")):
        told = Progress(job=job(), spent_s=0.0, seconds_left=7.0, **facts)
        line = live_line("a kernel", told, elapsed_s=elapsed_s, heard_s=1.0, columns=None)
        assert line == f"scale.twice: building, 0 of 3 tried, {says}"


@pytest.mark.usefixtures("at_once")
def test_the_closing_line_takes_the_place_of_the_live_one(terminal: Stream) -> None:
    with show_progress("a kernel") as run:
        tell(run, timing=True)
        close(run)
    (line,) = screen_after(terminal.getvalue())
    assert line == "twice: LANES=16, 10.3x, 3 of 3 tried, 0.0 s (forecast-autotune show scale.twice)"


def test_a_key_learned_from_real_calls_says_so_where_they_lost_nothing(pipe: Stream) -> None:
    tune_keys(job(), saved_s=0.3)
    assert "3 of 3 tried, in real calls, which lost 0 s (" in pipe.getvalue()


def test_a_run_that_is_broken_off_leaves_nothing(terminal: Stream) -> None:
    def broken_off() -> None:
        with show_progress("a kernel") as run:
            tell(run, timing=True)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        broken_off()
    assert screen_after(terminal.getvalue()) == []
    assert "write" not in vars(terminal)


def test_warnings_and_logs_do_not_tear_the_line(tmp_path: Path) -> None:
    program = """
import logging, warnings
logging.basicConfig(format="log: %(message)s")
with show_progress("kernel slow"):
    for i in range(3):
        await_line()
        warnings.warn_explicit(f"warning {i}", UserWarning, "x.py", 1)
        logging.warning("a failure %d", i)
        print("printed", i)
        print("in two ", end="", file=sys.stderr)
        await_line()
        print("parts", file=sys.stderr)
"""
    code, sent = on_a_terminal(program, tmp_path)
    assert code == 0
    assert screen_after(sent) == [
        row
        for i in range(3)
        for row in (f"x.py:1: UserWarning: warning {i}", f"log: a failure {i}", f"printed {i}", "in two parts")
    ]
    assert sent.count("preparing") >= 3, sent


def test_what_a_stream_answers_reaches_who_writes(terminal: Stream, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Stream, "write", lambda self, text: None)
    with show_progress("a kernel") as run:
        tell(run, timing=True)
        assert "write" in vars(terminal), "ours, while a line is drawn"
        assert terminal.write("their own") is None
    assert "write" not in vars(terminal)


def test_a_write_that_a_program_put_into_a_stream_stays(terminal: Stream) -> None:
    caught: list[str] = []
    terminal.write = caught.append  # type: ignore[assignment,method-assign]
    with show_progress("a kernel") as run:
        tell(run, timing=True)
        assert terminal.write != caught.append, "ours, while a line is drawn"
    terminal.write("their own")
    assert caught[-1] == "their own"


class Shim:
    """A stream that hands everything on to another, assignments too, and whose `write` takes more than text."""

    def __init__(self, stream: Stream) -> None:
        vars(self)["stream"] = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)

    def __setattr__(self, name: str, value: object) -> None:
        setattr(self.stream, name, value)


def test_nothing_of_ours_stays_in_a_stream_that_hands_assignments_on(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = Stream(terminal=True)
    theirs = stream.write
    set_stderr(Shim(stream), monkeypatch)
    with show_progress("a kernel") as run:
        tell(run, timing=True)
        assert stream.write != theirs, "ours, while a line is drawn"
    assert stream.write == theirs


def test_a_streams_own_arguments_reach_it(terminal: Stream, monkeypatch: pytest.MonkeyPatch) -> None:
    marked = []
    monkeypatch.setattr(Stream, "write", lambda self, text, *, markup=False: marked.append((text, markup)))
    with show_progress("a kernel") as run:
        tell(run, timing=True)
        terminal.write("bold", markup=True)  # type: ignore[call-arg]
    assert ("bold", True) in marked


@pytest.mark.parametrize(
    ("name", "cut"), [("package.module.kernel", "kernel"), ("package.a_kernel_with_a_long_name", "a_kerne...")]
)
@pytest.mark.usefixtures("at_once")
def test_long_names_are_cut_where_that_makes_the_line_fit(terminal: Stream, name: str, cut: str) -> None:
    tuned = job(name, space=Space([{"K": k} for k in (1, 4, 16)]))
    tune_keys(tuned, config=tuned.space[2])
    (line,) = screen_after(terminal.getvalue())
    assert line == f"{cut}: K=16, 10.3x, 3 of 3 tried, 0.0 s (forecast-autotune show {tuned.digest[:10]})"
    assert len(line) <= 80


@pytest.mark.usefixtures("at_once")
def test_a_key_is_named_where_it_fits_and_cut_where_it_is_long(
    terminal: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    long = job(key={f"size_{i}": i for i in range(100)})
    for tuned, named in ((job(), "scale.twice(n=4096)"), (long, "scale.twice")):
        tune_keys(tuned)
        assert screen_after(terminal.getvalue())[-1].startswith(f"{named}: LANES=16, 10.3x")
    monkeypatch.setenv("COLUMNS", "200")
    tune_keys(long)
    named, _, _ = screen_after(terminal.getvalue())[-1].partition(": ")
    assert named.startswith("scale.twice(size_0=0, size_1=1, ")
    assert named.endswith("...")
    assert len(named) == len("scale.twice") + 60


def test_a_long_text_is_cut_without_being_read_to_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    lengths: list[int] = []
    monkeypatch.setattr(progress_text, "cells", lambda text: lengths.append(len(text)) or cells(text))  # type: ignore[func-returns-value]
    assert cut("a b" * 1_000, 60) == "a b" * 19 + "..."
    assert sum(lengths) < 100


@pytest.mark.parametrize(
    ("text", "columns", "shown"),
    [
        ("whole", 5, "whole"),
        ("too long", 7, "too ..."),
        ("漢字漢字", 8, "漢字漢字"),
        ("漢字漢字", 7, "漢字..."),
        ("漢字漢字", 6, "漢..."),
        ("e\u0301e\u0301", 2, "e\u0301e\u0301"),
        ("e\u0301e\u0301e\u0301e\u0301e", 4, "e\u0301..."),
        ("long", 2, "..."),
        ("", 0, ""),
    ],
)
def test_a_text_is_cut_by_the_columns_that_its_characters_take(text: str, columns: int, shown: str) -> None:
    assert cut(text, columns) == shown


@pytest.mark.usefixtures("at_once")
def test_a_config_is_never_cut(terminal: Stream) -> None:
    flags = "-O3 -march=native -ffast-math -funroll-loops"
    tuned = job("package.kernel", space=Space([{"FLAGS": each} for each in ("-O1", "-O2", flags)]))
    tune_keys(tuned, config=tuned.space[2])
    (line,) = screen_after(terminal.getvalue())
    assert line == (
        f"package.kernel: FLAGS={flags}, 10.3x, 3 of 3 tried, 0.0 s (forecast-autotune show package.kernel)"
    )


def test_a_line_fits_the_narrowest_terminal(terminal: Stream, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "1")
    with show_progress("a kernel") as run:
        tell(run, "timing", tried=2, best=SPACE[2], best_speedup=1.832, seconds_left=30.0, timing=True)
    assert terminal.getvalue().startswith("\r\x1b[Ktwice: timing, 2...\r")


def test_a_dumb_terminal_gets_lines(terminal: Stream, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "dumb")
    with show_progress("a kernel") as run:
        tell(run, timing=True)
        close(run)
    assert terminal.getvalue().count("\n") == 1
    assert "\x1b" not in terminal.getvalue()


# While a config is timed --------------------------------------------------------------------------------------------


class Watched(Replay):
    """Answers from a recording, and looks at the ticker and the screen while it times."""

    repeatable = True

    def __init__(self, of: Any, stream: Stream) -> None:
        super().__init__(of)
        self.stream = stream
        self.ticking: list[bool] = []
        self.written: list[int] = []

    def measure(self, config: Config, limits: TimingLimits = IN_FULL) -> Outcome:
        before = len(self.stream.writers)
        time.sleep(0.05)
        self.ticking.append(any(t.name == "forecast_autotune_progress" for t in threading.enumerate()))
        self.written.append(len(self.stream.writers) - before)
        return super().measure(config, limits)


def watched_run(kind: str, stream: Stream, monkeypatch: pytest.MonkeyPatch) -> Watched:
    """A run on such hardware with a ticker that would tick a hundred times a second."""
    monkeypatch.setattr(progress.Terminal, "every_s", 0.01)
    monkeypatch.setattr(progress, "FIRST_S", 0.0)
    of = replace(recorded_as([100, 99, 98, 60]), hardware=Hardware(kind=kind, name="here"))
    measurer = Watched(of, stream)
    with show_progress("a kernel") as run:
        tune(
            job_of(of),
            compiler=measurer,
            surrogate=Fixed(),
            policy=Exhaustive(),
            measurer=measurer,
            store=Memory(),
            budget=Budget("all"),
            listener=run,
        )
    return measurer


def test_nothing_ticks_or_is_written_while_a_config_is_timed_on_the_cpu(
    terminal: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    measurer = watched_run("cpu", terminal, monkeypatch)
    assert len(measurer.ticking) >= 4
    assert not any(measurer.ticking), "there is no thread that could wake"
    assert not any(measurer.written)
    assert "4 of 4 tried" in terminal.getvalue()


def test_the_line_goes_on_ticking_while_a_gpu_is_timed(terminal: Stream, monkeypatch: pytest.MonkeyPatch) -> None:
    measurer = watched_run("cuda", terminal, monkeypatch)
    assert all(measurer.ticking)
    assert any(measurer.written)


def test_a_run_within_the_timing_of_another_is_seen(terminal: Stream) -> None:
    with show_progress("outer") as outer:
        tell(outer, timing=True)
        assert progress._board._ticker is None
        with show_progress("inner"):
            assert progress._board._ticker is not None
        assert progress._board._ticker is None


# In a pipe ----------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("at_once")
def test_a_pipe_gets_the_closing_line_alone_of_a_key_decided_soon(pipe: Stream) -> None:
    with show_progress("a kernel") as run:
        for doing in ("forecasting", "building", "choosing"):
            tell(run, doing)
            tell(run, "timing", timing=True)
        close(run)
    assert pipe.getvalue() == (
        "scale.twice(n=4096): LANES=16, 10.3x, 3 of 3 tried, 0.0 s (forecast-autotune show scale.twice)\n"
    )


def test_a_pipe_gets_a_plain_line_at_times(pipe: Stream, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress.time, "monotonic", lambda: clock[0])
    clock = [1000.0]
    with show_progress("a kernel") as run:
        for _ in range(9):
            clock[0] += 4.0
            tell(run, timing=True)
    assert pipe.getvalue().splitlines() == [f"scale.twice: building, 0 of 3 tried, {s} s" for s in (12, 24, 36)]


def test_a_key_that_was_not_measured_has_no_line(pipe: Stream) -> None:
    tune_keys(job(), tried=0)
    tune_keys(job(), here=False)
    assert pipe.getvalue() == ""


def test_a_key_whose_time_was_spent_before_anything_was_tried_says_so(pipe: Stream) -> None:
    with show_progress("a kernel") as run:
        tell(run, seconds_left=0.0)
        close(run, tried=0, config=SPACE.default, basis="default", config_us=None, default_us=None, budget="16,8s")
    assert re.fullmatch(
        r"scale\.twice\(n=4096\): LANES=1, the default, 0 of 3 tried, [\d.]+ s: the budget of 16,8s was spent first, "
        r"and the next start tunes\n",
        pipe.getvalue(),
    )


def test_a_default_that_stays_is_said_in_place_of_the_gain(pipe: Stream) -> None:
    tune_keys(job(), config=SPACE.default, basis="default")
    assert pipe.getvalue().startswith("scale.twice(n=4096): LANES=1, no config tried beats the default, 3 of 3 tried")


def test_a_key_none_of_whose_configs_runs_gains_nothing(pipe: Stream) -> None:
    tune_keys(job(), config=SPACE.default, basis="default", config_us=None, default_us=None)
    assert pipe.getvalue().startswith("scale.twice(n=4096): LANES=1, no config tried runs, 3 of 3 tried")


def test_a_name_that_a_shell_would_read_is_quoted(pipe: Stream) -> None:
    tune_keys(job("lambda; rm -rf x\n\x1b[2J"))
    assert pipe.getvalue().count("\n") == 1
    assert pipe.getvalue().endswith("(forecast-autotune show 'lambda; rm -rf x \\x1b[2J')\n")


# Many keys, many ranks ----------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("at_once")
def test_many_keys_soon_after_one_another_make_one_line(pipe: Stream) -> None:
    tune_keys(*keys(14))
    progress._board.sum_up()
    *single, last = pipe.getvalue().splitlines()
    assert len(single) == 3
    assert re.sub(r"\d\.\d s", "0.0 s", last) == (
        "14 keys of matmul tuned in 0.0 s, 3 of 3 tried each, geometric mean 10.3x "
        "(forecast-autotune list --kernel matmul)"
    )


@pytest.mark.usefixtures("at_once")
@pytest.mark.parametrize(("explored_s", "lost"), [(0.0, "0 s"), (0.5, "7 s")])
def test_many_keys_learned_from_real_calls_are_told_as_such(pipe: Stream, explored_s: float, lost: str) -> None:
    tune_keys(*keys(14), explored_s=explored_s, saved_s=0.3)
    progress._board.finish()
    assert re.search(rf"\d+ keys of matmul learned from real calls, which lost {lost}, ", pipe.getvalue())


@pytest.mark.usefixtures("at_once")
def test_many_keys_of_many_kernels_are_counted_together(pipe: Stream) -> None:
    tune_keys(*keys(2, "a"), tried=2)
    tune_keys(*keys(2, "b"), tried=3)
    progress._board.finish()
    assert pipe.getvalue().splitlines()[-1] == (
        "4 keys of 2 kernels tuned in 0.0 s, 2 to 3 tried each, geometric mean 10.3x (forecast-autotune list)"
    )


def test_many_keys_are_summed_up_once_no_other_follows(pipe: Stream, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "PAUSE_S", 600.0)
    tune_keys(*keys(5))
    assert len(pipe.getvalue().splitlines()) == 3, "the others wait for the pause"
    let_the_pause_pass(monkeypatch)
    assert pipe.getvalue().splitlines()[-1].startswith("5 keys of matmul tuned")


def test_nothing_of_the_callers_is_held_once_many_keys_are_summed_up(
    pipe: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "PAUSE_S", 600.0)
    request: contextvars.ContextVar[Fixed] = contextvars.ContextVar("request")
    held = [Fixed({})]

    def serve() -> None:
        request.set(held[0])
        tune_keys(*keys(5))
        let_the_pause_pass(monkeypatch)

    with without_collecting():
        contextvars.copy_context().run(serve)
        released = weakref.ref(held.pop())
        assert released() is None


def test_keys_that_nobody_sees_are_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    set_stderr(None, monkeypatch)
    tune_keys(*keys(9))
    assert progress._board._keys == []


def test_keys_far_apart_have_a_line_each(pipe: Stream, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "BURST_S", -1.0)
    tune_keys(*keys(6))
    assert len(pipe.getvalue().splitlines()) == 6


def test_of_many_ranks_the_first_speaks_for_all(pipe: Stream, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "1")
    with show_progress("a kernel") as run:
        assert run is None
    monkeypatch.setenv("RANK", "0")
    tune_keys(job(), here=False)  # another rank has tuned it
    tune_keys(job(), here=False)  # and it is looked up again
    tune_keys(job("older"), here=False, decided_at=1.0)
    assert pipe.getvalue().count("\n") == 1


# In a notebook ------------------------------------------------------------------------------------------------------


class Cell:
    """The output of a notebook's cell, as `IPython.display.display` fills it."""

    def __init__(self) -> None:
        self.outputs: list[str] = []

    def display(self, data: dict[str, str], *, raw: bool, display_id: bool) -> Any:
        assert raw
        assert display_id
        place = len(self.outputs)
        self.outputs.append(data["text/plain"])

        def update(data: dict[str, str], *, raw: bool) -> None:
            assert raw
            self.outputs[place] = data["text/plain"]

        return SimpleNamespace(update=update)


@pytest.fixture
def cell(pipe: Stream, monkeypatch: pytest.MonkeyPatch) -> Cell:
    shown = Cell()
    shell = SimpleNamespace(kernel=object())
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))  # type: ignore[misc]
    monkeypatch.setitem(sys.modules, "IPython.display", shown)  # type: ignore[misc]
    return shown


@pytest.mark.usefixtures("at_once")
def test_a_notebook_shows_a_live_line_that_the_closing_line_replaces(cell: Cell, pipe: Stream) -> None:
    with show_progress("a kernel") as run:
        tell(run, "timing", timing=True)
        assert cell.outputs == ["scale.twice: timing, 0 of 3 tried, 0 s"]
        tell(run, "timing", tried=1, timing=True)
        assert cell.outputs == ["scale.twice: timing, 1 of 3 tried, 0 s"]
        close(run)
    assert cell.outputs == [
        "scale.twice(n=4096): LANES=16, 10.3x, 3 of 3 tried, 0.0 s (forecast-autotune show scale.twice)"
    ]
    assert pipe.getvalue() == ""


def test_a_notebook_keeps_one_line_for_many_keys(cell: Cell) -> None:
    for each in keys(6):
        with show_progress("a kernel") as run:
            tell(run, timing=True)
            close(run, each)
    progress._board.sum_up()
    assert len(cell.outputs) == 4
    assert cell.outputs[-1].startswith("6 keys of matmul tuned")


def test_ipython_without_a_kernel_is_no_notebook(pipe: Stream, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: None))  # type: ignore[misc]
    monkeypatch.setitem(sys.modules, "IPython.display", Cell())  # type: ignore[misc]
    tune_keys(job())
    assert pipe.getvalue().count("\n") == 1


# It harms nobody ----------------------------------------------------------------------------------------------------


class Broken(Stream):
    def write(self, text: str) -> int:
        raise BrokenPipeError(32, "Broken pipe")


def closed(stream: Stream) -> Stream:
    stream.close()
    return stream


@pytest.mark.parametrize("terminal", [False, True])
@pytest.mark.parametrize("broken", [lambda _: None, lambda t: Broken(terminal=t), lambda t: closed(Stream(terminal=t))])
def test_a_stream_that_takes_nothing_is_no_trouble(
    broken: Callable[[bool], Any], terminal: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_stderr(broken(terminal), monkeypatch)
    with show_progress("a kernel") as run:
        tell(run, timing=True)
        tell(run)
        close(run)
    tune_keys(*keys(5))
    progress._board.sum_up()


def test_a_stream_may_be_closed_in_the_middle(terminal: Stream) -> None:
    with show_progress("a kernel") as run:
        tell(run, timing=True)
        terminal.close()
        tell(run, timing=True)
        close(run)


@pytest.mark.parametrize("name", ["forecast_autotune", "forecast_autotune.progress"])
def test_a_loggers_level_silences_it(pipe: Stream, name: str) -> None:
    logger = logging.getLogger(name)
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with show_progress("a kernel") as run:
            assert run is None
    finally:
        logger.setLevel(before)


def test_two_threads_tune_and_no_thread_of_ours_is_left(terminal: Stream) -> None:
    def work(name: str) -> None:
        for _ in range(5):
            with show_progress(name) as run:
                for doing in ("building", "timing"):
                    tell(run, doing, timing=doing == "timing", job=job(name))

    threads = [threading.Thread(target=work, args=(name,)) for name in ("a", "b")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not [t for t in threading.enumerate() if t.name == "forecast_autotune_progress"]
    assert screen_after(terminal.getvalue()) == []


def test_a_run_does_not_wait_for_the_thread_that_ticks_to_begin(
    terminal: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_begin, begin = threading.Event(), threading.Thread.start

    def begin_late(thread: threading.Thread) -> None:
        may_begin.wait(5)
        begin(thread)

    monkeypatch.setattr(threading.Thread, "start", begin_late)
    with show_progress("a kernel") as run:
        ticker = progress._board._ticker
        assert ticker is not None
        assert not ticker.is_alive()
        tell(run)
        assert progress._board._ticker is ticker
        may_begin.set()
    assert not ticker.is_alive()
    assert ticker.has_ended
    assert screen_after(terminal.getvalue()) == []


def test_where_no_thread_is_to_be_had_nothing_is_waited_for(terminal: Stream, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(progress._thread, "start_new_thread", refuse)
    monkeypatch.setattr(progress, "STOP_S", 60.0)
    began = time.monotonic()
    with show_progress("a kernel") as run:
        tell(run, timing=True)
    assert time.monotonic() - began < 30
    assert screen_after(terminal.getvalue()) == []


FORKS = """
with show_progress("kernel slow"):
    await_line()
    held, forked = threading.Event(), threading.Event()
    def draw():
        with progress._board._drawing:
            held.set()
            forked.wait(60)
    threading.Thread(target=draw).start()
    held.wait(60)
    child = os.fork()
    if child == 0:
        signal.alarm(60)
        print("from the child", file=sys.stderr)
        with show_progress("kernel of the child"):
            await_line()
        os._exit(0)
    forked.set()
    assert os.waitpid(child, 0)[1] == 0
print("done")
"""


def test_a_fork_while_a_line_is_drawn_hangs_nobody(tmp_path: Path) -> None:
    code, sent = on_a_terminal(FORKS, tmp_path)
    assert code == 0, sent
    assert "kernel of the child: preparing" in sent
    assert screen_after(sent)[-1] == "done"


INTERRUPTED = """
with show_progress("kernel slow"):
    await_line()
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(60)
"""


def test_ctrl_c_ends_the_program_and_takes_the_line_down(tmp_path: Path) -> None:
    code, sent = on_a_terminal(INTERRUPTED, tmp_path)
    assert code == -2, sent
    assert "kernel slow: preparing" in sent
    assert screen_after(sent)[0].startswith("Traceback")
    assert screen_after(sent)[-1] == "KeyboardInterrupt"


@pytest.mark.parametrize(
    ("owner", "name"),
    [
        (progress._Board, "_current_screen"),
        (threading, "_start_joinable_thread" if sys.version_info >= (3, 13) else "_start_new_thread"),
        (progress._Ticker, "stop"),
        (threading.Thread, "join"),
        (Stream, "isatty"),
        (Stream, "fileno"),
        (Stream, "write"),
        (Terminal, "release"),
    ],
)
def test_what_a_handler_of_signals_raises_reaches_the_program(
    owner: Any, name: str, terminal: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    unraisable: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", unraisable.append)
    monkeypatch.delenv("COLUMNS")

    def tune() -> None:
        with show_progress("a kernel") as run:
            ticker_once_begun()
            tell(run, timing=True)
            close(run)

    with deadline_in(owner, name), pytest.raises(DeadlineError):
        tune()
    assert not progress._board._runs
    assert not [t for t in threading.enumerate() if t.name == "forecast_autotune_progress"]
    assert "write" not in vars(terminal)
    assert not unraisable


@pytest.mark.parametrize("name", ["__setattr__", "__delattr__"])
def test_a_signal_while_a_streams_write_is_exchanged_is_not_lost(
    name: str, terminal: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Stream, name, getattr(object, name), raising=False)

    def tune() -> None:
        with show_progress("a kernel") as run:
            tell(run, timing=True)

    with deadline_in(Stream, name), pytest.raises(DeadlineError):
        tune()
    assert "write" not in vars(terminal)


def test_a_signal_while_the_line_gives_way_to_other_text_is_not_lost(terminal: Stream) -> None:
    with show_progress("a kernel") as run:
        tell(run, timing=True)
        with deadline_in(Terminal, "_erase"), pytest.raises(DeadlineError):
            terminal.write("their own")


LEFT_ALONE = """
def tune():
    with show_progress("kernel slow"):
        time.sleep(60)
threading.Thread(target=tune, daemon=True).start()
await_line()
"""


def test_a_program_ends_while_a_thread_of_it_tunes(tmp_path: Path) -> None:
    code, sent = on_a_terminal(LEFT_ALONE, tmp_path)
    assert code == 0, sent
    assert "kernel slow: preparing" in sent
    assert screen_after(sent) == []


def test_a_reader_that_is_gone_leaves_the_exit_code_alone(tmp_path: Path) -> None:
    program = """
import os, sys
from contracts.store_contract import a_decision, a_job
from deadline import DeadlineError, deadline_in
from forecast_autotune.tuning import progress, progress_text
sys.stdin.readline()
for n in range(6):
    with progress.show_progress("a kernel") as run:
        job = a_job(key={"n": n})
        run.tuned(job, a_decision(job, tried=3), measured_here=True, is_stored=True)
"""
    path = os.pathsep.join(p for p in sys.path if p)
    with subprocess.Popen(
        [sys.executable, "-c", program],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": path}, cwd=tmp_path,
    ) as process:  # fmt: skip
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        process.stderr.close()
        process.stdin.write(b"go\n")
        process.stdin.flush()
        assert process.stdout.read() == b"", "stdout is the program's own"
        assert process.wait(timeout=100) == 0
