"""Lineages walked back, and the skills that they teach."""

from __future__ import annotations

import json
import sqlite3
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
from contracts.proposer_contract import ProposerContract, seen, tried
from doubling import Unchecked, task

from forecast_autotune.cli import main
from forecast_autotune.core.config import Config
from forecast_autotune.core.hardware import Hardware, Toolchain
from forecast_autotune.core.knob_effect import Condition
from forecast_autotune.core.outcome import Failure, Measurement
from forecast_autotune.core.space import Space
from forecast_autotune.errors import StoreError
from forecast_autotune.program_search.archive import Archive
from forecast_autotune.program_search.budget import SearchBudget
from forecast_autotune.program_search.candidate import Candidate, TriedCandidate
from forecast_autotune.program_search.examiner import Result
from forecast_autotune.program_search.lineage import WalkedBack, steps_to, walk_back, without
from forecast_autotune.program_search.proposers.crossing import crossed
from forecast_autotune.program_search.proposers.rewriting import Skilled, rewrites_of
from forecast_autotune.program_search.proposers.written import _skills
from forecast_autotune.program_search.runners import Loadable
from forecast_autotune.program_search.skills import StepSkill, _cases, learn, skills_in, step_of
from forecast_autotune.program_search.steps import Rewrite, is_by_model, rewrite_of
from forecast_autotune.program_search.task import SearchTask
from forecast_autotune.store.searches import SearchFile

HARDWARE, TOOLCHAIN = Hardware(kind="cpu", name="a CPU"), Toolchain(versions={"gcc": "12"})
LOOP = "    for (int i = 0; i < n; ++i) out[i] = 2 * x[i];\n"
CPP = "void f(const float* x, float* out, int n) {\n" + LOOP + "}\n\nint unused;\n"
TASK = task(
    language="c++",
    source=CPP,
    spaces={"": Space.grid({"A": [1, 2], "B": [1, 2]})},
    sizes={"large": {"n": 4096}, "small": {"n": 16}},
    held_out={"odd": {"n": 9999}},
)


class Table(Unchecked):
    """Prepares and examines programs by what stands in their text, in any process alike."""

    def __init__(self) -> None:
        super().__init__()
        self.examined: list[Candidate] = []
        self._of: dict[str, Candidate] = {}

    def prepare(self, candidate: Candidate) -> Loadable | Failure:
        self._of[candidate.digest] = candidate
        return Loadable(message={"digest": candidate.digest})

    def examine(self, made: Loadable, *, sizes: Any = None, is_seed: bool = False) -> Result:
        candidate = self._of[str(made.message["digest"])]
        self.examined.append(candidate)
        if candidate.config["B"] == 2 and "unroll" not in candidate.source:
            return Result(outcome=Failure(stage="check", message="at odd: 3 of 9 elements are wrong"))
        times = {name: self._time_us(candidate, int(of["n"])) for name, of in (sizes or TASK.sizes).items()}
        return Result(outcome=Measurement(samples_us=(sum(times.values()),) * 5), times_us=times)

    @staticmethod
    def _time_us(candidate: Candidate, n: int) -> float:
        us = n / 100
        us *= 0.5 if "unroll 4" in candidate.source and n > 100 else 1.0
        us *= 0.8 if candidate.config["A"] == 2 and n <= 4096 else 1.0  # at the sizes searched alone
        return us


def child(parent: Candidate, step: str, source: str | None = None, **knobs: int) -> Candidate:
    config = Config({**parent.config.knobs, **knobs})
    return replace(
        parent, source=source or parent.source, config=config, proposer="x", parents=(parent.digest,),
        steps=(*parent.steps, step),
    )  # fmt: skip


def a_lineage(folder: Path) -> tuple[Archive, Candidate]:
    """Unrolled, a line that does nothing, and a knob that helps at the sizes searched alone; the last is the fastest."""
    archive, table = Archive(folder, TASK, HARDWARE, TOOLCHAIN), Table()
    unrolled = child(TASK.seed, "unroll@loop0=4", CPP.replace(LOOP, "#pragma GCC unroll 4\n" + LOOP))
    idle = child(unrolled, "model: tidied up", unrolled.source.replace("int unused;", "int useless;"))
    knob = child(idle, "A=2", A=2)
    for one in (TASK.seed, unrolled, idle, knob, child(TASK.seed, "B=2", B=2)):
        result = table.examine(table.prepare(one))  # type: ignore[arg-type]
        chosen = "seed" if one is TASK.seed else "promise"
        archive.add(
            TriedCandidate(
                candidate=one, outcome=result.outcome, forecast=None, chosen=chosen, times_us=result.times_us
            )
        )
    return archive, knob


