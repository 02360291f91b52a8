"""When a row ends, and its incremental text up to the first stop string.

The results of decoding: single tokens as they are chosen, and whole rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from weft.core.errors import InputError
from weft.core.model import LanguageModel
from weft.core.strict_json import Record, without_none
from weft.decoding.rows import Row, require_token
from weft.tokenizers import StreamDecoder, Tokenizer


@dataclass(frozen=True)
class Ending:
    """When a row ends before max_new_tokens, and what its text leaves out.

    Attributes:
        tokens: ids that end a row.
        strings: strings of text that end a row; they require a tokenizer.
        spelled: special tokens that the text spells; it leaves out all others.
    """

    tokens: tuple[int, ...] = ()
    strings: tuple[str, ...] = ()
    spelled: tuple[int, ...] = ()

    def require_usable(self, model: LanguageModel, tokenizer: Tokenizer | None) -> None:
        """Refuse an ending that could not end a row. Raises `InputError`: an id outside the vocabulary, an empty
        string, or strings without a tokenizer."""
        for place, token in enumerate(self.tokens):
            require_token(token, model.vocab_size, f"ending.tokens[{place}]")
        if self.strings and tokenizer is None:
            raise InputError("stop strings need a tokenizer, and there is none.", where="ending.strings",
                             remedy="Give the tokenizer, or stop tokens.")
        if "" in self.strings:
            raise InputError("a stop string is empty.", where="ending.strings", remedy="Leave it out.")


NEVER = Ending()
"""Rows end at max_new_tokens only."""


class GrowingText:
    """Decodes text from ids one at a time. Text that may be the beginning of a stop string is held back, so that text
    once returned is final and never contains part of a stop string.

    Args:
        stops: strings that end the row; the text ends before the first of them.
    """

    def __init__(self, decoder: StreamDecoder, stops: Sequence[str]) -> None:
        self._decoder, self._stops = decoder, tuple(stops)
        self._held = ""
        self.stopped = False

    def push(self, token: int) -> str:
        """Return the further text that is final after ``token``; sets ``stopped`` if a stop string is complete."""
        return self._take(self._decoder.push(token), last=False)

    def finish(self) -> str:
        """Return the text held back, at the end of the row."""
        return "" if self.stopped else self._take(self._decoder.finish(), last=True)

    def _take(self, piece: str, *, last: bool) -> str:
        text = self._held + piece
        places = [place for place in (text.find(stop) for stop in self._stops) if place >= 0]
        if places:
            self.stopped, self._held = True, ""
            return text[: min(places)]
        keep = 0 if last else self._unsettled(text)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]

    def _unsettled(self, text: str) -> int:
        """Return the length of the longest suffix of ``text`` that is a prefix of a stop string."""
        longest = max(map(len, self._stops), default=1) - 1
        for length in range(min(longest, len(text)), 0, -1):
            if any(stop.startswith(text[-length:]) for stop in self._stops):
                return length
        return 0


def text_behind(tokenizer: Tokenizer, prompt: Sequence[int], tokens: Sequence[int], spelled: Sequence[int] = ()) -> str:
    """Return the text of ``tokens`` that follow a prompt, with the special tokens ``spelled`` and no others. Prompt ids
    outside the tokenizer's vocabulary are skipped."""
    decoder, silent = _decoder(tokenizer, prompt, spelled)
    return "".join(decoder.push(token) for token in tokens if token not in silent) + decoder.finish()


def _decoder(tokenizer: Tokenizer, prompt: Sequence[int],
             spelled: Sequence[int]) -> tuple[StreamDecoder, frozenset[int]]:
    """The decoder of what follows a prompt, and the special tokens that it is not to be given."""
    decoder = tokenizer.stream(specials=bool(spelled))
    decoder.follow(token for token in prompt if token < tokenizer.vocab_size)
    return decoder, frozenset(tokenizer.special_tokens.values() if spelled else ()).difference(spelled)


class Writer:
    """The output of one row: its incremental text, and whether it has ended."""

    def __init__(self, row: int, prompt: Row, max_new_tokens: int, ending: Ending, tokenizer: Tokenizer | None) -> None:
        self.row, self._left, self._stops = row, max_new_tokens, frozenset(ending.tokens)
        self._text: GrowingText | None = None
        self._silent = frozenset[int]()
        if tokenizer is not None:
            decoder, self._silent = _decoder(tokenizer, prompt.tokens, ending.spelled)
            self._text = GrowingText(decoder, ending.strings)

    def write(self, token: int, log_prob: float | None, top: tuple[tuple[int, float], ...] = (),
              complete: bool = False) -> NewToken:
        """Append a token, and return it with its text and, if it is the last, the reason. ``complete`` says that the
        row's constraint allows no further token."""
        self._left -= 1
        piece = None if self._text is None else "" if token in self._silent else self._text.push(token)
        finish = self._finish(token, complete)
        if self._text is not None and piece is not None and finish:
            piece += self._text.finish()
        return NewToken(self.row, token, log_prob, piece, finish, top)

    def _finish(self, token: int, complete: bool) -> Finish | None:
        if token in self._stops:
            return "stop_token"
        if self._text is not None and self._text.stopped:
            return "stop_string"
        if complete:
            return "complete"
        return "length" if self._left == 0 else None


Finish: TypeAlias = Literal["length", "stop_token", "stop_string", "complete"]
"""Why a row ended: ``max_new_tokens`` was reached, a stop token, a stop string, or a constraint that is complete."""


@dataclass(frozen=True)
class NewToken:
    """One token, as `stream` yields it.

    Attributes:
        row: index of the row.
        token: the token's id.
        log_prob: the token's log-probability in nats, before temperature and truncation; None unless requested.
        text: the text that no later token can change any more (often empty); None without a tokenizer.
        finish: why this token is the row's last; None if it is not the last.
        top: the most probable ids with their log-probabilities, best first; as many as `RowSettings.top` asks for.
        drafted: number of guesses that were read with the token before it (`weft.serving.speculation`).
        accepted: whether it was chosen behind a guess that was right.
    """

    row: int
    token: int
    log_prob: float | None
    text: str | None
    finish: Finish | None
    top: tuple[tuple[int, float], ...] = ()
    drafted: int = 0
    accepted: bool = False


@dataclass(frozen=True)
class GeneratedRow(Record):
    """The continuation of one row.

    Attributes:
        tokens: the new ids, including the stop token or the token that completed a stop string.
        text: their text, without the stop string; None without a tokenizer.
        log_probs: log-probability of each token in nats, before temperature and truncation; None unless requested.
        finish: why the row ended.
    """

    tokens: tuple[int, ...]
    text: str | None
    log_probs: tuple[float, ...] | None
    finish: Finish

    def to_json(self) -> dict[str, Any]:
        """Return plain data without the fields that are None."""
        return without_none(super().to_json())


@dataclass(frozen=True)
class Generated(Record):
    """The continuation of each prompt, in the order of the prompts."""

    rows: tuple[GeneratedRow, ...]
