"""Forecasts in words: what is asked, what an answer looks like, and how well a model's answers do."""

from __future__ import annotations

import contextlib
import json
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from forecast_autotune.evaluation.recorded_space import RecordedSpace
from forecast_autotune.evaluation.scores import score_probabilities
from forecast_autotune.language.answers import LABELS, Bins, from_text
from forecast_autotune.language.prompt import Prompt, prompts
from forecast_autotune.language.tokens import Tokens
from forecast_autotune.surrogates.transfer import most_alike

from .evaluation import MIDDLES
from .logits import encoded, label_ids, label_logits
from .loop import WITHOUT_HISTORY, draw_reference
from .rewards import REWARDS
from .spaces import knob_effects_for

JUDGED = 24  # answers on each space
AT_ONCE = 16  # answers written side by side while judging


@dataclass(frozen=True, kw_only=True, eq=False)
class AnswerTask:
    """Configs of a space, by their positions, against a reference; told of what is known of spaces but this one."""

    space: RecordedSpace
    reference: int
    places: Sequence[int]
    known: Sequence[RecordedSpace]
    most_chars: int

    def prompts(self, answer: str) -> list[Prompt]:
        """To be answered as `language.prompt.prompts` says.

        Raises:
            PromptTooLongError: they cannot be made so short.
        """
        job = self.space.job
        of_kernel = [s for s in self.known if s.kernel == self.space.kernel and s is not self.space]
        return prompts(
            job,
            [job.space[i] for i in self.places],
            reference=job.space[self.reference],
            answer=answer,
            knob_effects=knob_effects_for(self.space, tuple(self.known)),
            recordings=[recording for _, recording in most_alike(job, [s.recording for s in of_kernel])],
            most_chars=self.most_chars,
        )

    @property
    def measured(self) -> list[int]:
        bins = self.space.bins(self.reference)
        return [bins[i] for i in self.places]


def drawn(spaces: Sequence[RecordedSpace], configs: int, most_chars: int, random: np.random.Generator) -> AnswerTask:
    """Some configs of a space of a kernel, kernels drawn alike often; now and then it is told nothing of other spaces."""
    kernels = sorted({s.kernel for s in spaces})
    kernel = kernels[random.integers(len(kernels))]
    of_kernel = [s for s in spaces if s.kernel == kernel]
    space = of_kernel[random.integers(len(of_kernel))]
    places = random.choice(len(space.job.space), min(configs, len(space.job.space)), replace=False)
    return AnswerTask(
        space=space,
        reference=draw_reference(space, random),
        places=places.tolist(),
        known=spaces if random.random() >= WITHOUT_HISTORY else (),
        most_chars=most_chars,
    )


def in_words(probabilities: Sequence[float]) -> str:
    """A forecast as an answer: whole percents that sum to 100, behind one sentence."""
    shares = 100.0 * np.asarray(probabilities)
    percents = np.floor(shares).astype(int)
    largest_rests = np.argsort(percents - shares, kind="stable")
    percents[largest_rests[: 100 - percents.sum()]] += 1
    sentence = f"Most likely {LABELS[int(shares.argmax())]}."
    return json.dumps({"reasoning": sentence, **dict(zip(LABELS, percents.tolist(), strict=True))})


def examples(model: Any, tokenizer: Any, asked: AnswerTask) -> list[tuple[list[int], int]]:
    """Token rows of prompts with what the model's logits say now as the answer, and where in each the answer begins."""
    import torch

    model.eval()
    rows = encoded(tokenizer, [p.text for p in asked.prompts("logits")])
    with torch.inference_mode(), precision_of(model):
        forecasts = label_logits(model, rows, label_ids(tokenizer)).softmax(-1).tolist()
    rows_and_starts = []
    for prompt, probabilities in zip(asked.prompts("reasoned"), forecasts, strict=True):
        row = Tokens(tokenizer).of_chat(prompt.text)
        answer = tokenizer.encode(in_words(probabilities), add_special_tokens=False)
        rows_and_starts.append(([*row, *answer, tokenizer.eos_token_id], len(row)))
    return rows_and_starts


def written(model: Any, tokenizer: Any, asked: Sequence[Prompt], most_tokens: int) -> Iterator[str]:
    """What a model writes to each prompt, the likeliest token each time."""
    import torch

    model.eval()
    device = next(model.parameters()).device
    for start in range(0, len(asked), AT_ONCE):
        rows = [Tokens(tokenizer).of_chat(p.text) for p in asked[start : start + AT_ONCE]]
        width = max(map(len, rows))
        ids = torch.tensor([[0] * (width - len(row)) + row for row in rows], device=device)
        mask = torch.tensor([[0] * (width - len(row)) + [1] * len(row) for row in rows], device=device)
        with torch.inference_mode(), precision_of(model):
            tokens = model.generate(
                input_ids=ids,
                attention_mask=mask,
                do_sample=False,
                max_new_tokens=most_tokens,
                pad_token_id=tokenizer.eos_token_id,
            )
        yield from tokenizer.batch_decode(tokens[:, width:], skip_special_tokens=True)


def precision_of(model: Any) -> contextlib.AbstractContextManager[None]:
    """Half of it on a GPU, all on a CPU."""
    import torch

    kind = next(model.parameters()).device.type
    precision: contextlib.AbstractContextManager[None] = torch.autocast(kind, torch.bfloat16, enabled=kind == "cuda")
    return precision


def evaluate_written(
    model: Any,
    tokenizer: Any,
    spaces: Sequence[RecordedSpace],
    known: Sequence[RecordedSpace],
    *,
    reward: str,
    most_tokens: int,
    most_chars: int,
) -> dict[str, Any]:
    """How well a model's answers do on some configs of each space, each against the space's median one.

    `reward` is the mean of all answers; what stands behind `parsed`, their share, is of those that parse alone. `confidence`
    is the mean chance given to the bin held likeliest: above the accuracy, the model is too sure of itself.
    """
    rewards: list[float] = []
    parsed: list[tuple[tuple[float, ...], float]] = []
    for space in spaces:
        count = len(space.job.space)
        places = np.sort(np.random.default_rng(0).choice(count, min(JUDGED, count), replace=False)).tolist()
        asked = AnswerTask(space=space, reference=space.median, places=places, known=known, most_chars=most_chars)
        speedups = (space.log2_us[space.median] - space.log2_us[places]).tolist()
        texts = written(model, tokenizer, asked.prompts("reasoned"), most_tokens)
        for text, measured, speedup in zip(texts, asked.measured, speedups, strict=True):
            rewards.append(REWARDS[reward](text, measured))
            answer = from_text(text)
            if isinstance(answer, Bins):
                parsed.append((answer.probabilities, speedup))
    scores_of_answers: dict[str, Any] = {
        "answers": len(rewards),
        "reward": statistics.fmean(rewards) if rewards else 0.0,
        "parsed": len(parsed) / max(1, len(rewards)),
    }
    if parsed:
        p = np.array([probabilities for probabilities, _ in parsed])
        scores = score_probabilities(p, p @ MIDDLES, np.array([speedup for _, speedup in parsed]))
        names = ("accuracy", "half_brier", "crps7", "ece", "error_by_fifth")
        scores_of_answers |= {
            "confidence": float(p.max(axis=1).mean()),
            **{name: getattr(scores, name) for name in names},
        }
    return scores_of_answers
