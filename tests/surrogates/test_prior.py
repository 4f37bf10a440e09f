from __future__ import annotations

import base64
import json
import math
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from recorded import HERE, job_of, recording
from toy_prior import believing, following

import calibration
from forecast_autotune.core.config import Config
from forecast_autotune.core.hardware import Hardware
from forecast_autotune.core.job import Job
from forecast_autotune.core.model_names import is_model_version
from forecast_autotune.core.space import Space
from forecast_autotune.errors import InvalidInputError
from forecast_autotune.surrogates import networks
from forecast_autotune.surrogates.feature_columns import LAUNCH_FEATURES, UNKNOWN
from forecast_autotune.surrogates.networks import Networks, packed_networks
from forecast_autotune.surrogates.prior import (
    RULES,
    SHIPPED,
    Factor,
    Width,
    held_prior,
    prior_text,
    read_prior,
    rules,
    shipped_prior,
)

RECORDED_ELSEWHERE = Path(__file__).parents[3] / "shared" / "traces"

Document = dict[str, Any]


def document() -> Document:
    found: Document = json.loads(prior_text(following(), card={"told": "to people"}))
    return found


def written(path: Path, text: str | Document) -> Path:
    path.write_text(text if isinstance(text, str) else json.dumps(text))
    return path


# Writing and reading ----------------------------------------------------------------------------------------------------


def test_a_model_is_read_as_it_was_written(tmp_path: Path) -> None:
    model = following(trees=2)
    model = type(model)(
        fitted_on=("one", "other"),
        **{name: getattr(model, name) for name in ("feature", "threshold", "left", "right", "value")},
        width=Width(0.5, 0.25),
        factors={"ragged": Factor(0.1, 0.2)},
    )
    found = read_prior(written(tmp_path / "m.json", prior_text(model, card={})))
    assert (found.fitted_on, found.width, found.factors) == (model.fitted_on, model.width, model.factors)
    for name in ("feature", "threshold", "left", "right", "value"):
        assert getattr(found, name).tolist() == getattr(model, name).tolist()
    assert prior_text(found, card={}) == prior_text(model, card={})


def test_a_model_of_rules_alone_is_one_too(tmp_path: Path) -> None:
    found = read_prior(written(tmp_path / "m.json", prior_text(believing({"ragged": 0.5}), card={})))
    assert found.factors["ragged"].mean == 0.5
    assert found.of_launches([{"us_bound": 1.0}], job_of(recording())) is None


def packed(values: list[float], kind: str) -> str:
    return base64.b64encode(np.array(values).astype(kind).tobytes()).decode()


def unpacked(found: Document, name: str) -> list[float]:
    kind = {"feature": "u1", "number": "<f4", "right": "<u2"}[name]
    return np.frombuffer(base64.b64decode(found["trees"][name]), kind).tolist()  # type: ignore[no-any-return]


def small() -> Document:
    """A model of two trees: 0.5 where the bound is at most 3, 2.5 beyond; and 7 whatever it is."""
    bound = LAUNCH_FEATURES.index("bound")
    trees = {
        "nodes": [3, 1],
        "feature": packed([bound, 255, 255, 255], "u1"),
        "number": packed([3, 0.5, 2.5, 7], "<f4"),
        "right": packed([2, 0, 0, 0], "<u2"),
    }
    return {**document(), "trees": trees}


def test_trees_of_different_sizes_stand_side_by_side(tmp_path: Path) -> None:
    found = read_prior(written(tmp_path / "m.json", small()))
    features = np.zeros((3, len(LAUNCH_FEATURES)))
    features[:, LAUNCH_FEATURES.index("bound")] = [0.1, 3.0, 3.1]
    assert found.each_tree(features).tolist() == [[0.5, 7.0], [0.5, 7.0], [2.5, 7.0]]
    expected = found.expected(features)
    assert expected.mean.tolist() == [3.75, 3.75, 4.75]
    assert expected.disagreement == pytest.approx([3.25, 3.25, 2.25])
    assert expected.apart == pytest.approx(np.array([[-3.25, -3.25, -2.25], [3.25, 3.25, 2.25]]) / math.sqrt(2))


