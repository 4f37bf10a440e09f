"""A language model in this process, run by plain transformers."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from ..errors import MissingExtraError
from .folders import adapter_in, state_of
from .labels import label_tokens, of_labels
from .model import ANSWER_TOKENS, SAMPLING, ModelError, ModelFacts, Unanswered
from .prompt import Prompt
from .tokens import Tokens, alike, too_long

PIECE = 512  # tokens read at once; between two pieces the time is looked at, and no more memory is needed than for one
ROWS = 8  # prompts read side by side; more were no faster (64 of a 3,111-token prefix, two cores of an EPYC)


class TransformersModel:
    """Ask a model by transformers alone: the way that needs least, and that runs on the CPU beside a GPU that is timed.

    What all prompts of a call begin with is read once. A folder with an adapter (LoRA) is loaded with its base model.

    Args:
        model: a folder, or a name that transformers finds.
        device: `cpu`, `cuda`, `cuda:1`; if not given, the last GPU of several, else the CPU, for a single GPU belongs to
            the kernels.
    """

    def __init__(self, model: str, *, device: str = "") -> None:
        self.name = f"{model} (transformers{' on ' * bool(device)}{device})"
        self._model, self._device = model, device
        self._loaded: _LoadedModel | None = None

    def open(self, *, until: float) -> ModelFacts:
        """Load the model, unless it is loaded. See `LanguageModel.open`."""
        if self._loaded is None:
            if time.monotonic() >= until:
                raise ModelError(f"{self.name}: no time left to load it")
            self._loaded = _load(self._model, self._device, self.name)
        return self._loaded.facts

    def log_probabilities(
        self, prompts: Sequence[Prompt], *, until: float
    ) -> Iterator[tuple[int, tuple[float, ...] | Unanswered]]:
        """Read the prompts, `ROWS` at a time. See `LanguageModel.log_probabilities`."""
        loaded = self._opened()
        try:
            begin, cache = loaded.beginning(prompts, loaded.tokens.of_prompt, until)
            for start in range(0, len(prompts), ROWS):
                rows = {i: loaded.tokens.of_prompt(prompts[i].text) for i in range(len(prompts))[start : start + ROWS]}
                askable = {i: row for i, row in rows.items() if len(row) < loaded.facts.context}
                yield from ((i, too_long(len(rows[i]), loaded.facts.context)) for i in rows if i not in askable)
                begun = {i: row[len(begin) :] for i, row in askable.items() if _begins(row, begin)}
                if begun:
                    kept = copy.deepcopy(cache)
                    if kept is not None:
                        kept.batch_repeat_interleave(len(begun))
                    yield from zip(begun, loaded.read(list(begun.values()), kept, until)[0], strict=True)
                for i in askable.keys() - begun.keys():
                    yield i, loaded.read([askable[i]], None, until)[0][0]
        except _TimeUpError:
            return
        except Exception as err:
            raise ModelError.of(self.name, err) from err

    def texts(
        self,
        prompts: Sequence[Prompt],
        *,
        schema: dict[str, object],  # noqa: ARG002  # transformers holds no model to one
        until: float,
        sampled: bool = False,
    ) -> Iterator[tuple[int, str | Unanswered]]:
        """Write one answer after the other, held to no schema. See `LanguageModel.texts`."""
        loaded = self._opened()
        try:
            begin, cache = loaded.beginning(prompts, loaded.tokens.of_chat, until)
            for i, prompt in enumerate(prompts):
                row = loaded.tokens.of_chat(prompt.text)
                if len(row) >= loaded.facts.context:
                    yield i, too_long(len(row), loaded.facts.context)
                else:
                    yield i, loaded.write(row, copy.deepcopy(cache) if _begins(row, begin) else None, until, sampled)
        except _TimeUpError:
            return
        except Exception as err:
            raise ModelError.of(self.name, err) from err

    def close(self) -> None:
        """Free the model's memory; it can be opened again."""
        loaded, self._loaded = self._loaded, None
        if loaded is not None and loaded.device.type == "cuda":
            import torch

            del loaded
            torch.cuda.empty_cache()

    def _opened(self) -> _LoadedModel:
        if self._loaded is None:
            raise ModelError(f"{self.name} is not open")
        return self._loaded


