"""The two trainings of a model that writes: first the form of an answer, then by what answers earn (GRPO, by TRL)."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import starmap
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from forecast_autotune.evaluation.recorded_space import RecordedSpace
from forecast_autotune.language.answers import Bins, from_text

from .loop import LOOKS, Checkpoint, Progress
from .rewards import REWARDS
from .written_answers import drawn, examples, precision_of

if TYPE_CHECKING:
    import torch

FORM_SPACES, FORM_CONFIGS = 4, 4  # spaces of a step that teaches the form, and configs of each
FORM_RATE = 10.0  # times the rate of GRPO

Tell = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class Plan:
    """How to teach. A step of GRPO takes `prompts` prompts and lets the model write `answers` answers to each."""

    reward: str
    form_steps: int
    steps: int
    rate: float
    answer_tokens: int
    most_chars: int
    prompts: int = 4
    answers: int = 8
    seed: int = 0


class Training:
    """A model under training by one optimizer, and the checkpoint that it goes on from."""

    def __init__(self, model: Any, spaces: Sequence[RecordedSpace], plan: Plan, rate: float, folder: Path) -> None:
        import torch

        self.model = model
        self.optimizer: torch.optim.Optimizer = torch.optim.AdamW(
            [p for p in model.parameters() if p.requires_grad], lr=rate, weight_decay=0.0
        )
        self.checkpoint = Checkpoint(folder, identity={"plan": asdict(plan), "spaces": [s.name for s in spaces]})
        self.first = self.checkpoint.load(model, self.optimizer).step

    def keep(self, step: int) -> None:
        self.checkpoint.save(self.model, self.optimizer, Progress(step=step), best=False)


def learn_form(
    model: Any, tokenizer: Any, spaces: Sequence[RecordedSpace], plan: Plan, folder: Path, tell: Tell
) -> None:
    """Teach a model in place to write what its logits say."""
    import torch

    def batch(step: int) -> list[tuple[list[int], int]]:
        random = np.random.default_rng((plan.seed, 0, step))
        asked = [drawn(spaces, FORM_CONFIGS, plan.most_chars, random) for _ in range(FORM_SPACES)]
        return [row for a in asked for row in examples(model, tokenizer, a)]

    batches = [batch(step) for step in range(plan.form_steps)]  # all of them before it changes
    training = Training(model, spaces, plan, FORM_RATE * plan.rate, folder)
    every = max(1, plan.form_steps // LOOKS)
    model.train()
    for step, rows in enumerate(batches[training.first :], start=training.first + 1):
        ids = torch.zeros((len(rows), max(len(row) for row, _ in rows)), dtype=torch.long)
        wanted = torch.full_like(ids, -100)
        for at, (row, begin) in enumerate(rows):
            ids[at, : len(row)] = torch.tensor(row)
            wanted[at, begin : len(row)] = ids[at, begin : len(row)]
        with precision_of(model):
            loss = model(input_ids=ids.to(model.device), labels=wanted.to(model.device)).loss
        training.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(training.optimizer.param_groups[0]["params"], 1.0)
        training.optimizer.step()
        if step % every == 0 or step == plan.form_steps:
            training.keep(step)
            tell(f"form, step {step} of {plan.form_steps}: {float(loss.detach()):.3f} a token")


def learn_from_reward(
    model: Any, tokenizer: Any, spaces: Sequence[RecordedSpace], plan: Plan, folder: Path, tell: Tell
) -> None:
    """Teach a model in place by GRPO."""
    import torch
    from datasets import Dataset  # type: ignore[import-not-found]
    from transformers import PrinterCallback
    from trl import GRPOTrainer  # type: ignore[import-not-found]

    training = Training(model, spaces, plan, plan.rate, folder)
    if training.first == plan.steps:
        return
    steps = range(training.first, plan.steps)
    trainer = GRPOTrainer(
        model=model,
        reward_funcs=_reward(plan.reward),
        args=_grpo_config(plan, folder, steps=len(steps), on_gpu=model.device.type == "cuda"),
        train_dataset=Dataset.from_list([row for step in steps for row in _prompts(tokenizer, spaces, plan, step)]),
        processing_class=tokenizer,
        callbacks=[_keeping(training, plan, tell)],
        optimizers=(training.optimizer, torch.optim.lr_scheduler.LambdaLR(training.optimizer, lambda _: 1.0)),
    )
    trainer.remove_callback(PrinterCallback)
    trainer.train()


def _prompts(tokenizer: Any, spaces: Sequence[RecordedSpace], plan: Plan, step: int) -> Iterator[dict[str, object]]:
    """What a step asks, each with the bin that was measured. The same step asks the same."""
    random = np.random.default_rng((plan.seed, 1, step))
    for _ in range(plan.prompts):
        asked = drawn(spaces, 1, plan.most_chars, random)
        (prompt,), (measured,) = asked.prompts("reasoned"), asked.measured
        message = [{"role": "user", "content": prompt.text}] if tokenizer.chat_template else prompt.text
        yield {"prompt": message, "measured": measured}


def _reward(name: str) -> Callable[..., list[float]]:
    """What TRL calls to reward answers; the share that parses goes into its log."""

    def earned(completions: Sequence[Any], measured: Sequence[int], **more: Any) -> list[float]:
        texts = [c if isinstance(c, str) else c[0]["content"] for c in completions]
        more["log_metric"]("parsed", statistics.fmean(isinstance(from_text(text), Bins) for text in texts))
        return list(starmap(REWARDS[name], zip(texts, measured, strict=True)))

    return earned


def _keeping(training: Training, plan: Plan, tell: Tell) -> Any:
    """TRL's callback that seeds each step, and keeps a checkpoint whenever a reward is logged."""
    import torch
    from transformers import TrainerCallback

    class Keeping(TrainerCallback):  # type: ignore[misc]
        def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002  # TRL's seam
            torch.manual_seed(hash((plan.seed, training.first + state.global_step)))  # as if never interrupted

        def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, float], **_: Any) -> None:  # noqa: ARG002
            if "reward" in logs:
                step = training.first + state.global_step
                training.keep(step)
                tell(f"step {step} of {plan.steps}: reward {logs['reward']:.3f}, {logs['parsed']:.0%} parsed")

    return Keeping()


def _grpo_config(plan: Plan, folder: Path, *, steps: int, on_gpu: bool) -> Any:
    from trl import GRPOConfig

    return GRPOConfig(
        output_dir=str(folder),
        save_strategy="no",  # its checkpoints hold pickles
        report_to="none",
        disable_tqdm=True,
        logging_steps=max(1, plan.steps // LOOKS),
        max_steps=steps,
        per_device_train_batch_size=plan.prompts * plan.answers,
        num_generations=plan.answers,
        max_completion_length=plan.answer_tokens,
        chat_template_kwargs={"enable_thinking": False},  # the answer's own "reasoning" is the place for it
        shuffle_dataset=False,
        seed=plan.seed,
        use_cpu=not on_gpu,
        bf16=on_gpu,
        gradient_checkpointing=on_gpu,
        dataloader_pin_memory=on_gpu,
    )
