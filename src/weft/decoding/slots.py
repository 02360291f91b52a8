"""Slots: rows of one batch that are admitted and retired independently, each continued with its own settings.

    slots = Slots(model.eval(), 8, capacity=512)
    slot = slots.admit([5, 3, 9], RowSettings(max_new_tokens=100, sampling=Sampling(0.8), row=1))
    for new in slots.step():            one token of every row; rows that end free their slots
        ...
    slots.retire(slot)                  ends a row early

A row's tokens depend only on its prompt, its settings, its seed and its index: not on the other rows, nor on when it
was admitted. The state's tensors are not replaced when rows are admitted or retired, so that recorded and compiled
steps stay valid (`weft.decoding.steps`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import torch

from weft.core.errors import FailedError, InputError
from weft.core.model import LanguageModel
from weft.decoding.choosing import UNTOLD, Choosing, RowSettings, choose
from weft.decoding.compiled import CompiledStep
from weft.decoding.mode import require_causal
from weft.decoding.prompts import PromptState, prepare_more
from weft.decoding.rows import Row, RowLike, parse_rows
from weft.decoding.session import Session
from weft.decoding.stopping import NewToken, Writer
from weft.tokenizers import Tokenizer


@final
@dataclass
class _Occupant:
    """A row in a slot: the tokens it has consumed, how its tokens are chosen, and its output."""

    read: tuple[int, ...]
    choosing: Choosing
    writer: Writer


@final
class Slots:
    """A batch of rows that are continued together, and admitted and retired one by one.

    Args:
        model: any causal language model, in evaluation mode as long as there are rows.
        size: maximum number of rows that run together.
        capacity: maximum number of tokens that a row may consume: its prompt, and all of its new tokens but the last.
        tokenizer: decodes the text; required for stop strings; ids outside its vocabulary (a model's rounded-up
            vocabulary) are never chosen.
        start: the token that begins a document, put before empty prompts.
        plain: run every step through the model's own code, and record no tape (`weft.decoding.steps`).

    Raises:
        InputError: ``size`` is below 1, or the model is in training mode.
    """

    def __init__(self, model: LanguageModel, size: int, *, capacity: int, tokenizer: Tokenizer | None = None,
                 start: int | None = None, compiled: CompiledStep | None = None, plain: bool = False) -> None:
        if size < 1:
            raise InputError(f"{size} is out of range.", where="size", remedy="Give 1 or more.")
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
        """The number of slots."""
        return self._size

    @property
    def live(self) -> tuple[int, ...]:
        """Slots with a row that has not ended."""
        return tuple(sorted(self._rows))

    @property
    def free(self) -> tuple[int, ...]:
        """Slots to which a row can be admitted."""
        return tuple(slot for slot in range(self._size) if slot not in self._rows)

    @property
    def by_tape(self) -> bool:
        """Whether steps replay a tape that has been verified (`weft.decoding.steps`)."""
        return self._session is not None and self._session.by_tape

    def admit(self, prompt: RowLike, settings: RowSettings, begun: PromptState | None = None) -> int:
        """Run the model on a prompt in a free slot, and return the slot's number.

        Args:
            prompt: ids, together with a source for an encoder-decoder.
            settings: how the row is continued.
            begun: the state after the beginning of the prompt, which must be shorter than the prompt; it is consumed.

        Raises:
            InputError: as for `admit_all`.
            UnsupportedError: the model is bidirectional.
        """
        return self.admit_all([prompt], [settings], begun)[0]

    def admit_all(self, prompts: Sequence[RowLike], settings: Sequence[RowSettings],
                  begun: PromptState | None = None) -> list[int]:
        """Run the model on several prompts at once, each in a free slot, and return the slots' numbers.

        Raises:
            InputError: before the model runs: ids outside the vocabulary, a prompt without tokens, settings that cannot
                be used, more rows than free slots, or more tokens than a slot has room for.
            UnsupportedError: the model is bidirectional.
        """
        rows = self._prepared(prompts, settings)
        occupants = [_Occupant(row.tokens, Choosing(row, own, self._model.vocab_size), Writer(
            own.row, row, own.max_new_tokens, own.ending, self._tokenizer))
            for row, own in zip(rows, settings, strict=True)]
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
        for slot, occupant in zip(slots, occupants, strict=True):
            self._ended.pop(slot, None)
            self._rows[slot] = occupant
        return slots

    def step(self, failed: dict[int, FailedError] | None = None) -> list[NewToken]:
        """Choose the next token of every row, and return them in the order of their slots. Rows that end free their
        slots.

        Args:
            failed: takes the errors of rows that fail, by slot. They free their slots, and the other rows go on.

        Raises:
            FailedError: a row fails, and ``failed`` is None: the model returns NaN, or probability zero for every
                token, or the row's constraint cannot go on.
        """
        self._read_chosen()
        if self._session is None or not self._rows:
            return []
        known = None if self._tokenizer is None else self._tokenizer.vocab_size
        tokens, told, errors = choose(self._session, {slot: self._rows[slot].choosing for slot in self.live}, known)
        for slot, error in errors.items():
            if failed is None:
                raise error
            failed[slot] = error
            self.retire(slot)
        chosen: list[int] = tokens.tolist()
        written = {slot: self._rows[slot].writer.write(chosen[slot], *told.get(slot, UNTOLD),
                                                       self._rows[slot].choosing.complete) for slot in self.live}
        self._chosen = chosen
        for slot, new in written.items():
            if new.finish:
                self.retire(slot)
        return list(written.values())

    def retire(self, slot: int) -> None:
        """End the row in ``slot``. Raises `InputError`: there is no row in the slot."""
        if slot not in self._rows:
            raise InputError(f"there is no row in slot {slot}.", where="slot",
                             remedy=f"Name one of the slots with rows: {list(self.live)}.")
        self._ended[slot] = self._rows.pop(slot)

    def leave(self, slot: int) -> PromptState | None:
        """End the row in ``slot``, unless it ended with the last step, and return its state for a later continuation.
        The state has consumed the prompt and all new tokens but the last. None if an exception (such as
        `KeyboardInterrupt`) interrupted a step, after which the state may be inconsistent."""
        if slot in self._rows:
            self.retire(slot)
        read = self._ended.pop(slot).read
        if self._session is None or self._interrupted:
            return None
        return PromptState(read, self._session.state_of(slot))

    def close_up(self) -> None:
        """Remove the free slots; the remaining rows are renumbered in order. Steps of fewer rows are faster, but the
        state is copied once: worthwhile if no row is waiting for a slot and a quarter of the slots are free."""
        live = self.live
        if self._session is None or not live or len(live) == self._size:
            return
        self._session.select(torch.tensor(live, device=self._session.device))
        self._chosen = None if self._chosen is None else [self._chosen[slot] for slot in live]
        self._rows, self._ended = {place: self._rows[slot] for place, slot in enumerate(live)}, {}
        self._size = len(live)

    def close(self) -> None:
        """End all rows. What was recorded of the steps is kept with the model for its next text
        (`weft.decoding.kept_tape`)."""
        session, self._session = self._session, None
        self._rows, self._ended, self._chosen = {}, {}, None
        if session is not None:
            session.close()

    def _read_chosen(self) -> None:
        """Run the model on the tokens chosen last. Deferred until their logits are needed, so that a row that ends is
        not run on its last token."""
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
        """Check the prompts and their settings, and return the rows to run the model on."""
        if len(prompts) != len(settings):
            raise InputError(f"{len(settings)} settings for {len(prompts)} rows.", where="settings",
                             remedy="Give settings for each row.")
        if self._session is None:
            require_causal(self._model, "decoding")
        rows: list[Row] = []
        for prompt, own in zip(prompts, settings, strict=True):
            if own.max_new_tokens < 1:
                raise InputError(f"{own.max_new_tokens} is out of range.", where="max_new_tokens",
                                 remedy="Give 1 or more.")
            own.require_usable(self._model, self._tokenizer)
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
