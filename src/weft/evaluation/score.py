"""Log-probabilities of given rows, token by token."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
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
from weft.evaluation.numbers import exponential


@dataclass(frozen=True)
class ScoredRow:
    """One row's tokens and how probable each was, given those before.

    Attributes:
        tokens: the row's ids (the target's, where there is a source).
        log_probs: of each token, in nats; -inf for what the model holds impossible. The first is None unless a start
            token was given: nothing precedes it.
    """

    tokens: tuple[int, ...]
    log_probs: tuple[float | None, ...]

    @property
    def scored(self) -> int:
        """Tokens that have a log-probability."""
        return sum(value is not None for value in self.log_probs)

    @property
    def total(self) -> float:
        """Sum of the log-probabilities, in nats."""
        return sum(value for value in self.log_probs if value is not None)

    @property
    def perplexity(self) -> float | None:
        """exp(-total / scored); None when nothing was scored."""
        return exponential(-self.total / self.scored) if self.scored else None


@dataclass(frozen=True, eq=False)
class Scored(Record):
    """What `score` gives.

    Attributes:
        rows: in the order in which they were given.
        logits: for each row [T,V] in float32, after each of its T tokens; None unless asked for.
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
    """The log-probability of every token of every row, given the tokens before it (and the source).

    Args:
        model: any causal language model, scored in evaluation mode.
        rows: ids of different lengths, or with a source for an encoder-decoder; an empty row scores nothing.
        start: the token that opens a document, put before every row, so that first tokens are scored too.
        logits: keep the logits of each row.
        batch_size: rows that are run together; it does not change the results.

    Raises:
        InputError: rows that the model cannot take.
        UnsupportedError: a bidirectional model.
        FailedError: the model gives NaN.
    """
    require_causal(model, "scoring")
    if batch_size < 1:
        raise InputError(f"{batch_size} rows.", where="batch_size", remedy="Give 1 or more.")
    given = parse_rows(list(rows))
    check_rows(given, model)
    inputs = with_start(given, start, model, only_empty=False)
    for index, row in enumerate(inputs):
        require_room(model, len(row.tokens), f"rows[{index}]", f"{len(row.tokens)} tokens", "Give a shorter row.")
    found: dict[int, tuple[ScoredRow, Tensor | None]] = {}
    with evaluation_mode(model), torch.inference_mode():
        for group in _groups(inputs, batch_size):
            results = _run(model, [inputs[index] for index in group], start is not None, logits)
            found.update(zip(group, results, strict=True))
    for index in range(len(given)):
        if math.isnan(found[index][0].total):
            raise FailedError("the model gives NaN.", where=f"rows[{index}]",
                              remedy="Check the checkpoint with weft check, or use a wider dtype.")
    kept = tuple(found[index][1] for index in range(len(given)))
    return Scored(tuple(found[index][0] for index in range(len(given))),
                  tuple(values for values in kept if values is not None) if logits else None, start)


def write_logits(path: str | Path, scored: Scored) -> None:
    """Write ``row_0``, ``row_1``, ... [T,V] in float32 as safetensors; the file appears whole or not at all.

    Raises:
        InputError: the rows were scored without keeping logits, or the file cannot be written.
        OccupiedError: something stands there already.
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


def _groups(rows: Sequence[Row], size: int) -> Iterator[list[int]]:
    """Rows of similar length together, so that little is padding."""
    order = sorted(range(len(rows)), key=lambda index: len(rows[index].tokens))
    for first in range(0, len(order), size):
        yield order[first : first + size]


def _run(model: LanguageModel, rows: Sequence[Row], started: bool,
         logits: bool) -> list[tuple[ScoredRow, Tensor | None]]:
    device = device_of(model)
    batch = ragged([row.tokens for row in rows], device)
    span = Span(count=batch.counts, memory=encode_sources(model, rows, device),
                horizon=batch.count if declares_length(model) else None)
    h = model.hidden(batch.tokens, None, span).y
    values = model.readout.log_prob(h[:, :-1], batch.tokens[:, 1:]).double().cpu() if batch.longest else None
    results: list[tuple[ScoredRow, Tensor | None]] = []
    for place, row in enumerate(rows):
        length = len(row.tokens)
        known: list[float] = [] if values is None else values[place, : max(length - 1, 0)].tolist()
        if started:
            scored = ScoredRow(row.tokens[1:], tuple(known))
        else:
            scored = ScoredRow(row.tokens, (None, *known) if length else ())
        results.append((scored, _logits(model, h[place : place + 1, int(started) : length]) if logits else None))
    return results


def _logits(model: LanguageModel, h: Tensor) -> Float[Tensor, "T V"]:
    return model.readout.logits(h)[0].float().cpu()
