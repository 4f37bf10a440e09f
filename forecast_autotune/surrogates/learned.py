"""Learned: what many kernels taught, corrected by what this one shows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ..core.cached_property import cached_property
from ..core.config import Config
from ..core.context import ForecastContext
from ..core.forecast import Abstention
from ..core.job import Job, Recording
from ..core.outcome import Outcome
from ..errors import InvalidInputError
from ..features.forecast_columns import ForecastTable, median
from ..features.knob_matrix import knob_matrix
from ..protocols import Surrogate, SurrogateSession
from . import transfer
from .base import BaseSurrogate, Forecasts, OutcomeSession, basis_text, default_us, outcomes_in
from .feature_columns import LAUNCH_FEATURES, role_features
from .gaussian_process import LENGTH, Shape
from .gp_residual import GPPrior, GPResidual
from .prior import LaunchForecast, Prior, held_prior, rules, shipped_prior

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Array = NDArray[np.float64]

RULES_SIGMA = 0.8  # deviation of log2 speed-ups that rules of thumb leave unexplained
UNSEEN = 2.0  # as much wider are rules of thumb alone: of a large space, the best by them is where they are most wrong
# What trees expect holds by a factor of 1, give or take this: where nothing of this space corrects them, and where it does.
TREES_DOUBT, TREND_DOUBT = 0.4, 0.7
# How outcomes correct the trees, chosen on the suite, kernels left out. Each may be half as large or half as large again,
# at a loss of at most 0.6 % of the time found; lengths that outcomes choose lose 1.3 % (3 to 16 outcomes, three forests).
MISSED_SIGMA = 0.6  # octaves that configs alike in launch and knobs miss together
MEMBERS_COUNT = 0.7  # of how far members' own forecasts are apart, the share by which outcomes may follow one of them
LEVEL = 28.0  # variance of the default's own surprise, as a multiple of `MISSED_SIGMA` squared: it need not be usual
LAUNCH_LENGTH = 0.7  # length per square root of the number of launch features; of knobs it is `LENGTH`
MISSED_NUGGET = 0.03  # share of `MISSED_SIGMA` squared that each config has for itself
MEMBERS_KEPT = 0.99  # of the variance between members: some 20 columns instead of 126
OWN_WEIGHT = 0.03  # of the model among recordings: like one of another size, 10 octaves away


class Learned(BaseSurrogate):
    """Forecast from what kernels at large teach, and correct it by outcomes.

    Where a job says what each config's launch does, a model fitted on other kernels predicts times from that; elsewhere,
    rules of thumb over knobs' roles do, each by a factor that is known roughly. Recordings of the same program say what
    the trees miss; where only rules are known, they replace these. Outcomes of this job then correct the factors, and a
    Gaussian process what is left. Abstains where the job has nothing that the model knows, and nothing was measured.

    Args:
        model: the fitted one, or what `held_prior` takes; the shipped one if not given.
    """

    name = "learned"

    def __init__(self, model: Prior | str | None = None) -> None:
        self._given = model

    @property
    def prior(self) -> Prior:
        """The model.

        Raises:
            OSError, InvalidInputError: it cannot be read.
        """
        if self._given is None:
            return shipped_prior()
        return held_prior(self._given) if isinstance(self._given, str) else self._given

    @property
    def fitted_on(self) -> tuple[str, ...]:
        """The kernels whose measurements the model was fitted on; none if it cannot be read."""
        try:
            return self.prior.fitted_on
        except (OSError, InvalidInputError):
            return ()

    @property
    def model_version(self) -> str:
        """The model's version; empty if it cannot be read."""
        try:
            return self.prior.version
        except (OSError, InvalidInputError):
            return ""

    def start(self, context: ForecastContext) -> SurrogateSession:
        """A session that reads the job and the context's recordings once, when it is first asked.

        Raises:
            OSError, InvalidInputError: the model cannot be read.
        """
        return _Session(context, self.prior)


def check_model(surrogate: Surrogate) -> None:
    """Read the fitted model that a surrogate forecasts by, or a member of a blend, if any does.

    Raises:
        OSError, InvalidInputError: it cannot be read.
    """
    for each in (surrogate, *getattr(surrogate, "members", ())):
        if isinstance(each, Learned):
            _ = each.prior