def with_networks() -> Document:
    """The same trees beside three networks of two layers, which say 4, 5 and 6 where the threads' number is unknown."""
    columns = np.arange(len(LAUNCH_FEATURES))
    threads = LAUNCH_FEATURES.index("threads")
    first, last = np.zeros((3, 2 * columns.size, 2)), np.ones((3, 2, 1))
    first[:, threads, 0] = 1.0
    first[:, columns.size + threads, 1] = [1.0, 2.0, 3.0]
    layers = ((first, np.zeros((3, 1, 2))), (last, np.full((3, 1, 1), 3.0)))
    networks = Networks(columns, np.full(columns.size, 2.0), np.full(columns.size, 4.0), layers)
    return {**small(), "networks": packed_networks(networks)}


@pytest.mark.parametrize("configs", [0, 1, 500])
def test_products_of_networks_are_small_enough_for_one_thread(monkeypatch: pytest.MonkeyPatch, configs: int) -> None:
    monkeypatch.setattr(networks, "MAX_ALONE", 1000)
    draw = np.random.default_rng(0)
    weights = draw.normal(size=(2, 12, 8)).astype(np.float32)
    for inputs in (draw.normal(size=(configs, 12)), draw.normal(size=(2, configs, 12))):
        got = networks._product(inputs.astype(np.float32), weights)
        assert got.shape == (2, configs, 8)
        np.testing.assert_allclose(got, inputs @ weights, rtol=1e-4, atol=1e-5)


def test_networks_count_as_much_as_all_trees_together(tmp_path: Path) -> None:
    found = read_prior(written(tmp_path / "m.json", with_networks()))
    assert found.networks is not None
    features = np.zeros((2, len(LAUNCH_FEATURES)))
    features[:, LAUNCH_FEATURES.index("threads")] = [UNKNOWN, 6.0]
    assert found.networks.expected(features).tolist() == [[4.0, 4.0], [5.0, 4.0], [6.0, 4.0]]
    expected = found.expected(features)
    assert expected.mean.tolist() == [4.375, 3.875]  # of trees 3.75
    of_kinds = [np.array([0.5, 7.0]), np.array([4.0, 5.0, 6.0])]
    variance = np.mean([((each - 4.375) ** 2).mean() for each in of_kinds])
    assert expected.disagreement[0] == pytest.approx(math.sqrt(variance))
    assert expected.apart.shape == (5, 2)


def test_a_model_of_trees_without_networks_is_still_read(tmp_path: Path) -> None:
    former = {**with_networks(), "version": 2}
    del former["networks"]
    found = read_prior(written(tmp_path / "m.json", former))
    assert found.networks is None
    assert found.expected(np.zeros((1, len(LAUNCH_FEATURES)))).mean.tolist() == [3.75]


def with_cuda() -> Document:
    """The same model, beside which CUDA has one tree and no networks: 9 whatever it is."""
    tree = {"nodes": [1], "feature": packed([255], "u1"), "number": packed([9], "<f4"), "right": packed([0], "<u2")}
    return {**with_networks(), "cuda": {"trees": tree, "networks": None, "width": {"constant": 0.5}}}


def in_language(language: str) -> Job:
    made = job([{"B": 1}, {"B": 2}])
    return replace(made, workload=replace(made.workload, program=replace(made.workload.program, language=language)))


def test_cuda_is_forecast_by_a_model_of_its_own(tmp_path: Path) -> None:
    found = read_prior(written(tmp_path / "m.json", with_cuda()))
    assert read_prior(written(tmp_path / "again.json", prior_text(found, card={}))).cuda is not None
    told = [{"us_bound": 1.0}, {"us_bound": 2.0}]
    cuda, triton = (found.of_launches(told, in_language(language)) for language in ("cuda", "triton"))
    assert cuda is not None
    assert triton is not None
    assert cuda.mean.tolist() == [-9.0, -9.0]
    assert triton.mean.tolist() == [-4.375, -4.375]


def test_a_model_that_knows_no_cuda_is_read_as_it_was(tmp_path: Path) -> None:
    former = {**with_networks(), "version": 3}
    former.pop("cuda")
    found = read_prior(written(tmp_path / "m.json", former))
    forecast = found.of_launches([{"us_bound": 1.0}, {"us_bound": 2.0}], in_language("cuda"))
    assert forecast is not None
    assert forecast.mean.tolist() == [-4.375, -4.375]


