"""Functions for tasks on conversations: reading, splitting and encoding them by a run's settings."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
from pydantic import Field

from weft.chat.answers import AnswerMarker, Marked, Which, spans
from weft.chat.template import DEFAULT, Extras, chat_template
from weft.core.declarations import Trait
from weft.core.errors import ConfigError, DataError, InputError, TokenizerError
from weft.core.layer import traits_of
from weft.core.model import LanguageModel, Model
from weft.data.conversation import Shape
from weft.data.conversations import preference_of, read_conversations, talk_of, texts_in
from weft.data.corpus import Corpus, repeated
from weft.data.document import Document
from weft.data.duplicates import Repeated
from weft.data.layout import RowPart
from weft.data.places import Where
from weft.data.prepared import open_prepared
from weft.data.prepared_manifest import is_prepared
from weft.data.records import TEXT_FIELD
from weft.data.settings import DataSettings
from weft.data.stream import TokenStream, flags_of
from weft.tasks.base import TaskConfig
from weft.tasks.protocols import OwnTexts
from weft.tasks.records import Reread
from weft.tasks.token_streams import HeldOut, Material, Texts, prepared_stream, split_texts, text_material
from weft.tokenizers import Tokenizer
from weft.tokenizers.config import TokenizerConfig

DAY = datetime(2025, 1, 1)
"""The time that a template gets (``strftime_now``), so that the tokens do not depend on the day on which they are
made."""
AT_ONCE = 1 << 10
"""Conversations of a piece of the row of tokens."""


class ConversationConfig(TaskConfig, OwnTexts):
    """Base of tasks on conversations.

    Attributes:
        template: the name of one of the tokenizer's own chat templates, a file of Jinja, or a style (chatml, llama2);
            None: the tokenizer's own. It is stored with the tokenizer in every checkpoint, as its own template.
        variables: further variables of the template.
        shape: of the records, see `weft.data.conversation`; None: each is recognised by its fields.
        too_long: whether conversations longer than the context are left out (``drop``) or their ends are (``cut``);
            either way they are counted.
    """

    pairs: ClassVar[bool] = False

    template: str | None = Field(default=None, min_length=1)
    variables: dict[str, bool | int | float | str] = Field(default_factory=dict)
    shape: Shape | None = None
    too_long: Literal["drop", "cut"] = "drop"

    @property
    def which(self) -> Which:
        """The answers that are scored."""
        return "last"

    def texts(self, data: DataSettings) -> Iterable[str]:
        parts = self.parts(data)
        return Reread(lambda: texts_in(parts.parts["train"]))

    def parts(self, data: DataSettings) -> Texts:
        """The conversations of a run, limited and split like texts.

        Raises:
            DataError: there is no path, or conversations cannot be used.
            ConfigError: a setting for running text is given.
        """
        if data.path is None:
            raise DataError("this task reads conversations, and there is no path to them.", where="data.path",
                            remedy="Give a file or folder of JSONL, JSON or Parquet.")
        given = {"text_field": data.text_field != TEXT_FIELD, "prompt_field": data.prompt_field is not None,
                 "documents": data.documents != "file"}
        problems = [f"data.{name}: {getattr(data, name)!r}, while conversations have fields of their own. Leave it "
                    "out, and see task.shape." for name, is_given in given.items() if is_given]
        if problems:
            raise ConfigError(problems)
        corpus = self._read(data.path)
        limited = corpus if data.max_bytes is None else corpus.limited(data.max_bytes, seed=data.split_seed)
        return split_texts(data, limited, self._read)

    def recipe(self) -> dict[str, Any]:
        """The task's choices for the tokens of prepared conversations."""
        return {"kind": self.kind, "template": self.template, "variables": self.variables, "shape": self.shape,
                "scored": self.which}

    def digest(self, texts: Texts, encoder: ConversationEncoder) -> str:
        """A hash of the conversations and of all that decides what their tokens are, besides the tokenizer."""
        whole = [texts.corpus_sha256, encoder.marker.template.source, self.which, self.variables]
        return hashlib.sha256(json.dumps(whole, sort_keys=True).encode()).hexdigest()

    def encoder(self, tokenizer: Tokenizer, *, trained: bool = False) -> ConversationEncoder:
        """The encoder that converts conversations to tokens.

        Args:
            trained: it is that of a model trained on this task, so its own template is the task's.

        Raises:
            InputError: there is no such template.
        """
        choice = None if trained and DEFAULT in tokenizer.conventions.chat_templates else self.template
        template = chat_template(tokenizer, choice)
        return ConversationEncoder(tokenizer, AnswerMarker(template, self.which, Extras(variables=self.variables,
                                                                                        now=DAY)), pairs=self.pairs)

    def _read(self, path: Where) -> Corpus:
        if isinstance(path, str | Path) and is_prepared(Path(path)):
            raise DataError("the folder holds prepared tokens, while conversations are read from files.",
                            where=str(path),
                            remedy="Give the conversations themselves, or name the folder as data.path alone.")
        return read_conversations(path, self.shape, pairs=self.pairs)