class _Session(OutcomeSession):
    def __init__(self, context: ForecastContext, prior: Prior) -> None:
        super().__init__(context)
        self._prior = prior
        self._residual = GPResidual(context.job.space)

    @cached_property
    def _model(self) -> _ModelPrior:
        return _model_prior(self.context.job, self._prior)

    @cached_property
    def _missed(self) -> GPPrior | None:
        """What outcomes may miss of the trees' forecasts; None where these say nothing."""
        launches = self._model.launches
        return None if launches is None else _missed(launches, self.context.job)

    @property
    def _described(self) -> NDArray[np.bool_]:
        """Of which configs the launch is described, and the trees say what it does; shape `(configs,)`."""
        import numpy as np

        launches = self._model.launches
        return np.zeros(len(self.context.job.space), dtype=bool) if launches is None else launches.known

    @cached_property
    def _x(self) -> Array:
        return _columns(self.context.job)

    @cached_property
    def _sources(self) -> list[transfer.SourcePrediction]:
        """What recordings predict, and last the model beside them if it goes by launches; empty without any recording."""
        import numpy as np

        job, recordings, model = self.context.job, self.context.recordings, self._model
        sources = []
        for weight, recording in transfer.most_alike(job, recordings):
            by_model = self._at(recording)
            # Whether a launch is refused, and so not described, depends on the sizes. Of 790 configs refused at one size and
            # described at another, none failed at the other, and on 5 of the suite's 15 kernels one of them was the best.
            refused = np.zeros(len(job.space), dtype=bool)
            if by_model is not None:
                launches = recording.static_features
                refused = self._described & [c in recording.outcomes and not launches.get(c) for c in job.space]
            source = transfer.read(recording, job, weight, by_model, model.mean, ignored_failures=refused)
            if source is None:
                continue
            if by_model is not None and model.fail is not None:
                source = replace(source, fail=np.where(self._described & ~refused, source.fail, model.fail))
            sources.append(source)
        if sources and model.launches is not None:
            fail = np.mean([s.fail for s in sources], axis=0) if model.fail is None else model.fail
            sources.append(transfer.SourcePrediction(model.mean, model.sigma, fail, OWN_WEIGHT))
        return sources

    def _at(self, recording: Recording) -> Array | None:
        """What the trees expect of the same configs where a recording was made; None where they cannot, of either job."""
        if self._model.launches is None:
            return None
        space = self.context.job.space
        launches = [recording.static_features.get(c, {}) for c in space]
        job = Job(
            workload=recording.workload,
            space=space,
            hardware=recording.hardware,
            toolchain=recording.toolchain,
            static_features=launches,
        )
        expected = _model_prior(job, self._prior)
        if expected.launches is None:
            return None
        missing = [i for i, launch in enumerate(launches) if not launch]
        # Of a config that is not described in the recording, what is expected for this job says more than nothing.
        mean: Array = expected.mean.copy()
        mean[missing] = self._model.mean[missing]
        return mean

    def predict_from(self, outcomes: Mapping[Config, Outcome]) -> tuple[Forecasts, float | None]:
        job, model = self.context.job, self._model
        own = outcomes_in(job.space, outcomes)
        if not model.says and not self._sources and not own:
            reason = "no knob's role is known, no launch is described, and nothing was measured"
            return [Abstention(Learned.name, reason)] * len(job.space), None
        prior = GPPrior(model.mean, model.sigma, model.fail, model.basis, self._x)
        if own and self._missed is not None:
            prior = self._missed
        combined = transfer.combine(self._sources, job, outcomes) if self._sources else None
        if combined is not None:
            prior = GPPrior(combined.mean, combined.sigma, combined.fail, combined.basis, self._x)
            if own and self._missed is not None:
                prior = _following_sources(prior, combined, self._missed)
        posterior = self._residual.apply(prior, outcomes)
        recordings = len(self._sources) - bool(self._sources and model.launches is not None)
        basis = ", ".join([*model.says, *basis_text(outcomes=own, recordings=recordings)])
        table = ForecastTable.of_one(
            Learned.name,
            posterior.mean,
            posterior.sigma * (1.0 if own or self._sources or model.launches is not None else UNSEEN),
            posterior.fail,
            source=f"{Learned.name} ({basis})",
            default_us=default_us(self.context, outcomes),
            grounded=None if own or self._sources else self._described,
            by_other_hardware=transfer.by_other_hardware(combined, self.context),
        )
        return table, posterior.loo_log_density


@dataclass(frozen=True, slots=True)
class _ModelPrior:
    """What the model expects of each config of a job.

    Attributes:
        says: what it goes by, for people; nothing where it knows nothing of them.
        mean, sigma: of log2 speed-up against the default; shape `(configs,)`.
        fail: chance of failing, shape `(configs,)`; None where nothing is known of that.
        basis: columns that outcomes may follow beyond the mean, each by an unknown factor; in units of sigma, shape
            `(configs, columns)`.
        launches: what the trees say of the launches that it goes by; None where it does not.
    """

    says: tuple[str, ...]
    mean: Array
    sigma: Array
    fail: Array | None
    basis: Array
    launches: LaunchForecast | None = None


