"""The log-probability of every token of rows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from safetensors import SafetensorError
from torch import Tensor

from weft.checkpoints.tensors import write_tensors
from weft.core.errors import FailedError, InputError
from weft.core.model import LanguageModel
from weft.core.span import Span
from weft.core.strict_json import Record, plain
from weft.decoding.mode import declares_length, device_of, evaluation_mode, require_causal, require_room
from weft.decoding.prompts import encode_sources, ragged
from weft.decoding.rows import Row, RowLike, check_rows, parse_rows, with_start
from weft.disk.atomic import new_file
from weft.evaluation.measuring import exponential


@dataclass(frozen=True)
class ScoredRow:
    """The tokens of a row, and the log-probability of each given those before it.

    Attributes:
        tokens: the row's ids; those of the target if there is a source.
        log_probs: the log-probability of each token, in nats; -inf for probability zero. The first is None unless a
            start token was given, because no token precedes it.
    """

    tokens: tuple[int, ...]
    log_probs: tuple[float | None, ...]

    @property
    def scored(self) -> int:
        """The number of tokens with a log-probability."""
        return sum(value is not None for value in self.log_probs)

    @property
    def total(self) -> float:
        """The sum of the log-probabilities, in nats."""
        return sum(value for value in self.log_probs if value is not None)

    @property
    def perplexity(self) -> float | None:
        """exp(-total / scored); None if no token was scored."""
        return exponential(-self.total / self.scored) if self.scored else None


@dataclass(frozen=True, eq=False)
class Scored(Record):
    """The result of `score`.

    Attributes:
        rows: the scored rows, in the order of the input.
        logits: for each row the logits [T,V] in float32 after each of its T tokens; None unless requested.
        start: the token that was put before every row, or None.
    """

    rows: tuple[ScoredRow, ...]
    logits: tuple[Float[Tensor, "T V"], ...] | None = None
    start: int | None = None

    def to_json(self) -> dict[str, Any]:
        """Plain data, without the logits (see `write_logits`)."""
        return {"start": self.start, "rows": plain([
            {"tokens": row.tokens, "log_probs": row.log_probs, "scored": row.scored, "total": row.total,
             "perplexity": row.perplexity} for row in self.rows])}


def score(model: LanguageModel, rows: Sequence[RowLike], *, start: int | None = None, logits: bool = False,
          batch_size: int = 8) -> Scored:
    """The log-probability of every token of every row, given the tokens before it and the source, if there is one. The
    tokens of a row's ``prefix`` have none.

    Args:
        model: any causal language model; it is scored in evaluation mode.
        rows: rows of ids, of any lengths; with a source each for an encoder-decoder.
        start: a token to put before every row, so that first tokens are scored too; None: none.
        logits: whether to return the logits of each row.
        batch_size: rows that are run together; it does not change the results.

    Raises:
        InputError: a row has ids beyond the vocabulary, is too long, or lacks a source.
        UnsupportedError: the model is bidirectional.
        FailedError: the model's output is NaN.
    """
    require_causal(model, "scoring")
    if batch_size < 1:
        raise InputError(f"{batch_size} rows.", where="batch_size", remedy="Give 1 or more.")
    parsed = parse_rows(list(rows))
    check_rows(parsed, model)
    inputs = with_start(parsed, start, model, only_empty=False)
    for index, row in enumerate(inputs):
        require_room(model, len(row.tokens), f"rows[{index}]", f"{len(row.tokens)} tokens", "Give a shorter row.")
    results: dict[int, tuple[ScoredRow, Tensor | None]] = {}
    with evaluation_mode(model), torch.inference_mode():
        # Rows of similar length run together, since they need little padding.
        order = sorted(range(len(inputs)), key=lambda index: len(inputs[index].tokens))
        for first in range(0, len(order), batch_size):
            group = order[first : first + batch_size]
            scored = _run(model, [inputs[index] for index in group], start is not None, logits)
            results.update(zip(group, scored, strict=True))
    for index in range(len(parsed)):
        if math.isnan(results[index][0].total):
            raise FailedError("the model gives NaN.", where=f"rows[{index}]",
                              remedy="Check the checkpoint with weft check, or use a wider dtype.")
    ordered = [results[index] for index in range(len(parsed))]
    return Scored(tuple(row for row, _ in ordered),
                  tuple(values for _, values in ordered if values is not None) if logits else None, start)


def write_logits(path: str | Path, scored: Scored) -> None:
    """Write the logits ``row_0``, ``row_1``, ... [T,V] in float32 as a safetensors file, complete or not at all.

    Raises:
        InputError: the rows were scored without logits, or the file cannot be written.
        OccupiedError: the file exists already.
    """
    if scored.logits is None:
        raise InputError("these rows were scored without logits.", where="logits", remedy="Score with logits=True.")
    try:
        with new_file(Path(path)) as draft:
            write_tensors(draft, {f"row_{index}": values for index, values in enumerate(scored.logits)})
    except (OSError, SafetensorError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise InputError(f"the file cannot be written ({reason}).", where=str(path),
                         remedy="Give a path in a folder that exists and has room.") from None


def _run(model: LanguageModel, rows: Sequence[Row], started: bool,
         logits: bool) -> list[tuple[ScoredRow, Tensor | None]]:
    device = device_of(model)
    batch = ragged([row.tokens for row in rows], device)
    span = Span(count=batch.counts, prefix=batch.first([row.prefix for row in rows]),
                memory=encode_sources(model, rows, device),
                horizon=batch.count if declares_length(model) else None)
    h = model.hidden(batch.tokens, None, span).y
    values = model.readout.log_prob(h[:, :-1], batch.tokens[:, 1:]).double().cpu() if batch.longest else None
    results: list[tuple[ScoredRow, Tensor | None]] = []
    for place, row in enumerate(rows):
        length = len(row.tokens)
        log_probs: list[float | None] = [] if values is None else values[place, : max(length - 1, 0)].tolist()
        known = max(0, row.prefix - 1)  # the tokens of a prefix are read, and no token of it predicts the next
        log_probs[:known] = [None] * known
        if started:
            scored = ScoredRow(row.tokens[1:], tuple(log_probs))
        else:
            scored = ScoredRow(row.tokens, (None, *log_probs) if length else ())
        own = h[place : place + 1, int(started) : length]
        results.append((scored, model.readout.logits(own)[0].float().cpu() if logits else None))
    return results
