"""Slots: rows of one batch that come and go, each continued in its own way.

    slots = Slots(model.eval(), 8, capacity=512)
    slot = slots.admit([5, 3, 9], RowSettings(max_new_tokens=100, sampling=Sampling(0.8), row=1))
    for new in slots.step():            one token of every row; rows that have ended have left
        ...
    slots.retire(slot)                  before its end

A row's tokens depend on its prompt, its settings, its seed and index, and on nothing else: not on its neighbours, nor
on when it came. The state's tensors stay where they are while rows come and go, so that recorded and compiled steps go
on (`weft.decoding.steps`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import torch

from weft.core.errors import InputError
from weft.core.model import LanguageModel
from weft.decoding.choosing import Choosing, RowSettings, choose
from weft.decoding.compiled import CompiledStep
from weft.decoding.mode import require_causal
from weft.decoding.output import NewToken
from weft.decoding.prompts import Begun, prepare_more
from weft.decoding.rows import Row, RowLike, parse_rows
from weft.decoding.session import Session
from weft.decoding.stopping import Writer
from weft.tokenizers import Tokenizer


@final
@dataclass
class _Occupant:
    """A row in a slot: what it reads, how its tokens are chosen, what they come to."""

    read: tuple[int, ...]
    choosing: Choosing
    writer: Writer


@final
class Slots:
    """A batch of rows that are continued together and come and go one by one.

    Args:
        model: any causal language model, in evaluation mode for as long as its rows run.
        size: rows that run together at most.
        capacity: tokens that a row may have read: its prompt, and all of its new tokens but the last.
        tokenizer: gives the text; needed for stop strings; ids that it lacks (rounded-up vocabulary) are never chosen.
        start: the token that opens a document, put before prompts that are empty.
        compiled: the model's compiled step.
        plain: take every step through the model's own code (`weft.decoding.steps`).

    Raises:
        InputError: no slot, or a model in training mode.
    """

    def __init__(self, model: LanguageModel, size: int, *, capacity: int, tokenizer: Tokenizer | None = None,
                 start: int | None = None, compiled: CompiledStep | None = None, plain: bool = False) -> None:
        if size < 1:
            raise InputError(f"{size} slots.", where="size", remedy="Give 1 or more.")
        if model.training:
            raise InputError("the model is in training mode, so its tokens would be drawn with dropout.",
                             where="model", remedy="Call model.eval() first.")
        self._model, self._size, self._capacity = model, size, capacity
        self._tokenizer, self._start, self._compiled, self._plain = tokenizer, start, compiled, plain
        self._session: Session | None = None
        self._rows, self._ended = dict[int, _Occupant](), dict[int, _Occupant]()
        self._chosen: list[int] | None = None
        self._interrupted = False

    @property
    def size(self) -> int:
        """How many slots there are."""
        return self._size

    @property
    def live(self) -> tuple[int, ...]:
        """Slots whose rows go on."""
        return tuple(sorted(self._rows))

    @property
    def free(self) -> tuple[int, ...]:
        """Slots that a row can be admitted to."""
        return tuple(slot for slot in range(self._size) if slot not in self._rows)

    @property
    def by_tape(self) -> bool:
        """The steps are taken by a tape that has been checked (`weft.decoding.steps`)."""
        return self._session is not None and self._session.by_tape

    def admit(self, prompt: RowLike, settings: RowSettings, begun: Begun | None = None) -> int:
        """Read a prompt into a free slot, whose number is given.

        Args:
            prompt: ids, or with a source for an encoder-decoder.
            settings: how the row is continued.
            begun: a state that has read the beginning of the prompt, not all of it; it is consumed.

        Raises:
            InputError: no slot is free, the row needs more room than there is, or what `admit_all` refuses.
        """
        return self.admit_all([prompt], [settings], begun)[0]

    def admit_all(self, prompts: Sequence[RowLike], settings: Sequence[RowSettings],
                  begun: Begun | None = None) -> list[int]:
        """Read several prompts at once, each into a slot of its own.

        Raises:
            InputError: before the model runs: ids that the model does not know, a prompt without tokens, settings that
                cannot be used, more rows than slots are free, or more tokens than a slot has room for.
            UnsupportedError: a bidirectional model.
        """
        rows = self._prepared(prompts, settings)
        slots = list(self.free[: len(rows)])
        if len(slots) < len(rows):
            raise InputError(f"{len(rows)} rows, and {len(slots)} of {self._size} slots are free.", where="rows",
                             remedy="Wait until rows end, retire some, or start with more slots.")
        if not rows:
            return []
        self._read_chosen()
        if self._session is None:
            self._session = Session(self._model, rows, begun=begun, compiled=self._compiled, plain=self._plain,
                                    size=self._size, capacity=self._capacity)
        else:
            self._session.admit(slots, rows, begun)
        for slot, row, own in zip(slots, rows, settings, strict=True):
            self._ended.pop(slot, None)
            self._rows[slot] = _Occupant(row.tokens, Choosing(row, own, self._model.vocab_size), Writer(
                own.row, row, own.max_new_tokens, own.ending, self._tokenizer))
        return slots

    def step(self) -> list[NewToken]:
        """One more token of every row, by slots. Rows that end with it leave their slots.

        Raises:
            FailedError: the model gives NaN, or no token a chance.
        """
        self._read_chosen()
        if self._session is None or not self._rows:
            return []
        known = None if self._tokenizer is None else self._tokenizer.vocab_size
        tokens, log_probs = choose(self._session, {slot: self._rows[slot].choosing for slot in self.live}, known)
        chosen: list[int] = tokens.tolist()
        found = {slot: self._rows[slot].writer.write(chosen[slot], log_probs.get(slot)) for slot in self.live}
        self._chosen = chosen
        for slot, new in found.items():
            if new.finish:
                self.retire(slot)
        return list(found.values())

    def retire(self, slot: int) -> None:
        """End the row in ``slot``.

        Raises:
            InputError: there is none.
        """
        if slot not in self._rows:
            raise InputError(f"no row in slot {slot}.", where="slot", remedy=f"The live slots: {list(self.live)}.")
        self._ended[slot] = self._rows.pop(slot)

    def leave(self, slot: int) -> Begun | None:
        """End the row in ``slot``, or take one that has ended with the last step, and give its state, which has read
        the prompt and all new tokens but the last, to go on from; None where an interrupt has cut a step short."""
        if slot in self._rows:
            self.retire(slot)
        read = self._ended.pop(slot).read
        if self._session is None or self._interrupted:
            return None
        return Begun(read, self._session.state_of(slot))

    def close_up(self) -> None:
        """Give up the slots that are free; the rows that go on move together, in order. A step of fewer rows is faster,
        and the state is copied for it: worth while when nobody waits for a slot and a quarter of them are free."""
        live = self.live
        if self._session is None or not live or len(live) == self._size:
            return
        self._session.select(torch.tensor(live, device=self._session.device))
        self._chosen = None if self._chosen is None else [self._chosen[slot] for slot in live]
        self._rows, self._ended = {place: self._rows[slot] for place, slot in enumerate(live)}, {}
        self._size = len(live)

    def _read_chosen(self) -> None:
        """Let the rows read the tokens that were chosen for them last."""
        chosen, self._chosen = self._chosen, None
        if self._session is None or chosen is None or not self._rows:
            return
        self._interrupted = True
        self._session.retire(list(self._ended))
        self._session.advance(torch.tensor(chosen, device=self._session.device))
        for slot, row in self._rows.items():
            row.read = (*row.read, chosen[slot])
        self._ended, self._interrupted = {}, False

    def _prepared(self, prompts: Sequence[RowLike], settings: Sequence[RowSettings]) -> list[Row]:
        """The rows as they will be read."""
        if len(prompts) != len(settings):
            raise InputError(f"{len(settings)} settings for {len(prompts)} rows.", where="settings",
                             remedy="Give one for each row.")
        if self._session is None:
            require_causal(self._model, "decoding")
        rows: list[Row] = []
        for prompt, own in zip(prompts, settings, strict=True):
            if own.max_new_tokens < 1:
                raise InputError(f"{own.max_new_tokens} new tokens.", where="max_new_tokens", remedy="Give 1 or more.")
            own.ending.require_usable(self._model, self._tokenizer)
            row, = prepare_more(self._model, parse_rows([prompt]), max_new_tokens=own.max_new_tokens, start=self._start)
            self._require_room(row, own)
            rows.append(row)
        return rows

    def _require_room(self, row: Row, settings: RowSettings) -> None:
        needed = len(row.tokens) + settings.max_new_tokens - 1
        if needed > self._capacity:
            raise InputError(f"{len(row.tokens)} tokens of prompt and {settings.max_new_tokens} new ones are {needed} "
                             f"to read, and a slot has room for {self._capacity}.", where=f"rows[{settings.row}]",
                             remedy="Shorten the prompt, lower max_new_tokens, or start with a larger capacity.")
