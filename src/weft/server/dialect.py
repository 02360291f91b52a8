"""The marks between which a chat template writes thoughts and calls of functions, and an answer parted by them.

They are found by rendering a conversation whose thought, text and call are known, so no list of models is needed: a
template that writes none of them between marks of its own gives answers of text alone.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, NamedTuple, TypeAlias, final

from weft.chat.template import ChatTemplate, Extras
from weft.core.errors import InputError

Kind: TypeAlias = Literal["text", "thought", "call"]

THOUGHT, TEXT, NAME, ARGUMENT = "qzthoughtqz", "qztextqz", "qznameqz", "qzargumentqz"
ASKED: dict[str, Any] = {"role": "user", "content": "qzaskedqz"}
TOOLS = [{"type": "function", "function": {"name": NAME, "description": "qz", "parameters": {
    "type": "object", "properties": {ARGUMENT: {"type": "string"}}}}}]
ID, ARGUMENTS = "qzcallqz1", "arguments"
CALL: dict[str, Any] = {"type": "function", "id": ID, "function": {"name": NAME, "arguments": {ARGUMENT: "1"}}}


class Marks(NamedTuple):
    """The texts before and after something."""

    opens: str
    closes: str


class Called(NamedTuple):
    """A call of a function: its name, and its arguments in JSON."""

    name: str
    arguments: str


class WrittenCalls(NamedTuple):
    """The text of calls of functions as a template writes them: ``before``, then objects of JSON with ``between``
    between them, then ``after``.

    Attributes:
        pieces: the object, parted at the name, at the arguments, and at an id of nine letters if it has one, each of
            which stands as itself (`NAME`, `ARGUMENTS`, `ID`).
        between: None: one answer makes one call.
    """

    before: str
    pieces: tuple[str, ...]
    between: str | None
    after: str


@final
@dataclass(frozen=True)
class Dialect:
    """A chat template, and how answers in it are read."""

    template: ChatTemplate

    @cached_property
    def takes_tools(self) -> bool:
        """Whether it writes the tools that it is given."""
        try:
            return NAME in self.template.text([ASKED], add_generation_prompt=True, extras=Extras(tools=TOOLS))
        except InputError:
            return False

    @cached_property
    def thought(self) -> Marks | None:
        """The marks before and after a thought; None: the template keeps none apart. A template that drops earlier
        thoughts names their marks, which are special tokens, where it looks for them."""
        written = self._answer({"role": "assistant", "content": TEXT, "reasoning_content": THOUGHT}, Extras())
        if written is not None and THOUGHT in written and TEXT in written:
            before, after = written.split(THOUGHT, 1)
            closes = after.split(TEXT, 1)[0].strip()
            return Marks(before.strip(), closes) if closes else None
        closing = next((name for name in self.template.marks if name.startswith("</")), None)
        return None if closing is None else Marks(closing.replace("/", "", 1), closing)

    @cached_property
    def call(self) -> Marks | None:
        """The marks before and after the JSON object of a call; None: the template writes calls otherwise, or
        none."""
        form = self.calls
        return None if form is None else Marks(form.before.strip(), form.after.strip())

    @cached_property
    def calls(self) -> WrittenCalls | None:
        """How calls are written; None: not as JSON objects behind a mark."""
        written, twice = (self._answer({"role": "assistant", "content": "", "tool_calls": [CALL] * count},
                                       Extras(tools=TOOLS)) or "" for count in (1, 2))
        (begin, end), *_ = _objects(written) or [(0, 0)]
        before = written[:begin].rsplit("\n\n", 1)[-1].lstrip()
        if not before:
            return None
        rest = written[end:].removesuffix(self._end).rstrip()
        closes = rest.lstrip().split("\n", 1)[0]
        pieces = re.split(f"({NAME}|{ID}|" + r"\{\s*\"" + ARGUMENT + r"\"\s*:\s*\"1\"\s*\})", written[begin:end])
        places = _objects(twice)
        return WrittenCalls(before, tuple(ARGUMENTS if ARGUMENT in each else each for each in pieces),
                            twice[places[0][1]:places[1][0]] if len(places) == 2 else None,
                            rest[:rest.index(closes) + len(closes)])

    def opens_thought(self, prompt: str) -> bool:
        """Whether an answer to a rendered prompt begins inside a thought."""
        return self.thought is not None and prompt.rstrip().endswith(self.thought.opens)

    @property
    def spelled(self) -> tuple[int, ...]:
        """The special tokens that an answer's text spells: those of the marks."""
        specials = self.template.tokenizer.special_tokens
        written = "".join((*(self.thought or ()), *(self.call or ())))
        ends = {*self.template.end_ids, self.template.tokenizer.bos_id}
        more = (place for name, place in specials.items() if name and name in written and place not in ends)
        return tuple(dict.fromkeys((*self.template.marks.values(), *more)))

    @cached_property
    def _end(self) -> str:
        """The text that the template writes behind an answer."""
        return (self._answer({"role": "assistant", "content": TEXT}, Extras()) or "").rpartition(TEXT)[2]

    def _answer(self, answer: dict[str, Any], extras: Extras) -> str | None:
        """The text that the template writes of an answer, behind the request for it; None: it rejects it."""
        try:
            asked = self.template.text([ASKED], add_generation_prompt=True, extras=extras)
            whole = self.template.text([ASKED, answer], extras=extras)
        except InputError:
            return None
        common = next((place for place, (one, other) in enumerate(zip(asked, whole, strict=False)) if one != other),
                      min(len(asked), len(whole)))
        begin = asked.rfind("\n", 0, common) + 1 if common < len(asked) else common
        return whole[begin:] if whole.startswith(asked[:begin]) else None


