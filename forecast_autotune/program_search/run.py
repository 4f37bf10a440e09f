"""fa.search: a search from a target to a result that a person reads and adopts, or not."""

from __future__ import annotations

import difflib
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ..core.hardware import Toolchain
from ..core.outcome import Failure
from ..core.text import plain
from ..errors import InvalidInputError
from ..measure.probe import detect_cpp_toolchain, detect_hardware
from ..processes.box import require_box
from ..settings import Settings
from ..store.filesystem import make_folder
from ..surrogates.by_name import make_surrogate
from ..surrogates.learned import check_model
from .archive import Archive
from .budget import AnswerTally, SearchBudget
from .candidate import HAND_WRITTEN, Candidate, TriedCandidate, incumbent
from .descriptions import describer_of
from .examiner import Examiner
from .finals import Final, Finals, run_finals
from .forecasts import CandidateForecaster
from .lineage import StepEffect, WalkedBack, walk_back
from .loop import PROPOSALS, SearchEvent, SearchLoop, speedups
from .nvcc_flags import flags_of, without_flags
from .proposers.base import Proposer, tally
from .proposers.mix import Mix
from .proposers.rewriting import Anywhere, Crossover, Knobs, Rewrites, Skilled
from .runners import preparer
from .skills import StepSkill, learn, skills_in
from .task import CUDA_SUFFIX, SearchTask, Sizes, named, refuse_what_raises, task_of

REWRITE = "rewrite"


@dataclass(frozen=True, kw_only=True)
class SearchResult:
    """What a search found, and what it spent. Nothing was written to any source file.

    `walked` says what each step to the fastest program brings to it, and `skills` which of them help at sizes held out
    too. `unused_answers` tells of the models none of whose programs this run tried, by the proposer's name.
    `forecast_pairs` are log2 speed-ups against the seed, forecast and measured, of candidates that ran.
    """

    task: SearchTask = field(repr=False)
    tried: Sequence[TriedCandidate] = field(repr=False)
    walked: WalkedBack
    skills: Sequence[StepSkill]
    finals: Finals
    stopped: str
    unused_answers: Mapping[str, AnswerTally]
    budget: SearchBudget

    @property
    def winner(self) -> Candidate | None:
        """What beat the seed at sizes held out, beyond the noise; None where nothing did."""
        return None if self.finals.winner is None else self.finals.winner.candidate

    def diff(self) -> str:
        """What a person would change to adopt the winner; empty without one. Control characters are left out."""
        if self.winner is None:
            return ""
        suffix = CUDA_SUFFIX if self.task.language == "cuda" else ".cpp"
        name = self.task.module.replace(".", "/") or f"{self.task.name}{suffix}"
        seed, own, flags = self.task.seed, self.task.text_of(self.winner.variant), flags_of(self.winner.source)
        lines = difflib.unified_diff(
            own.splitlines(), without_flags(self.winner.source).splitlines(), f"a/{name}", f"b/{name}", lineterm=""
        )
        knobs = {k: v for k, v in self.winner.config.knobs.items() if seed.config.knobs.get(k) != v}
        told = [f"# variant: {self.winner.variant}"] if self.winner.variant != seed.variant else []
        told += [f"# knobs: {' '.join(f'{k}={v}' for k, v in knobs.items())}"] if knobs else []
        told += [f"# extra_cuda_cflags: {' '.join(flags)}"] if flags else []
        return "\n".join([*told, *(plain(line) for line in lines)])

    @property
    def best_by_hand(self) -> Final | None:
        """The fastest that a person wrote, the seed aside."""
        by_hand = [f for f in self.finals.finals if f.candidate.proposer == HAND_WRITTEN and not f.failure]
        return max(by_hand, key=self.finals.speedup, default=None)

    @property
    def forecast_pairs(self) -> list[tuple[float, float, str]]:
        """Forecast and measured log2 speed-up against the seed, and why it was tried, of each that was forecast and ran."""
        gained = speedups(self.tried)
        return [
            (t.forecast.mean, gained[t.candidate.digest], t.chosen)
            for t in self.tried
            if t.forecast is not None and t.candidate.digest in gained
        ]

    def as_json(self) -> dict[str, Any]:
        """Everything that `forecast-autotune search --json` prints."""
        gained = speedups(self.tried)
        finals = [self.finals.seed, *self.finals.finals]
        return {
            "task": self.task.name,
            "language": self.task.language,
            "sizes": list(self.task.sizes),
            "held_out": list(self.task.held_out),
            "stopped": self.stopped,
            "measured": self.budget.measured,
            "built": self.budget.built,
            "failed": self.budget.failed,
            "walked": self.budget.walked,
            "seconds": round(self.budget.seconds, 1),
            "tokens": self.budget.tokens_used,
            "winner": None if self.winner is None else self.winner.digest,
            "reason": self.finals.reason,
            "diff": self.diff(),
            "finals": [
                {
                    "digest": f.candidate.digest, "proposer": f.candidate.proposer, "variant": f.candidate.variant,
                    "config": dict(f.candidate.config.knobs), "times_us": dict(f.times_us), "failure": f.failure,
                    "speedup": None if f.failure or self.finals.seed.failure else round(self.finals.speedup(f), 4),
                }
                for f in finals
            ],
            "steps": [
                {
                    "step": str(e.step), "with_us": dict(e.with_us), "without_us": dict(e.without_us), "failure": e.failure,
                    "kept": not e.costs_nothing(),
                }
                for e in self.walked.effects
            ],
            "skills": [{**skill.as_json(), "text": str(skill)} for skill in self.skills],
            "proposers": {name: {"tried": n, "fastest": won} for name, (n, won) in tally(self.tried).items()},
            "unused_answers": {
                name: {"answers": of.asked, "reasons": dict(of.unused)} for name, of in self.unused_answers.items()
            },
            "tried": [
                {
                    "digest": t.candidate.digest, "parents": list(t.candidate.parents), "proposer": t.candidate.proposer,
                    "steps": list(t.candidate.steps), "chosen": t.chosen, "time_us": t.time_us, "times_us": dict(t.times_us),
                    "log2_speedup": gained.get(t.candidate.digest),
                    "forecast": None if t.forecast is None else {"mean": t.forecast.mean, "sigma": t.forecast.sigma},
                    "failure": _failure(t),
                }
                for t in self.tried
            ],
        }  # fmt: skip


