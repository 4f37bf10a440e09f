"""Models of a third of a million weights, made on the spot: random, but each of a fixed seed."""

from __future__ import annotations

import sysconfig
from pathlib import Path
from typing import Any

CHAT = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
PAD, BEGIN, TURN, END = SPECIAL = ["<|pad|>", "<|endoftext|>", "<|im_start|>", "<|im_end|>"]
CONTEXT = 4096


def make_model(folder: Path, tokenizer: Any) -> Path:
    """A Llama of two layers beside its tokenizer."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=32,  # 16 is refused by vLLM's attention on the CPU
        max_position_embeddings=CONTEXT,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        tie_word_embeddings=False,
        initializer_range=0.2,  # wide enough that what is read matters
    )
    LlamaForCausalLM(config).float().eval().save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def pieces_tokenizer() -> Any:
    """Pieces of words over bytes, learned from Python's own library; with a form for chats."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    pieces = Tokenizer(models.BPE())
    pieces.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    pieces.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=2048,
        special_tokens=SPECIAL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    library = Path(sysconfig.get_paths()["stdlib"])
    pieces.train([str(f) for f in sorted(library.glob("*.py"))[:40]], trainer)
    tokenizer = _wrapped(pieces)
    tokenizer.chat_template = CHAT
    return tokenizer


def words_tokenizer() -> Any:
    """Whole words, of which it knows but few: all labels are the same unknown word to it."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    words = [*SPECIAL, "?", "# Forecast", "bin:"]
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="?"))  # noqa: S106
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return _wrapped(tokenizer)


def _wrapped(tokenizer: Any) -> Any:
    from transformers import PreTrainedTokenizerFast

    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=BEGIN,
        eos_token=END,
        pad_token=PAD,
        model_max_length=CONTEXT,
        clean_up_tokenization_spaces=False,
    )


def make_adapter(folder: Path, base: Path) -> Path:
    """Changes of rank 8 to a model, large enough to be seen."""
    import peft
    import torch
    from transformers import AutoModelForCausalLM

    torch.manual_seed(1)
    network = peft.get_peft_model(
        AutoModelForCausalLM.from_pretrained(base),
        peft.LoraConfig(r=8, lora_alpha=16, target_modules=["q_proj", "v_proj", "up_proj", "down_proj"]),
    )
    for name, weight in network.named_parameters():
        if "lora_B" in name:  # zero as it is made
            torch.nn.init.normal_(weight, std=0.2)
    network.save_pretrained(folder)
    return folder
