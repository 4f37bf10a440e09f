"""Train a language model to forecast: `python -m calibration train --to FOLDER [TRACE …]`.

Every pair of configs of a recorded space is an example: reference, candidate, hardware, and the bin of the speed-up. What
is left out (`--leave-out sizes:0/5`, `kernels:1/4`, `hardware:2/4`) is neither learned from nor chosen on; some spaces more
are held back to choose the number of steps and the temperature. Without `--base` a small model is made from
scratch with a tokenizer of its own; with it, any causal model of transformers is trained further through LoRA. What comes
out is a folder in Hugging Face's format, which vLLM serves (of LoRA, an adapter), with a card. Interrupted, the same
command goes on where it was.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from forecast_autotune.errors import AutotuneError, InvalidInputError
from forecast_autotune.evaluation.recorded_space import RecordedSpace
from forecast_autotune.language.model import ModelError
from forecast_autotune.language.prompt import CHARS, CHARS_PER_TOKEN

from .forest import suite_paths
from .training.loop import Plan, cool, forecast_held_back, train
from .training.objectives import OBJECTIVES
from .training.small_model import Shape, make_model, make_tokenizer
from .training.spaces import WAYS, held_back, left_out, prompts_of, read_spaces, stored_spaces

CARD = "training.json"
HELD_BACK = 0.1
LORA_RANK, LORA_RATE = 16, 1e-4
TOKENIZER_TEXTS = 12  # prompts of each space


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """Which spaces a model learns from, chooses on, and is evaluated on: the latter by the way they were left out."""

    learned: tuple[RecordedSpace, ...]
    chosen_on: tuple[RecordedSpace, ...]
    left_out: dict[str, tuple[RecordedSpace, ...]]


def split(spaces: Sequence[RecordedSpace], asked: Sequence[str]) -> Split:
    """Divide spaces as each `--leave-out` says: WAY:ROUND/ROUNDS. What is left out in two ways counts in neither.

    Raises:
        InvalidInputError: one says something else, or nothing is left.
    """
    out: dict[str, frozenset[str]] = {}
    for text in asked:
        way, _, rest = text.partition(":")
        first, _, last = rest.partition("/")
        if way not in WAYS or not (first.isdecimal() and last.isdecimal() and int(first) < int(last)):
            raise InvalidInputError(f"--leave-out {text!r}: give {'|'.join(WAYS)}:ROUND/ROUNDS, such as sizes:0/4")
        out[way] = left_out(spaces, way, int(first), int(last))
    names = [name for chosen in out.values() for name in chosen]
    rest_of = [s for s in spaces if s.name not in names]
    back = held_back(rest_of, "hardware" if "hardware" in out else "sizes", HELD_BACK)
    learned = tuple(s for s in rest_of if s.name not in back)
    if not learned:
        raise InvalidInputError(f"--leave-out {' '.join(asked)} leaves nothing of {len(spaces)} spaces to learn from")
    return Split(
        learned=learned,
        chosen_on=tuple(s for s in rest_of if s.name in back),
        left_out={
            way: tuple(s for s in spaces if s.name in chosen and names.count(s.name) == 1)
            for way, chosen in out.items()
        },
    )


def main(argv: Sequence[str] | None = None) -> int:
    asked = _arguments(argv)
    try:
        return _run(asked)
    except (AutotuneError, ModelError, OSError) as err:
        print(f"train: {err}", file=sys.stderr)
        return 2


def _run(asked: argparse.Namespace) -> int:
    import torch

    divided = split(_spaces(asked), asked.leave_out)
    device = asked.device or ("cuda" if torch.cuda.is_available() else "cpu")
    shape = Shape(hidden=asked.hidden, layers=asked.layers, context=asked.context)
    plan = _plan(asked, shape)
    if asked.base:
        model, tokenizer = with_adapter(asked.base)
    else:
        tokenizer = make_tokenizer(_texts(divided.learned, plan), shape)
        model = make_model(tokenizer, shape, plan.seed)
    model.to(device)
    folder = Path(asked.to)
    parameters = sum(p.numel() for p in model.parameters() if p.requires_grad)
    say(
        f"{parameters / 1e6:.1f} M parameters on {device}; {len(divided.learned)} spaces to learn from, "
        f"{len(divided.chosen_on)} to choose on, {sum(map(len, divided.left_out.values()))} left out"
    )
    progress = train(
        model, tokenizer, divided.learned, divided.chosen_on, plan, folder, workers=asked.workers, tell=say
    )
    temperature = None
    if divided.chosen_on and not asked.base:
        temperature = cool(model, forecast_held_back(model, tokenizer, divided.chosen_on, plan, divided.learned))
    card = {
        "model": {"base": asked.base, "parameters": parameters, **({} if asked.base else asdict(shape))},
        "plan": asdict(plan),
        "best_step": progress.best_step,
        "trained_s": round(progress.trained_s, 1),
        "device": torch.cuda.get_device_name() if device.startswith("cuda") else device,
        "temperature": temperature,
        **spaces_card(divided),
    }
    save(model, tokenizer, folder, card, keep_full_precision=bool(asked.base))
    say(f"{folder}: done")
    return 0


def _spaces(asked: argparse.Namespace) -> tuple[RecordedSpace, ...]:
    """Of a store and of traces, as asked for; the suite's where neither is named."""
    stored = stored_spaces(Path(asked.store)) if asked.store else ()
    paths = [Path(p) for p in asked.traces]
    return (*stored, *(read_spaces(paths or suite_paths()) if paths or not stored else ()))


