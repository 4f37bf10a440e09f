"""A small model from scratch: its own tokenizer, trained on prompts, and a Llama of a few million parameters."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from forecast_autotune.language.answers import LABELS

SPECIAL = ("<|pad|>", "<|endoftext|>", "<|im_start|>", "<|im_end|>")
CHAT = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
WORDS = (
    r"\n"  # a line's end stands alone, so that text cut at one is the same tokens
    r"| *2\^-?\d+(?:\.5)?"  # what a prompt says in powers of two, and by how many two of them differ, is a word each
    r"| *\([+-]\d+(?:\.(?:25|5|75))?\)"
    r"| *\(x[\d.e+-]+\)"
    r"| *[A-Za-z_][A-Za-z_0-9]*"
    r"| *\d+(?:\.\d+)?"
    r"| *[^\sA-Za-z_0-9]+"
    r"|[^\S\n]+"
)
LABEL_COPIES = 1_000  # of each label in the tokenizer's text: " A" must be one token


# Width of an attention head: vLLM's attention on CPUs takes 32, 64 and more, and few heads are quicker to train
HEAD = 64


@dataclass(frozen=True, kw_only=True)
class Shape:
    """How large a model is: by default a million parameters, which two cores train in minutes."""

    hidden: int = 128
    layers: int = 2
    vocabulary: int = 4096
    context: int = 1536  # tokens

    @property
    def heads(self) -> int:
        return max(1, self.hidden // HEAD)


def make_tokenizer(texts: Iterable[str], shape: Shape) -> Any:
    """A byte-level BPE tokenizer of these texts, in which every bin's label behind a colon is one token."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(WORDS), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=shape.vocabulary,
        special_tokens=list(SPECIAL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    labels = "".join(f"bin: {label}\n" for label in LABELS) * LABEL_COPIES
    tokenizer.train_from_iterator([labels, *texts], trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token="<|endoftext|>",
        eos_token="<|im_end|>",
        pad_token="<|pad|>",
        model_max_length=shape.context,
        clean_up_tokenization_spaces=False,
        chat_template=CHAT,
    )


def splits_at_lines(tokenizer: Any) -> bool:
    """Whether text is the same tokens as its lines one by one."""
    text = "# A\n    b = c[2]  # x2\n\n(left)\nknobs: BM=64 -> 128 (x2)\n"
    whole, *lines = tokenizer([text, *text.splitlines(keepends=True)], add_special_tokens=True)["input_ids"]
    return bool(whole == [i for line in lines for i in line])


def make_model(tokenizer: Any, shape: Shape, seed: int) -> Any:
    """A causal model with random weights, float32."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(seed)
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=len(tokenizer),
            hidden_size=shape.hidden,
            intermediate_size=6 * shape.hidden,
            num_hidden_layers=shape.layers,
            num_attention_heads=shape.heads,
            num_key_value_heads=max(1, shape.heads // 2),
            head_dim=HEAD,
            max_position_embeddings=shape.context,
            bos_token_id=tokenizer.bos_token_id,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
            tie_word_embeddings=True,
        )
    ).float()