def test_a_model_of_fewer_features_is_read_as_it_was_meant(tmp_path: Path) -> None:
    older = small()
    older["features"] = ["threads", "bound"]
    older["trees"]["feature"] = packed([1, 255, 255, 255], "u1")
    features = np.zeros((2, len(LAUNCH_FEATURES)))
    features[:, LAUNCH_FEATURES.index("bound")] = [0.1, 3.1]
    assert read_prior(written(tmp_path / "m.json", older)).each_tree(features).tolist() == [[0.5, 7.0], [2.5, 7.0]]


def test_trees_in_another_order_are_not_written() -> None:
    model = following()
    with pytest.raises(ValueError, match="left child"):
        prior_text(replace(model, left=model.right, right=model.left), card={})


def changed(**values: object) -> Callable[[Document], object]:
    return lambda found: found.update(values)


def in_trees(name: str, values: list[float] | str) -> Callable[[Document], object]:
    kind = {"feature": "u1", "number": "<f4", "right": "<u2"}.get(name, "")
    return lambda found: found["trees"].update(
        {name: values if isinstance(values, str) or not kind else packed(values, kind)}
    )


def in_networks(**values: object) -> Callable[[Document], object]:
    return lambda found: found["networks"].update(values)


NAN = float("nan")
DAMAGE: dict[str, Callable[[Document], object]] = {
    "the former version": changed(version=1),
    "another version": changed(version=99),
    "a feature that is not known": changed(features=[*LAUNCH_FEATURES, "luck"]),
    "features that are none": changed(features=3),
    "features that are numbers": changed(features=[1, 2]),
    "another schema": changed(schema="recipe"),
    "a tree that points out of itself": in_trees("right", [3, 0, 0, 0]),
    "a tree that loops": in_trees("right", [0, 0, 0, 0]),
    "a tree whose children are one": in_trees("right", [1, 0, 0, 0]),
    "a feature that is not there": in_trees("feature", [200, 255, 255, 255]),
    "a value that is NaN": in_trees("number", [3, NAN, 2.5, 7]),
    "an infinite threshold": in_trees("number", [math.inf, 0.5, 2.5, 7]),
    "too few numbers": in_trees("number", [3, 0.5, 2.5]),
    "too many features": in_trees("feature", [0, 255, 255, 255, 255]),
    "numbers that are no base64": in_trees("number", "fast"),
    "numbers that are a list": lambda d: d["trees"].update(number=[1.0]),
    "a tree without nodes": in_trees("nodes", [3, 0, 1]),  # type: ignore[arg-type]
    "a tree of less than no nodes": in_trees("nodes", [5, -1]),  # type: ignore[arg-type]
    "half a node": in_trees("nodes", [2.5, 1.5]),  # type: ignore[arg-type]
    "trees without values": lambda d: d["trees"].pop("number"),
    "trees that are a number": changed(trees=3),
    "no trees": lambda d: d.pop("trees"),
    "no networks": lambda d: d.pop("networks"),
    "no word of CUDA": lambda d: d.pop("cuda"),
    "a model of CUDA that is a list": changed(cuda=[1]),
    "a model of CUDA without trees": lambda d: d["cuda"].pop("trees"),
    "a model of CUDA without a width": lambda d: d["cuda"].pop("width"),
    "a model of CUDA whose width is NaN": lambda d: d["cuda"].update(width={"constant": NAN}),
    "networks that are a list": changed(networks=[1]),
    "networks of nothing": changed(networks={}),
    "less than no networks": in_networks(count=-3),
    "half a network": in_networks(count=1.5),
    "networks with several answers": in_networks(outputs=[2, 2]),
    "networks without layers": in_networks(outputs=[]),
    "fewer layers than weights": in_networks(outputs=[1]),
    "weights of another shape": in_networks(count=2),
    "weights that are NaN": in_networks(weights=[packed([NAN], "<f2")] * 2),
    "weights that are no base64": in_networks(weights=["fast", "slow"]),
    "too few centres": in_networks(centre=[0.0]),
    "centres that are NaN": in_networks(centre=[NAN] * len(LAUNCH_FEATURES)),
    "centres that are lists": in_networks(centre=[[0.0]] * len(LAUNCH_FEATURES)),
    "scales of nothing": in_networks(scale=[0.0] * len(LAUNCH_FEATURES)),
    "a width that is NaN": changed(width={"constant": NAN}),
    "a constant width that is huge": changed(width={"constant": 1e308}),
    "a constant width of next to nothing": changed(width={"constant": -100.0}),
    "a width that shrinks far from the middle": changed(width={"constant": 0.2, "distance": -1.0}),
    "a width that grows beyond measure": changed(width={"constant": 0.2, "disagreement": 100.0}),
    "a model of CUDA whose width is huge": lambda d: d["cuda"].update(width={"constant": 0.2, "distance": 1e9}),
    "a width of something else": changed(width={"constant": 0.1, "luck": 1.0}),
    "a width of nothing": changed(width={}),
    "a factor that is NaN": changed(factors={"ragged": [NAN, 0.1]}),
    "a factor with a negative doubt": changed(factors={"ragged": [0.1, -0.1]}),
    "a factor of one number": changed(factors={"ragged": [0.1]}),
    "factors that are a list": changed(factors=[1, 2]),
    "kernels that are no list": changed(fitted_on="matmul"),
    "kernels that are numbers": changed(fitted_on=[1, 2]),
    "a card that is none": changed(card="ace"),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_model_that_is_damaged_is_refused_by_name_with_what_to_do(tmp_path: Path, damage: str) -> None:
    found = with_cuda()
    DAMAGE[damage](found)
    path = written(tmp_path / "model.json", found)
    with pytest.raises(InvalidInputError) as raised:
        read_prior(path)
    assert str(raised.value).startswith(str(path))
    assert "run 'make fit'" in str(raised.value)


@pytest.mark.parametrize(
    "text", ["", "no JSON", "[]", "3", "{}", "[" * 100_000, prior_text(following(), card={})[:5000]]
)
def test_a_file_that_is_no_model_or_cut_off_is_refused_with_what_to_do(tmp_path: Path, text: str) -> None:
    path = written(tmp_path / "model.json", text)
    with pytest.raises(InvalidInputError, match="make fit") as raised:
        read_prior(path)
    assert str(raised.value).startswith(str(path))


def test_bytes_that_are_no_text_are_no_model(tmp_path: Path) -> None:
    path = tmp_path / "model.json"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InvalidInputError, match="make fit"):
        read_prior(path)