def _failure(tried: TriedCandidate) -> dict[str, str] | None:
    if not isinstance(tried.outcome, Failure):
        return None
    return {"stage": tried.outcome.stage, "message": tried.outcome.message[:500]}


def search(
    target: Any,
    *,
    budget: int = 32,
    proposals: float = PROPOSALS,
    proposers: Sequence[str] = (REWRITE,),
    minutes: float = math.inf,
    tokens: float = math.inf,
    forecasts: bool = True,
    sizes: Sequence[str] | Mapping[str, Sizes] | None = None,
    inputs: Callable[[Sizes, int, str], tuple[Any, ...]] | None = None,
    reference: Callable[..., Any] | None = None,
    held_out: Mapping[str, Sizes] | None = None,
    seed: int = 0,
    listener: Callable[[SearchEvent], None] | None = None,
) -> SearchResult:
    """Search for faster programs than a kernel's own: propose, forecast, and try the promising ones in a box.

    A tool for development: it takes minutes, and nothing that a program calls searches by itself. A search that was
    ended goes on where it was: what was tried for the same task, hardware and toolchain counts
    towards the budget.

    Args:
        target: a `fa.SearchTask`, a function of `fa.load_inline` with `kernel_sources` or `cuda_sources`, or a kernel of the
            suite's kind.
        budget: how many candidates may be measured, the seed included.
        proposals: how many are proposed and forecast for each that is measured.
        proposers: `rewrite`, and URLs of servers that speak OpenAI's protocol (`http://127.0.0.1:8000/#MODEL`).
        minutes, tokens: further limits, of this run.
        forecasts: False tries candidates at random: the baseline.
        sizes: what candidates are timed at, names of the target's; of a function, sizes by name.
        inputs, reference, held_out: of a function; see `SearchTask`. Where inputs require gradients, these are compared too,
            and a launch is timed with its backward pass.
        seed: of all draws.
        listener: told of each event.
    Raises:
        InvalidInputError: an argument does not fit; a function has no reference; what makes inputs or says what is right
            raises.
        NoBoxError: this system has no box to run candidates in.
        NoWorkingConfigError: the target's own source does not build, run or compute what the reference does.
        StoreError: what was tried cannot be kept.
    """
    by_name = sizes if isinstance(sizes, Mapping) else None
    task = task_of(target, inputs=inputs, reference=reference, sizes=by_name, held_out=held_out)
    if sizes is not None and not isinstance(sizes, Mapping):
        task = named(sizes, task)
    if not math.isfinite(proposals) or proposals < 1:
        raise InvalidInputError(f"proposals {proposals!r}: give a number of at least 1, such as 16 for 16x")
    loop = _search_loop(
        task,
        SearchBudget(measurements=budget, minutes=minutes, tokens=tokens),
        proposers=proposers,
        proposals=proposals,
        forecasts=forecasts,
        seed=seed,
        listener=listener or (lambda _: None),
    )
    known = len(loop.archive)
    stopped = loop.run()
    came_to_trials = {t.candidate.proposer for t in list(loop.archive)[known:]}
    loop.examiner.end_waiting_workers()
    walked, skills = _walked(loop)
    for skill in skills:
        loop.archive.learn(skill)
    loop.listener(SearchEvent(text="times the fastest again, beside what people wrote, at the sizes held out"))
    finals = run_finals(task, list(loop.archive), walked.program, loop.examiner, loop.preparer)
    return SearchResult(
        task=task,
        tried=list(loop.archive),
        walked=walked,
        skills=skills,
        finals=finals,
        stopped=stopped,
        unused_answers={
            name: of for name, of in loop.budget.answers.items() if of.asked and name not in came_to_trials
        },
        budget=replace(loop.budget),
    )