class _TimeUpError(Exception):
    """The moment has come; what is under way is given up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _LoadedModel:
    network: Any
    tokenizer: Any
    tokens: Tokens
    device: Any
    labels: tuple[int, ...]
    facts: ModelFacts

    def beginning(
        self, prompts: Sequence[Prompt], tokens_of: Callable[[str], list[int]], until: float
    ) -> tuple[list[int], Any]:
        """The tokens that prompts of a space have in common, and the cache with these in it."""
        if not prompts:
            return [], None
        row = tokens_of(prompts[0].text)
        begin = row[: alike(row, tokens_of(prompts[0].shared))]
        if not begin or len(begin) >= self.facts.context:
            return [], None
        return begin, self.read([begin], None, until)[1]

    def read(
        self, rows: Sequence[Sequence[int]], cache: Any, until: float
    ) -> tuple[list[tuple[float, ...] | Unanswered], Any]:
        """What the labels' log-probabilities are behind each row, and the cache with the rows in it.

        Rows of different lengths are filled up on the right, where causal attention keeps it from all that counts.
        """
        import torch

        width = max(map(len, rows))
        ids = torch.tensor([[*row, *[0] * (width - len(row))] for row in rows], device=self.device)
        answers: dict[int, tuple[float, ...] | Unanswered] = {}
        for begin in range(0, width, PIECE):
            self._look_at_the_time(until)
            lasts = [len(row) - 1 - begin for row in rows]
            wanted = sorted({last for last in lasts if 0 <= last < PIECE}) or [0]
            with torch.inference_mode():
                out = self.network(
                    input_ids=ids[:, begin : begin + PIECE],
                    past_key_values=cache,
                    use_cache=True,
                    logits_to_keep=torch.tensor(wanted, device=self.device),
                )
            cache = out.past_key_values
            for number, last in enumerate(lasts):
                if 0 <= last < PIECE:
                    shares = torch.log_softmax(out.logits[number, wanted.index(last)].float(), -1)
                    answers[number] = of_labels(
                        dict(zip(self.labels, shares[list(self.labels)].tolist(), strict=True)), self.labels
                    )
            if self.device.type == "cuda":
                torch.cuda.synchronize(self.device)  # or what is given up here would still run while kernels are timed
        return [answers[number] for number in range(len(rows))], cache

    def write(self, row: Sequence[int], cache: Any, until: float, sampled: bool) -> str:
        """What the model writes behind a row."""
        import torch
        import transformers

        self._look_at_the_time(until)
        ids = torch.tensor([list(row)], device=self.device)
        with torch.inference_mode(), torch.random.fork_rng(devices=[self.device] if self.device.type == "cuda" else []):
            torch.manual_seed(0)
            written = self.network.generate(
                input_ids=ids,
                attention_mask=torch.ones_like(ids),
                past_key_values=cache,
                do_sample=sampled,
                temperature=SAMPLING if sampled else None,
                max_new_tokens=min(ANSWER_TOKENS, self.facts.context - len(row)),
                pad_token_id=self.tokenizer.eos_token_id,
                stopping_criteria=transformers.StoppingCriteriaList(
                    [lambda *_, **__: torch.tensor([time.monotonic() >= until], device=self.device)]
                ),
            )[0, len(row) :].tolist()
        if time.monotonic() >= until:
            raise _TimeUpError
        return str(self.tokenizer.decode(written, skip_special_tokens=True))

    def _look_at_the_time(self, until: float) -> None:
        if time.monotonic() >= until:
            raise _TimeUpError


def _load(model: str, device: str, name: str) -> _LoadedModel:
    try:
        import torch
        import transformers
    except ImportError as err:
        raise MissingExtraError(
            f"{name} needs transformers, which cannot be imported ({err}): pip install 'forecast-autotune[hf]'"
        ) from err
    adapter = adapter_in(model)
    if adapter is not None:
        try:
            import peft
        except ImportError as err:
            raise MissingExtraError(
                f"{name} is an adapter and needs peft, which cannot be imported ({err}): pip install 'forecast-autotune[hf]'"
            ) from err
    base = model if adapter is None else adapter.base
    place = torch.device(device or "cpu")  # which of several GPUs nobody times on, only the user knows
    try:
        with torch.random.fork_rng(devices=[]):  # the caller's random numbers stay what they would have been
            tokenizer = transformers.AutoTokenizer.from_pretrained(base, trust_remote_code=False)
            network = transformers.AutoModelForCausalLM.from_pretrained(
                base,
                dtype=torch.float32 if place.type == "cpu" else "auto",
                trust_remote_code=False,  # at None it asks at the terminal
                use_safetensors=True,  # weights of the older kind are pickles
            )
            commit = getattr(network.config, "_commit_hash", None) or ""
            if adapter is not None:
                network = peft.PeftModel.from_pretrained(network, model)
            network = network.to(place).eval()
        tokens = Tokens(tokenizer)
        labels = label_tokens(tokens.of_prompt, name)
    except ModelError:
        raise
    except Exception as err:  # of many libraries, each with its own
        raise ModelError.of(f"{name} cannot be loaded", err) from err
    text_config = network.config.get_text_config()
    context = getattr(text_config, "max_position_embeddings", None) or tokenizer.model_max_length
    states = [state_of(folder) for folder in dict.fromkeys((model, base))]
    return _LoadedModel(
        network=network,
        tokenizer=tokenizer,
        tokens=tokens,
        device=place,
        labels=labels,
        facts=ModelFacts(identity=" ".join([model, base, commit, *states, str(network.dtype)]), context=int(context)),
    )


def _begins(row: Sequence[int], begin: Sequence[int]) -> bool:
    return len(row) > len(begin) and row[: len(begin)] == begin
