"""Continue rows of tokens with any language model: greedily or by sampling, all at once or token by token."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor

from weft.core.errors import InputError
from weft.core.model import LanguageModel
from weft.decoding.compiled import CompiledStep
from weft.decoding.mode import evaluation_mode
from weft.decoding.rows import Row, RowLike, parse_rows, require_token
from weft.decoding.sampling import GREEDY, Noise, Sampling
from weft.decoding.session import Session, prepare
from weft.decoding.stopping import GrowingText
from weft.tokenizers import Tokenizer

Finish: TypeAlias = Literal["length", "stop_token", "stop_string"]

FINISHED_SHARE = 0.25
"""Finished rows are dropped from the batch once they are this share of it: a copy of the state for a smaller step."""


@dataclass(frozen=True)
class NewToken:
    """One token, as `stream` gives it.

    Attributes:
        row: index of the row.
        token: its id.
        log_prob: in nats, under the model itself; None unless asked for.
        text: text that is certain now (often empty); None without a tokenizer.
        finish: why this token is the row's last; None when it is not.
    """

    row: int
    token: int
    log_prob: float | None
    text: str | None
    finish: Finish | None


@dataclass(frozen=True)
class GeneratedRow:
    """What was generated for one row.

    Attributes:
        tokens: the new ids, with the stop token or the token that completed a stop string.
        text: their text, without the stop string; None without a tokenizer.
        log_probs: of each token, in nats, under the model itself (before temperature and the like); None unless asked
            for.
        finish: ``length`` (max_new_tokens reached), ``stop_token`` or ``stop_string``.
    """

    tokens: tuple[int, ...]
    text: str | None
    log_probs: tuple[float, ...] | None
    finish: Finish


@dataclass(frozen=True)
class Generated:
    """A row of new tokens for each prompt, in order."""

    rows: tuple[GeneratedRow, ...]

    def to_json(self) -> dict[str, Any]:
        """Plain data; what is None is left out."""
        return {"rows": [{name: list(value) if isinstance(value, tuple) else value
                          for name, value in asdict(row).items() if value is not None} for row in self.rows]}


@dataclass(frozen=True)
class Ending:
    """When a row ends before max_new_tokens.

    Attributes:
        tokens: ids that end a row.
        strings: text that ends a row; needs a tokenizer.
    """

    tokens: tuple[int, ...] = ()
    strings: tuple[str, ...] = ()


NEVER = Ending()
"""Rows end at max_new_tokens only."""


def generate(model: LanguageModel, rows: Sequence[RowLike], *, max_new_tokens: int, sampling: Sampling = GREEDY,
             ending: Ending = NEVER, tokenizer: Tokenizer | None = None, start: int | None = None, seed: int = 0,
             log_probs: bool = False, batch_size: int | None = None, compiled: CompiledStep | None = None) -> Generated:
    """Continue every row; the arguments and errors are those of `stream`."""
    prompts = parse_rows(list(rows))
    tokens: list[list[int]] = [[] for _ in prompts]
    probabilities: list[list[float]] = [[] for _ in prompts]
    texts: list[str] = ["" for _ in prompts]
    finishes: list[Finish] = ["length" for _ in prompts]
    for new in stream(model, prompts, max_new_tokens=max_new_tokens, sampling=sampling, ending=ending,
                      tokenizer=tokenizer, start=start, seed=seed, log_probs=log_probs, batch_size=batch_size,
                      compiled=compiled):
        tokens[new.row].append(new.token)
        texts[new.row] += new.text or ""
        if new.log_prob is not None:
            probabilities[new.row].append(new.log_prob)
        finishes[new.row] = new.finish or finishes[new.row]
    return Generated(tuple(
        GeneratedRow(tuple(tokens[row]), texts[row] if tokenizer else None,
                     tuple(probabilities[row]) if log_probs else None, finishes[row]) for row in range(len(prompts))))


def stream(model: LanguageModel, rows: Sequence[RowLike], *, max_new_tokens: int, sampling: Sampling = GREEDY,
           ending: Ending = NEVER, tokenizer: Tokenizer | None = None, start: int | None = None, seed: int = 0,
           log_probs: bool = False, batch_size: int | None = None,
           compiled: CompiledStep | None = None) -> Iterator[NewToken]:
    """Continue every row, giving each token as it comes.

    What is wrong with the arguments is raised at the call, before anything is computed. A row's tokens depend on the
    seed, its index and its own prompt, not on its neighbours.

    Args:
        model: any causal language model; it is in evaluation mode while tokens come.
        rows: prompts of different lengths: ids, or with a source for an encoder-decoder.
        max_new_tokens: tokens that a row gets at most; 0 is lawful.
        sampling: how tokens are chosen.
        ending: stop tokens and stop strings.
        tokenizer: gives the text; needed for stop strings; ids that it lacks (rounded-up vocabulary) are never chosen.
        start: the token that opens a document, put before prompts that are empty.
        seed: of the draws.
        log_probs: give the model's log-probability of each token.
        batch_size: rows that are continued together; None: all.
        compiled: the model's compiled step. Rows that have ended then stay in the batch to its end.

    Raises:
        InputError: rows or options that cannot be used.
        UnsupportedError: a bidirectional model.
        FailedError: while tokens come, when the model gives NaN or no token a chance.
    """
    prompts = prepare(model, parse_rows(list(rows)), max_new_tokens=max_new_tokens, start=start)
    _check_ending(model, ending, tokenizer)
    size = len(prompts) if batch_size is None else batch_size
    if size < 1:
        raise InputError(f"{size} rows.", where="batch_size", remedy="Give 1 or more.")

    def each() -> Iterator[NewToken]:
        with evaluation_mode(model):
            for first in range(0, len(prompts) if max_new_tokens else 0, size):
                group = range(first, min(first + size, len(prompts)))
                writers = [Writer(row, prompts[row], max_new_tokens, ending, tokenizer) for row in group]
                chooser = Chooser(model, [prompts[row] for row in group], sampling, Noise(seed, group), log_probs)
                yield from _continue(model, [prompts[row] for row in group], writers, chooser, max_new_tokens, compiled)

    return each()


def _continue(model: LanguageModel, prompts: list[Row], writers: list[Writer], chooser: Chooser,
              max_new_tokens: int, compiled: CompiledStep | None) -> Iterator[NewToken]:
    """One batch from its prefill to the last row's end."""
    session = Session(model, prompts, max_new_tokens=max_new_tokens, compiled=compiled)
    for step in range(max_new_tokens):
        tokens, probabilities = chooser.choose(session, step, writers)
        for writer, token, probability in zip(writers, tokens.tolist(), probabilities, strict=True):
            if not writer.finish:
                yield writer.write(token, probability)
        live = [place for place, writer in enumerate(writers) if not writer.finish]
        if not live:
            return
        if compiled is not None:
            session.advance(tokens)
            continue
        if len(live) <= (1 - FINISHED_SHARE) * len(writers):
            index = torch.tensor(live, device=session.device)
            session.select(index)
            chooser.select(index)
            writers, tokens = [writers[place] for place in live], tokens[index]
        standing = len(live) < len(writers)
        moving = torch.tensor([not writer.finish for writer in writers], device=session.device) if standing else None
        session.advance(tokens, moving)


