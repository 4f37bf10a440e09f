"""Training for real: what it learns, that it goes on where it was, and that what it writes is read alike everywhere."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from recorded import HERE, measurement
from test_three_ways import close, log_probabilities, opened

from calibration.fit import reinforce, train
from calibration.fit.evaluate import evaluate, load
from calibration.fit.training import grpo, logits, loop, written_answers
from calibration.fit.training.evaluation import summary
from calibration.fit.training.rewards import REWARDS
from calibration.fit.training.spaces import prompts_of, read_spaces
from forecast_autotune.core.config import Config
from forecast_autotune.core.hardware import Toolchain
from forecast_autotune.core.job import Recording
from forecast_autotune.core.workload import Program, Workload
from forecast_autotune.evaluation.recorded_space import RecordedSpace
from forecast_autotune.evaluation.traces import write_trace
from forecast_autotune.language.answers import Bins, from_log_probabilities, from_text
from forecast_autotune.language.in_transformers import TransformersModel
from forecast_autotune.language.in_vllm import VllmModel
from forecast_autotune.language.prompt import Prompt
from forecast_autotune.language.tokens import Tokens

SIZES = (1024, 4096, 16384)
TINY = ("--hidden", "64", "--layers", "2", "--context", "1024", "--workers", "0", "--device", "cpu")


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """Of so small a model each step is over before two threads have met."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def traces(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """One kernel at three sizes: twice the block is 0.45 octaves faster, and nothing else matters."""
    folder = tmp_path_factory.mktemp("traces")
    for n in SIZES:
        configs = [
            Config({"block": 2**b, "stages": stages, "padded": padded})
            for b in range(4, 10)
            for stages in (1, 2, 3, 4)
            for padded in (False, True)
        ]
        recording = Recording(
            workload=Workload(program=Program(name="toy", language="cuda", source="void toy();"), key={"n": n}),
            hardware=HERE,
            toolchain=Toolchain(versions={"nvcc": "13.0"}),
            default=configs[0],
            outcomes={c: measurement(n / float(str(c.knobs["block"])) ** 0.45) for c in configs},
        )
        write_trace(recording, folder / f"toy.{n}.jsonl.gz")
    return sorted(map(str, folder.iterdir()))


@pytest.fixture(scope="module")
def spaces(traces: list[str]) -> tuple[RecordedSpace, ...]:
    return read_spaces(map(Path, traces))


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory, traces: list[str]) -> Path:
    """A model that has learned from two of the sizes."""
    folder = tmp_path_factory.mktemp("trained")
    plan = ("--steps", "100", "--spaces", "2", "--rate", "4e-3", "--leave-out", "sizes:1/3")
    assert train.main(["--to", str(folder), *TINY, *plan, *traces]) == 0
    return folder


def test_a_planted_rule_is_learned_for_a_size_never_seen(trained: Path, traces: list[str]) -> None:
    rows = evaluate(trained, [Path(t) for t in traces], device="cpu", others=False)
    assert {row["space"] for row in rows} == {"toy.16384.jsonl.gz"}
    assert summary(rows)["skill"] > 0.5
    assert summary(rows)["accuracy"] > 0.7


def test_a_folder_is_read_alike_by_transformers_and_vllm(trained: Path, spaces: tuple[RecordedSpace, ...]) -> None:
    asked = prompts_of(spaces[1], 0, range(0, 48, 3), 1_800, known=spaces, mined=spaces)
    model, tokenizer = load(trained, {"model": {}}, "cpu")
    with torch.inference_mode():
        rows = logits.encoded(tokenizer, [p.text for p in asked])
        expected = logits.label_logits(model, rows, logits.label_ids(tokenizer)).softmax(-1).tolist()
    assert np.ptp(expected, axis=0).max() > 0.5  # or agreeing would show nothing
    for way in (TransformersModel(str(trained)), VllmModel(str(trained))):
        with opened(way) as opened_model:
            found = [from_log_probabilities(values) for values in log_probabilities(opened_model, asked)]
        assert close([f.probabilities for f in found if isinstance(f, Bins)], expected)


def test_nothing_that_training_writes_is_a_pickle(trained: Path) -> None:
    files = [f for f in trained.rglob("*") if f.is_file()]
    assert {"state.json", "best.safetensors", "optimizer.safetensors", "training.json"} <= {f.name for f in files}
    assert {f.suffix for f in files} <= {".safetensors", ".json", ".jinja"}
    for file in files:
        assert not file.read_bytes().startswith((b"\x80", b"PK")), file


def test_a_training_of_another_plan_is_not_gone_on_with(
    trained: Path, traces: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    plan = ("--steps", "100", "--spaces", "2", "--rate", "5e-3", "--leave-out", "sizes:1/3")
    assert train.main(["--to", str(trained), *TINY, *plan, *traces]) == 2
    assert "holds a training of another plan or other spaces: remove it" in capsys.readouterr().err


def test_a_killed_training_goes_on_to_the_weights_of_one_that_was_not(tmp_path: Path, traces: list[str]) -> None:
    def start(folder: Path) -> subprocess.Popen[bytes]:
        shape = ("--hidden", "32", "--layers", "1", "--context", "1024", "--workers", "0", "--device", "cpu")
        plan = ("--steps", "100", "--spaces", "1", "--configs", "4", "--leave-out", "sizes:1/3")
        command = [sys.executable, "-m", "calibration", "train", "--to", str(folder), *shape, *plan, *traces]
        here = os.pathsep.join(path for path in sys.path if path)
        return subprocess.Popen(
            command, env={**os.environ, "PYTHONPATH": here, "OMP_NUM_THREADS": "1"}, stderr=subprocess.DEVNULL
        )

    whole, cut = tmp_path / "whole", tmp_path / "cut"
    undisturbed, killed = start(whole), start(cut)
    state = cut / "checkpoint" / "state.json"
    try:
        while not state.exists():
            assert killed.poll() is None
            time.sleep(0.005)
        killed.send_signal(signal.SIGKILL)
        assert killed.wait() == -signal.SIGKILL
        assert not (cut / "model.safetensors").exists()
        assert start(cut).wait(120) == 0
        assert undisturbed.wait(120) == 0
    finally:
        undisturbed.kill()
        killed.kill()
    for name in ("checkpoint/last.safetensors", "checkpoint/optimizer.safetensors", "model.safetensors"):
        assert (cut / name).read_bytes() == (whole / name).read_bytes(), name


# Reading -----------------------------------------------------------------------------------------------------------------


@pytest.fixture
def network(base: Path) -> Any:
    import transformers

    return transformers.AutoModelForCausalLM.from_pretrained(base).eval()


@pytest.mark.parametrize("common", [0, 50, 64, 300])
def test_rows_that_begin_alike_are_read_as_each_on_its_own(network: Any, common: int) -> None:
    """With gradients: half of them come through what is read once."""
    random = np.random.default_rng(common)
    begin = random.integers(10, 2000, common).tolist()
    rows = [[*begin, *random.integers(10, 2000, length).tolist()] for length in (1, 7, 63, 64, 65, 130)]
    labels = list(range(500, 508))
    found = logits.label_logits(network, rows, labels)
    weights = [p for p in network.parameters() if p.requires_grad]
    gradients = torch.autograd.grad((found**2).sum(), weights)
    expected = torch.stack([network(torch.tensor([row])).logits[0, -1, labels] for row in rows])
    expected_gradients = torch.autograd.grad((expected**2).sum(), weights)
    assert torch.allclose(found, expected, atol=1e-3, rtol=1e-4)
    assert expected.std() > 1
    for one, other in zip(gradients, expected_gradients, strict=True):
        assert torch.allclose(one, other, atol=1e-3 * float(other.abs().max()) + 1e-6)


def test_a_temperature_in_the_last_norm_divides_the_logits(network: Any) -> None:
    random = np.random.default_rng(0)
    rows = [random.integers(10, 2000, 40).tolist() for _ in range(64)]
    labels = list(range(500, 508))
    with torch.inference_mode():
        before = logits.label_logits(network, rows, labels)
    bins = torch.distributions.Categorical(logits=before / 2.5).sample().numpy()  # so that 2.5 is about the best
    forecasts = [(before.numpy().astype(float), bins)]
    temperature = loop.cool(network, forecasts)
    with torch.inference_mode():
        after = logits.label_logits(network, rows, labels)
    assert torch.allclose(after, before / temperature, atol=1e-4)
    assert 1.7 < temperature < 3.6
    nearby = [loop.nll_at(forecasts, temperature * factor) for factor in (0.9, 1.1)]
    assert loop.nll_at(forecasts, temperature) < min(nearby)


# LoRA --------------------------------------------------------------------------------------------------------------------


def test_an_adapter_learns_and_is_read_alike_by_peft_transformers_and_vllm(
    base: Path, tmp_path: Path, traces: list[str], spaces: tuple[RecordedSpace, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    import peft
    from transformers import AutoModelForCausalLM, AutoTokenizer

    before = {f.name: f.read_bytes() for f in base.iterdir()}
    plan = ("--steps", "40", "--spaces", "1", "--configs", "16", "--rate", "1e-2", "--leave-out", "sizes:1/3")
    folder = tmp_path / "adapter"
    assert train.main(["--to", str(folder), "--base", str(base), *TINY[-6:], *plan, *traces]) == 0
    losses = [float(found) for found in re.findall(r"nll ([\d.]+)", capsys.readouterr().err)]
    assert np.mean(losses[-3:]) < np.mean(losses[:3]) - 0.3
    assert {f.name: f.read_bytes() for f in base.iterdir()} == before

    asked = prompts_of(spaces[1], 0, range(0, 48, 3), 1_800, known=spaces, mined=spaces)
    tokenizer = AutoTokenizer.from_pretrained(base)
    plain = AutoModelForCausalLM.from_pretrained(base).eval()

    def read(model: Any) -> Any:
        rows = logits.encoded(tokenizer, [p.text for p in asked])
        with torch.inference_mode():
            return logits.label_logits(model, rows, logits.label_ids(tokenizer)).softmax(-1)

    unchanged = read(plain)
    expected = read(peft.PeftModel.from_pretrained(plain, folder).eval())
    assert not close(unchanged, expected)
    for way in (TransformersModel(str(folder)), VllmModel(str(folder))):
        with opened(way) as adapted:
            found = [from_log_probabilities(values) for values in log_probabilities(adapted, asked)]
        assert close([f.probabilities for f in found if isinstance(f, Bins)], expected.tolist())


# Answers in words --------------------------------------------------------------------------------------------------------


def test_a_forecast_in_words_is_whole_percents_that_sum_to_a_hundred() -> None:
    random = np.random.default_rng(0)
    for _ in range(200):
        p = random.dirichlet(np.full(8, random.choice([0.05, 0.5, 5.0])))
        answer = from_text(written_answers.in_words(p.tolist()))
        assert isinstance(answer, Bins)
        assert answer.raw_sum == 1.0
        assert np.abs(np.array(answer.probabilities) - p).max() < 0.01


def test_what_grpo_asks_is_what_is_asked_in_use(trained: Path, spaces: tuple[RecordedSpace, ...]) -> None:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(trained)
    random = np.random.default_rng(0)
    for prompt in written_answers.drawn(spaces, 5, 1_800, random).prompts("reasoned"):
        said = [{"role": "user", "content": prompt.text}]
        found = tokenizer.apply_chat_template(said, add_generation_prompt=True, enable_thinking=False)["input_ids"]
        assert found == Tokens(tokenizer).of_chat(prompt.text)


def plan(**changed: Any) -> grpo.Plan:
    values = {"reward": "brier", "form_steps": 0, "steps": 8, "rate": 1e-2, "answer_tokens": 10, "most_chars": 1_600}
    return grpo.Plan(**{**values, "prompts": 2, **changed})


def test_the_form_of_an_answer_is_taught_with_what_the_logits_say(
    trained: Path, spaces: tuple[RecordedSpace, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of one forecast only: a model of two layers learns to write slowly."""
    one = written_answers.AnswerTask(space=spaces[0], reference=0, places=[9], known=(), most_chars=1_600)
    monkeypatch.setattr(grpo, "FORM_SPACES", 1)
    monkeypatch.setattr(grpo, "drawn", lambda *_: one)
    model, tokenizer = reinforce.load(str(trained), full=True)
    ((row, begin),) = written_answers.examples(model, tokenizer, one)
    asked = one.prompts("reasoned")
    (before,) = written_answers.written(model, tokenizer, asked, 96)
    assert not isinstance(from_text(before), Bins)
    grpo.learn_form(model, tokenizer, spaces, plan(form_steps=160, rate=3e-4), tmp_path, print)
    (after,) = written_answers.written(model, tokenizer, asked, 96)
    assert isinstance(from_text(after), Bins), after
    assert after == tokenizer.decode(row[begin:], skip_special_tokens=True)


