"""A language model in this process, run by vLLM's engine."""

from __future__ import annotations

import contextlib
import logging
import os
import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from ..errors import MissingExtraError
from .folders import Adapter, adapter_in, state_of
from .labels import as_json, label_tokens, of_labels
from .model import ANSWER_TOKENS, SAMPLING, ModelError, ModelFacts, Unanswered
from .prompt import Prompt
from .tokens import Tokens, too_long

log = logging.getLogger(__name__)

GPU_SHARE = 0.25
"""Of a GPU's memory for the engine, at most: the rest is the program's, whose kernels are tuned there."""

CPU_CACHE_BYTES = 2 * 2**30  # for keys and values, where the engine would take nearly all of the machine's memory
STEP_TOKENS = 2_048  # read in a step, which cannot be interrupted
ROWS = 32  # prompts under way at once
RANKS = (8, 16, 32, 64, 128, 256, 320, 512)  # of adapters, as vLLM has them

# While the engine is made. In a process of its own it would need the program to be written for that (`__main__` guarded).
_ENVIRONMENT = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # the program's threads stay where they are
    "VLLM_CONFIGURE_LOGGING": "0",  # it would log to stdout; this way it logs as the program says
    "VLLM_NO_USAGE_STATS": "1",
}


_making = threading.local()


def is_making_engine() -> bool:
    """Whether this thread makes an engine that forecasts: its kernels are not to be tuned, for they would ask it how."""
    return getattr(_making, "engine", False)