def _search_loop(
    task: SearchTask,
    budget: SearchBudget,
    *,
    proposers: Sequence[str],
    proposals: float,
    forecasts: bool,
    seed: int,
    listener: Callable[[SearchEvent], None],
) -> SearchLoop:
    """A loop for a task on this machine's hardware, with what earlier searches left.

    Raises:
        InvalidInputError: a proposer's name is none; what makes inputs or says what is right raises; there is no such model
            as the setting holds.
        NoBoxError: this system has no box to run candidates in.
        StoreError: what was tried cannot be kept.
    """
    settings = Settings.from_environment()
    surrogate = make_surrogate(settings.surrogate or "auto", answer=settings.answer, model=settings.model)
    if forecasts:
        check_model(surrogate)  # a broken model is reported before the minutes of a search pass
    on_gpu = task.device != "cpu"
    require_box(may_start=task.language != "triton" or on_gpu, gpu=on_gpu)
    hardware = detect_hardware(task.device)
    toolchain = toolchain_of(task)
    refuse_what_raises(task)
    folder = settings.dir / "search" / task.digest
    make_folder(folder)
    archive = Archive(settings.dir, task, hardware, toolchain)
    makes = preparer(task, folder, settings.dir)
    examiner = Examiner(task, hardware, folder)
    describer = describer_of(task, hardware, folder) if forecasts else None
    return SearchLoop(
        task=task,
        archive=archive,
        budget=budget,
        proposer=_proposer(proposers, settings, budget),
        forecaster=CandidateForecaster(task, hardware, toolchain, surrogate, describer) if forecasts else None,
        examiner=examiner,
        preparer=makes,
        proposals=proposals,
        seed=seed,
        skills=[skill for skill in skills_in(settings.dir) if skill.hardware_kind == hardware.kind],
        listener=listener,
    )


def _walked(loop: SearchLoop) -> tuple[WalkedBack, list[StepSkill]]:
    """The fastest program without what does not matter in it, and the skills that its lineage teaches."""
    task, archive, examiner = loop.task, loop.archive, loop.examiner
    best = incumbent(list(archive))
    if best is None or best.candidate.digest == task.seed.digest:
        return WalkedBack(program=task.seed), []
    loop.listener(SearchEvent(text="walks the fastest back: each step is taken away and measured"))
    walked = walk_back(task, best, archive, examiner, loop.preparer, loop.budget)
    skills = learn(walked, list(archive), task, examiner.hardware)
    for effect in walked.effects:
        loop.listener(SearchEvent(text=f"without {effect.step}: {_brought(effect, task)}"))
    return walked, skills


def _brought(effect: StepEffect, task: SearchTask) -> str:
    if effect.failure:
        return effect.failure
    held_out = f", {2 ** -effect.gain(task.held_out):.3f}x at sizes held out" if task.held_out else ""
    told = f"{2 ** -effect.gain(task.sizes):.3f}x of its speed{held_out}"
    return f"{told}, so it is dropped" if effect.costs_nothing() else told


def toolchain_of(task: SearchTask) -> Toolchain:
    """What a task's candidates are compiled by."""
    if task.recipe is not None:
        return detect_cpp_toolchain(task.recipe.flags, cuda=task.recipe.is_cuda)
    if task.device != "cpu":
        from ..frontends.triton.target import current_toolchain

        return current_toolchain()
    import torch

    return Toolchain(versions={"torch": torch.__version__, "python": sys.version.split()[0]})


def _proposer(names: Sequence[str], settings: Settings, budget: SearchBudget) -> Proposer:
    """All the proposers that were named, as one.

    Raises:
        InvalidInputError: a name is none.
    """
    made: list[Proposer] = []
    for name in dict.fromkeys(names):
        if name == REWRITE:
            made += [Rewrites(), Knobs(), Anywhere(), Skilled(), Crossover()]
        elif name.startswith(("http://", "https://")):
            from .proposers.written import ModelProposer

            made.append(ModelProposer.named(name, settings, budget))
        else:
            raise InvalidInputError(
                f"proposer {name!r}: accepted are {REWRITE}, and the URL of a server such as http://127.0.0.1:8000"
            )
    if not made:
        raise InvalidInputError(f"no proposer: name {REWRITE}, a server's URL, or both")
    return Mix(made)
