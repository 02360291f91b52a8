"""GGUF as a format to convert to: how a model is checked, written and read back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import torch
from torch import Tensor

from weft.checkpoints.load import Loaded
from weft.core.model import LanguageModel
from weft.interop.gguf.architectures import GgufFit, fit_gguf, require_file_type
from weft.interop.gguf.content import Content, content_of
from weft.interop.gguf.file import compare, require_package, write_content
from weft.interop.gguf.llama import SAMPLES, llama_logits, tokenized
from weft.interop.gguf.vocabulary import NO_VOCABULARY, vocabulary


@final
@dataclass(frozen=True, eq=False)
class GgufFile:
    """A model with all that is needed to write it as a GGUF file.

    Attributes:
        fitted: the architecture that can hold it.
        content: the file's keys and tensors.
        loaded: where the model and the tokenizer come from.
    """

    fitted: GgufFit
    content: Content
    loaded: Loaded
    notes: tuple[str, ...]

    @classmethod
    def of(cls, loaded: Loaded, model: LanguageModel, kept: Mapping[str, Any], family: str | None) -> GgufFile:
        """Prepare the file of a model; everything is checked, and nothing is written.

        Args:
            loaded: the source of the conversion.
            model: the model to write, that of ``loaded`` or one made from it.
            kept: see `Family.write`.
            family: the only family to try; None: all.

        Raises:
            MissingExtra: the `gguf` package is not installed.
            UnsupportedError: llama.cpp cannot compute the model, or not in its dtype.
            InputError: see `fit_gguf`.
        """
        require_package()
        require_file_type(next(model.parameters()).dtype)
        fitted = fit_gguf(model.config, kept, family=family, first=loaded.facts.get("family"))
        found = vocabulary(loaded.tokenizer, model.vocab_size, kept)
        content = content_of(fitted, model, found.keys, loaded.path.resolve().name)
        return cls(fitted, content, loaded, (*fitted.architecture.notes(fitted.facts), *found.notes))

    def write(self, path: Path) -> tuple[str, ...]:
        """Write the file; return notes for the user, also on texts that llama.cpp, where it is installed, tokenizes
        differently."""
        write_content(self.content, path)
        return (*self.notes, *self._other_tokens(path))

    def read(self, path: Path) -> LanguageModel:
        """Read a file back and compare all of it with the content. Raises `FailedError`: something differs."""
        return compare(self.content, path)

    def rounds(self) -> tuple[torch.dtype, ...]:
        """The dtypes in which llama.cpp rounds besides that of the weights: its GELU is a table in float16."""
        return (torch.float16,) if "gelu_tanh" in self.fitted.architecture.activations else ()

    def _other_tokens(self, path: Path) -> list[str]:
        tokenizer = self.loaded.tokenizer
        if tokenizer is None or self.content.keys.items() >= NO_VOCABULARY.items():
            return []
        found = tokenized(path)
        return [] if found is None else [
            f"llama.cpp gives other tokens for the text {text!r}: {theirs} where the tokenizer gives {ours}."
            for text, theirs in zip(SAMPLES, found, strict=True) if theirs != (ours := tokenizer.encode(text))]


def foreign_llama(path: Path, tokens: Tensor) -> tuple[Tensor | None, tuple[str, ...]]:
    """llama.cpp's logits, or None with a note."""
    found = llama_logits(path, tokens)
    return found, () if found is not None else (
        "llama.cpp has not opened the file here: install llama-cpp-python, and conversion compares its logits.",)