class ConversationEncoder:
    """Converts conversations to tokens with flags: scored are the assistant's.

    Args:
        pairs: the documents are preference pairs, each of which becomes two conversations.
    """

    begins_scored = False

    def __init__(self, tokenizer: Tokenizer, marker: AnswerMarker, *, pairs: bool) -> None:
        self._plain, self.marker, self._pairs = tokenizer, marker, pairs

    @property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer with the template as its own, and with what ended the answers so far as ends of a
        generation."""
        own, specials = self._plain.conventions, self._plain.special_tokens
        template = self.marker.template
        ends = sorted({specials[end] for end in self.marker.ends if end in specials} - set(self._plain.end_ids))
        texts = sorted(end for end in self.marker.ends if end not in specials)
        return self._plain.with_conventions(replace(
            own, chat_templates={**own.chat_templates, DEFAULT: template.source},
            end_ids=(*own.end_ids, *ends), stops=tuple(dict.fromkeys((*own.stops, *texts)))))

    def stream(self, corpus: Corpus, repeats: Repeated | None = None) -> TokenStream:
        """The tokens of all conversations. Raises `DataError`: a conversation cannot be masked exactly, or cannot be
        expressed; ``where`` has its file and line."""
        whole = RowPart.together([row.narrow(self._plain.vocab_size) for row in self.rows(corpus)])
        return TokenStream(tokens=whole.ids, begins=whole.begins, byte_lengths=whole.byte_lengths,
                           begins_scored=self.begins_scored, lost=whole.lost,
                           vocab_size=self._plain.vocab_size, corpus=corpus.name, corpus_sha256=corpus.sha256,
                           tokenizer_sha256=self.tokenizer.fingerprint(), repeated=repeats,
                           flags=flags_of(whole.scored))

    def rows(self, corpus: Corpus) -> Iterator[RowPart]:
        """The row of tokens in pieces."""
        held: list[RowPart] = []
        for document in corpus.documents:
            held += self._rows_of(document)
            if len(held) >= AT_ONCE:
                yield RowPart.together(held)
                held = []
        if held:
            yield RowPart.together(held)

    def _rows_of(self, document: Document) -> list[RowPart]:
        try:
            if not self._pairs:
                talk = talk_of(document)
                return [self._row(self.marker.mark(talk.messages, talk.tools))]
            pair = preference_of(document)
            return [self._row(self.marker.mark([*pair.prompt, *side], pair.tools))
                    for side in (pair.chosen, pair.rejected)]
        except (InputError, TokenizerError) as error:
            place = document.name.replace(":", ", line ")
            raise DataError(f"{error.where}: {error.what}", where=place, remedy=error.remedy) from None

    def _row(self, marked: Marked) -> RowPart:
        begins = np.zeros(len(marked.ids), dtype=np.bool_)
        begins[0] = True
        # Bytes of an answer are those that its tokens decode to: of a text that they do not give back, no bits per byte
        # are known.
        lost = None if self._plain.keeps_text else np.full(
            len(marked.ids), 0.0 if marked.restored else np.nan, dtype=np.float32)
        return RowPart(marked.ids, self._bytes(marked), begins, marked.scored, lost)

    def _bytes(self, marked: Marked) -> np.ndarray:
        """UTF-8 bytes of text of each token; where a vocabulary does not determine them, those of a whole answer are
        counted to its first token, and text that is not scored has none."""
        try:
            return self._plain.byte_lengths(marked.ids)
        except TokenizerError:
            lengths = np.zeros(len(marked.ids), dtype=np.int32)
            for first, last in spans(marked.scored):
                lengths[first] = len(self._plain.decode(marked.ids[first:last]).encode())
            return lengths


def conversation_material(config: ConversationConfig, data: DataSettings,
                          tokenizer: TokenizerConfig) -> Material[TokenStream]:
    """The conversations of a run as streams of tokens, and the tokenizer with their template.

    Raises:
        DataError: the conversations cannot be used.
        TokenizerError: the tokenizer cannot be made.
        InputError: there is no such template.
    """
    if data.prepared is not None:
        return _prepared(config, data, tokenizer, data.prepared)
    texts = config.parts(data.model_copy(update={"test_path": None}))
    train, held = texts.parts["train"], texts.parts["validation"]
    encoder = config.encoder(tokenizer.fit(Reread(lambda: texts_in(train))))
    streams = encoder.stream(train), encoder.stream(held, repeated(held, train))
    return Material(texts.corpus, config.digest(texts, encoder), encoder.tokenizer, *streams)


def held_out_stream(config: ConversationConfig, data: DataSettings, tokenizer: Tokenizer,
                    part: HeldOut = "validation") -> TokenStream:
    """The tokens of a run's held-out conversations. Raises `DataError`: they cannot be read, or the run has no such
    part."""
    if data.prepared is not None:
        return prepared_stream(data.prepared, tokenizer, part)
    parts = config.parts(data).parts
    if part not in parts:
        raise DataError(f"the run has no {part} conversations.", where=f"data.{part}_path",
                        remedy="Name them in the run's configuration.")
    return config.encoder(tokenizer, trained=True).stream(parts[part], repeated(parts[part], parts["train"]))


def _prepared(config: ConversationConfig, data: DataSettings, tokenizer: TokenizerConfig,
              folder: Path) -> Material[TokenStream]:
    """The conversations of a prepared folder."""
    before = open_prepared(folder).manifest.recipe.task
    now = {key: value for key, value in config.recipe().items() if value}
    if before is None:
        raise DataError(f"the folder holds running text, while the task {config.kind!r} reads conversations.",
                        where=str(folder), remedy="Prepare conversations, from a configuration with this task.")
    problems = [f"task{'' if key == 'kind' else f'.{key}'}: {value!r}, while {folder} was prepared with "
                f"{before.get(key)!r}. Leave it out, or prepare the data again."
                for key, value in now.items() if value != before.get(key)]
    if problems:
        raise ConfigError(problems)
    return text_material(data, tokenizer)


def causal_problems(model: Model, task: str) -> list[str]:
    """Why a model cannot be trained by gradients to predict the tokens of conversations; empty if it can."""
    kind = model.config.kind
    if not isinstance(model, LanguageModel):
        return [f"model: a model of kind {kind!r} is not a language model. Give a model that predicts the next token."]
    if model.takes_source:
        return [f"task: {task!r}, and a model of kind {kind!r} decodes from a source, which conversations do not have. "
                "Give a decoder, or task: sequence_to_sequence."]
    if Trait.NOT_DIFFERENTIABLE in traits_of(model):
        return [f"model: a model of kind {kind!r} is fitted by counting, and counts every token. Give a model that is "
                "trained by gradients."]
    return []

