"""The text of a row as it grows, up to the first stop string."""

from __future__ import annotations

from collections.abc import Sequence

from weft.tokenizers import StreamDecoder


class GrowingText:
    """Text from ids that arrive one at a time. What may be the beginning of a stop string is held back, so that a
    piece once given is never taken back and no part of a stop string is ever given.

    Args:
        decoder: the tokenizer's stream.
        stops: strings that end the row; the text ends before the first of them.
    """

    def __init__(self, decoder: StreamDecoder, stops: Sequence[str]) -> None:
        self._decoder, self._stops = decoder, tuple(stops)
        self._held = ""
        self.stopped = False

    def push(self, token: int) -> str:
        """The text that is certain once ``token`` has come; sets ``stopped`` when it completes a stop string."""
        return self._take(self._decoder.push(token), last=False)

    def finish(self) -> str:
        """What was held back; the row has ended."""
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
        """Length of the longest end of ``text`` that begins a stop string."""
        longest = max(map(len, self._stops), default=1) - 1
        for length in range(min(longest, len(text)), 0, -1):
            if any(stop.startswith(text[-length:]) for stop in self._stops):
                return length
        return 0
