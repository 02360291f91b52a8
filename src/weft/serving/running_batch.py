"""A batch of rows of one model that are continued together, in as many slots as there are rows.

The number of slots follows the number of rows, by powers of two and their halves, so that one row does not pay for
many. A change of it copies the states and discards the recorded step, so a batch grows at once to the number of rows
that are expected, and shrinks late.
Rows of one batch have states of one capacity. If the model's call on the whole batch raises, every row is read again
from its tokens by itself, and only one that raises again has failed.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import Any, Generic, TypeVar, final

from weft.core.errors import FailedError
from weft.core.model import LanguageModel
from weft.decoding.choosing import RowSettings
from weft.decoding.prompts import PromptState
from weft.decoding.rows import Row
from weft.decoding.session import Session
from weft.decoding.slots import Slots
from weft.decoding.stopping import NewToken
from weft.serving.speculation import DraftingSession, Drafts
from weft.tokenizers import Tokenizer

K = TypeVar("K", bound=Hashable)

PATIENCE = 32
"""Steps during which half of the slots must be to spare before they are removed: recording a step takes some ten."""


@final
class RunningBatch(Generic[K]):
    """Rows of one model with states of one capacity, each known by a key of the caller's.

    Args:
        model: in evaluation mode.
        capacity: maximum number of tokens that a row may read.
        most: maximum number of rows.
        tokenizer: as that of `Slots`.
        starting: the context in which a row's state is started.
        drafting: makes what guesses the tokens of one row (`weft.serving.speculation`); None: none are guessed.
    """

    def __init__(self, model: LanguageModel, capacity: int, most: int, tokenizer: Tokenizer | None,
                 starting: Callable[[K], AbstractContextManager[None]],
                 drafting: Callable[[], Drafts] | None) -> None:
        self._starting, self._drafting, self._sizes = starting, drafting, sizes(most)
        self.slots = Slots(model, 1, capacity=capacity, tokenizer=tokenizer,
                           session=Session if drafting is None else self._begun)
        self._session: DraftingSession | None = None
        self._texts = dict[K, tuple[list[int], int, Drafts]]()  # with the most tokens
        self._keys = dict[int, K]()  # of the rows that go on, by slot
        self._ended = dict[K, int]()  # the slots of rows that ended with the last step and have not left
        self._failed = dict[K, Exception]()  # of rows on which the model raised between two steps
        self._spare = 0

    def __len__(self) -> int:
        return len(self._keys) + len(self._ended)

    def admit(self, keys: Sequence[K], rows: Sequence[Row], settings: Sequence[RowSettings],
              begun: PromptState | None = None, expected: int = 0) -> None:
        """Read the prompts of rows, and take them in.

        Args:
            keys: of the rows, whose states are started in one context.
            rows: as they are read.
            settings: of the rows.
            begun: the state after the beginning of the only row's prompt, which is shorter; consumed.
            expected: number of further rows that will soon be admitted.
        """
        self._read()
        if len(self._keys) + len(rows) > self.slots.size or not self._keys:
            self._resize(self._size_for(len(self._keys) + len(rows) + expected))
        with self._starting(keys[0]):
            self._keys.update(zip(self.slots.put(rows, settings, begun), keys, strict=True))
        if self._drafting is not None:
            self._texts |= {key: (list(row.tokens), len(row.tokens) + own.max_new_tokens, self._drafting())
                            for key, row, own in zip(keys, rows, settings, strict=True)}

    def _begun(self, *args: Any, **options: Any) -> Session:
        self._session = DraftingSession(*args, **options)
        return self._session

    def step(self) -> list[dict[K, NewToken | Exception]]:
        """Choose the next token of every row, and in further rounds those of rows whose guesses were right; an
        exception where a row has failed. A row that ends or fails stays until it is told to leave, or the next step."""
        wanted = self._size_for(len(self._keys))
        self._spare = self._spare + 1 if 2 * wanted <= self.slots.size else 0
        self._read(wanted if self._spare > PATIENCE else None, ahead=True)
        failed, self._failed, session = self._failed, {}, self._session
        rounds = [{**failed, **self._round(None)}]
        if session is not None and session.drafted:
            taken, going = dict[int, int](), list(self._keys)
            while going := session.look(len(rounds), {slot: self._texts[self._keys[slot]][0][-1]
                                                      for slot in going if slot in self._keys}):
                taken.update(dict.fromkeys(going, len(rounds)))
                rounds.append(self._round(going))
            with self._reading_again():
                session.settle(taken)
        return rounds

    def _round(self, only: Sequence[int] | None) -> dict[K, NewToken | Exception]:
        """The next token of every row, or of those in the slots ``only``."""
        found, failed = dict[K, NewToken | Exception](), dict[int, FailedError]()
        drafted = {} if self._session is None or only is not None else self._session.drafted
        for slot, new in self.slots.next_tokens(failed, only).items():
            if only is not None or slot in drafted:
                new = replace(new, drafted=len(drafted.get(slot, ())), accepted=only is not None)
            found[self._keys[slot]] = new
            if self._drafting is not None:
                self._texts[self._keys[slot]][0].append(new.token)
            if new.finish:
                self._ended[self._keys.pop(slot)] = slot
        for slot, error in failed.items():
            found[self._keys[slot]] = error
            self._ended[self._keys.pop(slot)] = slot
        return found

    def _guesses(self) -> dict[int, list[int]]:
        """Tokens that may follow those of the rows, by slot: fewer than a row has left."""
        texts = {slot: self._texts[key] for slot, key in self._keys.items()}
        return {slot: found for slot, (tokens, most, drafts) in texts.items() if most - len(tokens) > 1 and (
            found := drafts.draft(tokens)[: most - len(tokens) - 1])}

    def state_of(self, key: K) -> PromptState | None:
        """A copy of the state of a row, which has read all of its tokens but the last; None if there is none."""
        slot = self._slot_of(key)
        return None if slot is None else self.slots.copy_of(slot)

    def leave(self, key: K) -> None:
        """Remove a row; without effect if it is not here."""
        self._failed.pop(key, None)
        self._texts.pop(key, None)
        if (slot := self._slot_of(key)) is not None and self._ended.pop(key, None) is None:
            del self._keys[slot]
            self.slots.retire(slot)
        if not len(self):
            self.slots.close()
            self._session = None

    def _slot_of(self, key: K) -> int | None:
        return self._ended.get(key, next((slot for slot, each in self._keys.items() if each is key), None))

    def _read(self, size: int | None = None, *, ahead: bool = False) -> None:
        """Run the model on the tokens chosen last, in ``size`` slots from now on, and ``ahead`` on guesses too."""
        self._ended.clear()
        with self._reading_again():
            if size is not None:
                self._resize(size)
            if self._session is not None:
                self._session.guesses = self._guesses() if ahead else {}
            self.slots.read()

    @contextmanager
    def _reading_again(self) -> Iterator[None]:
        """Where the model raises inside, every row is read again from its tokens by itself."""
        try:
            yield
        except Exception:
            keys, self._keys = self._keys, {}
            for slot, row in sorted(self.slots.give_up().items()):
                try:
                    with self._starting(keys[slot]):
                        self.slots.enter({len(self._keys): row})
                    self._keys[len(self._keys)] = keys[slot]
                except Exception as error:
                    self._failed[keys[slot]] = error

    def _resize(self, size: int) -> None:
        self.slots.resize(size)
        self._keys = dict(enumerate(self._keys[slot] for slot in sorted(self._keys)))
        self._spare = 0

    def _size_for(self, rows: int) -> int:
        return next((size for size in self._sizes if size >= rows), self._sizes[-1])


def sizes(most: int) -> tuple[int, ...]:
    """Numbers of slots: powers of two and one and a half times these, up to ``most``."""
    found = sorted({size for power in range(most.bit_length()) for size in (1 << power, 3 << power)} | {most})
    return tuple(size for size in found if size <= most)
