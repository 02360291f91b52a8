"""Answers of a given form: a JSON schema, any JSON object, a regular expression or a Lark grammar, as constraints of
rows (`weft.decoding.Constraint`). The package ``llguidance`` compiles them, and says before each token which ids may
follow.

    grammars = Grammars(tokenizer, model.vocab_size)
    settings = RowSettings(200, constraint=grammars.json_schema({"type": "integer", "minimum": 0}))

The mask comes before temperature, top-k and the like (`weft.decoding.sampling`). The row ends by itself where nothing
may follow; where the answer may end but may also go on, it ends when the model chooses an id that ends a text. An
answer with the finish ``complete`` or ``stop_token`` is of the form; one with ``length`` was cut.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, final

import numpy as np
import torch
from jaxtyping import Bool
from torch import Tensor

from weft.core.errors import FailedError, InputError, MissingExtra, TokenizerError, shortened
from weft.decoding import Constraint
from weft.tokenizers.base import TableTokenizer, Tokenizer
from weft.tokenizers.specials import AddedToken, Splitter

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

MOST_BYTES = 1 << 16
"""The longest form, in bytes of its text: all that a compiler is given takes well under a second."""
MOST_STATES = 20_000
"""States of a lexer, each of one or two kB, beyond which a row fails: a hostile expression makes more with every token.
"""
WHITE_SPACE = r"[\x20\x0A\x0D\x09]{1,20}"
"""White space between parts of JSON. It is bounded, since weak models write nothing else once they have begun."""
STRICT = {"whitespace_pattern": WHITE_SPACE, "whitespace_flexible": True, "item_separator": ",", "key_separator": ":",
          "lenient": False, "coerce_one_of": False}
"""Settings of the compiler, which a schema could change by a key of its own."""
NO_LEAP = r":[0-9]{2}:[0-5][^:]*"
TIGHTER: Mapping[str, Mapping[str, Any]] = MappingProxyType({
    "email": {"maxLength": 64}, "time": {"pattern": NO_LEAP}, "date-time": {"pattern": NO_LEAP}})
"""The bounds of formats by which validators accept them, unless a schema has its own: short addresses, and no leap
seconds, of which there are 27 in all."""
NAMED, PLAIN = ("properties", "patternProperties", "$defs", "definitions"), ("const", "enum", "default", "examples")
"""Keywords of a schema whose entries have names of their own, and those whose values are not schemas."""
PAIRS = 2000
"""Pairs of ids that are decoded to find whether what an id stands for depends on its neighbours."""
PICTURE = re.compile(r"\s*(\^|\d+ \|)")
"""A line of an error that only points into the text."""


@final
class Grammars:
    """Compiles forms for the vocabulary of one model.

    Args:
        tokenizer: the model's. The first form takes up to a second longer, in which its ids are looked through.
        vocab_size: number of the model's ids, at least the tokenizer's.
        spelled: special tokens that stand for their names in answers, such as those around a call.

    Raises:
        InputError: from each method: the form does not compile, is longer than 64 KiB, or no token of the vocabulary
            can begin it; or what the tokenizer's ids stand for depends on their neighbours.
        MissingExtra: likewise: ``llguidance`` is not installed.
    """

    def __init__(self, tokenizer: Tokenizer, vocab_size: int, spelled: Mapping[str, int] | None = None) -> None:
        self._tokenizer, self._vocab_size, self._spelled = tokenizer, vocab_size, spelled or {}

    def json_schema(self, schema: Mapping[str, Any]) -> Callable[[], Constraint]:
        """JSON that a schema describes. Keywords and formats that cannot be kept to are refused; so are references to
        other documents, which are never fetched."""
        return self._compiled(_of_schema(schema, "json_schema"), "json_schema")

    def regex(self, text: str) -> Callable[[], Constraint]:
        """Text that a regular expression matches as a whole; without look-around and back references."""
        _require_short(text, "regex")
        return self._compiled(_library().LLMatcher.grammar_from_regex(text), "regex")

    def lark(self, text: str, where: str = "lark") -> Callable[[], Constraint]:
        """Text that a grammar in Lark's notation derives from its rule ``start``; ``where`` is named by errors."""
        _require_short(text, where)
        return self._compiled(_library().LLMatcher.grammar_from_lark(text), where)

    def _compiled(self, grammar: str, where: str) -> Callable[[], Constraint]:
        library = _library()
        limits = library.LLParserLimits(max_lexer_states=MOST_STATES, verbose_errors=False)
        compiled = library.LLMatcher(self._vocabulary, grammar, log_level=0, limits=limits)
        if compiled.is_error():
            raise InputError(f"it does not compile: {_plain(compiled.get_error())}.", where=where,
                             remedy="Correct it, or leave out what is not supported.")

        def begun() -> Constraint:
            return _Form(compiled.deep_copy(), self._vocab_size)

        try:
            possible = bool(begun().allowed().any())
        except FailedError:
            possible = False
        if not possible:
            raise InputError("no token of the model's vocabulary can begin it.", where=where,
                             remedy="Give a form that can be written with the model's tokens.")
        return begun

    @cached_property
    def _vocabulary(self) -> LLTokenizer:
        """The vocabulary, with one more id, which ends a text where the tokenizer has none that does."""
        words = _Vocabulary(self._tokenizer, self._vocab_size, self._spelled)
        found: LLTokenizer = _library().LLTokenizer(words, eos_token=[*self._tokenizer.end_ids, self._vocab_size])
        words.greedy = found.greedy_tokenize
        return found


