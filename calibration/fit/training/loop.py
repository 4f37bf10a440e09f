"""The training loop: pairs drawn from recorded spaces, a gradient on what their bins' labels were given, checkpoints."""

from __future__ import annotations

import json
import logging
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from forecast_autotune.errors import InvalidInputError
from forecast_autotune.evaluation.recorded_space import RecordedSpace

from .logits import encoded, forecast_pool, label_ids, label_logits
from .objectives import OBJECTIVES, loss_of
from .small_model import splits_at_lines
from .spaces import knob_effects_for, prompts_of

if TYPE_CHECKING:
    import torch

log = logging.getLogger(__name__)

WARM_UP = 0.05  # share of the steps in which the rate rises; it falls to a twentieth by the end
WEIGHT_DECAY = 0.1
UNNAMED = 0.5  # share of prompts that do not name the device, so that its sheet is read
WITHOUT_HISTORY = 0.4  # share of prompts without other spaces' times, and likewise without knob effects
MAX_LINES = 200_000  # whose tokens are kept
LOOKS = 12  # checkpoints, each with a score on the spaces held back, over the whole training
LOOKED_AT = 48  # configs of each
CHECKPOINT = "checkpoint"


@dataclass(frozen=True, kw_only=True)
class Plan:
    """How to train. A step takes `spaces` spaces, of kernels drawn alike often, and `configs` configs of each."""

    objective: str = "nll"
    steps: int = 600
    rate: float = 1e-3
    spaces: int = 4
    configs: int = 16
    most_chars: int = 3_379
    seed: int = 0

    def __post_init__(self) -> None:
        if self.objective not in OBJECTIVES:
            raise InvalidInputError(f"objective {self.objective!r}: accepted are {', '.join(OBJECTIVES)}")


Batch = list[tuple[list[list[int]], list[int]]]


class Batches:
    """Batch n of a plan: for each space drawn, token rows and the bins measured. The same n gives the same batch."""

    def __init__(self, spaces: Sequence[RecordedSpace], tokenizer: Any, plan: Plan) -> None:
        self.spaces, self.tokenizer, self.plan = spaces, tokenizer, plan
        self.lines: dict[str, list[int]] = {}
        self.by_lines = splits_at_lines(tokenizer)
        self.by_kernel: dict[str, list[RecordedSpace]] = {}
        for space in spaces:
            self.by_kernel.setdefault(space.kernel, []).append(space)
            knob_effects_for(space, tuple(spaces))  # read once, here, for all worker processes

    def __len__(self) -> int:
        return self.plan.steps

    def tokens(self, text: str) -> list[int]:
        """Of a tokenizer of ours, line by line: most lines were met before, and are the same tokens everywhere."""
        if not self.by_lines:
            return encoded(self.tokenizer, [text])[0]
        row: list[int] = []
        for line in text.splitlines(keepends=True):
            ids = self.lines.get(line)
            if ids is None:
                ids = self.lines[line] = encoded(self.tokenizer, [line])[0]
                if len(self.lines) > MAX_LINES:
                    self.lines.clear()
            row += ids
        return row

    def __getitem__(self, step: int) -> Batch:
        random = np.random.default_rng((self.plan.seed, step))
        batch: Batch = []
        kernels = sorted(self.by_kernel)
        for _ in range(self.plan.spaces):
            of_kernel = self.by_kernel[kernels[random.integers(len(kernels))]]
            space = of_kernel[random.integers(len(of_kernel))]
            reference = draw_reference(space, random)
            places = random.choice(len(space.job.space), min(self.plan.configs, len(space.job.space)), replace=False)
            others = [s for s in of_kernel if s is not space and random.random() < 0.7]
            asked = prompts_of(
                space,
                reference,
                places.tolist(),
                self.plan.most_chars,
                known=() if random.random() < WITHOUT_HISTORY else others,
                mined=self.spaces if random.random() >= WITHOUT_HISTORY else (),
                named=random.random() >= UNNAMED,
            )
            measured = space.bins(reference)
            batch.append(([self.tokens(p.text) for p in asked], [measured[i] for i in places]))
        return batch


def draw_reference(space: RecordedSpace, random: np.random.Generator) -> int:
    """A config that ran: often the default or the median one, which people ask about, else any."""
    ran = np.flatnonzero(np.isfinite(space.log2_us))
    chance = random.random()
    if chance < 0.3 and math.isfinite(space.log2_us[0]):
        return 0
    return space.median if chance < 0.6 else int(random.choice(ran))


