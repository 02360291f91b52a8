"""Files that Weft writes, opened by llama.cpp (`make test-gguf`): logits, greedy tokens, and tokens of texts."""

from __future__ import annotations

import inspect
import json
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import tokenizers
import torch
from tokenizers.pre_tokenizers import ByteLevel, Split
from torch import Tensor
from torch.nn import functional as F

from interop.gguf.gguf_models import CASES, GPT2, VOCAB, case, loaded
from weft.core.model import LanguageModel
from weft.interop.convert import convert
from weft.interop.gguf import pre_tokenizers
from weft.interop.gguf.llama_cpp import SAMPLES, opened, tokenized
from weft.tokenizers import BPETokenizer, ByteTokenizer, FileTokenizer, Tokenizer
from weft.tokenizers.sentence_piece import train_sentence_piece

TEXT = inspect.getsource(json.decoder)
PROMPT = [5, 41, 0, 17, 17, 60, 3, 8, 29, 54, 11, 2]
NEW_TOKENS = 12


def tabulated_gelu(x: Tensor) -> Tensor:
    """llama.cpp's: a table of float16 of the tanh form."""
    return F.gelu(x.half().float(), approximate="tanh").half().float()


def as_llama_cpp(model: LanguageModel) -> LanguageModel:
    """The model with llama.cpp's GELU, so that nothing but rounding is left between the two."""
    for part in gelus(model):
        part.activation = tabulated_gelu
    return model


def gelus(model: LanguageModel) -> list[Any]:
    """The feed-forwards that compute GELU, in either form."""
    x = torch.tensor([-1.0])
    parts: list[Any] = [part for part in model.modules() if "activation" in vars(part)]
    return [part for part in parts if torch.allclose(part.activation(x), F.gelu(x), atol=1e-3)]


def greedy(model: LanguageModel, prompt: Sequence[int]) -> list[int]:
    """Every token from the whole text before it."""
    row = list(prompt)
    with torch.inference_mode():
        for _ in range(NEW_TOKENS):
            row.append(int(model(torch.tensor([row])).y[0, -1].argmax()))
    return row[len(prompt):]


def greedy_llama(path: Path, prompt: Sequence[int]) -> tuple[Tensor, list[int]]:
    """llama.cpp's logits of the prompt [T,V], and its tokens, one at a time."""
    model = opened(path, context=64)
    model.eval(list(prompt))
    logits = torch.tensor(model.scores[:len(prompt)]).float()
    found: list[int] = []
    for place in range(len(prompt), len(prompt) + NEW_TOKENS):
        found.append(int(model.scores[place - 1].argmax()))
        model.eval(found[-1:])
    model.close()
    return logits, found


@pytest.mark.parametrize("name", CASES)
def test_logits_and_greedy_tokens_are_the_models(name: str, tmp_path: Path) -> None:
    """Rounding in float32 is 2e-5 of logits of the size 3 to 9. Where GELU is tabulated, a float32 rounding can tip a
    number to the next float16, which moves logits by up to 1e-3."""
    source = case(name, tmp_path)
    tabulated = bool(gelus(source.model))
    done = convert(source, tmp_path / "a.gguf", to="gguf")
    assert done.foreign is not None and done.foreign < (1e-2 if tabulated else 5e-5)
    model = as_llama_cpp(source.model)
    logits, tokens = greedy_llama(tmp_path / "a.gguf", PROMPT)
    with torch.inference_mode():
        wanted = model(torch.tensor([PROMPT])).y[0]
    torch.testing.assert_close(logits, wanted, atol=1e-3 if tabulated else 5e-5, rtol=0)
    assert tokens == greedy(model, PROMPT)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", ["llama", "mixtral", "gemma", "bloom-five-heads", "phi3-longrope"])
def test_half_precision_opens(name: str, dtype: torch.dtype, tmp_path: Path) -> None:
    """llama.cpp rounds the inputs of every product to the weights' dtype too."""
    source = case(name, tmp_path)
    source.model.to(dtype)
    done = convert(source, tmp_path / "a.gguf", to="gguf")
    assert done.foreign is not None and done.foreign < {torch.bfloat16: 0.2, torch.float16: 0.03}[dtype]


def texts() -> list[str]:
    """Source code, other scripts, and random runs of what tokenizers cut by."""
    chance = random.Random(0)
    pool = [chr(point) for point in (*range(32, 127), 9, 10, 13, 0xA0, 0x2019, 0xE9, 0x3B1, 0x441, 0x4E2D, 0x1F600)]
    mixed = ["".join(chance.choice(pool) for _ in range(60)) for _ in range(40)]
    return [*SAMPLES, TEXT, " leading", "a  b   c    d", "don't I'LL we'Ve", "12 345 6789012", "مرحبا", "हिन्दी में",
            "日本語、です。", "<s> </s> <unk> <|endoftext|>", *mixed]


def pre_tokenized(expression: str, *, whole: bool) -> Tokenizer:
    """Byte-level BPE that cuts by an expression, learned so."""
    library: Any = tokenizers.Tokenizer(tokenizers.models.BPE(ignore_merges=whole))
    library.pre_tokenizer = tokenizers.pre_tokenizers.Sequence([
        Split(tokenizers.Regex(expression), "isolated"), ByteLevel(add_prefix_space=False, use_regex=False)])
    library.decoder = tokenizers.decoders.ByteLevel()
    library.train_from_iterator([TEXT], tokenizers.trainers.BpeTrainer(
        vocab_size=420, special_tokens=["<|endoftext|>"], initial_alphabet=ByteLevel.alphabet(), show_progress=False))
    return FileTokenizer(library.to_str(), bos=None, eos="<|endoftext|>")


def made(kind: str) -> Tokenizer:
    """A tokenizer learned from `TEXT`."""
    expressions = {"llama-bpe": (pre_tokenizers.LLAMA3, True), "dbrx": (pre_tokenizers.LLAMA3, False),
                   "qwen2": (pre_tokenizers.QWEN2, False), "tekken": (pre_tokenizers.TEKKEN, True),
                   "gpt-4o": (pre_tokenizers.GPT4O, False), "bloom": (pre_tokenizers.BLOOM, False)}
    if kind in expressions:
        expression, whole = expressions[kind]
        return pre_tokenized(expression, whole=whole)
    others: dict[str, Callable[[], Tokenizer]] = {
        "bytes": ByteTokenizer, "bpe": lambda: BPETokenizer.train([TEXT], 400),
        "sentencepiece": lambda: train_sentence_piece([TEXT], 600, algorithm="bpe")}
    return others[kind]()


@pytest.mark.parametrize("kind", ["bytes", "bpe", "sentencepiece", "llama-bpe", "dbrx", "qwen2", "tekken", "gpt-4o",
                                  "bloom"])
def test_texts_have_the_same_tokens(kind: str, tmp_path: Path) -> None:
    tokenizer = made(kind)
    source = loaded("gpt2", {**GPT2, "vocab_size": tokenizer.vocab_size + 3}, tmp_path, tokenizer)
    done = convert(source, tmp_path / "a.gguf", to="gguf")
    assert not [note for note in done.notes if "tokens" in note]
    found = tokenized(tmp_path / "a.gguf", texts())
    assert found == [tokenizer.encode(text) for text in texts()]


def test_a_file_without_a_tokenizer_opens(tmp_path: Path) -> None:
    convert(case("llama", tmp_path), tmp_path / "a.gguf", to="gguf")
    model = opened(tmp_path / "a.gguf", context=16)
    assert model.n_vocab() == VOCAB
    model.close()