def _plan(asked: argparse.Namespace, shape: Shape) -> Plan:
    return Plan(
        objective=asked.objective,
        steps=asked.steps,
        rate=asked.rate or (LORA_RATE if asked.base else Plan.rate),
        spaces=asked.spaces,
        configs=asked.configs,
        most_chars=min(CHARS, int(shape.context * CHARS_PER_TOKEN)),
        seed=asked.seed,
    )


def spaces_card(divided: Split) -> dict[str, object]:
    """What a model's card says of the spaces it learned from, was chosen on, and has not seen."""
    return {
        "learned": [s.name for s in divided.learned],
        "chosen_on": [s.name for s in divided.chosen_on],
        "left_out": {way: [s.name for s in out] for way, out in divided.left_out.items()},
        "hardware": sorted({s.hardware for s in divided.learned}),
    }


def _texts(spaces: Sequence[RecordedSpace], plan: Plan) -> list[str]:
    """Prompts to make a tokenizer of: every space's beginning once, and what some candidates add."""
    texts = []
    for space in spaces:
        every = max(1, len(space.job.space) // TOKENIZER_TEXTS)
        places = range(0, len(space.job.space), every)
        asked = prompts_of(space, space.median, places, plan.most_chars, known=spaces, mined=spaces)
        texts += [asked[0].shared, *(p.own for p in asked)]
    return texts


def with_adapter(base: str) -> tuple[Any, Any]:
    """A causal model of transformers with a fresh LoRA adapter, all else frozen."""
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(base)
    dtype = torch.bfloat16 if torch.cuda.is_available() else torch.float32
    model = AutoModelForCausalLM.from_pretrained(base, dtype=dtype, use_safetensors=True)
    lora = LoraConfig(r=LORA_RANK, lora_alpha=2 * LORA_RANK, target_modules="all-linear", task_type="CAUSAL_LM")
    return get_peft_model(model, lora), tokenizer


def save(model: Any, tokenizer: Any, folder: Path, card: dict[str, object], *, keep_full_precision: bool) -> None:
    """Write a model as Hugging Face folders are, its tokenizer and its card; a small one in half precision."""
    import torch

    if not keep_full_precision:
        model = model.to(torch.bfloat16)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    (folder / CARD).write_text(json.dumps(card, indent=1) + "\n", encoding="utf-8")


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m calibration train", description=__doc__.partition("\n")[0])
    parser.add_argument("traces", nargs="*", help="recorded spaces; the suite's if none is named")
    parser.add_argument("--store", metavar="FOLDER", help="a store whose outcomes are learned from; with traces, both")
    parser.add_argument("--to", required=True, metavar="FOLDER", help="where the model is written")
    parser.add_argument(
        "--leave-out",
        action="append",
        default=[],
        metavar="WAY:ROUND/ROUNDS",
        help="sizes, kernels or hardware, such as sizes:0/5; may be given for several",
    )
    parser.add_argument("--objective", default="nll", choices=OBJECTIVES)
    parser.add_argument("--base", metavar="MODEL", help="a causal model to train further, by LoRA")
    parser.add_argument("--steps", type=int, default=Plan.steps)
    parser.add_argument("--rate", type=float, help="learning rate; 1e-3 from scratch, 1e-4 for LoRA")
    parser.add_argument("--spaces", type=int, default=Plan.spaces, help="of a step")
    parser.add_argument("--configs", type=int, default=Plan.configs, help="of each space")
    parser.add_argument("--hidden", type=int, default=Shape.hidden)
    parser.add_argument("--layers", type=int, default=Shape.layers)
    parser.add_argument("--context", type=int, default=Shape.context, help="tokens")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=2, help="processes that make batches")
    parser.add_argument("--device", help="cuda or cpu; the GPU if there is one")
    return parser.parse_args(argv)
