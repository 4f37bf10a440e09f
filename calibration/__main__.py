"""`python -m calibration VERB`: record, fit, evaluate, report. A verb's module is imported when it is called."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module

# verb: module in this package, what it does
VERBS = {
    "record": ("record.devices", "measure the suite's spaces into traces, on every GPU or on the CPU"),
    "record-products": ("record.products", "time matrix products as Inductor's templates make them, on a GPU"),
    "record-pool": ("record.pools", "make programs of kernels by rewrites, and measure them into traces"),
    "evidence": ("record.evidence", "what compilers say of whole spaces, without a GPU"),
    "fit": ("fit.forest", "fit the shipped forest on recorded spaces, and score it on what was left out"),
    "fit-products": ("fit.products", "fit what forecasts Inductor's candidates for products"),
    "train": ("fit.train", "train a language model to forecast"),
    "reinforce": ("fit.reinforce", "teach a language model to write forecasts, by what its answers earn"),
    "evaluate": ("fit.evaluate", "how well trained language models forecast spaces they have not seen"),
    "survey": (
        "evaluate.survey",
        "of how many kernels of a package bytes, operations and trips are known without a GPU",
    ),
    "spaces": ("evaluate.spaces", "what recorded spaces look like: default against best, variants, repeats"),
    "baselines": ("evaluate.baselines", "our tuning beside other methods on recorded spaces"),
    "search-replay": (
        "evaluate.search_replay",
        "a search's filter by forecasts on recorded spaces, beside simple rivals",
    ),
    "search-live": ("evaluate.search_live", "searches with forecasts and without, on the GPU that is present"),
    "learning-curve": ("evaluate.learning_curve", "what more kernels, and nearer ones, would teach"),
    "third-party": (
        "third_party.verb",
        "packages under install(): which tuners are reached; Triton's own tuning beside ours, on a GPU",
    ),
    "inductor-report": (
        "torch_compile.verb",
        "torch.compile with its candidates narrowed by forecasts, beside torch.compile as it is, on a GPU",
    ),
    "gpu-report": ("evaluate.gpu_report", "Triton's own tuner beside ours, on the GPU that is present"),
    "cuda-report": ("evaluate.cuda_report", "CUDA kernels through load_inline, on the GPU that is present"),
    "chart": ("report.chart", "the README's chart and its figures: how close to the best, by configs measured"),
    "report": ("report.report", "one page of pictures: ours beside other methods, and how honest forecasts are"),
}

USAGE = "usage: python -m calibration VERB …"


def overview() -> str:
    """Every verb with one line."""
    width = max(map(len, VERBS))
    lines = [f"  {verb:{width}}  {line}" for verb, (_, line) in VERBS.items()]
    return "\n".join([USAGE, "", *lines, "", "python -m calibration VERB --help tells of one."])


def main(words: Sequence[str] | None = None) -> int:
    """Call the verb that is named first with the words behind it; 2 if there is none of that name."""
    words = sys.argv[1:] if words is None else words
    if words and words[0] in ("-h", "--help"):
        print(overview())
        return 0
    if not words or words[0] not in VERBS:
        print(f"no verb {words[0]!r}\n" if words else "name a verb\n", overview(), sep="\n", file=sys.stderr)
        return 2
    module, _ = VERBS[words[0]]
    status: int = import_module(f"calibration.{module}").main(words[1:])
    return status


if __name__ == "__main__":
    sys.exit(main())