def _model_prior(job: Job, prior: Prior) -> _ModelPrior:
    """By trees where the job's launches are described, else by rules of thumb where they bear on its knobs."""
    import numpy as np

    launches = prior.of_launches(job.static_features, job)
    if launches is not None:
        mean, sigma = launches.mean - launches.mean[0], launches.sigma
        basis = (TREES_DOUBT * (mean - median(mean)) / sigma)[:, None]
        says = (f"launches described, {len(prior.fitted_on)} kernels known",)
        return _ModelPrior(says, mean, sigma, launches.fail, basis, launches)
    n = len(job.space)
    mean, sigma, basis = np.zeros(n), np.full(n, RULES_SIGMA), np.zeros((n, 0))
    broken = {name: column for name, column in rules(job).items() if name in prior.factors}
    if not broken:
        return _ModelPrior((), mean, sigma, None, basis)
    for name, column in broken.items():
        mean = mean - prior.factors[name].mean * column
    basis = np.stack([prior.factors[name].sigma * c for name, c in broken.items()], axis=1) / RULES_SIGMA
    return _ModelPrior(("knob roles",), mean - mean[0], sigma, None, basis)


def _missed(of: LaunchForecast, job: Job) -> GPPrior:
    """What outcomes may miss of what the trees expect: one of fixed scale and lengths, for two to ten outcomes choose none.

    They may follow the forecast itself, more or less than it says; any of the trees and networks, which saw other kernels
    each; and, all configs alike in launch and knobs together, what none of them knows.
    """
    import numpy as np

    mean = of.mean - of.mean[0]
    apart = of.apart - of.apart.mean(axis=1, keepdims=True)
    variances, directions = np.linalg.eigh(apart @ apart.T)
    kept = max(1, int((np.cumsum(variances[::-1]) < MEMBERS_KEPT * variances.sum()).sum()) + 1)
    members = (directions[:, ::-1][:, :kept].T @ apart).T
    basis = np.hstack([MEMBERS_COUNT * members, TREND_DOUBT * (mean - median(mean))[:, None]]) / MISSED_SIGMA
    launches = _standardised(of)
    knobs = knob_matrix(job.space).values
    lengths = np.concatenate(
        [
            np.full(columns.shape[1], length * np.sqrt(max(1, columns.shape[1])))
            for columns, length in ((launches, LAUNCH_LENGTH), (knobs, LENGTH))
        ]
    )
    sigma = np.full(mean.size, MISSED_SIGMA)
    shape = Shape(lengths, MISSED_NUGGET)
    return GPPrior(mean, sigma, of.fail, basis, np.hstack([launches, knobs]), shape, LEVEL)


def _following_sources(prior: GPPrior, combined: transfer.CombinedPrediction, missed: GPPrior) -> GPPrior:
    """The same where launches are described: outcomes may also follow any source, and lengths are those of `_missed`.

    The sources' disagreement counts in sigma too: a job may be as far from them as they are from each other, in its own way.
    """
    import numpy as np

    basis = np.hstack([prior.basis, (combined.apart / combined.sigma).T])
    return replace(prior, basis=basis, x=missed.x, shape=missed.shape)


def _standardised(of: LaunchForecast) -> Array:
    """The launch features that tell configs apart, with deviation 1 over those that are described."""
    own = [i for i, name in enumerate(LAUNCH_FEATURES) if not name.endswith("_over_default")]
    features = of.features[:, own]
    mean, deviation = features[of.known].mean(axis=0), features[of.known].std(axis=0)
    telling = deviation > 1e-9
    standardised: Array = (features[:, telling] - mean[telling]) / deviation[telling]
    return standardised


def _columns(job: Job) -> Array:
    """The knobs, and of what several knobs make together what is not a knob already; each with deviation 1."""
    import numpy as np

    knobs = knob_matrix(job.space).values
    columns = [knobs]
    features = role_features(job)
    both = None if features.threads is None or features.work is None else features.threads + features.work
    for feature in (features.threads, features.work, both):
        if feature is None or np.ptp(feature) == 0:
            continue
        column = (feature - feature.mean()) / feature.std()
        if not any(abs(float(column @ k)) > 0.999 * len(column) for k in knobs.T):
            columns.append(column[:, None])
    return np.hstack(columns)