def walked(folder: Path, budget: int = 32) -> tuple[Archive, WalkedBack, SearchBudget]:
    archive, _ = a_lineage(folder)
    best = list(archive)[3]
    spent = SearchBudget(measurements=budget)
    table = Table()
    return archive, walk_back(TASK, best, archive, table, table, spent), spent  # type: ignore[arg-type]


def a_skill(**others: Any) -> StepSkill:
    given: dict[str, Any] = {
        "program": "double", "language": "c++", "hardware": "a CPU", "hardware_kind": "cpu", "knob": "unroll",
        "before": None, "after": 4, "tried": 2, "faster": 1, "speedup": 1.4, "low": 1.3, "high": 1.5, "held_out": 2.0,
        "intent": "unroll a loop 4 times", "place": "loop0",
    }  # fmt: skip
    return StepSkill(**{**given, **others})


def test_a_step_that_brings_nothing_is_dropped_and_the_others_stay(tmp_path: Path) -> None:
    archive, back, spent = walked(tmp_path)
    assert [str(effect.step) for effect in back.effects] == ["A=2", "model: tidied up", "unroll@loop0=4"]
    assert [effect.costs_nothing() for effect in back.effects] == [False, True, False]
    assert "unroll 4" in back.program.source
    assert "useless" not in back.program.source
    assert back.program.config["A"] == 2
    assert back.program.steps == ("unroll@loop0=4", "A=2")
    assert spent.walked == 3
    assert len(archive) == 5  # a search that goes on finds what it knew


def test_a_walk_ends_with_its_budget(tmp_path: Path) -> None:
    _, back, spent = walked(tmp_path, budget=4)
    assert len(back.effects) == spent.walked == 1


def test_a_step_that_helps_at_sizes_held_out_is_a_skill_and_no_other(tmp_path: Path) -> None:
    archive, back, _ = walked(tmp_path)
    (skill,) = learn(back, list(archive), TASK, HARDWARE)
    assert (skill.knob, skill.after, skill.place) == ("unroll", 4, "loop0")
    assert skill.speedup == pytest.approx(2**0.5)
    assert skill.held_out == pytest.approx(2.0)
    assert skill.low < skill.speedup < skill.high  # type: ignore[operator]
    assert skill.conditions == (Condition(of="key", name="n", relation=">=", value=4096),)
    assert (skill.tried, skill.faster) == (1, 1)
    assert "+#pragma GCC unroll 4" in skill.difference
    assert str(skill).startswith("unroll a loop 4 times: unroll 4 at loop0, in double (c++), n >= 4096")


def test_failures_where_a_step_stood_otherwise_make_its_conditions(tmp_path: Path) -> None:
    archive, back, _ = walked(tmp_path)
    other = child(TASK.seed, "model: more", CPP + "int more;\n", B=2)
    failed = child(other, "unroll@loop0=4", "#pragma GCC unroll 4\nint no;")
    more = [
        *archive,
        TriedCandidate(candidate=other, outcome=Measurement(samples_us=(9.0,)), forecast=None, chosen="promise"),
        TriedCandidate(
            candidate=failed, outcome=Failure(stage="compile", message="no"), forecast=None, chosen="promise"
        ),
    ]
    (skill,) = learn(back, more, TASK, HARDWARE)
    assert skill.avoided == {"compile: no": 1}
    assert Condition(of="knob", name="B", relation="<=", value=1) in skill.conditions
    assert skill.fits(TASK, TASK.seed)
    assert not skill.fits(TASK, other)


def test_skills_are_kept_read_and_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    archive, back, _ = walked(tmp_path)
    (skill,) = learn(back, list(archive), TASK, HARDWARE)
    archive.learn(skill)
    archive.learn(skill)  # twice is once
    assert skills_in(tmp_path) == [skill]
    assert main(["skills", "--dir", str(tmp_path)]) == 0
    out, err = capsys.readouterr()
    assert "unroll 4 at loop0" in out
    assert "nothing has been tuned" not in err
    assert main(["skills", "--dir", str(tmp_path), "--json", "--kernel", "DOUB"]) == 0
    (row,) = json.loads(capsys.readouterr()[0])
    assert set(row) == {field.name for field in fields(StepSkill)} | {"text"}
    assert main(["skills", "--dir", str(tmp_path), "--kernel", "other"]) == 1


def test_an_archive_of_the_schema_before_keeps_its_rows_and_takes_skills(tmp_path: Path) -> None:
    archive, back, _ = walked(tmp_path)
    with sqlite3.connect(tmp_path / "searches.sqlite3") as connection:
        connection.execute("DROP TABLE skill")
        connection.execute("PRAGMA user_version = 1")
    connection.close()
    assert len(Archive(tmp_path, TASK, HARDWARE, TOOLCHAIN)) == len(archive)
    archive.learn(learn(back, list(archive), TASK, HARDWARE)[0])
    assert len(skills_in(tmp_path)) == 1