class VllmModel:
    """Ask a model by vLLM's engine in this very process; what prompts begin with is kept between calls.

    The engine uses torch.distributed for itself: a program that does so too is refused, and one that begins to while the
    model is open fails there. On the CPU of a machine with several memory nodes it binds the process to one of them.
    Served from another process (`vllm serve`), a model has no such limits.

    A folder with an adapter (LoRA) is loaded with its base model.

    Args:
        model: a folder, or a name that vLLM finds.
    """

    def __init__(self, model: str) -> None:
        self.name = f"{model} (vLLM in this process)"
        self._model = model
        self._loaded: _LoadedModel | None = None

    def open(self, *, until: float) -> ModelFacts:
        """Load the model, unless it is loaded. See `LanguageModel.open`."""
        if self._loaded is None:
            if time.monotonic() >= until:
                raise ModelError(f"{self.name}: no time left to load it")
            self._loaded = _load(self._model, self.name)
        return self._loaded.facts

    def log_probabilities(
        self, prompts: Sequence[Prompt], *, until: float
    ) -> Iterator[tuple[int, tuple[float, ...] | Unanswered]]:
        """Read the prompts, up to `ROWS` side by side. See `LanguageModel.log_probabilities`."""

        from vllm import SamplingParams

        loaded = self._opened()
        labels = list(loaded.labels)
        params = SamplingParams(max_tokens=1, temperature=0, allowed_token_ids=labels, logprob_token_ids=labels)
        for i, answer in self._answers(prompts, loaded.tokens.of_prompt, params, until):
            if isinstance(answer, Unanswered):
                yield i, answer
                continue
            entries = (answer.logprobs or [{}])[0]
            yield i, of_labels({token: entry.logprob for token, entry in entries.items()}, labels)

    def texts(
        self, prompts: Sequence[Prompt], *, schema: dict[str, object], until: float, sampled: bool = False
    ) -> Iterator[tuple[int, str | Unanswered]]:
        """Write the answers, up to `ROWS` side by side. See `LanguageModel.texts`."""

        from vllm import SamplingParams
        from vllm.sampling_params import StructuredOutputsParams

        loaded = self._opened()
        params = SamplingParams(
            max_tokens=min(ANSWER_TOKENS, loaded.facts.context // 2),
            temperature=SAMPLING if sampled else 0,
            seed=0 if sampled else None,
            structured_outputs=StructuredOutputsParams(json=schema),
        )
        for i, answer in self._answers(prompts, loaded.tokens.of_chat, params, until):
            yield i, answer if isinstance(answer, Unanswered) else as_json(answer.text)

    def close(self) -> None:
        """End the engine and free its memory; it can be opened again."""
        loaded, self._loaded = self._loaded, None
        if loaded is None:
            return
        with _program_untouched():
            loaded.engine.engine_core.shutdown()
            del loaded
            _leave()

    def _answers(
        self, prompts: Sequence[Prompt], tokens_of: Callable[[str], list[int]], params: Any, until: float
    ) -> Iterator[tuple[int, Any]]:
        """Of each prompt, what the engine wrote or why it did not; it is left with nothing under way."""
        loaded = self._opened()
        waiting = list(enumerate(prompts))
        under_way: dict[str, int] = {}
        try:
            while (waiting or under_way) and time.monotonic() < until:
                while waiting and len(under_way) < ROWS and time.monotonic() < until:
                    i, prompt = waiting.pop(0)
                    row = tokens_of(prompt.text)
                    if len(row) < loaded.facts.context:
                        under_way[loaded.add(row, params)] = i
                    else:
                        yield i, too_long(len(row), loaded.facts.context)
                for output in loaded.engine.step() if under_way else ():
                    if output.finished:
                        yield under_way.pop(output.request_id), output.outputs[0]
        except Exception as err:
            under_way.clear()
            with contextlib.suppress(Exception):
                self.close()  # an engine that failed does not recover; the next open makes another
            raise ModelError.of(f"{self.name} broke down", err) from err
        finally:
            if under_way:
                loaded.engine.abort_request(list(under_way))

    def _opened(self) -> _LoadedModel:
        if self._loaded is None:
            raise ModelError(f"{self.name} is not open")
        return self._loaded


@dataclass(slots=True, kw_only=True)
class _LoadedModel:
    engine: Any
    tokens: Tokens
    labels: tuple[int, ...]
    facts: ModelFacts
    adapter: Any  # a LoRARequest, or None
    asked: int = 0

    def add(self, row: Sequence[int], params: Any) -> str:
        """Ask, under a name of its own."""
        from vllm.inputs import tokens_input

        self.asked += 1
        name = str(self.asked)
        self.engine.add_request(name, tokens_input(list(row)), params.clone(), lora_request=self.adapter)
        return name


def _load(model: str, name: str) -> _LoadedModel:
    adapter = adapter_in(model)
    base = model if adapter is None else adapter.base
    with _program_untouched():
        try:
            import torch
            import transformers
            from vllm import EngineArgs, LLMEngine
        except ImportError as err:
            raise MissingExtraError(
                f"{name} needs vllm, which cannot be imported ({err}): pip install 'forecast-autotune[vllm]'"
            ) from err
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            raise ModelError(
                f"{name}: this program uses torch.distributed, which the engine needs for itself;"
                " serve the model from another process and give its URL"
            )
        try:
            tokens = Tokens(transformers.AutoTokenizer.from_pretrained(base, trust_remote_code=False))
            labels = label_tokens(tokens.of_prompt, name)
            engine = LLMEngine.from_engine_args(EngineArgs(**_arguments(model, base, adapter, name)))
        except ModelError:
            raise
        except Exception as err:  # of many libraries, each with its own
            _leave()
            raise ModelError.of(f"{name} cannot be loaded", err) from err
    config = engine.model_config
    states = [state_of(folder) for folder in dict.fromkeys((model, base))]
    commit = getattr(config.hf_config, "_commit_hash", None) or ""
    return _LoadedModel(
        engine=engine,
        tokens=tokens,
        labels=labels,
        facts=ModelFacts(
            identity=" ".join([model, base, commit, *states, str(config.dtype)]), context=int(config.max_model_len)
        ),
        adapter=None if adapter is None else _adapter_request(model),
    )


def _leave() -> None:
    """Let torch.distributed and the memory go that an engine took."""
    from vllm.distributed import cleanup_dist_env_and_memory

    cleanup_dist_env_and_memory()


def _adapter_request(model: str) -> Any:
    from vllm.lora.request import LoRARequest

    return LoRARequest("adapter", 1, model)


def _arguments(model: str, base: str, adapter: Adapter | None, name: str) -> dict[str, Any]:
    from vllm.platforms import current_platform

    arguments: dict[str, Any] = {
        "model": base,
        "load_format": "safetensors",  # weights of the older kind are pickles
        "max_model_len": -1,  # the model's own, or what fits
        "max_num_seqs": ROWS,
        "max_num_batched_tokens": STEP_TOKENS,
        "enforce_eager": True,  # reading gains little by compiled graphs, and making them takes longer than most tuning
        "enable_prefix_caching": True,
        "async_scheduling": False,  # or a step would be under way on the GPU while kernels are timed
        "disable_log_stats": True,
        "seed": 0,
        # Only the engine as a whole can forbid white space without end, with which weak models fill their answer.
        "structured_outputs_config": {"backend": "xgrammar", "disable_any_whitespace": True},
    }
    if current_platform.is_cpu():
        arguments |= {"dtype": "float32", "kv_cache_memory_bytes": CPU_CACHE_BYTES}
    else:
        log.info("%s takes up to %.0f %% of the GPU's memory; hf:%s@cpu leaves it alone", name, 100 * GPU_SHARE, model)
        arguments["gpu_memory_utilization"] = GPU_SHARE
    if adapter is not None:
        rank = next((r for r in RANKS if r >= adapter.rank), None)
        if rank is None:
            raise ModelError(f"{name} is an adapter of rank {adapter.rank}, and vLLM has them up to {RANKS[-1]}")
        arguments |= {"enable_lora": True, "max_loras": 1, "max_lora_rank": rank}
    return arguments


@contextlib.contextmanager
def _program_untouched() -> Iterator[None]:
    """What vLLM sets for the whole process is afterwards as before: variables, random numbers, the number of threads."""
    import numpy as np
    import torch

    variables = dict(os.environ)
    drawn, drawn_by_numpy = random.getstate(), np.random.get_state()
    set_threads, threads = torch.set_num_threads, torch.get_num_threads()
    os.environ.update(_ENVIRONMENT)
    _making.engine = True
    try:
        with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
            yield
    finally:
        _making.engine = False
        for variable in [name for name in os.environ if name not in variables]:
            del os.environ[variable]
        os.environ.update({name: value for name, value in variables.items() if os.environ.get(name) != value})
        random.setstate(drawn)
        np.random.set_state(drawn_by_numpy)
        torch.set_num_threads = set_threads
        torch.set_num_threads(threads)
