"""Fit what forecasts Inductor's candidates for products: `python -m calibration fit-products [--fp8] [--to FILE]`.

The same kind of model as the shipped one, on the same features, fitted on products alone, and with the library's function as
one more config: nobody tells ahead how good that is. Its card says how well it does on shapes that were left out, in five
rounds, each without a fifth of the pairs (n, k). There are two figures: the choice's time over that of the best config
recorded, and over that of the best of Inductor's short list and the library, which max-autotune would find. And of how many
products the library is so sure that no template is compiled. Products of fp8 have a model of their own: with one for all,
choices are up to .2 % worse with budgets of 2 to 8, and 1.6 % with nothing timed.
"""

from __future__ import annotations

import gzip
import json
import statistics
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from forecast_autotune.core.config import Config
from forecast_autotune.core.context import ForecastContext
from forecast_autotune.core.forecast import Abstention, Forecast
from forecast_autotune.core.hardware import Toolchain
from forecast_autotune.core.job import Job
from forecast_autotune.core.space import Space
from forecast_autotune.core.workload import Workload
from forecast_autotune.errors import InvalidInputError
from forecast_autotune.features.hardware_sheets import sheet_for
from forecast_autotune.frontends.inductor.candidates import program_of
from forecast_autotune.frontends.inductor.narrowing import FAR_SLOWER, promises, times_the_library
from forecast_autotune.frontends.inductor.product import Product, library_is_foreseen, product_features
from forecast_autotune.frontends.inductor.template_kernels import GROUP_M
from forecast_autotune.surrogates.feature_columns import launch_columns
from forecast_autotune.surrogates.learned import Learned
from forecast_autotune.surrogates.prior import FP8_PRODUCTS, PRODUCTS, Prior, prior_text
from forecast_autotune.tuning.decision_rule import Findings, trusted_forecast

from ..command import positive, verb_parser
from ..paths import PRODUCTS as RECORDED
from ..tiles import FP8_FAST, is_fp8, itemsize, short_list
from .forest import Example, fit_launches, fit_width, misses

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Array = NDArray[np.float64]

TREES = 40  # and 2 networks; 120 trees are 0.1 % better
MAX_OF_A_SHAPE = 60  # configs that are fitted on, drawn at random
LIBRARY_COUNTS = 10  # configs: where it stands among them decides what is chosen unmeasured
ROUNDS = 5
BUDGETS = (2, 4, 8)
MIN_CONFIGS = 10  # of a shape with fewer nothing is learned


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """One product: the library first, then configs, with the time of each in microseconds.

    Attributes:
        fp8: whether its elements are.
        library_is_foreseen: see `candidates.library_is_foreseen`.
        short: the configs that max-autotune tries.
    """

    name: str
    pair: str  # n and k: all of a pair are left out together
    fp8: bool
    library_is_foreseen: bool
    short: frozenset[Config] = field(repr=False)
    job: Job = field(repr=False)
    features: Array = field(repr=False)
    times_us: Array = field(repr=False)


