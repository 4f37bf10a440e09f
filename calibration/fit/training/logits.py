"""Reading forecasts off any causal model of transformers, with gradients: the logits of eight labels at a prompt's end."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from forecast_autotune.evaluation.recorded_space import RecordedSpace
from forecast_autotune.language.answers import LABELS
from forecast_autotune.language.labels import label_tokens

from .spaces import prompts_of

if TYPE_CHECKING:
    import torch

Array = NDArray[np.float64]

LENGTHS = 64
"""Token counts are brought to multiples of this, so that few shapes are met: kernels are looked up, or made, by shape."""


def label_ids(tokenizer: Any) -> tuple[int, ...]:
    """The token of each bin's label where it follows a prompt.

    Raises:
        ModelError: one of them is not one token, or two are the same.
    """
    return label_tokens(lambda text: encoded(tokenizer, [text])[0], str(tokenizer.name_or_path or "the tokenizer"))


def encoded(tokenizer: Any, texts: Sequence[str]) -> list[list[int]]:
    """Token ids of texts as vLLM and transformers read a prompt, marks inside them as plain text."""
    ids: list[list[int]] = tokenizer(list(texts), add_special_tokens=True, split_special_tokens=True)["input_ids"]
    return ids


def label_logits(model: Any, rows: Sequence[Sequence[int]], labels: Sequence[int]) -> torch.Tensor:
    """Logits of the eight labels after each row of tokens: shape (rows, 8), float32, on the model's device.

    What all rows begin with is read once. Rows of unequal length are filled up on the right, where a causal model does not
    look. Gradients flow through both.
    """
    import torch

    torch.backends.cuda.enable_cudnn_sdp(False)  # it takes a second for each new shape (torch 2.11, H200)
    base = model.get_base_model() if hasattr(model, "get_base_model") else model
    decoder, device = base.get_decoder(), next(base.parameters()).device
    common = min(_alike(rows[0], row) for row in rows)
    common = min(common, min(map(len, rows)) - 1) // LENGTHS * LENGTHS  # each has a token left to ask at
    cache = None
    if common and len(rows) > 1:
        beginning = torch.tensor([rows[0][:common]], device=device)
        cache = decoder(input_ids=beginning, use_cache=True).past_key_values
        cache.batch_repeat_interleave(len(rows))
    else:
        common = 0
    lengths = torch.tensor([len(row) - common for row in rows])
    ids = torch.zeros((len(rows), -(-int(lengths.max()) // LENGTHS) * LENGTHS), dtype=torch.long)
    for at, row in enumerate(rows):
        ids[at, : len(row) - common] = torch.tensor(row[common:])
    hidden = decoder(input_ids=ids.to(device), past_key_values=cache, use_cache=cache is not None).last_hidden_state
    last = hidden[torch.arange(len(rows), device=device), (lengths - 1).to(device)]
    head = base.get_output_embeddings()
    logits = last @ head.weight[list(labels)].T.to(last.dtype)
    if getattr(head, "bias", None) is not None:
        logits = logits + head.bias[list(labels)].to(last.dtype)
    return logits.float()


def _alike(a: Sequence[int], b: Sequence[int]) -> int:
    """How many tokens two rows have in common at their beginning."""
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


def forecast_pool(
    model: Any,
    tokenizer: Any,
    space: RecordedSpace,
    *,
    reference: int,
    most_chars: int,
    tokens_at_once: int,
    most: int | None = None,
    known: Sequence[RecordedSpace] = (),
) -> tuple[NDArray[np.intp], Array]:
    """What a model says of the configs of a space against a reference: their positions, and eight logits for each.

    `most` draws so many of a larger space, the same each time. What the same configs took in `known` spaces is told.
    """
    import torch

    places = np.arange(len(space.job.space))
    if most is not None and most < places.size:
        places = np.sort(np.random.default_rng(0).choice(places, most, replace=False))
    asked = prompts_of(space, reference, places.tolist(), most_chars, known=known, mined=known)
    rows = encoded(tokenizer, [p.text for p in asked])
    labels = label_ids(tokenizer)
    logits = np.zeros((len(rows), len(LABELS)))
    device = next(model.parameters()).device
    with torch.inference_mode(), torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
        for batch in _batches(rows, tokens_at_once):
            logits[batch] = label_logits(model, [rows[i] for i in batch], labels).cpu().numpy()
    return places, logits


def _batches(rows: Sequence[Sequence[int]], tokens: int) -> Iterator[list[int]]:
    """Places of rows, those of like length together, no more tokens at once than given (one row at least)."""
    batch: list[int] = []
    for place in sorted(range(len(rows)), key=lambda i: len(rows[i])):
        if batch and (len(batch) + 1) * len(rows[place]) > tokens:
            yield batch
            batch = []
        batch.append(place)
    if batch:
        yield batch