def digits(text: str, _: int) -> float:
    """A reward that even a model which has not learned to write can earn."""
    return sum(c.isdigit() for c in text) / max(1, len(text))


def test_what_is_rewarded_is_written_more_and_resuming_changes_nothing(
    trained: Path,
    spaces: tuple[RecordedSpace, ...],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    earned: list[float] = []
    until = 10**9

    def reward(text: str, measured: int) -> float:
        if len(earned) >= until:
            raise KeyboardInterrupt
        earned.append(digits(text, measured))
        return earned[-1]

    monkeypatch.setitem(REWARDS, "brier", reward)  # type: ignore[arg-type]

    def weights(folder: Path) -> dict[str, torch.Tensor]:
        model, tokenizer = reinforce.load(str(trained), full=True)
        grpo.learn_from_reward(model, tokenizer, spaces, plan(), folder, print)
        return {name: weight.detach().clone() for name, weight in model.named_parameters()}

    whole = weights(tmp_path / "whole")
    assert len(earned) == 8 * 16
    assert np.mean(earned[-32:]) > np.mean(earned[:32]) + 0.08
    earned.clear()
    until = 4 * 16
    with pytest.raises(KeyboardInterrupt):
        weights(tmp_path / "cut")
    until = 10**9
    cut = weights(tmp_path / "cut")
    assert len(earned) == 4 * 16 + 4 * 16
    assert all(torch.equal(cut[name], weight) for name, weight in whole.items())
    assert "step 8 of 8: reward" in capsys.readouterr().out
    assert {f.suffix for f in tmp_path.rglob("*") if f.is_file()} == {".safetensors", ".json"}


def test_reinforcing_writes_an_adapter_and_a_card_without_what_is_left_out(
    base: Path, tmp_path: Path, traces: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    steps = ("--form-steps", "2", "--steps", "1", "--answer-tokens", "8", *traces)
    assert reinforce.main(["--base", str(base), "--to", str(tmp_path), "--leave-out", "sizes:0/3", *steps]) == 0
    card = json.loads((tmp_path / "training.json").read_text(encoding="utf-8"))
    assert card["left_out"] == {"sizes": ["toy.1024.jsonl.gz"]}
    assert card["learned"] == ["toy.16384.jsonl.gz", "toy.4096.jsonl.gz"]
    assert set(card["scores"]) == {"before", "form", "after"}
    assert card["scores"]["after"]["sizes"]["answers"] == 24
    with opened(TransformersModel(str(tmp_path))) as model:
        assert len(log_probabilities(model, [Prompt("", "# Forecast\nbin:")])[0]) == 8
    assert reinforce.main(["--base", str(tmp_path), "--to", str(tmp_path), "--leave-out", "sizes:1/3", *steps]) == 2
    assert f"{tmp_path} has met toy.16384.jsonl.gz: leave out what it has not" in capsys.readouterr().err
