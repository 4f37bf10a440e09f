"""Evaluate trained language models on what they left out: `python -m calibration evaluate MODEL … [--rows FILE …]`.

Each model's card says what it left out and how; the models of one way and one objective together make a line of the table,
beside eight equal chances, bin frequencies, `roofline` and `learned` on the same spaces. Skill, calibration error (ECE),
error by fifth of confidence, and the best config among the top 1, 10 and 50 % of the ranking, over the pool's best.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from forecast_autotune.cli.output import print_table
from forecast_autotune.core.text import error_text, shown
from forecast_autotune.errors import AutotuneError, InvalidInputError
from forecast_autotune.language.model import ModelError

from ..rows import is_number, read_rows
from .forest import suite_paths
from .train import CARD
from .training.evaluation import Row, evaluate_model, evaluate_others, is_row, summary
from .training.spaces import read_spaces

REMEDY = "name a folder that 'python -m calibration train' wrote"


def evaluate(folder: Path, traces: Sequence[Path], *, device: str, others: bool) -> list[Row]:
    """A row for every space that a model left out, and for every simpler way to say something of it.

    Raises:
        InvalidInputError: there is no model there, or it left out nothing of these traces.
    """
    card = read_card(folder)
    spaces = {s.name: s for s in read_spaces(traces)}
    ways = {way: [spaces[n] for n in names if n in spaces] for way, names in card["left_out"].items()}
    if not any(ways.values()):
        raise InvalidInputError(f"{folder} left out nothing of these traces: name those that it was trained on")
    known = [spaces[name] for name in (*card["learned"], *card["chosen_on"]) if name in spaces]
    model, tokenizer = load(folder, card, device)
    method = f"language model, {card['plan']['objective']}"
    rows: list[Row] = []
    for way, out in ways.items():
        if others:
            rows += evaluate_others(out, known, way=way)
        rows += evaluate_model(
            model,
            tokenizer,
            out,
            known,
            method=method,
            way=way,
            most_chars=card["plan"]["most_chars"],
            temperature=card["temperature"],
        )
    return rows


def read_card(folder: Path) -> dict[str, Any]:
    """What training says of the model that it wrote.

    Raises:
        InvalidInputError: there is no card, or it is none.
    """
    try:
        card = json.loads((folder / CARD).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as err:
        raise InvalidInputError(f"{folder} has no {CARD} ({err}): {REMEDY}") from None
    if not isinstance(card, dict):
        raise InvalidInputError(f"{folder / CARD} is no card of a model, {shown(card)}: {REMEDY}")
    plan, out = card.get("plan"), card.get("left_out")
    fits = {
        "plan": isinstance(plan, dict) and isinstance(plan.get("objective"), str) and is_number(plan.get("most_chars")),
        "left_out": isinstance(out, dict) and all(map(_are_names, out.values())),
        "learned": _are_names(card.get("learned")),
        "chosen_on": _are_names(card.get("chosen_on")),
        "model": isinstance(card.get("model"), dict),
        "temperature": "temperature" in card and (card["temperature"] is None or is_number(card["temperature"])),
    }
    for name, right in fits.items():
        if not right:
            found = shown(card.get(name))
            raise InvalidInputError(f"{folder / CARD}: {name} is {found}, as no training writes it: {REMEDY}")
    return card


def _are_names(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(name, str) for name in value)


def load(folder: Path, card: dict[str, Any], device: str) -> tuple[Any, Any]:
    """A trained model and its tokenizer; of an adapter, with its base."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    if card["model"].get("base"):
        from peft import AutoPeftModelForCausalLM

        model = AutoPeftModelForCausalLM.from_pretrained(folder, use_safetensors=True)
    else:
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, use_safetensors=True)
    return model.to(device).eval(), tokenizer


def table(rows: Sequence[Row]) -> list[Row]:
    """A line for every way of leaving out and method, in the order they came."""
    kinds = list(dict.fromkeys((r["way"], r["method"]) for r in rows))
    return [
        {"way": way, "method": method, **summary([r for r in rows if (r["way"], r["method"]) == (way, method)])}
        for way, method in kinds
    ]


COLUMNS = ("left out", "who", "spaces", "skill", "ECE", "error by fifth", "top 1 %", "top 10 %", "top 50 %")


def show(lines: Sequence[Row]) -> None:
    """Print the table."""
    rows = []
    for line in lines:
        fifths = " ".join(f"{e:.2f}" for e in line["error_by_fifth"])
        tops = ["" if top is None else f"{top:.3f}" for top in (line[f"top_{share}_percent"] for share in (1, 10, 50))]
        figures = (str(line["spaces"]), f"{line['skill']:.2f}", f"{line['ece']:.2f}", fifths, *tops)
        rows.append((line["way"], line["method"], *figures))
    print_table(COLUMNS, rows, right=COLUMNS[2:])


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m calibration evaluate", description=__doc__.partition("\n")[0])
    parser.add_argument("models", nargs="*", type=Path, help="folders that `train` wrote")
    parser.add_argument("--traces", nargs="*", type=Path, help="what they were trained on; the suite's if not given")
    parser.add_argument(
        "--rows", nargs="*", type=Path, default=[], help="rows of earlier runs, to stand in the same table"
    )
    parser.add_argument("--alone", action="store_true", help="the models alone, nobody beside them")
    parser.add_argument("--keep", type=Path, metavar="FILE", help="write the rows, one JSON object a line")
    parser.add_argument("--json", action="store_true", help="the table as JSON")
    parser.add_argument("--device", default="cpu")
    asked = parser.parse_args(argv)
    try:
        rows = [row for path in asked.rows for row in read_rows(path, is_row)]
        if not asked.models and not rows:
            raise InvalidInputError(f"there is no model and no row: {REMEDY}, or --rows FILE")
        for number, folder in enumerate(asked.models, start=1):
            print(f"{folder} ({number} of {len(asked.models)})", file=sys.stderr, flush=True)
            rows += evaluate(folder, asked.traces or suite_paths(), device=asked.device, others=not asked.alone)
    except (AutotuneError, ModelError, OSError) as err:
        print(f"evaluate: {error_text(err)}", file=sys.stderr)
        return 2
    if asked.keep:
        asked.keep.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    lines = table(rows)
    if asked.json:
        print(json.dumps(lines, indent=1))
    else:
        show(lines)
    return 0
