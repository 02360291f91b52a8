"""Running a file with llama.cpp, where `llama_cpp` (the package ``llama-cpp-python``) is installed."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float32
from torch import Tensor

from weft.core.errors import FailedError

GGML_TYPE_F32 = 0
"""Keys and values are kept in float32, since the default float16 alone changes logits by 1e-3 of their size."""

SAMPLES = ("Hello world, it's 12345 o'clock!", "  two spaces,\n\n\ttabs and lines  \r\n",
           "naïve café — Ελληνικά 漢字 🙂", "def f(x):\n    return x**2 + 3.14159e-10", "a")
"""Texts that cover words, numbers, punctuation, spaces, code and other scripts."""


def opened(path: Path, *, context: int) -> Any:
    """Open a file with llama.cpp, for ``context`` tokens; None where the package is not installed. Raises
    `FailedError`: llama.cpp rejects the file."""
    llama = _llama()
    if llama is None:
        return None
    try:
        return llama(str(path), n_ctx=context, n_batch=context, logits_all=True, type_k=GGML_TYPE_F32,
                     type_v=GGML_TYPE_F32, n_threads=1, flash_attn=False, verbose=False)
    except (ValueError, AssertionError) as error:
        raise FailedError(f"llama.cpp rejects the file ({error}).", where="convert",
                          remedy="Nothing was written. Please report this model.") from error


def llama_logits(path: Path, tokens: Tensor) -> Float32[Tensor, "B T V"] | None:
    """llama.cpp's logits for rows of tokens [B,T]; None where it is not installed."""
    model = opened(path, context=tokens.shape[1])
    if model is None:
        return None
    rows = [_row(model, row) for row in tokens.tolist()]
    model.close()
    return torch.stack(rows)


def _row(model: Any, row: Sequence[int]) -> Tensor:
    model.reset()
    model.eval(list(row))
    return torch.tensor(model.scores[:len(row)], dtype=torch.float32)


def tokenized(path: Path, texts: Sequence[str] = SAMPLES) -> list[list[int]] | None:
    """llama.cpp's tokens of texts, without special ones; None where it is not installed."""
    llama = _llama()
    if llama is None:
        return None
    model = llama(str(path), vocab_only=True, verbose=False)
    found = [list(model.tokenize(text.encode(), add_bos=False, special=False)) for text in texts]
    model.close()
    return found


def _llama() -> Any:
    """The class that opens files, or None."""
    if importlib.util.find_spec("llama_cpp") is None:
        return None
    from llama_cpp import Llama

    return Llama