@dataclass(slots=True)
class Progress:
    """How far a training has come, as a checkpoint keeps it."""

    step: int = 0
    best_step: int = 0
    best_nll: float = math.inf
    trained_s: float = 0.0

    def is_best(self, nll: float) -> bool:
        """Whether the model forecasts as well as it ever did; if so, this step is noted as the best."""
        best = nll <= self.best_nll
        if best:
            self.best_nll, self.best_step = nll, self.step
        return best


def train(
    model: Any,
    tokenizer: Any,
    spaces: Sequence[RecordedSpace],
    held_back: Sequence[RecordedSpace],
    plan: Plan,
    folder: Path,
    *,
    workers: int = 0,
    tell: Callable[[str], None] = log.info,
) -> Progress:
    """Train a model in place, and leave it as it was when it forecast the spaces held back best.

    A checkpoint is written to `folder` at each look; a training that was interrupted goes on from its last one, if the plan
    and the spaces are the same.

    Raises:
        InvalidInputError: there is a checkpoint of another plan.
    """
    import torch

    fused = next(model.parameters()).device.type == "cuda"
    optimizer = torch.optim.AdamW(
        [p for p in model.parameters() if p.requires_grad],
        lr=plan.rate, betas=(0.9, 0.98), weight_decay=WEIGHT_DECAY, fused=fused,
    )  # fmt: skip
    checkpoint = Checkpoint(folder / CHECKPOINT, identity={"plan": asdict(plan), "spaces": [s.name for s in spaces]})
    progress = checkpoint.load(model, optimizer)
    began = time.monotonic() - progress.trained_s
    labels = label_ids(tokenizer)
    every = max(1, plan.steps // LOOKS)
    losses: list[torch.Tensor] = []
    for batch in _batches(Batches(spaces, tokenizer, plan), progress.step, workers):
        losses += _step(model, optimizer, batch, labels, plan, progress.step)
        progress.step += 1
        if progress.step % every and progress.step != plan.steps:
            continue
        progress.trained_s = time.monotonic() - began
        lately = float(torch.stack(losses).mean())
        losses.clear()
        if not math.isfinite(lately):
            raise InvalidInputError(f"the loss before step {progress.step} is {lately}: train with a lower rate")
        nll = nll_at(forecast_held_back(model, tokenizer, held_back, plan, spaces), 1.0) if held_back else -math.inf
        checkpoint.save(model, optimizer, progress, best=progress.is_best(nll))
        apart = f", held back {nll:.3f}, at best {progress.best_nll:.3f}" if held_back else ""
        tell(f"step {progress.step} of {plan.steps}: {plan.objective} {lately:.3f}{apart}, {progress.trained_s:.0f} s")
    checkpoint.load_best(model)
    model.eval()
    return progress


def _step(
    model: Any, optimizer: torch.optim.Optimizer, batch: Batch, labels: Sequence[int], plan: Plan, step: int
) -> list[torch.Tensor]:
    """One step of the optimizer; the loss of each space of the batch."""
    import torch

    device = next(model.parameters()).device
    losses = []
    for group in optimizer.param_groups:
        group["lr"] = plan.rate * _share_of_rate(step / plan.steps)
    model.train()
    optimizer.zero_grad(set_to_none=True)
    for rows, bins in batch:
        with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
            logits = label_logits(model, rows, labels)
        loss = loss_of(plan.objective, logits, torch.tensor(bins, device=device)) / len(batch)
        loss.backward()
        losses.append(loss.detach() * len(batch))
    torch.nn.utils.clip_grad_norm_(optimizer.param_groups[0]["params"], 1.0)
    optimizer.step()
    return losses


HeldBackForecasts = list[tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]]
"""For each space, logits of eight bins for some configs, and the bins that were measured."""


def forecast_held_back(
    model: Any, tokenizer: Any, held_back: Sequence[RecordedSpace], plan: Plan, known: Sequence[RecordedSpace]
) -> HeldBackForecasts:
    """What a model says of some configs of spaces held back, told what is known of the same kernels."""
    model.eval()
    forecasts: HeldBackForecasts = []
    for space in held_back:
        places, logits = forecast_pool(
            model, tokenizer, space, reference=space.median, most_chars=plan.most_chars, tokens_at_once=100_000,
            most=LOOKED_AT, known=known,
        )  # fmt: skip
        forecasts.append((logits, np.array(space.bins(space.median))[places]))
    return forecasts


def nll_at(forecasts: HeldBackForecasts, temperature: float) -> float:
    """Mean over spaces of -ln of the measured bins' probabilities, logits divided by a temperature."""
    means = []
    for logits, bins in forecasts:
        scaled = logits / temperature
        shifted = scaled - scaled.max(axis=1, keepdims=True)
        log_p = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
        means.append(-log_p[np.arange(bins.size), bins].mean())
    return float(np.mean(means))


