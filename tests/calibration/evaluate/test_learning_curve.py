"""The learning curve, on recorded spaces of the suite."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pytest

pytest.importorskip("sklearn")

from calibration.evaluate import learning_curve
from calibration.evaluate.learning_curve import main, relatives, rounds
from calibration.fit.forest import Example, read_examples
from calibration.paths import TRACES

NAMES = ("attention.odd", "layer_norm.few_rows", "matmul.odd", "rms_norm.few_rows", "softmax.experts", "swiglu.odd")
PATHS = tuple(TRACES / f"{name}.NVIDIA_H200.jsonl.gz" for name in NAMES)
KERNELS = [name.partition(".")[0] for name in NAMES]


@pytest.fixture(scope="module")
def examples() -> Sequence[Example]:
    return read_examples(PATHS)


def test_the_nearest_relative_of_a_kernel_does_the_same_kind_of_work(examples: Sequence[Example]) -> None:
    assert relatives(examples, "matmul") == {"swiglu"}
    assert relatives(examples, "layer_norm") == {"rms_norm"}


def test_no_model_is_asked_about_a_kernel_that_it_was_fitted_on(examples: Sequence[Example]) -> None:
    made = rounds(examples, KERNELS, (2, 4, 5), 2, 3)
    assert all(not each.asked & each.fitted_on for each in made)
    assert {len(each.fitted_on) for each in made if each.row == "4 kernels"} == {4}
    for row in ("2 kernels", "all others", "its relatives alone", "all but its relatives"):
        assert frozenset().union(*(each.asked for each in made if each.row == row)) == set(KERNELS)
    of_matmul = {each.row: each.fitted_on for each in made if each.asked == {"matmul"}}
    assert of_matmul["all others"] == of_matmul["its relatives alone"] | of_matmul["all but its relatives"]


def test_the_command_prints_what_each_number_of_kernels_comes_to(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    some = tuple(path for path in PATHS if path.name.startswith(("matmul", "swiglu", "softmax")))
    monkeypatch.setattr(learning_curve, "corpus_paths", lambda: some)
    monkeypatch.setattr(learning_curve, "suite_paths", lambda: some)
    assert main(["--numbers", "1", "--seeds", "1", "--trees", "5", "--jobs", "1", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["fitted on"] for row in rows] == [
        "1 kernels", "all but its relatives", "its relatives alone", "all others",
    ]  # fmt: skip
    assert all(row["asked"] == 3 and row["first"] >= 1.0 for row in rows)