def read_recorded(path: Path) -> Iterator[Recorded]:
    """The products of a recording, but those of which too few configs were timed.

    Raises:
        InvalidInputError: its name tells no GPU.
    """
    import numpy as np

    try:
        hardware = sheet_for(path.name.split(".")[1].replace("_", " "))
    except InvalidInputError as err:
        hint = "a recording is called products.NVIDIA_H200.jsonl.gz, with the GPU's name"
        raise InvalidInputError(f"{path.name}: {err}; {hint}") from None
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        for line in lines:
            row = json.loads(line)
            dtype, layout, batch, m, n, k = row["shape"]
            size = itemsize(dtype)
            product = Product(
                batch=batch, m=m, n=n, k=k, a_by_rows=layout[0] == "n", b_by_rows=layout[1] == "n", itemsize=size,
                out_itemsize=2 if is_fp8(dtype) else size, tf32=dtype == "tf32", fp8=is_fp8(dtype),
                fast_accum=dtype == FP8_FAST,
            )  # fmt: skip
            times = {_config(config): us for config, us in row["times_us"] if config != "addmm"}
            if len(times) < MIN_CONFIGS:
                continue
            space = Space(times, default=LIBRARY)
            static_features = product_features(product, [config.knobs for config in space], hardware)
            yield Recorded(
                name=f"{dtype} {layout} {batch}x{m}x{n}x{k}",
                pair=f"{n}x{k}",
                fp8=product.fp8,
                library_is_foreseen=library_is_foreseen(product),
                short=frozenset(_config(tile) for tile in short_list(dtype)),
                job=Job(
                    workload=Workload(program=program_of("mm"), key={"shape": row["shape"]}, timing="inductor"),
                    space=space,
                    hardware=hardware,
                    toolchain=Toolchain(versions={}),
                    static_features=static_features,
                ),
                features=launch_columns(static_features, hardware),
                times_us=np.array([times[config] for config in space]),
            )


def _config(recorded: str | Sequence[int]) -> Config:
    if isinstance(recorded, str):
        return LIBRARY
    return Config({"template": "mm", **dict(zip(KNOBS, recorded, strict=True)), "GROUP_M": GROUP_M})


KNOBS = ("BLOCK_M", "BLOCK_N", "BLOCK_K", "num_stages", "num_warps")
LIBRARY = Config({"template": "aten::mm", **dict.fromkeys(KNOBS), "GROUP_M": None})


def fit(recorded: Sequence[Recorded], *, trees: int = TREES) -> Prior:
    """The model of these products: the same ones give the same model."""
    import numpy as np

    draw = np.random.default_rng(0)
    examples = []
    for each in recorded:
        some = np.sort(draw.permutation(np.arange(1, each.times_us.size))[: MAX_OF_A_SHAPE - 1])
        rows = np.concatenate([np.zeros(LIBRARY_COUNTS + 1, dtype=int), some])
        log2_time = np.log2(each.times_us)[rows]
        examples.append(
            Example(
                name=each.name,
                kernel=f"product {each.pair}",
                package="",
                job=each.job,
                features=each.features[rows],
                broken={},
                log2_time=log2_time - np.median(log2_time),
            )
        )
    # Pairs (n, k) of one kernel, not kernels: weighed as those are, what is decided with nothing timed took 0.7 % longer.
    return fit_launches(examples, trees=trees, power=0.0)


# What is left out ---------------------------------------------------------------------------------------------------------


def losses(each: Recorded, prior: Prior) -> dict[str, float]:
    """What a choice takes, over the best that was recorded: by a name, `max-autotune`, `library`, or a budget.

    `4 unsure` is budget 4 as Inductor is handed candidates: no template where the library is sure.
    """
    forecasts = _forecasts(each, prior)
    times = dict(zip(each.job.space, each.times_us.tolist(), strict=True))
    promise = promises(each.job.space, forecasts)
    tiles = sorted(each.job.space[1:], key=lambda config: -promise[config])
    listed = [config for config in times if config in each.short]
    trusted = trusted_forecast(_unmeasured(each.job, forecasts), None)
    chosen = {
        "max-autotune": [LIBRARY, *listed],
        "library": [LIBRARY],
        "0": [LIBRARY if trusted is None else trusted[0]],
        **{str(budget): [LIBRARY, *tiles[:budget]] for budget in BUDGETS},
        **{f"{budget} unsure": [LIBRARY, *([] if is_sure(each, forecasts) else tiles[:budget])] for budget in BUDGETS},
    }
    best = min(times.values())
    return {name: min(times[config] for config in configs) / best for name, configs in chosen.items()}


def is_sure(each: Recorded, forecasts: Sequence[Forecast | Abstention]) -> bool:
    """Whether Inductor is handed the library alone."""
    return each.library_is_foreseen and times_the_library(each.job, forecasts) > FAR_SLOWER


