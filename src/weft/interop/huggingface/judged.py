"""A folder of `transformers` as `weft judge` asks a model, for families that Weft itself does not read.

It runs in the confined process; the folder is named by the environment. No code of the folder's own is run.
"""

from __future__ import annotations

import os
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

FOLDER = "WEFT_JUDGED_FOLDER"
"""The variable of the environment that names the folder."""

TEXT_FILES = ("tokenizer", "vocab", "spiece", "sentencepiece", "merges")
"""Beginnings of the names of a tokenizer's files."""


class FromFolder:
    """The model and tokenizer of the folder, which are read when they are first asked for."""

    takes = "torch"

    def __init__(self) -> None:
        if not any(name.startswith(TEXT_FILES) for name in os.listdir(os.environ.get(FOLDER, os.curdir))):
            self.encode = self.decode = None  # type: ignore[assignment]  # there is no tokenizer to be asked

    @cached_property
    def _model(self) -> Any:
        from transformers import AutoModelForCausalLM

        return AutoModelForCausalLM.from_pretrained(os.environ[FOLDER], local_files_only=True, trust_remote_code=False,
                                                    dtype=torch.float32).eval()

    @cached_property
    def _tokenizer(self) -> Any:
        from transformers import AutoTokenizer

        return AutoTokenizer.from_pretrained(os.environ[FOLDER], local_files_only=True, trust_remote_code=False)

    @cached_property
    def vocab_size(self) -> int:
        """The number of ids."""
        return int(self._model.config.get_text_config().vocab_size)

    @cached_property
    def context(self) -> int | None:
        """The longest row that the configuration states."""
        stated = getattr(self._model.config.get_text_config(), "max_position_embeddings", None)
        return None if stated is None else int(stated)

    def __call__(self, ids: Tensor) -> Tensor:
        """Logits [B,T,V] of rows of ids [B,T]."""
        logits: Tensor = self._model(ids, use_cache=False).logits
        return logits

    def start(self, batch: int) -> Any:
        """The state of a decoder that has read nothing."""
        return None

    def step(self, ids: Tensor, state: Any) -> tuple[Tensor, Any]:
        """Logits [B,V] after one more token [B], and the state, by the model's own cache."""
        told = self._model(ids[:, None], past_key_values=state, use_cache=True)
        return told.logits[:, -1], told.past_key_values

    def encode(self, text: str) -> list[int]:
        """The ids of a text, without special tokens."""
        found: list[int] = self._tokenizer.encode(text, add_special_tokens=False)
        return found

    def decode(self, ids: list[int]) -> str:
        """The text of ids."""
        text: str = self._tokenizer.decode(ids, clean_up_tokenization_spaces=False)
        return text


model = FromFolder()