def cool(model: Any, forecasts: HeldBackForecasts) -> float:
    """Divide the model's logits by the temperature that forecasts best, and return it.

    It goes into the weight of the last norm, so that whoever serves the model needs to know nothing of it.

    Raises:
        InvalidInputError: the model has no such norm.
    """
    import torch

    norm = getattr(model.get_decoder(), "norm", None)
    if norm is None:
        raise InvalidInputError(f"{type(model).__name__} has no norm before its head: its temperature cannot be set")
    temperatures = np.exp(np.linspace(math.log(0.5), math.log(4.0), 61))
    best = float(min(temperatures, key=lambda t: nll_at(forecasts, float(t))))
    with torch.no_grad():
        norm.weight /= best
    return best


def _share_of_rate(done: float) -> float:
    if done < WARM_UP:
        return max(done, 1e-3) / WARM_UP
    return 0.05 + 0.95 * 0.5 * (1.0 + math.cos(math.pi * (done - WARM_UP) / (1.0 - WARM_UP)))


def _batches(batches: Batches, first: int, workers: int) -> Iterator[Batch]:
    """From a step on; made by worker processes meanwhile if there are any."""
    from torch.utils.data import DataLoader, Subset

    rest: Any = Subset(batches, range(first, len(batches)))
    yield from DataLoader(rest, batch_size=None, num_workers=workers, collate_fn=_as_it_is)


def _as_it_is(batch: Any) -> Any:
    return batch


class Checkpoint:
    """A training's state in a folder: weights and the optimizer's moments as safetensors, the rest as JSON.

    `identity` says what is trained on what; a checkpoint of another identity is not gone on from.
    """

    def __init__(self, folder: Path, *, identity: Mapping[str, object]) -> None:
        self.folder = folder
        self.identity = json.loads(json.dumps(identity))

    def load(self, model: Any, optimizer: torch.optim.Optimizer) -> Progress:
        """Go on from what is there; from nothing, begin.

        Raises:
            InvalidInputError: what is there was trained otherwise.
        """
        from safetensors.torch import load_file

        state_file = self.folder / "state.json"
        if not state_file.exists():
            return Progress()
        state = json.loads(state_file.read_text(encoding="utf-8"))
        if state["identity"] != self.identity:
            raise InvalidInputError(
                f"{self.folder} holds a training of another plan or other spaces: remove it, or name another folder"
            )
        _put(model, load_file(self.folder / "last.safetensors"))
        moments = load_file(self.folder / "optimizer.safetensors")
        names = [n for n, p in model.named_parameters() if p.requires_grad]
        for name, parameter in zip(names, optimizer.param_groups[0]["params"], strict=True):
            optimizer.state[parameter] = {
                key: moments[f"{name}/{key}"].to(parameter.device)  # the fused optimizer counts its steps there, too
                for key in ("step", "exp_avg", "exp_avg_sq")
            }
        return Progress(**state["progress"])

    def save(self, model: Any, optimizer: torch.optim.Optimizer, progress: Progress, *, best: bool) -> None:
        """Keep the state; `best` also keeps these weights as the best so far. The JSON comes last and makes it hold."""
        from safetensors.torch import save_file

        self.folder.mkdir(parents=True, exist_ok=True)
        weights = _taken(model)
        files = {"last.safetensors": weights, "optimizer.safetensors": _moments(model, optimizer)}
        if best:
            files["best.safetensors"] = weights
        for name, tensors in files.items():
            save_file(tensors, self.folder / f"{name}.new")
        for name in files:
            (self.folder / f"{name}.new").replace(self.folder / name)
        text = json.dumps({"identity": self.identity, "progress": asdict(progress)})
        draft = self.folder / "state.json.new"
        draft.write_text(text, encoding="utf-8")
        draft.replace(self.folder / "state.json")

    def load_best(self, model: Any) -> None:
        from safetensors.torch import load_file

        _put(model, load_file(self.folder / "best.safetensors"))


def _taken(model: Any) -> dict[str, torch.Tensor]:
    """The weights that are trained, copied to the CPU."""
    return {n: p.detach().cpu().clone().contiguous() for n, p in model.named_parameters() if p.requires_grad}


def _put(model: Any, weights: Mapping[str, torch.Tensor]) -> None:
    import torch

    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name in weights:
                parameter.copy_(weights[name])


def _moments(model: Any, optimizer: torch.optim.Optimizer) -> dict[str, torch.Tensor]:
    import torch

    moments: dict[str, torch.Tensor] = {}
    for name, parameter in model.named_parameters():
        for key, value in optimizer.state.get(parameter, {}).items():
            moments[f"{name}/{key}"] = torch.as_tensor(value).detach().cpu().clone().contiguous()
    return moments