def _forecasts(each: Recorded, prior: Prior) -> Sequence[Forecast | Abstention]:
    return Learned(prior).start(ForecastContext(job=each.job)).predict({}, {})


def _unmeasured(job: Job, forecasts: Sequence[Forecast | Abstention]) -> Findings:
    return Findings(
        job=job,
        outcomes={},
        finals={},
        forecasts=forecasts,
        tried=(),
        compiled=0,
        budget="0",
        spent_s=0.0,
        run="",
        now=0.0,
    )


def fit_and_score(recorded: Sequence[Recorded], *, trees: int = TREES) -> tuple[Prior, dict[str, Any]]:
    """The model, and its card: geometric means of losses, and the worst, over products that were left out."""
    pairs = sorted({each.pair for each in recorded})
    left_out: list[tuple[Recorded, Prior]] = []
    for number in range(ROUNDS):
        without = set(pairs[number::ROUNDS])
        prior = fit([each for each in recorded if each.pair not in without], trees=trees)
        left_out += [(each, prior) for each in recorded if each.pair in without]
        print(f"fit-products: {number + 1} of {ROUNDS + 1} models", file=sys.stderr, flush=True)
    missed = [(f"product {each.pair}", misses(_whole(each), prior)) for each, prior in left_out]
    width = fit_width(missed)
    left_out = [(each, replace(prior, width=width)) for each, prior in left_out]
    scores = [losses(each, prior) for each, prior in left_out]
    sure = [is_sure(each, _forecasts(each, prior)) for each, prior in left_out]
    prior = replace(fit(recorded, trees=trees), width=width)
    card = {
        "data": {
            "shapes": len(recorded),
            "times": sum(each.times_us.size for each in recorded),
            "hardware": ", ".join(sorted({each.job.hardware.name for each in recorded})),
        },
        "library_sure": round(statistics.fmean(sure), 4),
        "left_out": {
            name: {
                "over_best": round(statistics.geometric_mean(score[name] for score in scores), 4),
                "over_max_autotune": round(
                    statistics.geometric_mean(score[name] / score["max-autotune"] for score in scores), 4
                ),
                "worst_over_max_autotune": round(max(score[name] / score["max-autotune"] for score in scores), 2),
            }
            for name in scores[0]
        },
    }
    return prior, card


def _whole(each: Recorded) -> Example:
    import numpy as np

    log2_time = np.log2(each.times_us)
    return Example(
        name=each.name,
        kernel=f"product {each.pair}",
        package="",
        job=each.job,
        features=each.features,
        broken={},
        log2_time=log2_time - np.median(log2_time),
    )


def main(words: Sequence[str] | None = None) -> int:
    """Fit, score, and write the model."""
    parser = verb_parser("fit-products", __doc__)
    parser.add_argument("--fp8", action="store_true", help="the model of fp8 products")
    parser.add_argument("--to", type=Path, metavar="FILE", help="default: the model that ships")
    parser.add_argument("--trees", type=positive, default=TREES, metavar="N", help="default: %(default)s")
    given = parser.parse_args(words)
    try:
        every = [each for path in sorted(RECORDED.glob("*.jsonl.gz")) for each in read_recorded(path)]
    except InvalidInputError as err:
        print(f"fit-products: {err}", file=sys.stderr)
        return 2
    recorded = [each for each in every if each.fp8 == given.fp8]
    prior, card = fit_and_score(recorded, trees=given.trees)
    to = given.to or (FP8_PRODUCTS if given.fp8 else PRODUCTS)
    to.write_text(prior_text(prior, card=card), encoding="utf-8")
    print(f"the library is sure of a share of {card['library_sure']:.4f}")
    for name, row in card["left_out"].items():
        print(f"{name:<14}" + "".join(f"  {what} {value:.4f}" for what, value in row.items()))
    return 0
