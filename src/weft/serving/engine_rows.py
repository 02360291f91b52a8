"""The computation of an engine's rows: prompts that are read, and batches that are continued.

Rows whose states have about the same capacity are continued in one batch, so that a short row does not reserve the
memory of a long one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import replace
from functools import partial
from typing import NamedTuple, final

import torch

from weft.core.model import EncoderInputs, LanguageModel
from weft.core.span import Memory
from weft.decoding.beam import Hypothesis, begin_search
from weft.decoding.mode import declares_length, device_of
from weft.decoding.prompts import PromptState
from weft.serving.prefixes import KeptPrefix, Prefixes, is_cuttable
from weft.serving.prompt_reading import BetweenOperations, PromptReading
from weft.serving.requests import Chosen, EngineLimits, PromptRead, Request
from weft.serving.row_adapters import RowAdapted
from weft.serving.running_batch import RunningBatch
from weft.serving.scheduler import Ticket
from weft.serving.speculation import Drafts
from weft.tokenizers import Tokenizer

EVERY = 256
"""Tokens between two kept states of one prompt, of a model whose state does not grow with them."""
SHORTEST, LONGER = 256, 4
"""The capacity of the batch of short rows, and the factor from one capacity to the next."""


class BatchKey(NamedTuple):
    """The batch of a row: the name of an adapter that is served apart, the most tokens that a row may read, and those
    of a source."""

    adapter: str | None
    capacity: int
    source: int


@final
class EngineRows:
    """The rows of one model and its adapters: the `weft.serving.scheduler.Runner` of an engine.

    Args:
        models: the model under None, and one with each adapter under its name; all in evaluation mode. Adapters whose
            rows share a batch have one model, a `RowAdapted`, which also computes rows without one.
        context: maximum number of tokens that a row may read.
        limits: numbers of rows, and bytes and tokens of kept states.
        drafting: makes what guesses the tokens of one row, or None.
    """

    def __init__(self, models: Mapping[str | None, LanguageModel], context: int, limits: EngineLimits,
                 tokenizer: Tokenizer | None, drafting: Callable[[], Drafts] | None) -> None:
        self._models, self._context, self._most, self._tokenizer = models, context, limits.rows, tokenizer
        self._readings, self._drafting = dict[Ticket, PromptReading](), drafting
        self._read = dict[Ticket, PromptRead]()
        self._batches = dict[BatchKey, RunningBatch[Ticket]]()
        self._searches = dict[Ticket, Iterator[tuple[Hypothesis, ...]]]()
        self._bytes = dict[tuple[int, int], int]()
        self._bounded = self._nbytes(SHORTEST, 1) == self._nbytes(SHORTEST * LONGER, 1)
        self._pieces = not models[None].takes_source and not declares_length(models[None])
        self.prefixes = Prefixes(limits.prefix_bytes if self._pieces else 0, limits.prefix_tokens,
                                 cuttable=self._pieces and is_cuttable(models[None].init_state(1)))
        self._shared = dict[Ticket, int]()

    def place(self, request: Request) -> BatchKey:
        """The batch that continues the request's row."""
        source = 0 if request.row.source is None else _bucket(len(request.row.source), 16, 2)
        capacity = self._context if self._bounded else min(self._context, _bucket(request.tokens, SHORTEST, LONGER))
        apart = self._models[request.adapter] is not self._models[None]
        return BatchKey(request.adapter if apart else None, capacity, source)

    def _starting(self, ticket: Ticket) -> AbstractContextManager[None]:
        """The context in which the state of a row is started."""
        model, name = self._models[ticket.request.adapter], ticket.request.adapter
        return model.starting(name) if isinstance(model, RowAdapted) else nullcontext()

    def nbytes(self, request: Request) -> int:
        """Bytes of the state of the request's row, or of its hypotheses."""
        place = self.place(request)
        return self._nbytes(place.capacity, place.source) * (request.beams.beams if request.beams else 1)

    @torch.inference_mode()
    def begin(self, ticket: Ticket) -> int:
        """`Runner.begin`."""
        asked, model = ticket.request, self._models[ticket.request.adapter]
        found = KeptPrefix(None, "unsupported", 0)
        if asked.prompt_log_probs is not None:
            found = KeptPrefix(None, "not asked", 0)
        elif not ticket.whole:
            found = self.prefixes.find(asked.adapter, asked.row.tokens)
        self._readings[ticket] = reading = PromptReading(model, asked.row, found.begun, asked.prompt_log_probs,
                                                         self.place(asked).capacity)
        self._read[ticket], self._shared[ticket] = PromptRead(reading.read, found.reuse), found.shared
        return reading.read

    @torch.inference_mode()
    def read(self, ticket: Ticket, upto: int, interrupt: Callable[[], None]) -> None:
        """`Runner.read`."""
        reading, model = self._readings[ticket], self._models[ticket.request.adapter]
        with BetweenOperations(partial(model.aside, interrupt) if isinstance(model, RowAdapted) else interrupt):
            self._read_to_shared(ticket, upto)
            before = reading.read
            if before < upto:
                with self._starting(ticket):
                    reading.on_to(upto)
        if self._bounded and upto // EVERY > before // EVERY:
            self._keep(ticket, reading.copy())

    def _read_to_shared(self, ticket: Ticket, upto: int) -> None:
        """Read on to where the prompt diverges from an earlier one, if that is before ``upto``, and keep the state."""
        reading, shared = self._readings[ticket], self._shared[ticket]
        if not self.prefixes.cuttable and reading.read < shared <= upto:
            with self._starting(ticket):
                reading.on_to(shared)
            self._keep(ticket, reading.copy())

    def _keep(self, ticket: Ticket, begun: PromptState | None) -> None:
        if begun is not None and ticket.request.keep:
            self.prefixes.keep(ticket.request.adapter, begun)

    @torch.inference_mode()
    def admit(self, tickets: Sequence[Ticket]) -> None:
        """`Runner.admit`. Prompts of one batch of which nothing has been read yet are read together."""
        groups: dict[tuple[BatchKey, str | None, int], list[Ticket]] = {}
        for ticket in tickets:
            self._read_to_shared(ticket, ticket.length - 1)
            with self._starting(ticket):
                self._readings[ticket].finish()
                if (own := ticket.request).beams is not None:
                    self._searches[ticket] = begin_search(self._models[own.adapter], own.row, own.settings,
                                                          own.beams, self._tokenizer)
            if ticket.request.settings.max_new_tokens and ticket not in self._searches:
                alone = id(ticket) if self._readings[ticket].read else 0
                groups.setdefault((self.place(ticket.request), ticket.request.adapter, alone), []).append(ticket)
        admitted = list[Ticket]()
        try:
            for (place, _, _), group in groups.items():
                asked, begun = [ticket.request for ticket in group], self._readings[group[0]].taken()
                more = sum(self.place(each.request) == place for each in self._readings) - len(group)
                self._batch(place).admit(group, [each.row for each in asked], [each.settings for each in asked], begun,
                                         more)
                admitted += group
        except Exception:
            for ticket in admitted:
                self._batch(self.place(ticket.request)).leave(ticket)
            raise
        for ticket in tickets:
            self._read[ticket] = replace(self._read[ticket], log_probs=self._readings.pop(ticket).log_probs)
            with suppress(Exception):  # the copy is for later prompts only
                self._keep_row(ticket)

    def _keep_row(self, ticket: Ticket) -> None:
        """Keep the state of a row as it is now, if the request wants it."""
        batch, wanted = self._batches.get(self.place(ticket.request)), ticket.request.keep and not ticket.whole
        if batch is not None and wanted and self.prefixes.worth(ticket.length):
            self._keep(ticket, batch.state_of(ticket))

    def prompt_read(self, ticket: Ticket) -> PromptRead:
        """`Runner.prompt_read`."""
        return self._read.pop(ticket)

    @torch.inference_mode()
    def step(self) -> Sequence[Mapping[Ticket, Chosen | Exception]]:
        """`Runner.step`."""
        return [*(tokens for batch in self._batches.values() for tokens in batch.step()), self._searched()]

    def _searched(self) -> dict[Ticket, Chosen | Exception]:
        """The hypotheses of the searches that end with one more step, each of which is computed by itself."""
        found: dict[Ticket, Chosen | Exception] = {}
        for ticket, search in self._searches.items():
            try:
                found |= {ticket: hypotheses} if (hypotheses := next(search)) else {}
            except Exception as error:
                found[ticket] = error
        return found

    @torch.inference_mode()
    def leave(self, ticket: Ticket, *, complete: bool) -> None:
        """`Runner.leave`."""
        place = self.place(ticket.request)
        try:
            if complete:
                self._keep_row(ticket)
        finally:
            self._forget(ticket, place)

    def _forget(self, ticket: Ticket, place: BatchKey) -> None:
        for table in (self._readings, self._read, self._shared, self._searches):
            table.pop(ticket, None)
        if place in self._batches:
            self._batches[place].leave(ticket)
            if not len(self._batches[place]):
                del self._batches[place]

    def _batch(self, place: BatchKey) -> RunningBatch[Ticket]:
        if place not in self._batches:
            self._batches[place] = RunningBatch(self._models[place.adapter], place.capacity, self._most,
                                                self._tokenizer, self._starting, self._drafting)
        return self._batches[place]

    @torch.inference_mode()
    def _nbytes(self, capacity: int, source: int) -> int:
        """Bytes of the state of a row. It is made, not computed from a formula; nothing touches its memory."""
        model = self._models[None]
        if (capacity, source) not in self._bytes:
            memory = None
            if model.takes_source:
                one = model.encode(EncoderInputs(tokens=torch.zeros(1, 1, dtype=torch.int64, device=device_of(model))))
                memory = Memory(one.h.new_zeros(1, max(1, source), one.h.shape[-1]))
            state = model.init_state(1, capacity=capacity, device=device_of(model), memory=memory)
            self._bytes[capacity, source] = state.nbytes()
        return self._bytes[capacity, source]


def _bucket(number: int, least: int, factor: int) -> int:
    """The smallest of ``least``, ``least * factor``, ... that is not below ``number``."""
    while least < number:
        least *= factor
    return least
