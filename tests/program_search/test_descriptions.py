"""What Triton candidates would launch: described in a box without a GPU, as a kernel that is called is described."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from describers import describers_started
from kernel_suite import suite_kernels

from calibration.record.describe import descriptions
from calibration.search_tasks import search_tasks
from forecast_autotune.core.config import Config
from forecast_autotune.core.context import ForecastContext
from forecast_autotune.core.hardware import Toolchain
from forecast_autotune.core.outcome import Failure, Measurement
from forecast_autotune.features.hardware_sheets import hardware_named
from forecast_autotune.processes.box import lacking
from forecast_autotune.program_search import descriptions as descriptions_module
from forecast_autotune.program_search.candidate import Candidate, TriedCandidate
from forecast_autotune.program_search.descriptions import CandidateDescriber, _checked, describer_of, over_sizes
from forecast_autotune.program_search.forecasts import CandidateForecaster
from forecast_autotune.program_search.proposers.rewriting import rewrites_of
from forecast_autotune.surrogates.history import History

pytestmark = pytest.mark.skipif(bool(lack := lacking()), reason=f"this system lacks {lack}")

HARDWARE = hardware_named("NVIDIA H100 80GB HBM3")
TOOLCHAIN = Toolchain(versions={})
CASES = ("odd", "few_rows")


@pytest.fixture(scope="module")
def task() -> Any:
    return search_tasks(["softmax"])[0]


@pytest.fixture
def describer(task: Any, tmp_path: Path) -> CandidateDescriber:
    made = describer_of(task, HARDWARE, tmp_path)
    assert made is not None
    return made


def written(task: Any, source: str, **knobs: Any) -> Candidate:
    """A candidate with a text of its own."""
    config = task.seed.config if not knobs else knobs["config"]
    return replace(task.seed, source=source, proposer="test", config=config, by_rules=False)


def test_a_candidate_is_described_as_the_call_of_a_person(task: Any, describer: CandidateDescriber) -> None:
    kernel = next(kernel for kernel in suite_kernels() if kernel.name == "softmax")
    told = describer.describe([task.seed])[0]
    config = Config({"variant": task.seed.variant, **task.seed.config.knobs})
    for case in CASES:
        assert told[case] == next(iter(descriptions(kernel, case, [config], HARDWARE)))


def test_inputs_are_drawn_while_nobody_times(task: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    turns: list[bool] = []
    drawn: list[list[bool]] = []

    @contextlib.contextmanager
    def turn(_: str, *, alone: bool) -> Iterator[None]:
        turns.append(alone)
        yield
        turns.pop()

    def draw(*of: Any) -> Any:
        drawn.append(list(turns))
        return task.make_inputs(*of)

    monkeypatch.setattr(descriptions_module, "turn_at_device", turn)
    CandidateDescriber(replace(task, make_inputs=draw), HARDWARE, tmp_path)
    assert drawn == [[False]] * len(task.sizes)


def test_what_a_rewrite_changes_shows(task: Any, describer: CandidateDescriber) -> None:
    every = rewrites_of("triton")(task.source, task.entries[task.seed.variant])
    changed = next(source for step, source in every if step.startswith("num_stages@rows_in_blocks"))
    wider = replace(task.seed, config=next(c for c in task.spaces["online"] if c["BLOCK"] == 1024))
    seed, rewritten, narrow = describer.describe([task.seed, written(task, changed), wider])
    assert rewritten["odd"].keys() == seed["odd"].keys()
    assert narrow["odd"]["tile_elements"] == 1024 < seed["odd"]["tile_elements"]


def test_texts_of_rules_share_workers_and_one_that_crashes_harms_no_other(
    task: Any, describer: CandidateDescriber, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(descriptions_module, "SHARES", 1)
    started = describers_started(monkeypatch)
    texts = [f"{task.source}\nX = {i}\n" for i in range(4)]
    assert all(describer.describe([replace(task.seed, source=text) for text in texts]))
    assert started == [4]
    started.clear()
    ends = f"{task.source}\nimport os\nos._exit(3)\n"
    texts = [f"{task.source}\nY = 0\n", ends, f"{task.source}\nY = 1\n"]
    told = describer.describe([replace(task.seed, source=text) for text in texts])
    assert [bool(one) for one in told] == [True, False, True]
    assert started == [3, 1, 1]
    assert not describer.describe([replace(task.seed, source=ends)])[0]
    assert len(started) == 3  # it is not asked again


CHANNEL = """
import os, sys
frame = sys._getframe()
while "channel" not in frame.f_locals:
    frame = frame.f_back
