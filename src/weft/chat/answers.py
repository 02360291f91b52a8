"""Which tokens of a conversation are the assistant's: those that a model has to produce, and no others.

A template says so by ``{% generation %}``. For one that does not, an answer is what follows the text that a model is
given to answer, the beginning of the conversation rendered with ``add_generation_prompt``, up to and including the
token that ends it. This is exact where the whole conversation begins with that text, and where later messages change
nothing about the answer; a template that strips messages or adds a default one is no obstacle. Where it is not, as for
templates that drop the thoughts of earlier answers, the conversation is refused, and the error names the message.

What a template writes after the end of an answer, such as a line end, is not scored: no model is asked to produce it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
from jaxtyping import Bool, Int32

from weft.chat.guard import Guard, encode
from weft.chat.messages import ASSISTANT, Message
from weft.chat.template import NO_EXTRAS, ChatTemplate, Extras, Rendering
from weft.core.errors import InputError

Which: TypeAlias = Literal["all", "last"]
Border: TypeAlias = tuple[int, int]
ONLY_LAST = "Score the last answer alone (scored: last), or give a template with {% generation %}."


class Marked(NamedTuple):
    """A conversation as tokens.

    Attributes:
        ids: those of `ChatTemplate.encode`, unless a token would belong to both a prompt and its answer.
        scored: whether each token is the assistant's.
        restored: whether the tokens decode to the conversation's text.
    """

    ids: Int32[np.ndarray, " n"]
    scored: Bool[np.ndarray, " n"]
    restored: bool


class AnswerMarker:
    """Marks the answers of conversations.

    Args:
        which: whether all answers are scored, or the last alone.
        extras: further input of the template, for every conversation.

    Attributes:
        ends: spellings of the tokens and texts that ended the answers so far, by which a model's turns end.
    """

    def __init__(self, template: ChatTemplate, which: Which = "all", extras: Extras = NO_EXTRAS) -> None:
        self.template, self.which, self.extras = template, which, extras
        self.ends: set[str] = set()
        spelled = sorted({*template.tokenizer.special_tokens, *template.stops}, key=len, reverse=True)
        self._special = re.compile("|".join(map(re.escape, filter(None, spelled))) or r"(?!)")
        names = {place: name for name, place in template.tokenizer.special_tokens.items()}
        self._known = {*template.stops, *(names[place] for place in template.end_ids if place in names)}

    def mark(self, messages: Sequence[Message], tools: Sequence[Any] | None = None) -> Marked:
        """The tokens of a conversation, and which are scored.

        Raises:
            InputError: the template rejects the messages, writes no assistant's text or no end of an answer, or alters
                messages so that no exact mask exists.
            TokenizerError: a message holds something that the tokenizer cannot express.
        """
        form = self.template.rendering(messages, replace(self.extras, tools=tools))
        whole = form.text(form.messages)
        borders = self._declared(form, whole) if self.template.declares_answers else self._found(form, whole)
        if not borders:
            raise self._no_text()
        return self._tokens(whole, borders, form.guard)

    def _declared(self, form: Rendering, whole: str) -> list[Border]:
        """Where the blocks of ``{% generation %}`` are, each to the end of its answer."""
        guard = form.guard
        marked = form.text(form.messages, marks=(guard.opens, guard.closes))
        places, borders = list[int](), list[Border]()
        for found in re.finditer(f"[{guard.opens}{guard.closes}]", marked):
            places.append(found.start() - len(places))
        if marked.replace(guard.opens, "").replace(guard.closes, "") != whole:
            raise self._refused("writes other text where {% generation %} is marked.", "Correct the template.")
        for start, end in zip(places[::2], places[1::2], strict=True):
            if whole[start:end].strip():
                borders.append((start, self._end_of_block(whole, start, end)))
        return borders if self.which == "all" else borders[-1:]

    def _end_of_block(self, whole: str, start: int, end: int) -> int:
        """The end of the token that ends the answer in a block: the last special one in it, with nothing but white
        space behind it, or the one that follows the block."""
        last = next(iter(reversed(list(self._special.finditer(whole, start, end)))), None)
        if last is not None and not whole[last.end():end].strip():
            return self._ended(last[0], last.end())
        found = self._special.match(whole, end + (len(whole) - end - len(whole[end:].lstrip())))
        if found is None:
            raise self._no_end()
        return self._ended(found[0], found.end())

    def _found(self, form: Rendering, whole: str) -> list[Border]:
        """Where the answers are, from renderings of the conversation's beginnings."""
        answers = [place for place, message in enumerate(form.messages) if message["role"] == ASSISTANT]
        ends = self._written_ends(form, answers)
        chosen = answers if self.which == "all" else answers[-1:]
        return [self._border(form, whole, place, ends[place]) for place in chosen]

    def _border(self, form: Rendering, whole: str, place: int, end: str | None) -> Border:
        """Beginning and end of the answer ``place``; ``end``: the special token behind it, None for one that calls
        functions, which any end of an answer ends."""
        number = place + 1
        prompt = form.text(form.messages[:place], prompt=True)
        if not whole.startswith(prompt):
            raise self._refused(f"writes the messages before answer {number} otherwise when it asks for the answer "
                                "than when the answer stands there.", ONLY_LAST)
        start = len(prompt)
        stops = self._known | self.ends if end is None else {end}
        found = next((each for each in self._special.finditer(whole, start) if each[0] in stops), None)
        if found is None:
            raise self._no_end()
        alone = form.text(form.messages[:number])
        if not alone.startswith(whole[:found.end()]):
            raise self._refused(f"writes answer {number} otherwise once messages follow it.", ONLY_LAST)
        if not whole[start:found.start()].strip():
            raise self._no_text()
        return start, self._ended(found[0], found.end())

    def _written_ends(self, form: Rendering, answers: Sequence[int]) -> dict[int, str | None]:
        """The special token that the template writes behind each answer, found with a mark at the end of its text."""
        mark = form.guard.mark
        texts = [place for place in answers if not form.messages[place].get("tool_calls")]
        marked = [_with_mark(message, mark) if place in texts else message
                  for place, message in enumerate(form.messages)]
        behind = form.text(marked).split(mark)[1:]
        if not behind and texts:
            raise self._no_text()
        if len(behind) != len(texts):
            raise self._refused(f"writes {len(behind)} of {len(texts)} answers.", ONLY_LAST)
        found: dict[int, str | None] = dict.fromkeys(answers)
        for place, text in zip(texts, behind, strict=True):
            end = self._special.match(text.lstrip())
            if end is None:
                raise self._no_end()
            found[place] = end[0]
        return found

    def _tokens(self, whole: str, borders: Sequence[Border], guard: Guard) -> Marked:
        """The tokens of a text, cut where answers begin and end."""
        tokenizer, cuts = self.template.tokenizer, [place for border in borders for place in border]
        ids = encode(tokenizer, whole, guard)
        beginnings = [encode(tokenizer, whole[:place], guard) for place in cuts]
        counts = [len(beginning) for beginning in beginnings]
        if any(beginning != ids[:len(beginning)] for beginning in beginnings):
            ids, counts = self._apart(whole, cuts, guard, ids)
        scored = np.zeros(len(ids), dtype=np.bool_)
        for first, last in zip(counts[::2], counts[1::2], strict=True):
            scored[first:last] = True
        restored = tokenizer.keeps_text or tokenizer.decode(ids, specials=True) == whole
        return Marked(np.array(ids, dtype=np.int32), scored, restored)

    def _apart(self, whole: str, cuts: Sequence[int], guard: Guard, joined: list[int]) -> tuple[list[int], list[int]]:
        """The tokens of the pieces between the cuts, each encoded by itself, where a token of the whole lies across a
        cut: in use the prompt is encoded before there is an answer."""
        tokenizer = self.template.tokenizer
        pieces = [encode(tokenizer, whole[first:last], guard) for first, last in pairwise((0, *cuts, len(whole)))]
        ids = [token for piece in pieces for token in piece]
        if tokenizer.decode(ids, specials=True) != tokenizer.decode(joined, specials=True):
            raise self._refused("joins a prompt and its answer in one token, which this vocabulary cannot divide.",
                                "Remove white space at the beginning of the answer, or give another template.")
        return ids, np.cumsum([len(piece) for piece in pieces])[:-1].tolist()

    def _ended(self, spelling: str, place: int) -> int:
        self.ends.add(spelling)
        return place

    def _no_text(self) -> InputError:
        return self._refused("writes no text of the assistant, so there is nothing to learn.",
                             "Give a template that writes the assistant's messages.")

    def _no_end(self) -> InputError:
        return self._refused("writes no token that ends an answer, so a model would not learn to stop.",
                             "Give a template that writes one, such as chatml or llama2.")

    def _refused(self, what: str, remedy: str) -> InputError:
        return InputError(f"the template {what}", where=f"chat template {self.template.name!r}", remedy=remedy)


def _with_mark(message: Message, mark: str) -> dict[str, Any]:
    """The message with a mark at the end of its text."""
    content = message.get("content")
    if isinstance(content, list) and content:
        return {**message, "content": [*content[:-1], {**content[-1], "text": f"{content[-1]['text']}{mark}"}]}
    return {**message, "content": f"{content or ''}{mark}"}


def spans(scored: Bool[np.ndarray, " n"]) -> Iterator[Border]:
    """First index, and the index behind the last, of each run of scored tokens."""
    steps = np.flatnonzero(np.diff(scored.astype(np.int8), prepend=0, append=0))
    yield from zip(steps[::2].tolist(), steps[1::2].tolist(), strict=True)
