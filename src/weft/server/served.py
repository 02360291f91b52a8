"""A model as clients see it: its name, its limits, its template, and the texts of its tokens."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from secrets import randbits
from typing import final

from weft.api.generating import decoding_defaults, prompt_rows, require_tokenizer
from weft.api.translating import source_row
from weft.chat.template import chat_template
from weft.checkpoints import Loaded
from weft.core.errors import InputError
from weft.core.model import LanguageModel
from weft.decoding import Row, Sampling
from weft.server.dialect import Dialect
from weft.server.fields import Sampled
from weft.serving.grammars import Grammars
from weft.serving.requests import LONGEST, EngineLimits
from weft.tokenizers import Tokenizer


class UnknownModelError(InputError):
    """A body names a model that is not served."""


class TooLongError(InputError):
    """A prompt is longer than the context."""


@final
@dataclass(frozen=True)
class Served:
    """A model, and how it is served.

    Attributes:
        name: by which clients ask for it.
        limits: those of its engine.
        adapters: names of the adapters by which its rows may be computed.
        template: name of a chat template, or a file; None: the model's own.
        created: seconds since 1970.
    """

    name: str
    loaded: Loaded
    limits: EngineLimits = EngineLimits()
    adapters: tuple[str, ...] = ()
    template: str | None = None
    created: int = field(default_factory=lambda: int(time.time()))

    @property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer. Raises `InputError`: the model has none."""
        if self.loaded.tokenizer is None:
            raise InputError("this model has no tokenizer.", where="model", remedy="Give token ids instead of text.")
        return require_tokenizer(self.loaded)

    @cached_property
    def context(self) -> int:
        """The number of tokens that a row may read, as its engine has it."""
        return min(self.limits.context or LONGEST, self.loaded.model.limit() or LONGEST)

    @cached_property
    def dialects(self) -> Mapping[bool, Dialect]:
        """The chat template with what it writes thoughts and calls between: for conversations with tools, and for
        others. Raises `InputError`: the model has no template."""
        return {with_tools: Dialect(chat_template(self.tokenizer, self.template, with_tools=with_tools))
                for with_tools in (False, True)}

    @cached_property
    def grammars(self) -> Grammars:
        """The grammars that an assistant's answer can be held to. Raises `MissingExtra`: the library of grammars is
        absent."""
        spelled = self.dialects[True].spelled
        names = {name: place for name, place in self.tokenizer.special_tokens.items() if place in spelled}
        return Grammars(self.tokenizer, self.require_language_model().vocab_size, names)

    @cached_property
    def spelling(self) -> TokenTexts:
        """The texts of single tokens."""
        return TokenTexts(self.loaded.tokenizer)

    def adapter(self, model: str | None) -> str | None:
        """The adapter that a body names. Raises `UnknownModelError`: it names neither an adapter nor the model."""
        if model in (None, self.name):
            return None
        if model not in self.adapters:
            raise UnknownModelError(f"the model {model!r} is not served here.", where="model",
                                    remedy=f"Give one of {', '.join((self.name, *self.adapters))}.")
        return model

    def require_language_model(self) -> LanguageModel:
        """The model. Raises `InputError`: it predicts no next token."""
        model = self.loaded.model
        if not isinstance(model, LanguageModel):
            raise InputError("this model predicts no next token, so it cannot continue a text.", where="model",
                             remedy="Use /v1/embeddings, or /classify for a classifier.")
        return model

    def new_tokens(self, prompt: int, given: int | None, default: int, where: str) -> int:
        """The most new tokens of a prompt of so many tokens: a default gives way to the context, a number that was
        given does not. Raises `TooLongError`: there is no room for the prompt, which stands in the field ``where``, or
        for the new tokens."""
        room = self.context - prompt + 1
        if room < 1:
            raise TooLongError(f"the prompt has {prompt:,} tokens, and the context has room for {self.context:,}.",
                               where=where, remedy="Shorten it.")
        if given is not None and given > room:
            raise TooLongError(f"{prompt:,} tokens of prompt and {given:,} new ones are {prompt + given - 1:,} to "
                               f"read, and the context has room for {self.context:,}.", where="max_tokens",
                               remedy="Shorten the prompt, or ask for fewer tokens.")
        return min(default, room) if given is None else given

    def row(self, prompt: str | Sequence[int], where: str) -> Row:
        """A text or ids as a row to be continued, or as the source of one. Raises `InputError`: it is too long, empty
        without a token that begins a document, or has ids outside the vocabulary."""
        model = self.require_language_model()
        size = model.source_vocab_size if model.takes_source else model.vocab_size
        wrong = None if isinstance(prompt, str) else next((token for token in prompt if token >= size), None)
        if wrong is not None:
            raise InputError(f"the id {wrong} is outside the vocabulary of {size:,} ids.", where=where,
                             remedy=f"Give ids from 0 to {size - 1}.")
        if model.takes_source:
            return self._with_source(model, prompt, where)
        if not isinstance(prompt, str):
            row = Row(tuple(prompt))
        else:
            self.tokenizer  # noqa: B018  # whose error names no folder
            row = next(each for each in prompt_rows(self.loaded, prompt) if isinstance(each, Row))
        if not row.tokens:
            raise InputError("the prompt is empty, and this model has no token that begins a document.", where=where,
                             remedy="Give at least one token.")
        return row

    def _with_source(self, model: LanguageModel, prompt: str | Sequence[int], where: str) -> Row:
        """A text or ids as a source, with the token from which its target is decoded. Raises `InputError`."""
        self.tokenizer  # noqa: B018  # whose error names no folder
        try:
            row = source_row(self.loaded, prompt if isinstance(prompt, str) else ".")  # in place of ids
        except InputError as error:
            raise InputError(error.what, where=where, remedy=error.remedy) from None
        row = row if isinstance(prompt, str) else replace(row, source=tuple(prompt))
        known, most = len(row.source or ()), min(self.limits.context or LONGEST, model.source_limit() or LONGEST)
        if not 0 < known <= most:
            raise TooLongError(f"{known:,} tokens, and the encoder has positions for {most:,}.", where=where,
                               remedy="Shorten it, or give at least one.")
        return row

    def sampling(self, body: Sampled, default: int) -> tuple[Sampling, int, int]:
        """How the tokens of an answer are chosen, the most of them where the body does not say, and the seed: as the
        body says, or else the model's own files, or else at temperature 1 and ``default`` tokens."""
        given = {"temperature": body.temperature, "top_p": body.top_p, "top_k": body.top_k, "min_p": body.min_p,
                 "repetition_penalty": body.repetition_penalty}
        sampling, most_new, _ = decoding_defaults(self.loaded, given, draws=True, most=default)
        chosen = replace(sampling, presence_penalty=body.presence_penalty or 0.0,
                         frequency_penalty=body.frequency_penalty or 0.0, bias=self._bias(body.logit_bias or {}))
        return chosen, most_new, randbits(63) if body.seed is None else body.seed

    def _bias(self, given: Mapping[str, float]) -> tuple[tuple[int, float], ...]:
        size = self.require_language_model().vocab_size
        for name in given:
            if not (name.isascii() and name.isdecimal() and len(name) < 20 and int(name) < size):
                raise InputError(f"{name[:40]!r} is no id of the vocabulary of {size:,} ids.", where="logit_bias",
                                 remedy=f"Give ids from 0 to {size - 1} as names.")
        return tuple((int(name), float(value)) for name, value in given.items())


@final
class TokenTexts:
    """The bytes and the texts of single tokens.

    Args:
        tokenizer: None: tokens have no text.
    """

    def __init__(self, tokenizer: Tokenizer | None) -> None:
        self._pieces: Sequence[bytes] = () if tokenizer is None else tokenizer.spellings()
        self._names = {} if tokenizer is None else {place: name for name, place in tokenizer.special_tokens.items()}

    def content(self, token: int) -> bytes:
        """The bytes of a token; those of its name for a special token, none outside the tokenizer's vocabulary."""
        if token in self._names:
            return self._names[token].encode()
        return self._pieces[token] if token < len(self._pieces) else b""

    def text(self, token: int) -> str:
        """The text of a token; ``bytes:\\\\x..`` for a part of a character, as OpenAI writes it."""
        content = self.content(token)
        try:
            return content.decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in content)
