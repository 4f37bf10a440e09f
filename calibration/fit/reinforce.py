"""Teach a model to write forecasts by what they earn: `python -m calibration reinforce --base MODEL --to FOLDER [TRACE …]`.

For models that answer in words: reasoning, then percent for each bin. GRPO (by TRL) lets a model write several answers to
a prompt and makes those likelier that earned more than their like; what they earn is one of three rewards of GPU Forecasters
(`training.rewards`). A model that has never written the form would earn nothing for ever, so that it is first taught, in
`--form-steps` steps, to write down what it already says where its forecast is read from logits. Through LoRA, or with
`--full` all weights. Spaces are left out as in `train`, and the card tells what answers on them earned before,
once the form was taught, and after. Interrupted, the same command goes on where it was.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from forecast_autotune.errors import AutotuneError, InvalidInputError
from forecast_autotune.language.folders import adapter_in
from forecast_autotune.language.prompt import CHARS, CHARS_PER_TOKEN

from .forest import suite_paths
from .train import CARD, Split, save, say, spaces_card, split, with_adapter
from .training.grpo import Plan, learn_form, learn_from_reward
from .training.loop import CHECKPOINT
from .training.rewards import REWARDS
from .training.spaces import read_spaces
from .training.written_answers import evaluate_written

FRAME_TOKENS = 64  # what a chat's form adds to a prompt, at most


def load(base: str, *, full: bool) -> tuple[Any, Any]:
    """A model to teach and its tokenizer: an adapter goes on being one, and what is none gets one, unless `full`.

    Raises:
        InvalidInputError: all weights of an adapter are asked for.
    """
    import torch
    from peft import AutoPeftModelForCausalLM
    from transformers import AutoModelForCausalLM, AutoTokenizer

    if full and adapter_in(base) is not None:
        raise InvalidInputError(f"{base} is an adapter, whose base stays as it is: leave --full away")
    if full:
        model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32, use_safetensors=True)
    elif adapter_in(base) is not None:
        model = AutoPeftModelForCausalLM.from_pretrained(base, is_trainable=True, use_safetensors=True)
    else:
        return with_adapter(base)
    return model, AutoTokenizer.from_pretrained(base)


def met_before(base: str) -> set[str]:
    """Names of the spaces that a model of ours has learned from or was chosen on; of others' models, none.

    Raises:
        InvalidInputError: its card does not say.
    """
    try:
        card = json.loads((Path(base) / CARD).read_text(encoding="utf-8"))
        return {*card["learned"], *card["chosen_on"]}
    except FileNotFoundError:
        return set()
    except (ValueError, KeyError, TypeError) as err:
        raise InvalidInputError(f"{base}/{CARD} does not say what the model has learned from: {err!r}") from None


def main(argv: Sequence[str] | None = None) -> int:
    try:
        return _run(_arguments(argv))
    except (AutotuneError, OSError) as err:
        print(f"reinforce: {err}", file=sys.stderr)
        return 2


def _run(given: argparse.Namespace) -> int:
    import torch

    spaces = read_spaces([Path(p) for p in given.traces] or suite_paths())
    divided = split(spaces, given.leave_out)
    met = met_before(given.base)
    kept = {s.name for s in (*divided.learned, *divided.chosen_on)}
    if leaked := sorted(met & {s.name for s in spaces} - kept):
        raise InvalidInputError(f"{given.base} has met {', '.join(leaked)}: leave out what it has not")
    model, tokenizer = load(given.base, full=given.full)
    model.to("cuda" if torch.cuda.is_available() else "cpu")
    plan = _plan(given, context=model.config.get_text_config().max_position_embeddings)
    folder, learned = Path(given.to), divided.learned
    scores = {"before": evaluate(model, tokenizer, divided, plan, "before")}
    learn_form(model, tokenizer, learned, plan, folder / CHECKPOINT / "form", say)
    scores["form"] = evaluate(model, tokenizer, divided, plan, "form")
    learn_from_reward(model, tokenizer, learned, plan, folder / CHECKPOINT / "reward", say)
    scores["after"] = evaluate(model, tokenizer, divided, plan, "after")
    card: dict[str, object] = {
        "model": {"base": None if given.full else given.base, "taught_further": given.base},
        "plan": {**asdict(plan), "objective": f"reward {plan.reward}"},
        "device": str(model.device),
        "temperature": None,
        **spaces_card(divided),
        "learned": sorted(met | {s.name for s in learned}),
        "scores": scores,
    }
    save(model, tokenizer, folder, card, keep_full_precision=True)
    say(f"{folder}: done")
    return 0


def _plan(given: argparse.Namespace, *, context: int) -> Plan:
    """`context`: tokens that the model takes, of which an answer and a chat's form need some."""
    return Plan(
        reward=given.reward,
        form_steps=given.form_steps,
        steps=given.steps,
        rate=given.rate,
        answer_tokens=given.answer_tokens,
        most_chars=min(CHARS, int((context - given.answer_tokens - FRAME_TOKENS) * CHARS_PER_TOKEN)),
    )


def evaluate(model: Any, tokenizer: Any, divided: Split, plan: Plan, when: str) -> dict[str, Any]:
    """Scores of a model's answers on the spaces left out, by the way they were, or else on those held back."""
    scores = {}
    for way, out in (
        {way: out for way, out in divided.left_out.items() if out} or {"held back": divided.chosen_on}
    ).items():
        scores[way] = evaluate_written(
            model, tokenizer, out, divided.learned, reward=plan.reward,
            most_tokens=plan.answer_tokens, most_chars=plan.most_chars,
        )  # fmt: skip
        shown = (f"{name} {value:.3f}" for name, value in scores[way].items() if isinstance(value, float))
        say(f"{when}, {way}: {', '.join(shown)}")
    return scores


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m calibration reinforce", description=__doc__.partition("\n")[0])
    parser.add_argument("traces", nargs="*", help="recorded spaces; the suite's if none is named")
    parser.add_argument("--base", required=True, metavar="MODEL", help="a causal model, or an adapter")
    parser.add_argument("--to", required=True, metavar="FOLDER", help="where the model is written")
    parser.add_argument("--reward", default="brier", choices=REWARDS)
    parser.add_argument("--leave-out", action="append", default=[], metavar="WAY:ROUND/ROUNDS", help="as for train")
    parser.add_argument("--full", action="store_true", help="teach all weights instead of an adapter")
    parser.add_argument("--form-steps", type=int, default=200, help="of 16 answers each")
    parser.add_argument("--steps", type=int, default=200, help="of GRPO")
    parser.add_argument("--rate", type=float, default=1e-5, help="learning rate of GRPO; the form is taught at tenfold")
    parser.add_argument("--answer-tokens", type=int, default=256, help="of an answer, at most")
    return parser.parse_args(argv)
