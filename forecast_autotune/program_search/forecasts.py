"""Forecasts of candidates: each is a config over its knobs and the steps that made it, with what it launches described,
beside what was measured."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence

from ..core.config import Config
from ..core.context import ForecastContext
from ..core.digest import Value
from ..core.forecast import Forecast
from ..core.hardware import Hardware, Toolchain
from ..core.job import Job
from ..core.outcome import Outcome
from ..core.space import Space
from ..core.workload import Program, Workload
from ..features.lazy_static_features import LazyStaticFeatures
from ..protocols import Surrogate
from .candidate import Candidate, TriedCandidate
from .descriptions import CandidateDescriber, Described, Features, over_sizes
from .steps import is_by_model, rewrite_of
from .task import SearchTask
from .turns import turn_at_device

log = logging.getLogger(__name__)


class CandidateForecaster:
    """Asks a surrogate about candidates of one task, by all that was tried.

    Args:
        task: what is searched for.
        hardware, toolchain: where it is measured.
        surrogate: who forecasts; one that fails is told of in the log, and forecasts nothing.
        describer: tells what candidates launch; without one, forecasts know their knobs and steps alone.
    """

    def __init__(
        self,
        task: SearchTask,
        hardware: Hardware,
        toolchain: Toolchain,
        surrogate: Surrogate,
        describer: CandidateDescriber | None = None,
    ) -> None:
        self._task, self._hardware, self._toolchain, self._surrogate = task, hardware, toolchain, surrogate
        self._describer = describer
        sizes = next(iter(task.sizes.values()))
        self._work = None
        if task.work is not None:
            with turn_at_device(task.device, alone=False):
                self._work = task.work(*task.make_inputs(sizes, 0, task.device))
        self._workload = Workload(
            program=Program(name=task.name, language=task.language, source=task.source),
            key={name: value for name, value in sizes.items() if isinstance(value, (int, str))},
        )

    def forecast(self, tried: Sequence[TriedCandidate], proposed: Sequence[Candidate]) -> list[Forecast | None]:
        """For each candidate its log2 speed-up against the seed; None where nobody can say, and of what does not launch."""
        every = [self._task.seed, *(t.candidate for t in tried), *proposed]
        by_size = self._described(every)
        told = {name: over_sizes(each, list(self._task.sizes)) for name, each in by_size.items()}
        unlaunchable = _unlaunchable(every, by_size, told)
        kept = [one for one in every if one.digest not in unlaunchable]
        configs = configs_of(kept, self._task)
        of = {one.digest: config for one, config in zip(kept, configs, strict=True)}
        knobs = list(configs[0].knobs)
        space = Space(configs, roles=self._roles(knobs))
        job = Job(
            workload=self._workload,
            space=space,
            hardware=self._hardware,
            toolchain=self._toolchain,
            work=self._work,
            static_features=_features(of, told, by_size, space) if any(told.values()) else (),
        )
        outcomes: dict[Config, Outcome] = {of[t.candidate.digest]: t.outcome for t in tried if t.candidate.digest in of}
        try:
            answers = self._surrogate.start(ForecastContext(job=job)).predict(outcomes, {})
        except Exception as err:  # a surrogate may be anything; a search goes on without it
            log.warning("surrogate %s failed (%r): candidates are drawn at random", self._surrogate.name, err)
            return [None] * len(proposed)
        by_config = dict(zip(job.space, answers, strict=True))
        mine = [by_config[of[one.digest]] if one.digest in of else None for one in proposed]
        return [answer if isinstance(answer, Forecast) else None for answer in mine]

    def _described(self, candidates: Sequence[Candidate]) -> Mapping[str, Described]:
        """What each candidate launches by the name of a size, by its digest; nothing where nobody describes."""
        if self._describer is None:
            return {}
        described = self._describer.describe(candidates)
        return {one.digest: each for one, each in zip(candidates, described, strict=True)}

    def _roles(self, knobs: Sequence[str]) -> dict[str, str]:
        roles = {"variant": "algorithm", "text": "algorithm"}
        for variant, space in self._task.spaces.items():
            roles |= {knob_name(variant, name, self._task): role for name, role in space.roles.items()}
        roles |= {
            name: "unroll" for name in knobs if name.startswith(("unroll@", "loop_unroll_factor@", "steps@", "split@"))
        }
        roles |= {name: "stages" for name in knobs if name.startswith("num_stages@")}
        return {name: role for name, role in roles.items() if name in knobs}


def _unlaunchable(
    candidates: Sequence[Candidate], by_size: Mapping[str, Described], told: Mapping[str, Features]
) -> set[str]:
    """Digests of candidates, but never the seed's, that raise at some size, where they do not at another one, or where other
    candidates of their variant never do. One of which nobody can tell is none of them.

    Most have knobs that the variant's own Python code refuses. Forecast by their knobs alone they would be tried first: of
    what is known least, most may be hoped. 13 of 32 measurements of a layer norm went to such. And what lets its threads
    have more registers than a block may have limits nothing, or fails at its launch: seven of 32.
    """
    described = {one.variant for one in candidates if told.get(one.digest)}
    raising = [
        one
        for one in candidates
        if one.digest in told and not told[one.digest] and not _is_unknown(by_size[one.digest])
    ]
    raises = {one.digest for one in raising if one.variant in described or any(by_size[one.digest].values())}
    overfull = {digest for digest, features in told.items() if features.get("register_share", 0.0) > 1.0}
    return (raises | overfull) - {candidates[0].digest}


def _is_unknown(described: Described) -> bool:
    """Whether nobody can tell what a candidate launches at some size."""
    return any(features is None for features in described.values())


def _features(
    of: Mapping[str, Config], told: Mapping[str, Features], by_size: Mapping[str, Described], space: Space
) -> Sequence[Features]:
    """What the configs of a space launch. Of candidates that read alike the first counts, and the seed is first."""
    by_config: dict[Config, Features | None] = {}
    for digest, config in of.items():
        by_config.setdefault(config, None if _is_unknown(by_size.get(digest, {})) else told.get(digest, {}))
    return LazyStaticFeatures(list(space), by_config.__getitem__, longest_s=math.inf)


def configs_of(candidates: Sequence[Candidate], task: SearchTask) -> list[Config]:
    """Candidates as configs that all set the same knobs: their own, and each rewrite as a knob, None where not made."""
    knobs_of_each = [knobs_of(one, task) for one in candidates]
    names = list(dict.fromkeys(name for knobs in knobs_of_each for name in knobs))
    return [Config({name: knobs.get(name) for name in names}) for knobs in knobs_of_each]


def knobs_of(candidate: Candidate, task: SearchTask) -> Mapping[str, Value]:
    """What a surrogate is told of a candidate: its knobs, and each rewrite as a knob of its own.

    A text that a model wrote has a name: nothing else tells what it does, but the knobs it runs under.
    """
    knobs: dict[str, Value] = {"variant": candidate.variant} if len(task.spaces) > 1 else {}
    knobs |= {knob_name(candidate.variant, name, task): value for name, value in candidate.config.knobs.items()}
    written = False
    for step in candidate.steps:
        rewrite = rewrite_of(step)
        if rewrite is not None:
            knobs[rewrite.knob] = rewrite.how
        written |= is_by_model(step)
    if written:
        knobs["text"] = candidate.source_digest
    return knobs


def knob_name(variant: str, knob: str, task: SearchTask) -> str:
    """A knob's name among those of all variants."""
    return f"{variant}.{knob}" if len(task.spaces) > 1 else knob
