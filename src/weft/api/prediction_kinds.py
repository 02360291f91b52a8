"""The kinds of predictions of a text: how a model's input is made, and the fields that the text's record gains."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias, final

from weft.api.generating import generate, prompt_rows, require_tokenizer
from weft.api.translating import Search, source_row, translate
from weft.checkpoints import Loaded
from weft.core.errors import DataError, InputError, UnsupportedError
from weft.core.model import Classifier, LanguageModel
from weft.data.labelled import Frame
from weft.data.labelled_words import words_of
from weft.data.records import Fields, text_of
from weft.decoding import GREEDY, Row
from weft.tasks.answers import classify, text_of_words
from weft.tasks.classify_tokens import in_bio, spans_in
from weft.tasks.next_token import NextTokenConfig
from weft.tasks.whole_rows import mean_vectors

MOST_NEW = 200
"""New tokens of a continuation, where no number is given."""


@final
@dataclass(frozen=True)
class PredictionSettings:
    """Settings of a prediction. A field of the file that is None is that of the model's run, or else ``text``.

    Attributes:
        text_field: the field that holds the text.
        second_field: the field of a second text, for a model trained on pairs.
        words_field: the field of the words, for a model that gives each word a class.
        vectors: predict vectors: the mean of the last hidden vectors over the tokens, of length 1.
        max_new_tokens: most tokens of a continuation or translation; None: 200, or 50 more than the source has.
        beams: hypotheses of a translation; None: as `weft.api.search_defaults` says.
        batch_size: records that are computed at once.
    """

    text_field: str | None = None
    second_field: str | None = None
    words_field: str | None = None
    vectors: bool = False
    max_new_tokens: int | None = None
    beams: int | None = None
    batch_size: int = 32


Given: TypeAlias = tuple[Any, int, bool]
"""The inputs that a model reads of a record, their length in tokens, and whether their end was cut off."""


@final
class PredictionKind(NamedTuple):
    """A kind of predictions.

    Attributes:
        name: in words.
        fields: of a record that are read, by the setting that names each.
        gained: the fields that a record gains.
        encode: returns the inputs of a record's values; it is also given the record's place, for messages. Raises
            `DataError`.
        predict: returns the fields that each of some records gains.
    """

    name: str
    fields: Fields
    gained: tuple[str, ...]
    encode: Callable[[Sequence[Any], str], Given]
    predict: Callable[[Sequence[Any]], list[dict[str, Any]]]


def kind_of(loaded: Loaded, asked: PredictionSettings) -> PredictionKind:
    """The kind of predictions that a model makes.

    Raises:
        InputError: a setting does not apply to it.
        UnsupportedError: it predicts nothing of a text.
    """
    require_tokenizer(loaded)
    if "tokens" not in loaded.model.reads():
        raise UnsupportedError(f"a model of kind {loaded.config.kind!r} reads no text.", where="model",
                               remedy="Measure it on its own kind of data with weft eval.")
    head, causal = loaded.model.head, loaded.model
    by_words = _classifies(loaded) and isinstance(head, Classifier) and not head.pooled
    made = (_vectors if asked.vectors else _words if by_words else _classes if _classifies(loaded) else
            _translations if isinstance(causal, LanguageModel) and causal.takes_source else
            _continuations if isinstance(causal, LanguageModel) else None)
    if made is None:
        raise UnsupportedError("a model that predicts hidden tokens or nothing, which gives a text vectors alone.",
                               where="model", remedy="Ask for vectors (--vectors), or give another model.")
    _require_used(asked, made)
    return made(loaded, asked)


def _classifies(loaded: Loaded) -> bool:
    """Whether the model was trained to predict classes or values."""
    task = ((loaded.run or {}).get("task") or {}).get("kind", NextTokenConfig.kind)
    return isinstance(loaded.model.head, Classifier) and not (
        isinstance(loaded.model, LanguageModel) and task == NextTokenConfig.kind)


Maker: TypeAlias = Callable[[Loaded, PredictionSettings], PredictionKind]


def _require_used(asked: PredictionSettings, made: Maker) -> None:
    """Refuse settings of other kinds of predictions."""
    uses = {"text_field": made is not _words, "second_field": made in (_classes, _vectors),
            "words_field": made is _words, "max_new_tokens": made in (_translations, _continuations),
            "beams": made is _translations}
    wrong = next((name for name, used in uses.items() if not used and getattr(asked, name) is not None), None)
    if wrong is not None:
        raise InputError("a setting that does not apply to what this model predicts.", where=wrong,
                         remedy="Leave it out.")


def _field(loaded: Loaded, given: str | None, setting: str, otherwise: str | None) -> str | None:
    """The name of a field: as it is given, or as the model's run says."""
    found: str | None = given or ((loaded.run or {}).get("task") or {}).get(setting) or otherwise
    return found


def _texts(loaded: Loaded, asked: PredictionSettings) -> Fields:
    """The fields of one text or two."""
    second = asked.second_field if asked.text_field else _field(loaded, asked.second_field, "second_field", None)
    first = {"text_field": str(_field(loaded, asked.text_field, "text_field", "text"))}
    return first if second is None else {**first, "second_field": second}


def _framed(loaded: Loaded, fields: Fields) -> Callable[[Sequence[Any], str], Given]:
    """Texts as rows of ids, cut to the context as in training: the ids, and how many are of the second text."""
    tokenizer = require_tokenizer(loaded)
    frame = Frame(tokenizer, loaded.config.context)

    def encode(values: Sequence[Any], where: str) -> Given:
        texts = [text_of(value, setting, field, where)
                 for value, (setting, field) in zip(values, fields.items(), strict=True)]
        ids, second, cut = frame.around([tokenizer.measure(text) for text in texts])
        if not len(ids):
            raise DataError("the text has no tokens.", where=where, remedy="Fill it in, or remove that record.")
        return (tuple(ids.tolist()), second), len(ids), cut

    return encode