def test_what_is_not_damaged_is_read(tmp_path: Path) -> None:
    assert read_prior(written(tmp_path / "model.json", document())).fitted_on == ("toy",)


# Versions ---------------------------------------------------------------------------------------------------------------


def test_a_version_counts_kernels_and_changes_with_the_file(tmp_path: Path) -> None:
    one = read_prior(written(tmp_path / "one.json", prior_text(following(), card={})))
    same = read_prior(written(tmp_path / "same.json", prior_text(following(), card={})))
    other = read_prior(written(tmp_path / "other.json", prior_text(following(step=0.5), card={})))
    assert one.version == same.version != other.version
    assert is_model_version(one.version)
    assert one.version.startswith("1-kernels-")


def test_a_held_model_is_the_file_named_or_the_shipped_one_by_its_version(tmp_path: Path) -> None:
    path = written(tmp_path / "one.json", prior_text(following(), card={}))
    assert held_prior(str(path)).fitted_on == ("toy",)
    assert held_prior(shipped_prior().version) is shipped_prior()


@pytest.mark.parametrize("version", ["3-kernels-00000000", "3-kernel-00000000"])
def test_a_version_that_is_not_here_is_refused_with_the_one_that_is(version: str) -> None:
    with pytest.raises(InvalidInputError, match=f"{version} is not here.* has {shipped_prior().version}"):
        held_prior(version)


def test_a_held_model_that_cannot_be_read_is_told_with_setting_and_path(tmp_path: Path) -> None:
    for path, why in ((tmp_path / "none.json", "there is no file"), (tmp_path, "is a folder")):
        with pytest.raises(InvalidInputError, match=why) as raised:
            held_prior(str(path))
        assert str(raised.value).startswith(f"FORECAST_AUTOTUNE_MODEL={path}: ")


# The shipped one --------------------------------------------------------------------------------------------------------


def shipped() -> Document:
    found: Document = json.loads(SHIPPED.read_text())
    return found


def test_the_shipped_model_is_text_of_less_than_3_megabytes() -> None:
    assert SHIPPED.stat().st_size < 3_000_000
    assert SHIPPED.read_bytes().isascii()