channel = frame.f_locals["channel"]
"""


def open_files() -> set[tuple[str, str]]:
    """What this process has open: descriptors, each with what it leads to."""
    found = set()
    for descriptor in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):  # that of the listing itself
            found.add((descriptor, os.readlink(f"/proc/self/fd/{descriptor}")))
    return found


@pytest.mark.parametrize(
    "attack",
    [
        """channel._socket.send(b'{"described": {"odd": {"programs": 1' + b"0" * 400 + b"}}}")""",
        "channel.send({'described': {size: {'programs': -1e308} for size in ('odd', 'few_rows')}})",
        "channel._socket.send(b'[' * 50000)",
        "channel.send({'long': 'x'}, [1])",
        "channel.send({'long': 1 << 70}, [1])",
        "channel.send({'long': 1 << 50}, [1])",
        "file = os.memfd_create('x'); os.ftruncate(file, 1 << 29); channel.send({'long': 1 << 29}, [file])",
        "channel.send({'exit': 'x'})",
        "channel.send({'described': {}}, [os.memfd_create('x') for _ in range(16)])",
    ],
)
def test_an_answer_that_a_text_makes_up_ends_no_search_and_leaves_no_file(
    attack: str, task: Any, describer: CandidateDescriber
) -> None:
    describer.describe([task.seed])
    before = open_files()
    bad = describer.describe([written(task, f"{task.source}\n{CHANNEL}\n{attack}\n")])[0]
    assert not over_sizes(bad, CASES)
    assert not open_files() - before  # others' files may be closed meanwhile


@pytest.mark.parametrize(
    "attack",
    [
        "import os; os._exit(3)",
        "raise SystemExit(2)",
        "open('OUTSIDE', 'w')",
        "import socket; socket.socket()",
        "this is no Python",
        "import os; os.kill(os.getppid(), 9)",
    ],
)
def test_a_text_that_attacks_is_not_described_and_harms_no_other(
    attack: str, task: Any, describer: CandidateDescriber, tmp_path: Path
) -> None:
    outside = tmp_path / "was_here"
    at_load = written(task, f"{task.source}\n{attack.replace('OUTSIDE', str(outside))}\n")
    bad, good = describer.describe([at_load, task.seed])
    assert not bad
    assert set(good) == set(CASES)
    assert not outside.exists()


def test_a_text_that_never_ends_is_left(
    task: Any, describer: CandidateDescriber, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("forecast_autotune.program_search.descriptions.DESCRIBE_TIMEOUT_S", 1.0)
    assert describer.describe([written(task, f"{task.source}\nwhile True: pass\n")]) == [{}]


def test_all_configs_of_a_text_share_one_limit_of_time(
    task: Any, describer: CandidateDescriber, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("forecast_autotune.program_search.descriptions.DESCRIBE_TIMEOUT_S", 10.0)
    configs = task.spaces["online"][:4]
    entry, second = task.entries[task.seed.variant], dict(configs[1].knobs)
    hangs = (
        f"{task.source}\ninner = {entry}\ndef {entry}(*a, **k):\n"
        f"    while all(k.get(name) == value for name, value in {second!r}.items()): pass\n    return inner(*a, **k)\n"
    )
    told = describer.describe([written(task, hangs, config=config) for config in configs])
    assert told[0]
    assert not any(told[1:])


def test_no_folder_of_a_text_is_left_however_deep_it_is(
    task: Any, describer: CandidateDescriber, tmp_path: Path
) -> None:
    deep = "import os\nfor _ in range(1500):\n    os.mkdir('d'); os.chdir('d')"
    describer.describe([written(task, f"{task.source}\n{deep}\n")])
    assert [path.name for path in tmp_path.iterdir() if not (path / "candidate.py").exists()] == []


def test_a_disk_without_room_ends_no_search(
    task: Any, describer: CandidateDescriber, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any, **__: Any) -> str:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("tempfile.mkdtemp", full)
    assert describer.describe([task.seed]) == [{}]


def test_a_candidate_that_asks_for_tensors_on_a_gpu_gets_them(task: Any, describer: CandidateDescriber) -> None:
    entry = task.entries[task.seed.variant]
    asking = f"inner = {entry}\ndef {entry}(*a, **k):\n    assert a[0].is_cuda\n    return inner(*a, **k)\n"
    seed, same = describer.describe([task.seed, written(task, f"{task.source}\n{asking}")])
    assert same == seed


def test_a_candidate_that_reads_as_the_seed_does_not_take_its_description(
    task: Any, describer: CandidateDescriber
) -> None:
    surrogate = Noting()
    others = [
        replace(task.seed, config=task.spaces["online"][1]),
        written(task, f"{task.source}\nraise ValueError\n"),
    ]
    CandidateForecaster(task, HARDWARE, TOOLCHAIN, surrogate, describer).forecast([], others)
    assert all(surrogate.jobs[0].static_features)


def test_ctrl_c_ends_what_is_being_described(task: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("forecast_autotune.program_search.descriptions.DESCRIBE_TIMEOUT_S", 200.0)
    describer = CandidateDescriber(task, HARDWARE, tmp_path)
    describer.describe([task.seed])  # so that the fork server is there
    endless = [written(task, f"{task.source}\nwhile True: {i}\n") for i in range(10)]
    pressed = threading.Timer(3.0, os.kill, (os.getpid(), signal.SIGINT))
    pressed.start()
    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        describer.describe(endless)
    assert time.monotonic() - began < 100
    assert not list(tmp_path.glob("run-*"))


def test_configs_that_are_refused_at_one_size_are_described_at_the_others(
    task: Any, describer: CandidateDescriber
) -> None:
    config = next(c for c in task.spaces["one_pass"] if c["num_warps"] == 4 and c["ROWS"] == 1)
    one = replace(task.seed, variant="one_pass", config=config)
    told = describer.describe([one])[0]
    assert told["odd"]
    assert not told["few_rows"]
    assert over_sizes(told, CASES) == {}


def test_what_a_worker_says_is_read_as_numbers_of_the_sizes_alone() -> None:
    said = {"odd": {"programs": 4, "lie": "x", "far": float("inf"), "flag": True, 3: 1.0}, "other": {"programs": 1}}
    assert _checked(said, {"odd": []}) == {"odd": {"programs": 4.0}}
    assert _checked(["programs"], {"odd": []}) == {}


def test_numbers_of_several_sizes_become_their_geometric_mean() -> None:
    told = {"a": {"us_memory": 2.0, "flops": 0.0, "only": 1.0}, "b": {"us_memory": 8.0, "flops": 4.0}}
    assert over_sizes(told, ["a", "b"]) == {"us_memory": pytest.approx(4.0), "flops": 2.0}


class Noting(History):
    """A surrogate that keeps what it was asked about."""

    def __init__(self) -> None:
        super().__init__()
        self.jobs: list[Any] = []

    def start(self, context: ForecastContext) -> Any:
        self.jobs.append(context.job)
        return super().start(context)


def test_forecasts_are_made_by_what_candidates_launch(task: Any, describer: CandidateDescriber) -> None:
    surrogate = Noting()
    proposed: Sequence[Candidate] = [replace(task.seed, config=config) for config in task.spaces["online"][1:4]]
    CandidateForecaster(task, HARDWARE, TOOLCHAIN, surrogate, describer).forecast([], proposed)
    job = surrogate.jobs[0]
    assert len(job.static_features) == len(job.space) == 4
    told = describer.describe([task.seed])[0]
    assert job.static_features[0] == over_sizes(told, CASES)


def test_what_its_own_code_refuses_has_no_forecast_and_harms_no_other(task: Any, describer: CandidateDescriber) -> None:
    surrogate = Noting()
    fits = next(c for c in task.spaces["one_pass"] if c["num_warps"] == 4 and c["ROWS"] == 1)
    at_one_size = replace(task.seed, variant="one_pass", config=fits)  # it refuses few_rows
    raises = written(task, f"{task.source}\nraise ValueError\n")
    good = replace(task.seed, config=task.spaces["online"][1])
    failed = TriedCandidate(
        candidate=raises, outcome=Failure(stage="launch", message="ValueError"), forecast=None, chosen="random"
    )
    ran = TriedCandidate(
        candidate=task.seed, outcome=Measurement(samples_us=(9.0, 9.1, 9.2)), forecast=None, chosen="seed"
    )
    forecaster = CandidateForecaster(task, HARDWARE, TOOLCHAIN, surrogate, describer)
    forecasts = forecaster.forecast([ran, failed], [at_one_size, raises, good])
    assert [f is None for f in forecasts] == [True, True, False]
    (job,) = surrogate.jobs
    assert len(job.space) == 2
    assert all(job.static_features)


def test_a_maxnreg_that_a_block_cannot_have_is_not_forecast(task: Any, describer: CandidateDescriber) -> None:
    """On an H100 a launch of 512 threads with `maxnreg=168` failed, seven of 32 measurements."""
    wide = [replace(task.seed, config=config) for config in task.spaces["online"] if config["num_warps"] == 16]
    config = next(
        one.config for one, told in zip(wide, describer.describe(wide), strict=True) if over_sizes(told, CASES)
    )
    limited = {
        int(label.partition("=")[2]): replace(task.seed, config=config, source=source, steps=(label,), by_rules=True)
        for label, source in rewrites_of("triton")(task.source, task.entries["online"])
        if label.startswith("maxnreg@")
    }
    threads = int(config["num_warps"]) * 32
    fits, too_many = min(limited), max(limited)
    assert fits * threads <= 65_536 < too_many * threads
    surrogate = Noting()
    forecaster = CandidateForecaster(task, HARDWARE, TOOLCHAIN, surrogate, describer)
    forecaster.forecast([], [limited[fits], limited[too_many]])
    (job,) = surrogate.jobs
    assert [config[limited[fits].steps[0].partition("=")[0]] for config in job.space] == [None, fits]


def test_a_seed_that_is_not_described_stays_what_others_are_compared_with(
    task: Any, describer: CandidateDescriber, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = {case: {"us_memory": 1.0} for case in CASES}
    monkeypatch.setattr(
        describer, "describe", lambda candidates: [{} if c.digest == task.seed.digest else whole for c in candidates]
    )
    ran = TriedCandidate(
        candidate=task.seed, outcome=Measurement(samples_us=(9.0, 9.1, 9.2)), forecast=None, chosen="seed"
    )
    surrogate = Noting()
    others = [replace(task.seed, config=config) for config in task.spaces["online"][1:3]]
    CandidateForecaster(task, HARDWARE, TOOLCHAIN, surrogate, describer).forecast([ran], others)
    (job,) = surrogate.jobs
    assert [bool(features) for features in job.static_features] == [False, True, True]


def test_a_variant_of_which_nothing_is_described_is_forecast_by_its_knobs(
    task: Any, describer: CandidateDescriber, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(describer, "describe", lambda candidates: [{} for _ in candidates])
    proposed = [replace(task.seed, config=config) for config in task.spaces["online"][1:4]]
    forecasts = CandidateForecaster(task, HARDWARE, TOOLCHAIN, History(), describer).forecast([], proposed)
    assert len(forecasts) == 3
    surrogate = Noting()
    CandidateForecaster(task, HARDWARE, TOOLCHAIN, surrogate, describer).forecast([], proposed)
    assert len(surrogate.jobs[0].space) == 4
    assert not surrogate.jobs[0].static_features


def test_a_task_that_is_not_triton_on_a_gpu_is_not_described(task: Any, tmp_path: Path) -> None:
    assert describer_of(task, replace(HARDWARE, kind="cpu"), tmp_path) is None
    assert describer_of(replace(task, language="c++"), HARDWARE, tmp_path) is None