def test_a_damaged_skill_is_told_of(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    archive, _, _ = walked(tmp_path)
    SearchFile(tmp_path).learn(archive.search, "x", {"program": 3})
    with pytest.raises(StoreError, match="holds a skill that cannot be read"):
        skills_in(tmp_path)
    assert main(["skills", "--dir", str(tmp_path)]) == 1
    assert "holds a skill that cannot be read" in capsys.readouterr().err


class TestSkilled(ProposerContract):
    skills = (a_skill(), a_skill(knob="A", before=1, after=2, place=""))

    def make(self) -> Skilled:
        return Skilled()

    def task(self) -> SearchTask:
        return TASK


def test_a_skill_that_fits_is_taken_to_another_program() -> None:
    other = replace(TASK, name="other", source=CPP.replace("2 * x[i]", "3 * x[i]"))
    of_knob = a_skill(knob="A", before=1, after=2, place="")
    view = replace(seen(other), skills=[a_skill(), of_knob])
    made = {c.steps[-1]: c for c in Skilled().propose(view, 8)}
    assert set(made) == {"unroll@loop0=4", "A=2"}
    assert made["unroll@loop0=4"].source in [text for _, text in rewrites_of("c++")(other.source, "")]
    assert made["A=2"].config["A"] == 2
    far = Condition(of="key", name="n", relation=">=", value=10**6)
    for unfit in (a_skill(conditions=(far,)), a_skill(language="triton"), a_skill(knob="A", after=7)):
        assert not Skilled().propose(replace(view, skills=[unfit]), 8)
    assert not Skilled().propose(replace(view, skills=[]), 8)


def test_another_variant_is_no_step_of_the_knob_that_also_differs() -> None:
    of = task(spaces={name: Space.grid({"W": [4, 8]}) for name in ("plain", "other")})
    same, other = (
        replace(of.seed, variant=variant, config=Config({"W": 8}), parents=(of.seed.digest,), steps=("W=8",))
        for variant in ("plain", "other")
    )
    view = seen(of, tried(same, 2.0), tried(other, 1.0))
    assert [parent.variant for parent, _ in _cases("W", 8, list(view.tried))] == ["plain"]


def test_models_are_shown_skills_that_fit() -> None:
    view = replace(seen(TASK), skills=[a_skill(difference="+<|im_end|>"), a_skill(language="triton", intent="never")])
    (told,) = _skills(view, TASK.seed)
    assert "unroll a loop 4 times" in told
    assert "1.40x" in told
    assert "<|im_end|>" not in told
    assert "never" not in told


def test_a_step_is_taken_back_out_of_a_program_that_changed_since() -> None:
    one = child(TASK.seed, "unroll@loop0=4", CPP.replace(LOOP, "#pragma GCC unroll 4\n" + LOOP))
    later = child(one, "model: more", one.source + "int more;\n")
    ran = {c.digest: TriedCandidate(candidate=c, outcome=Measurement(samples_us=(1.0,)), forecast=None, chosen="promise")
           for c in (TASK.seed, one, later)}  # fmt: skip
    first, second = steps_to(later, ran)
    undone = without(later, first)
    assert undone is not None
    assert undone.source == CPP + "int more;\n"
    assert undone.steps == ("model: more",)
    assert without(undone, first) is None  # it is gone already
    overwritten = child(later, "model: all", later.source.replace("unroll 4", "unroll 8"))
    assert without(overwritten, first) is None
    assert str(second) == "model: more"


def test_texts_cross_where_one_adds_beside_what_the_other_takes_away() -> None:
    assert crossed("a\nb\n", "x\na\nb\n", "b\n") == "x\nb\n"
    assert crossed("a\nb\n", "x\na\nb\n", "y\na\nb\n") is None


def test_an_option_is_its_own_place_and_a_models_step_its_own_how() -> None:
    assert step_of("option@unroll-loops=on") == ("option unroll-loops", "", "on")
    assert step_of("num_stages@kernel.range0=3") == ("num_stages", "kernel.range0", 3)
    assert step_of("model: a = b") == ("text", "", "model: a = b")


def test_knobs_are_no_rewrite_whatever_their_names_and_values() -> None:
    assert rewrite_of("unroll@loop0=4") == Rewrite(kind="unroll", place="loop0", how=4)
    for label in (
        "MODE=a@b N=4",
        "N=4 MODE=a@b",
        "variant=other MODE=a@b,N=4",
        "MODE=a@b=2",
        "model_dim=4",
        "model: a@b=4",
    ):
        assert rewrite_of(label) is None
        assert is_by_model(label) == (label == "model: a@b=4")