def test_the_shipped_model_is_read_and_asked_without_scikit_learn() -> None:
    code = (
        "import sys; sys.modules['sklearn'] = sys.modules['scipy'] = None\n"
        "from forecast_autotune.surrogates.prior import shipped_prior\n"
        "from forecast_autotune.surrogates.feature_columns import LAUNCH_FEATURES\n"
        "import numpy as np\n"
        "print(np.isfinite(shipped_prior().expected(np.zeros((3, len(LAUNCH_FEATURES)))).mean).all())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.stdout.strip(), done.returncode) == ("True", 0), done.stderr


def test_the_shipped_model_names_the_recordings_it_was_fitted_on() -> None:
    traces = sorted(p.name for p in (Path(calibration.__file__).parent / "traces").rglob("*.jsonl.gz"))
    card = shipped()["card"]
    assert sorted(name for names in card["data"]["traces"].values() for name in names) == traces
    assert sorted(card["data"]["traces"]) == sorted(shipped_prior().fitted_on)
    assert {name.split(".")[0] for name in traces} == {name.split("/")[-1] for name in shipped_prior().fitted_on}


def test_the_shipped_model_was_fitted_on_no_space_kept_for_development() -> None:
    names = {path.name.split("_")[0] for path in RECORDED_ELSEWHERE.glob("*.json.gz")}
    if not names:
        pytest.skip("they are not here")
    assert names & {name for kernel in shipped_prior().fitted_on for name in (kernel, *kernel.split("_"))} == set()
    traces = [name.partition(".")[0] for several in shipped()["card"]["data"]["traces"].values() for name in several]
    assert names & {part for trace in traces for part in trace.split("_")} == set()


def test_the_card_counts_what_the_file_holds() -> None:
    found = shipped()
    assert found["card"]["trees"] == {
        "count": len(found["trees"]["nodes"]),
        "nodes": sum(found["trees"]["nodes"]),
    }
    assert found["card"]["networks"] == found["networks"]["count"]
    assert found["card"]["width"] == found["width"]
    assert set(found["card"]["kernels_left_out"]["by_kernel"]) == set(found["fitted_on"])
    several = {kernel for kernel, names in found["card"]["data"]["traces"].items() if len(names) > 1}
    assert set(found["card"]["sizes_left_out"]["by_kernel"]) == several


def test_what_the_trees_say_is_what_one_reads_in_the_file_by_hand() -> None:
    draw = np.random.default_rng(0)
    features = draw.normal(0, 4, (300, len(LAUNCH_FEATURES)))  # more than walk together
    said = shipped_prior().each_tree(features)
    found = shipped()
    nodes = found["trees"]["nodes"]
    feature, numbers, right = (unpacked(found, name) for name in ("feature", "number", "right"))
    assert said.shape == (300, len(nodes))
    for number in (0, len(nodes) - 1):
        root = sum(nodes[:number])
        for row in (0, 255, 256, 299):
            node = 0
            while (asked := int(feature[root + node])) != 255:
                goes_left = features[row, LAUNCH_FEATURES.index(found["features"][asked])] <= numbers[root + node]
                node = node + 1 if goes_left else int(right[root + node])
            assert said[row, number] == numbers[root + node]


def test_what_the_networks_say_is_what_one_computes_from_the_file_by_hand() -> None:
    draw = np.random.default_rng(0)
    features = draw.normal(0, 4, (5, len(LAUNCH_FEATURES)))
    own = len(LAUNCH_FEATURES) // 2
    features[1, 3] = features[2, own - 1] = UNKNOWN
    features[3, own + 7] = features[3, 7] - UNKNOWN  # unknown of the default
    features[4] = 1e6
    networks = shipped_prior().networks
    assert networks is not None
    said = networks.expected(features)
    found = shipped()["networks"]
    assert len(said) == found["count"]
    for row, features_of_one in enumerate(features):
        inputs, flags = [], []
        for place, value in enumerate(features_of_one):
            usual, over = features_of_one[place % own], features_of_one[own + place % own]
            flags.append(usual == UNKNOWN or (place >= own and usual - over == UNKNOWN))
            away = (value - found["centre"][place]) / found["scale"][place]
            inputs.append(0.0 if flags[-1] else max(-5.0, min(5.0, away)))
        values = np.array([*inputs, *map(float, flags)])
        assert sum(flags) == {1: 2, 2: 2, 3: 1}.get(row, 0)
        last = len(found["outputs"]) - 1
        for layer, size in enumerate(found["outputs"]):
            weights, biases = (
                np.frombuffer(base64.b64decode(found[name][layer]), "<f2") for name in ("weights", "biases")
            )
            values = values @ weights[: values.size * size].reshape(values.size, size).astype(float) + biases[:size]
            values = values if layer == last else np.maximum(values, 0.0)
        assert said[0, row] == pytest.approx(values[0], abs=1e-3)


# Rules ------------------------------------------------------------------------------------------------------------------


def job(configs: list[dict[str, Any]], hardware: Hardware = HERE) -> Job:
    base = job_of(recording(hardware=hardware))
    return Job(workload=base.workload, space=Space(map(Config, configs)), hardware=hardware, toolchain=base.toolchain)


def test_rules_count_octaves_from_where_they_begin() -> None:
    configs = [
        {"block_size_x": x, "block_size_y": y, "tile_size_x": t, "tile_size_y": u, "vector": v}
        for x, y, t, u, v in ((32, 8, 4, 1, 4), (8, 2, 1, 1, 1), (32, 32, 16, 2, 8), (3, 16, 8, 1, 4))
    ]
    found = {name: column.tolist() for name, column in rules(job(configs)).items()}
    assert set(found) == set(RULES)
    assert found["idle_lanes"] == [0, 1, 0, 0]  # 16 threads
    assert found["few_threads"] == pytest.approx([0, 3, 0, 8 - math.log2(48)])  # 256 are enough
    assert found["large_block"] == [0, 0, 1, 0]  # 1024, beyond 512
    assert found["ragged"] == [0, 1, 0, 1]
    assert found["scattered"] == pytest.approx([0, 1, 0, 4 - math.log2(3)])  # half a warp along x is fine
    assert found["little_work"] == [0, 2, 0, 0]
    assert found["much_work"] == [0, 0, 1, 0]  # 32 elements, beyond 16
    assert found["narrow_load"] == [0, 2, 0, 0]


def test_a_rule_that_every_config_keeps_or_breaks_alike_is_left_out() -> None:
    assert rules(job([{"threads": 256, "vec": 1}, {"threads": 512, "vec": 1}])) == {}


def test_a_wavefront_of_64_wants_twice_the_threads() -> None:
    hip = Hardware(kind="hip", name="w", warp_size=64)
    configs: list[dict[str, Any]] = [{"threads": n} for n in (256, 32)]
    assert rules(job(configs, hip))["idle_lanes"].tolist() == [0, 1]
    assert "idle_lanes" not in rules(job(configs))


def test_rules_say_nothing_of_a_cpu() -> None:
    assert rules(job([{"threads": 1}, {"threads": 64}], Hardware(kind="cpu", name="c"))) == {}


class InPart(list[dict[str, float]]):
    """Descriptions of which only the first few were asked for."""

    def __init__(self, told: list[dict[str, float]], asked: int) -> None:
        super().__init__(told)
        self.asked = [i < asked for i in range(len(told))]


def test_a_config_that_nobody_asked_about_is_not_feared_to_be_refused() -> None:
    told: list[dict[str, float]] = [{"us_bound": float(i + 1)} for i in range(72)]
    job = job_of(recording())

    def fail(described: list[dict[str, float]]) -> list[float]:
        found = following().of_launches(described, job)
        assert found is not None
        return sorted({round(chance, 4) for chance in found.fail.tolist()})

    assert fail(told + [{}] * 28) == [0.005, 0.97]
    assert fail(InPart(told + [{}] * 28, 72)) == [0.005]
    shares = fail(InPart(told + [{}] * 28, 80))
    assert shares == pytest.approx([0.005, 0.9 * 0.005 + 0.1 * 0.97, 0.97], abs=1e-4)


def test_a_config_with_too_much_shared_memory_or_registers_risks_failure() -> None:
    told: list[dict[str, float]] = [{"us_bound": 1.0, "shared_share": share} for share in (0.2, 1.0, 1.1, 4.0)]
    told += [{"us_bound": 1.0, "shared_share": 0.2, "register_share": share} for share in (1.0, 1.3)]
    found = following().of_launches(told, job_of(recording()))
    assert found is not None
    assert found.fail.tolist() == [0.005, 0.005, 0.5, 0.5, 0.005, 0.5]