class Chooser:
    """Chooses the next token of every row of a session, and remembers what each row has for the repetition penalty."""

    def __init__(self, model: LanguageModel, prompts: Sequence[Row], sampling: Sampling, noise: Noise,
                 log_probs: bool) -> None:
        self._sampling, self._noise, self._log_probs = sampling, noise, log_probs
        self._seen: Tensor | None = None
        if sampling.repetition_penalty != 1:
            self._seen = torch.zeros(len(prompts), model.vocab_size, dtype=torch.bool)
            for place, row in enumerate(prompts):
                self._seen[place, list(row.tokens)] = True

    def choose(self, session: Session, step: int,
               writers: Sequence[Writer]) -> tuple[Tensor, list[float] | list[None]]:
        """Tokens [B], and their log-probabilities when asked for."""
        known = writers[0].known
        tokens = session.likeliest({place: writer.row for place, writer in enumerate(writers) if not writer.finish},
                                   known)
        if not self._sampling.greedy or self._seen is not None:
            tokens = self._draw(session.logits[:, :known], step, [writer.row for writer in writers])
        if not self._log_probs:
            return tokens, [None] * len(writers)
        chosen: list[float] = session.log_probs().gather(1, tokens[:, None])[:, 0].tolist()
        return tokens, chosen

    def _draw(self, logits: Tensor, step: int, rows: list[int]) -> Tensor:
        """Tokens by the rule of the sampling."""
        if self._seen is not None:
            self._seen = self._seen.to(logits.device)
        uniform = None if self._sampling.greedy else self._noise.at(step, rows).to(logits.device)
        seen = None if self._seen is None else self._seen[:, : logits.shape[1]]
        tokens = self._sampling.choose(logits, seen, uniform)
        if self._seen is not None:
            self._seen.scatter_(1, tokens[:, None], True)
        return tokens

    def select(self, rows: Tensor) -> None:
        """Keep these rows."""
        self._seen = None if self._seen is None else self._seen.index_select(0, rows)


class Writer:
    """One row's output: its text so far and whether it has ended."""

    def __init__(self, row: int, prompt: Row, max_new_tokens: int, ending: Ending,
                 tokenizer: Tokenizer | None) -> None:
        self.row, self._left, self._stops = row, max_new_tokens, frozenset(ending.tokens)
        self.known = None if tokenizer is None else tokenizer.vocab_size
        self._text: GrowingText | None = None
        if tokenizer is not None:
            decoder = tokenizer.stream()
            decoder.follow(token for token in prompt.tokens if token < tokenizer.vocab_size)
            self._text = GrowingText(decoder, ending.strings)
        self.finish: Finish | None = None

    def write(self, token: int, log_prob: float | None) -> NewToken:
        """Take one token."""
        self._left -= 1
        piece = None if self._text is None else self._text.push(token)
        if token in self._stops:
            self.finish = "stop_token"
        elif self._text is not None and self._text.stopped:
            self.finish = "stop_string"
        elif self._left == 0:
            self.finish = "length"
        if self._text is not None and piece is not None and self.finish:
            piece += self._text.finish()
        return NewToken(self.row, token, log_prob, piece, self.finish)


def _check_ending(model: LanguageModel, ending: Ending, tokenizer: Tokenizer | None) -> None:
    for place, token in enumerate(ending.tokens):
        require_token(token, model.vocab_size, f"ending.tokens[{place}]")
    if ending.strings and tokenizer is None:
        raise InputError("stop strings without a tokenizer.", where="ending.strings",
                         remedy="Give the tokenizer, or stop tokens.")
    if "" in ending.strings:
        raise InputError("an empty stop string.", where="ending.strings", remedy="Leave it out.")
