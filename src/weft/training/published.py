"""The run that the name of a published model stands for: its architecture, and defaults for training it anew."""

from __future__ import annotations

from typing import Any

from weft.core.model import ModelConfig
from weft.families.family import families
from weft.preset_files.models import Size

VOCABULARY = 4096
"""Most ids of the tokenizer that such a run trains: a text of some megabytes has few longer pieces that repeat."""
CONTEXT = 1024
"""Most tokens of a row of training, so that a batch needs little memory."""
BATCH_TOKENS = 4096
SECONDS = 60
TASKS: dict[str, Any] = {"encoder_decoder": {"kind": "sequence_to_sequence", "cut": True},
                         "image_encoder": "classify_images"}
"""Tasks of models that do not predict the next token, by the kind of model."""


def published_run(size: Size) -> dict[str, Any]:
    """A run's configuration as plain data.

    The model has the published shapes and random weights. Its tokenizer is trained with the run, on the run's text, and
    has at most `VOCABULARY` ids, so that rows of the embeddings beyond them are not trained. Published weights, with
    their tokenizer, are loaded by their name on the Hub.
    """
    config = families()[size.family].config(size)
    context = min(config.context, CONTEXT)
    return {"model": config.dump(), **_reads(config),
            "training": {"seconds": SECONDS, "context": context, "batch_size": max(1, BATCH_TOKENS // context),
                         "optimizer": {"kind": "adamw", "lr": 0.0003}}}


def _reads(config: ModelConfig) -> dict[str, Any]:
    """The task and the tokenizer."""
    if config.kind == "encoder":
        return {"task": "masked", "tokenizer": _tokenizer("wordpiece", config)}
    task = {"task": TASKS[config.kind]} if config.kind in TASKS else {}
    return {**task, "tokenizer": _tokenizer("bpe", config)} if config.reads_tokens else task


def _tokenizer(kind: str, config: ModelConfig) -> dict[str, Any]:
    return {"kind": kind, "vocab_size": min(config.vocab_size, VOCABULARY)}