@final
class _Form:
    """A form in one row."""

    def __init__(self, matcher: LLMatcher, size: int) -> None:
        self._matcher, self._size = matcher, size

    def allowed(self) -> Bool[Tensor, " V"]:
        bits = np.frombuffer(self._matcher.compute_bitmask(), dtype=np.uint8)
        self._require_sound()
        return torch.from_numpy(np.unpackbits(bits, count=self._size, bitorder="little")).view(torch.bool)

    def push(self, token: int) -> bool:
        self._matcher.consume_token(token)
        self._require_sound()
        return self._matcher.is_stopped()

    def _require_sound(self) -> None:
        if self._matcher.is_error():
            raise FailedError(_plain(self._matcher.get_error()))


@final
class _Vocabulary:
    """A tokenizer as ``llguidance`` asks for it: the bytes of each id, and the ids of a text.

    Text that a form leaves no choice about is tokenized by it, wherever it may be cut; so behind the model's ids, where
    no mask reaches, stand those bytes that have no token of their own.

    Args:
        spelled: see `Grammars`.

    Attributes:
        greedy: the ids of the longest pieces of a text, which stand in where the tokenizer's own spell it otherwise.
    """

    is_tokenizer_wrapper = True
    bos_token_id: int | None = None

    def __init__(self, tokenizer: Tokenizer, size: int, spelled: Mapping[str, int]) -> None:
        names = {place: name.encode() for name, place in spelled.items()}
        known = [names.get(place, piece) for place, piece in enumerate(token_bytes(tokenizer))]
        self._tokenizer, self._names = tokenizer, Splitter(AddedToken(name, place) for name, place in spelled.items())
        alone = {bytes([byte]) for byte in range(256)}.difference(known)
        self.tokens = [*known, *[b""] * (size - len(known)), b"\xff<end>", *sorted(alone)]
        self.special_token_ids, self.eos_token_id = [size], size
        self.greedy: Callable[[str], list[int]] | None = None

    def __call__(self, text: str) -> list[int]:
        try:
            ids = [each for piece, place in self._names.split(text)
                   for each in (self._tokenizer.encode(piece) if place is None else [place])]
        except TokenizerError:
            ids = []
        if self.greedy is None or b"".join([self.tokens[place] for place in ids]) == text.encode():
            return ids
        return self.greedy(text)


def token_bytes(tokenizer: Tokenizer) -> Sequence[bytes]:
    """The bytes that each id stands for inside a text, none for special tokens. Raises `InputError`: they depend on the
    ids beside it."""
    pieces = tokenizer.spellings()
    if isinstance(tokenizer, TableTokenizer):
        return pieces
    first = next((place for place, piece in enumerate(pieces) if piece.strip().isalpha()), 0)
    draw = random.Random(0)
    pairs = [(place, draw.randrange(len(pieces))) for place in range(len(pieces))]
    pairs += [(draw.randrange(len(pieces)), draw.randrange(len(pieces))) for _ in range(PAIRS)]
    begun = tokenizer.decode([first])
    for one, other in pairs:
        wanted = begun + (pieces[one] + pieces[other]).decode(errors="replace")
        if tokenizer.decode([first, one, other]) != wanted:
            raise InputError(f"what ids of the tokenizer {tokenizer.name} stand for depends on their neighbours, such "
                             f"as {one} and {other}, so no text can be held to a form.", where="tokenizer",
                             remedy="Use a model with a byte-level, BPE or SentencePiece vocabulary.")
    return pieces


def json_in_lark(schema: Mapping[str, Any], where: str) -> str:
    """The JSON that a schema describes, as a part of a rule in Lark's notation. Raises `InputError`: see `Grammars`."""
    return f"%json {json.dumps(json.loads(_of_schema(schema, where))['grammars'][0]['json_schema'])}"


def _of_schema(schema: Mapping[str, Any], where: str) -> str:
    """The grammar of a schema. Raises `InputError`."""
    try:
        text = json.dumps(_tightened(schema), allow_nan=False)
    except RecursionError:
        raise InputError("the schema is nested too deeply, or contains itself.", where=where,
                         remedy="Give definitions of its parts, and references to them.") from None
    except (TypeError, ValueError) as error:
        raise InputError(f"the schema is no JSON ({error}).", where=where, remedy="Give a JSON schema.") from None
    _require_short(text, where)
    try:
        grammar: str = _library().LLMatcher.grammar_from_json_schema(text, overrides=STRICT)
    except ValueError as error:
        raise InputError(f"the schema does not compile: {_plain(str(error))}.", where=where,
                         remedy="Give an object as a JSON schema.") from None
    return grammar


def _tightened(schema: Any) -> Any:
    """A schema in which formats are as narrow as validators take them."""
    if isinstance(schema, list | tuple):
        return [_tightened(each) for each in schema]
    if not isinstance(schema, Mapping):
        return schema
    found = {key: value if key in PLAIN else {name: _tightened(each) for name, each in value.items()}
             if key in NAMED and isinstance(value, Mapping) else _tightened(value) for key, value in schema.items()}
    form = found.get("format")
    return {**TIGHTER.get(form, {}), **found} if isinstance(form, str) else found


def _library() -> Any:
    try:
        import llguidance
    except ImportError:
        raise MissingExtra("llguidance", "serve", "structured output") from None
    return llguidance


def _require_short(text: str, where: str) -> None:
    size = len(text.encode(errors="replace"))
    if size > MOST_BYTES:
        raise InputError(f"{size:,} bytes, and at most {MOST_BYTES:,} are compiled.", where=where,
                         remedy="Give a shorter one.")


def _plain(error: str) -> str:
    """An error of the compiler in one line, without the pictures that point into the text."""
    lines = [line.strip() for line in error.splitlines() if not PICTURE.match(line)]
    return shortened(" ".join(lines).removesuffix("."), 300)