def _classes(loaded: Loaded, asked: PredictionSettings) -> PredictionKind:
    head, fields = loaded.model.head, _texts(loaded, asked)
    assert isinstance(head, Classifier), "the kind of a classifier"

    def predict(given: Sequence[Any]) -> list[dict[str, Any]]:
        answers = classify(loaded.model, [ids for ids, _ in given], [second for _, second in given],
                           size=asked.batch_size)
        return [_class_or_values(answer.best, answer.labels, answer.scores[0]) for answer in answers]

    gained = ("prediction",) if head.values else ("prediction", "probabilities")
    return PredictionKind("values" if head.values else "classes", fields, gained, _framed(loaded, fields), predict)


def _class_or_values(best: tuple[str, ...], labels: tuple[str, ...], scores: tuple[float, ...]) -> dict[str, Any]:
    if not labels:
        return {"prediction": scores[0] if len(scores) == 1 else list(scores)}
    return {"prediction": best[0],
            "probabilities": {name: math.exp(score) for name, score in zip(labels, scores, strict=True)}}


def _words(loaded: Loaded, asked: PredictionSettings) -> PredictionKind:
    field, head = str(_field(loaded, asked.words_field, "words_field", "words")), loaded.model.head
    tokenizer, context = require_tokenizer(loaded), loaded.config.context
    assert isinstance(head, Classifier), "the kind of a classifier"
    spans = bool(head.labels) and in_bio(head.labels)

    def encode(values: Sequence[Any], where: str) -> Given:
        words = words_of(values[0], "words_field", field, where)
        row = text_of_words(tokenizer, words, where)
        if len(row.tokens) > context:
            raise DataError(f"the words are {len(row.tokens):,} tokens, and this model reads {context:,}.", where=where,
                            remedy="Divide that record.")
        return (words, row), len(row.tokens), False

    def predict(given: Sequence[Any]) -> list[dict[str, Any]]:
        answers = classify(loaded.model, [row.tokens for _, row in given], size=asked.batch_size)
        return [_tagged(words, [answer.best[place] for place in row.first] if answer.labels else
                        [_alone(answer.scores[place]) for place in row.first], spans=spans)
                for (words, row), answer in zip(given, answers, strict=True)]

    gained = ("prediction", "spans") if spans else ("prediction",)
    return PredictionKind("classes of words", {"words_field": field}, gained, encode, predict)


def _alone(values: tuple[float, ...]) -> float | list[float]:
    return values[0] if len(values) == 1 else list(values)


def _tagged(words: list[str], labels: list[Any], *, spans: bool) -> dict[str, Any]:
    if not spans:
        return {"prediction": labels}
    return {"prediction": labels, "spans": [
        {"type": kind, "first": first, "behind": behind, "text": " ".join(words[first:behind])}
        for first, behind, kind in spans_in(labels)]}


def _vectors(loaded: Loaded, asked: PredictionSettings) -> PredictionKind:
    fields = _texts(loaded, asked)

    def predict(given: Sequence[Any]) -> list[dict[str, Any]]:
        found = mean_vectors(loaded.model, [ids for ids, _ in given], [second for _, second in given],
                             size=asked.batch_size)
        return [{"vector": vector.tolist()} for vector in found]

    return PredictionKind("vectors", fields, ("vector",), _framed(loaded, fields), predict)


def _translations(loaded: Loaded, asked: PredictionSettings) -> PredictionKind:
    field = asked.text_field or str(_field(loaded, None, "source_field", "text"))
    limit = loaded.model.source_limit() if isinstance(loaded.model, LanguageModel) else None
    search = Search(beams=asked.beams, max_new_tokens=asked.max_new_tokens, batch_size=asked.batch_size, cut=True)

    def encode(values: Sequence[Any], where: str) -> Given:
        text = text_of(values[0], "text_field", field, where)
        if not text.strip():
            raise DataError("the text is empty.", where=where, remedy="Fill it in, or remove that record.")
        length = len(source_row(loaded, text).source or ())
        return text, length, limit is not None and length > limit

    def predict(given: Sequence[Any]) -> list[dict[str, Any]]:
        return [{"prediction": text} for text in translate(loaded, list(given), search).texts]

    return PredictionKind("translations", {"text_field": field}, ("prediction",), encode, predict)


def _continuations(loaded: Loaded, asked: PredictionSettings) -> PredictionKind:
    field = str(_field(loaded, asked.text_field, "text_field", "text"))
    most = MOST_NEW if asked.max_new_tokens is None else asked.max_new_tokens
    limit = loaded.model.limit()

    def encode(values: Sequence[Any], where: str) -> Given:
        (row,) = prompt_rows(loaded, text_of(values[0], "text_field", field, where))
        assert isinstance(row, Row), "a text is one row"
        if limit is not None and len(row.tokens) + most > limit:
            raise DataError(f"the text is {len(row.tokens):,} tokens, and with {most:,} new ones it is longer than the "
                            f"{limit:,} for which this model has positions.", where=where,
                            remedy="Shorten it, or ask for fewer new tokens (max_new_tokens).")
        return row, len(row.tokens), False

    def predict(given: Sequence[Any]) -> list[dict[str, Any]]:
        found = generate(loaded, list(given), max_new_tokens=most, sampling=GREEDY)
        return [{"prediction": row.text} for row in found.rows]

    return PredictionKind("continuations", {"text_field": field}, ("prediction",), encode, predict)
