"""Tiny random models of five families, saved as `transformers` saves them, with a tokenizer that was trained here."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import tokenizers
import torch
import transformers
from tokenizers import decoders, models, pre_tokenizers, processors, trainers

TEXT = ("The quick brown fox jumps over the lazy dog. A question has four choices, and one of them is right.\n"
        "Question: is this sentence positive or negative? Answer: positive. Answer: negative. No, yes, no!\n") * 3
SIZE, CONTEXT = 320, 48
BEGIN, END = "<s>", "</s>"
SHAPES = {"vocab_size": SIZE, "hidden_size": 32, "intermediate_size": 40, "num_hidden_layers": 2,
          "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": CONTEXT}
FAMILIES: dict[str, tuple[str, str, dict[str, Any], bool]] = {
    "llama": ("LlamaConfig", "LlamaForCausalLM", SHAPES, True),
    "gpt2": ("GPT2Config", "GPT2LMHeadModel", {"vocab_size": SIZE, "n_embd": 32, "n_layer": 2, "n_head": 4,
                                               "n_positions": CONTEXT}, False),
    "qwen3": ("Qwen3Config", "Qwen3ForCausalLM", SHAPES, False),
    "gemma2": ("Gemma2Config", "Gemma2ForCausalLM", {**SHAPES, "sliding_window": 16, "query_pre_attn_scalar": 8}, True),
    "mamba": ("MambaConfig", "MambaForCausalLM", {"vocab_size": SIZE, "hidden_size": 32, "num_hidden_layers": 2,
                                                  "state_size": 8}, False)}
"""Classes and shapes of each family, and whether its tokenizer puts the opening token before a text."""


def saved(family: str, folder: Path) -> Path:
    """Save a model of a family with its tokenizer."""
    config, kind, shapes, opens = FAMILIES[family]
    tokenizer = trained(opens)
    torch.manual_seed(5)
    made = getattr(transformers, config)(**shapes, bos_token_id=0, eos_token_id=1, pad_token_id=1)
    model = getattr(transformers, kind)(made).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() == 2 and "A_log" not in name:
                parameter.normal_(0, 0.3)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def trained(opens: bool) -> transformers.PreTrainedTokenizerFast:
    """A byte-level BPE."""
    library = tokenizers.Tokenizer(models.BPE())
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    library.decoder = decoders.ByteLevel()
    library.train_from_iterator([TEXT], trainers.BpeTrainer(
        vocab_size=SIZE, special_tokens=[BEGIN, END], initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False))
    if opens:
        library.post_processor = processors.TemplateProcessing(
            single=f"{BEGIN} $A", pair=f"{BEGIN} $A {BEGIN} $B", special_tokens=[(BEGIN, 0)])
    return transformers.PreTrainedTokenizerFast(tokenizer_object=library, bos_token=BEGIN, eos_token=END, pad_token=END)