@final
class Parting:
    """An answer's text, parted into thoughts, calls and other text as it comes. What may be the beginning of a mark is
    held back, and white space beside a mark is left out.

    Args:
        thinks: whether the prompt has opened a thought already.
        calls: whether calls are looked for.
        thoughts: whether the text may open a thought; one that is held to a form may not.
    """

    def __init__(self, dialect: Dialect, *, thinks: bool, calls: bool, thoughts: bool = True) -> None:
        self._marks: dict[Kind, Marks | None] = {"thought": dialect.thought if thinks or thoughts else None,
                                                 "call": dialect.call if calls else None}
        self._thoughts = thoughts
        self._kind: Kind = "thought" if thinks else "text"
        self._held, self._begins = "", thinks

    def push(self, text: str, *, last: bool) -> list[tuple[Kind, str]]:
        """The pieces that are final after ``text``; a call comes whole, without its marks."""
        self._held += text
        found: list[tuple[Kind, str]] = []
        while places := [(at, mark) for mark in self._ends() if (at := self._find(mark)) >= 0]:
            at, mark = min(places)
            found.append((self._kind, self._trimmed(self._held[:at]).rstrip()))
            self._kind, self._held, self._begins = self._ends()[mark], self._held[at + len(mark):], True
        if last or self._kind != "call":
            keep = 0 if last else self._unsettled()
            found.append((self._kind, self._trimmed(self._held[:len(self._held) - keep])))
            self._held = self._held[len(self._held) - keep:]
        return [(kind, piece) for kind, piece in found if piece]

    @property
    def kind(self) -> Kind:
        """The kind of text that is being read."""
        return self._kind

    def _find(self, mark: str) -> int:
        """The place of a mark, outside the strings of a call; -1: there is none."""
        at = self._held.find(mark)
        while self._kind == "call" and at >= 0 and re.sub(r"\\.", "", self._held[:at], flags=re.DOTALL).count('"') % 2:
            at = self._held.find(mark, at + 1)
        return at

    def _trimmed(self, text: str) -> str:
        """A piece without the white space behind a mark."""
        text = text.lstrip() if self._begins else text
        self._begins = self._begins and not text
        return text

    def _ends(self) -> dict[str, Kind]:
        """The marks that end what is being read, each with what follows."""
        own = self._marks.get(self._kind)
        if own is not None:
            return {own.closes: "text"} if own.closes else {}
        return {marks.opens: kind for kind, marks in self._marks.items()
                if marks is not None and marks.opens and (self._thoughts or kind == "call")}

    def _unsettled(self) -> int:
        """The length of the end of what is held that may belong to a mark, with the white space before it."""
        marks = tuple(self._ends())
        lengths = range(min(max(map(len, marks), default=1) - 1, len(self._held)), 0, -1)
        kept = next((length for length in lengths
                     if any(mark.startswith(self._held[-length:]) for mark in marks)), 0)
        before = self._held[:len(self._held) - kept]
        return kept + (len(before) - len(before.rstrip()) if marks else 0)


def _objects(text: str) -> list[tuple[int, int]]:
    """The places of the JSON objects that name the function of `CALL`."""
    found, place = list[tuple[int, int]](), 0
    while begins := re.compile(r"\{[^{}]*" + NAME).search(text, place):
        try:
            _, place = json.JSONDecoder().raw_decode(text, begins.start())
        except ValueError:
            return []
        found.append((begins.start(), place))
    return found


def read_calls(text: str) -> list[Called]:
    """The calls of JSON objects, with commas or white space between them; none where one is not a call."""
    found, place, decoder = list[Called](), 0, json.JSONDecoder()
    while place < len(text.rstrip()):
        try:
            data, place = decoder.raw_decode(text, place + len(text[place:]) - len(text[place:].lstrip(", \r\n\t")))
        except (ValueError, RecursionError):
            return []
        given = data.get("arguments", data.get("parameters")) if isinstance(data, dict) else None
        if not isinstance(given, dict | str) or not isinstance(data.get("name"), str):
            return []
        found.append(Called(data["name"], given if isinstance(given, str) else json.dumps(given, ensure_ascii=False)))
    return found
