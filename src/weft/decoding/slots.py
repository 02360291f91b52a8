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

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import final

import torch

from weft.core.errors import FailedError, InputError
from weft.core.model import LanguageModel
from weft.decoding.choosing import UNTOLD, Choosing, RowSettings, choose
from weft.decoding.compiled import CompiledStep
from weft.decoding.mode import require_causal
from weft.decoding.prompts import PromptState, prepare
from weft.decoding.rows import Row, RowLike, parse_rows
from weft.decoding.sampling import ensure
from weft.decoding.session import Session
from weft.decoding.stopping import NewToken, Writer
from weft.tokenizers import Tokenizer


@final
@dataclass
class Occupant:
    """A row in a slot, with the tokens chosen so far, of which its state has consumed the first ``read``."""

    prompt: Row
    choosing: Choosing
    writer: Writer
    new: list[int] = field(default_factory=list)
    read: int = 0

    def row(self) -> Row:
        """The row with its new tokens."""
        return replace(self.prompt, tokens=(*self.prompt.tokens, *self.new)) if self.new else self.prompt


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
        ahead: neither `leave` nor `copy_of` is called, so steps may run ahead of the host (`weft.gpu.ahead`).
        session: makes the session, from the arguments of `Session`.

    Attributes:
        size: the number of slots, which `resize` changes.

    Raises:
        InputError: ``size`` is below 1, or the model is in training mode.
    """

    def __init__(self, model: LanguageModel, size: int, *, capacity: int, tokenizer: Tokenizer | None = None,
                 start: int | None = None, compiled: CompiledStep | None = None, plain: bool = False,
                 ahead: bool = False, session: Callable[..., Session] = Session) -> None:
        ensure("size", size, size >= 1)
        if model.training:
            raise InputError("the model is in training mode, so its tokens would be drawn with dropout.",
                             where="model", remedy="Call model.eval() first.")
        self._model, self.size, self._capacity, self._begin = model, size, capacity, session
        self._tokenizer, self._start, self._compiled, self._plain = tokenizer, start, compiled, plain
        self._ahead = ahead
        self._session: Session | None = None
        self._rows, self._ended = dict[int, Occupant](), dict[int, Occupant]()
        self._chosen: list[int] | None = None
        self._interrupted = False

    @property
    def live(self) -> tuple[int, ...]:
        """Slots with a row that has not ended."""
        return tuple(sorted(self._rows))

    @property
    def free(self) -> tuple[int, ...]:
        """Slots to which a row can be admitted."""
        return tuple(slot for slot in range(self.size) if slot not in self._rows)

    @property
    def by_tape(self) -> bool:
        """Whether steps replay a tape that has been verified (`weft.decoding.steps`)."""
        return self._session is not None and self._session.by_tape

    def admit(self, prompt: RowLike, settings: RowSettings, begun: PromptState | None = None) -> int:
        """`admit_all` of one prompt, whose slot is returned."""
        return self.admit_all([prompt], [settings], begun)[0]

    def admit_all(self, prompts: Sequence[RowLike], settings: Sequence[RowSettings],
                  begun: PromptState | None = None) -> list[int]:
        """Run the model on several prompts at once, each in a free slot, and return the slots' numbers.

        Args:
            prompts: ids, together with a source for an encoder-decoder.
            settings: how each row is continued.
            begun: the state after the beginning of the only prompt, which must be longer; it is consumed.

        Raises:
            InputError: before the model runs: ids outside the vocabulary, a prompt without tokens, settings that cannot
                be used, more rows than free slots, or more tokens than a slot has room for.
            UnsupportedError: the model is bidirectional.
        """
        return self.put(self._prepared(prompts, settings), settings, begun)

    def put(self, rows: Sequence[Row], settings: Sequence[RowSettings], begun: PromptState | None = None) -> list[int]:
        """`admit_all` of rows that are checked and prepared already. Raises `InputError`: too few slots are free."""
        occupants = [Occupant(row, Choosing(row, own, self._model.vocab_size), Writer(
            own.row, row, own.max_new_tokens, own.ending, self._tokenizer))
            for row, own in zip(rows, settings, strict=True)]
        slots = self.free[: len(rows)]
        if len(slots) < len(rows):
            raise InputError(f"{len(rows)} rows, and {len(slots)} of {self.size} slots are free.", where="rows",
                             remedy="Wait until rows end, retire some, or start with more slots.")
        if rows:
            self.read()
            self.enter(dict(zip(slots, occupants, strict=True)), begun)
        return list(slots)

    def enter(self, occupants: Mapping[int, Occupant], begun: PromptState | None = None) -> None:
        """Run the model on rows with their new tokens, in free slots; the first ones of a session in the first ones."""
        rows = [occupant.row() for occupant in occupants.values()]
        if self._session is None:
            self._session = self._begin(self._model, rows, begun=begun, compiled=self._compiled, plain=self._plain,
                                        size=self.size, capacity=self._capacity, ahead=self._ahead)
        else:
            self._session.admit(list(occupants), rows, begun)
        for slot, occupant in occupants.items():
            self._rows[slot], occupant.read = occupant, len(occupant.new)
            self._ended.pop(slot, None)

    def step(self, failed: dict[int, FailedError] | None = None) -> list[NewToken]:
        """Choose the next token of every row, and return them in the order of their slots. Rows that end free their
        slots.

        Args:
            failed: takes the errors of rows that fail, by slot. They free their slots, and the other rows go on.

        Raises:
            FailedError: a row fails, and ``failed`` is None: the model returns NaN, or probability zero for every
                token, or the row's constraint cannot go on.
        """
        return list(self.next_tokens(failed).values())

    def next_tokens(self, failed: dict[int, FailedError] | None = None,
                    only: Collection[int] | None = None) -> dict[int, NewToken]:
        """`step`, whose tokens are returned by slot; or one more of the rows ``only``, whose session has read on."""
        if only is None:
            self.read()
        if self._session is None or not self._rows:
            return {}
        known = None if self._tokenizer is None else self._tokenizer.vocab_size
        rows = [(slot, row) for slot, row in sorted(self._rows.items()) if only is None or slot in only]
        tokens, told, errors = choose(self._session, {slot: row.choosing for slot, row in rows}, known)
        if errors and failed is None:
            raise next(iter(errors.values()))
        chosen, written = tokens.tolist(), dict[int, NewToken]()
        self._chosen = chosen if only is None or self._chosen is None else self._chosen
        for slot, row in rows:
            if slot not in errors:
                row.read, self._chosen[slot] = len(row.new), (token := chosen[slot])
                row.new.append(token)
                try:
                    written[slot] = row.writer.write(token, *told.get(slot, UNTOLD), row.choosing.complete)
                except Exception as error:  # of a tokenizer, which may be anybody's
                    if failed is None:
                        raise
                    errors[slot] = FailedError(f"the token's text failed ({type(error).__name__}).",
                                               where=f"rows[{row.writer.row}]", remedy="Use another tokenizer.")
            if slot in errors or written[slot].finish:
                self._ended[slot] = self._rows.pop(slot)
        if failed is not None:
            failed.update(errors)
        return written

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
        found = self.copy_of(slot, lends=True)
        del self._ended[slot]
        return found

    def copy_of(self, slot: int, *, lends: bool = False) -> PromptState | None:
        """The state that `leave` returns, as a copy unless the session ``lends`` its own; the row and a tape go on."""
        if self._session is None or self._interrupted:
            return None
        row = self._rows[slot] if slot in self._rows else self._ended[slot]
        state = self._session.state_of(slot) if lends else self._session.copy_of(slot)
        return PromptState((*row.prompt.tokens, *row.new[: row.read]), state)

    def close_up(self) -> None:
        """`resize` to the rows that there are: worthwhile if no row waits and a quarter of the slots are free."""
        if self._session is not None and 0 < len(self._rows) < self.size:
            self.resize(len(self._rows))

    def resize(self, size: int) -> None:
        """Change the number of slots, to no fewer than rows, which are renumbered in order; the state is copied."""
        live = self.live
        if self._session is not None and live:
            added = [live[0]] * (size - len(live))
            self._session.select(torch.tensor([*live, *added], device=self._session.device))
            self._session.retire(range(len(live), size))
            self._chosen = None if self._chosen is None else [self._chosen[slot] for slot in (*live, *added)]
        elif self._session is not None:
            self.close()
        self._rows, self._ended = {place: self._rows[slot] for place, slot in enumerate(live)}, {}
        self.size = size

    def close(self) -> None:
        """End all rows. What was recorded of the steps is kept with the model for its next text
        (`weft.decoding.kept_tape`)."""
        session, self._session = self._session, None
        self._rows, self._ended, self._chosen = {}, {}, None
        if session is not None:
            session.close()

    def read(self) -> None:
        """Run the model on the tokens chosen last: so late that a row that ends is not run on its last token."""
        chosen, self._chosen = self._chosen, None
        if self._session is None or chosen is None or not self._rows:
            return
        self._interrupted = True
        self._session.retire(list(self._ended))
        self._session.advance(torch.tensor(chosen))
        for row in self._rows.values():
            row.read = len(row.new)
        self._ended, self._interrupted = {}, False

    def give_up(self) -> dict[int, Occupant]:
        """Forget the state, after `read` raised, and return the rows by slot, to be entered again."""
        rows, self._interrupted = self._rows, False
        self._session, self._chosen, self._rows, self._ended = None, None, {}, {}
        return rows

    def _prepared(self, prompts: Sequence[RowLike], settings: Sequence[RowSettings]) -> list[Row]:
        """Check the prompts and their settings, and return the rows to run the model on."""
        if len(prompts) != len(settings):
            raise InputError(f"{len(settings)} settings for {len(prompts)} rows.", where="settings",
                             remedy="Give settings for each row.")
        if self._session is None:
            require_causal(self._model, "decoding")
        rows: list[Row] = []
        for prompt, own in zip(prompts, settings, strict=True):
            ensure("max_new_tokens", own.max_new_tokens, own.max_new_tokens >= 1)
            own.require_usable(self._model, self._tokenizer)
            row, = prepare(self._model, parse_rows([prompt]), max_new_tokens=own.max_new_tokens, start=self._start,
                           known=0)
            needed = len(row.tokens) + own.max_new_tokens - 1
            if needed > self._capacity:
                raise InputError(f"{len(row.tokens)} tokens of prompt and {own.max_new_tokens} new ones are {needed} "
                                 f"to read, and a slot has room for {self._capacity}.", where=f"rows[{own.row}]",
                                 remedy="Shorten the prompt, lower max_new_tokens, or start with a larger capacity.")
            rows.append(row)
        return rows
