"""A batch of rows of one model that are continued together, in as many places as there are rows.

The number of places follows the number of rows, by powers of two and their halves, so that one row does not pay for
many. A change of it copies the states and discards the recorded step, so a batch grows at once to the number of rows
that are expected, and shrinks late.
Rows of one batch have states of one capacity. If the model's call on the whole batch raises, every row is read again
from its tokens by itself, and only one that raises again has failed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Generic, TypeVar, final

import torch

from weft.core.model import LanguageModel
from weft.decoding.choosing import UNTOLD, Choosing, Told, choose
from weft.decoding.prompts import PromptState
from weft.decoding.rows import Row
from weft.decoding.session import Session
from weft.decoding.stopping import NewToken, Writer

K = TypeVar("K")

PATIENCE = 32
"""Steps during which half of the places must be to spare before they are removed: recording a step takes some ten."""


@final
@dataclass(eq=False)
class BatchRow(Generic[K]):
    """A row of a batch.

    Attributes:
        key: names the row for the caller.
        row: its prompt.
        choosing: how its tokens are chosen.
        writer: its output.
        new: the tokens chosen so far.
    """

    key: K
    row: Row
    choosing: Choosing
    writer: Writer
    new: list[int]

    @property
    def tokens(self) -> tuple[int, ...]:
        """The tokens of the row so far."""
        return (*self.row.tokens, *self.new)


@final
class RunningBatch(Generic[K]):
    """Rows of one model with states of one capacity.

    Args:
        model: in evaluation mode.
        capacity: maximum number of tokens that a row may read.
        most: maximum number of rows.
        known: ids from this one on are not chosen; None: all may be.
    """

    def __init__(self, model: LanguageModel, capacity: int, most: int, known: int | None) -> None:
        self._model, self._capacity, self._known = model, capacity, known
        self._sizes = sizes(most)
        self._session: Session | None = None
        self._lines = dict[int, BatchRow[K]]()
        self._gone = set[int]()  # places whose rows left since the last call on the batch
        self._pending: list[int] | None = None
        self._failed = dict[K, Exception]()
        self._spare = 0

    def __len__(self) -> int:
        return len(self._lines)

    @property
    def places(self) -> int:
        """The number of places, which a step computes whether they are taken or not."""
        return 0 if self._session is None else len(self._session.read)

    def admit(self, lines: Sequence[BatchRow[K]], begun: PromptState | None = None, expected: int = 0) -> None:
        """Read the prompts of rows, and take them in.

        Args:
            lines: rows that have no new tokens yet.
            begun: the state after the beginning of the only row's prompt, which is shorter; consumed.
            expected: number of further rows that will soon be admitted.
        """
        self._read_chosen()
        self._place(lines, begun, expected)

    def step(self) -> dict[K, NewToken | Exception]:
        """Choose the next token of every row; an exception where that row has failed. A row that ends or fails stays
        until it is told to leave."""
        self._read_chosen()
        found: dict[K, NewToken | Exception] = dict(self._failed)
        self._failed.clear()
        if self._session is None or not self._lines:
            return found
        rows = {place: line.choosing for place, line in sorted(self._lines.items())}
        tokens, told, errors = choose(self._session, rows, self._known)
        self._pending = tokens.tolist()
        for place in rows:
            line = self._lines[place]
            found[line.key] = errors.get(place) or self._written(line, self._pending[place], told.get(place, UNTOLD))
        return found

    def _written(self, line: BatchRow[K], token: int, told: Told) -> NewToken | Exception:
        line.new.append(token)
        try:
            return line.writer.write(token, *told, line.choosing.complete)
        except Exception as error:  # of a tokenizer, which may be anybody's
            return error

    def state_of(self, key: K) -> PromptState | None:
        """A copy of the state of a row, which has read all of its tokens but the last; None if there is none."""
        for place, line in self._lines.items():
            if line.key is key and self._session is not None:
                read = line.tokens[: -1 if self._pending is not None and line.new else None]
                return PromptState(read, self._session.copy_of(place))
        return None

    def leave(self, key: K) -> None:
        """Remove a row; without effect if it is not here."""
        self._failed.pop(key, None)
        for place in [place for place, line in self._lines.items() if line.key is key]:
            del self._lines[place]
            self._gone.add(place)
        if not self._lines:
            self._end_session()

    def _end_session(self) -> None:
        session, self._session = self._session, None
        self._gone, self._pending, self._spare = set(), None, 0
        if session is not None:
            session.close()

    def _read_chosen(self) -> None:
        """Run the model on the tokens chosen last. It waits until their logits are needed, so that a row that has ended
        is not run on its last token."""
        pending, self._pending = self._pending, None
        if self._session is None or pending is None:
            return
        try:
            self._retire_gone(self._session)
            self._shrink(self._session, pending)
            self._session.advance(torch.tensor(pending, device=self._session.device))
        except Exception:
            self._read_again()

    def _retire_gone(self, session: Session) -> None:
        if self._gone:
            session.retire(sorted(self._gone))
            self._gone.clear()

    def _place(self, lines: Sequence[BatchRow[K]], begun: PromptState | None, expected: int = 0) -> None:
        """Run the model on rows, with the new tokens that they have, and put them into free places."""
        rows = [replace(line.row, tokens=line.tokens) for line in lines]
        if self._session is None:
            self._session = Session(self._model, rows, begun=begun, size=self._size_for(len(rows) + expected),
                                    capacity=self._capacity)
            self._lines = dict(enumerate(lines))
            return
        self._retire_gone(self._session)
        if len(self._lines) + len(rows) > self.places:
            self._resize(self._session, self._size_for(len(self._lines) + len(rows) + expected))
        free = [place for place in range(self.places) if place not in self._lines][: len(rows)]
        self._session.admit(free, rows, begun)
        self._lines.update(zip(free, lines, strict=True))

    def _size_for(self, rows: int) -> int:
        return next((size for size in self._sizes if size >= rows), self._sizes[-1])

    def _shrink(self, session: Session, pending: list[int]) -> None:
        """Remove places that were to spare for `PATIENCE` steps. ``pending`` follows the rows to their new places."""
        wanted = self._size_for(len(self._lines))
        self._spare = self._spare + 1 if 2 * wanted <= self.places else 0
        if self._spare > PATIENCE:
            before = list(self._lines)
            self._resize(session, wanted)
            pending[:] = [pending[place] for place in before] + [0] * (wanted - len(before))

    def _resize(self, session: Session, size: int) -> None:
        """Move the rows to the first places of ``size`` ones."""
        live = list(self._lines)
        session.select(torch.tensor([*live, *[live[0]] * (size - len(live))], device=session.device))
        session.retire(range(len(live), size))
        self._lines = dict(enumerate(self._lines.values()))
        self._spare = 0

    def _read_again(self) -> None:
        """After a call on the whole batch that failed: read every row from its tokens by itself."""
        lines = list(self._lines.values())
        self._session, self._lines, self._gone = None, {}, set()
        for line in lines:
            try:
                self._place([line], None, len(lines) - 1 - len(self._lines))
            except Exception as error:
                self._failed[line.key] = error


def sizes(most: int) -> tuple[int, ...]:
    """Numbers of places: powers of two and one and a half times these, up to ``most``."""
    found = sorted({size for power in range(most.bit_length()) for size in (1 << power, 3 << power)} | {most})
    return tuple(size for size in found if size <= most)
