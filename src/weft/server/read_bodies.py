"""Bodies that a model reads without continuing them: embeddings, classes, and the ids of a text."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Any

import torch

from weft.api.generating import prompt_rows
from weft.api.using import classify
from weft.core.errors import InputError
from weft.decoding import Row
from weft.server.bodies import parse_body
from weft.server.fields import ClassifyBody, DetokenizeBody, EmbeddingBody, TokenizeBody
from weft.server.replies import Json
from weft.server.served import Served
from weft.tasks.answers import text_row
from weft.tasks.whole_rows import mean_vectors

MOST_ROWS = 256
"""Rows of one body."""


def embedded(served: Served, content: bytes) -> Json:
    """The vectors of a body's texts: of each the mean of its tokens' hidden vectors, of length 1."""
    body = parse_body(EmbeddingBody, content)
    served.adapter(body.model)
    rows = [_ids(served, each, f"input[{place}]") for place, each in enumerate(_rows(body.input))]
    found = mean_vectors(served.loaded.model, rows)
    data = [{"object": "embedding", "index": place, "embedding": _written(vector, body.encoding_format == "base64")}
            for place, vector in enumerate(found)]
    return {"object": "list", "model": served.name, "data": data, "usage": _usage(sum(map(len, rows)))}


def classified(served: Served, content: bytes) -> Json:
    """The classes or values that the model's head predicts for a body's texts."""
    body = parse_body(ClassifyBody, content)
    served.adapter(body.model)
    given = [tuple(each) if isinstance(each, list) and each and isinstance(each[0], str) else each
             for each in _rows(body.input)]
    answers = classify(served.loaded, given)
    data = [{"index": place, "labels": list(answer.labels), "best": list(answer.best),
             "scores": [list(each) for each in answer.scores]} for place, answer in enumerate(answers)]
    return {"object": "list", "model": served.name, "data": data,
            "usage": _usage(sum(len(answer.tokens) for answer in answers))}


def tokenized(served: Served, content: bytes) -> Json:
    """The ids of a text."""
    body = parse_body(TokenizeBody, content)
    served.adapter(body.model)
    tokens = served.tokenizer.encode(body.prompt)
    if body.add_special_tokens:
        rows = prompt_rows(served.loaded, body.prompt)
        tokens = [token for row in rows if isinstance(row, Row) for token in row.tokens]
    return {"tokens": tokens, "count": len(tokens), "max_model_len": served.loaded.model.limit()}


def detokenized(served: Served, content: bytes) -> Json:
    """The text of ids, with the names of special tokens."""
    body = parse_body(DetokenizeBody, content)
    served.adapter(body.model)
    wrong = next((token for token in body.tokens if token >= served.tokenizer.vocab_size), None)
    if wrong is not None:
        raise InputError(f"the id {wrong} is outside the vocabulary.", where="tokens",
                         remedy=f"Give ids from 0 to {served.tokenizer.vocab_size - 1}.")
    return {"prompt": served.tokenizer.decode(body.tokens, specials=True)}


def _rows(given: Any) -> list[Any]:
    """The rows of a body, each by itself. Raises `InputError`: there are too many."""
    rows = [given] if isinstance(given, str) or (given and isinstance(given[0], int)) else list(given)
    if not 0 < len(rows) <= MOST_ROWS:
        raise InputError(f"{len(rows)} rows; from 1 to {MOST_ROWS} are read at once.", where="input",
                         remedy="Send another number, in several requests.")
    return rows


def _ids(served: Served, given: str | Sequence[int], where: str) -> tuple[int, ...]:
    """A text as its ids between the tokens that begin and end a document, as models with heads read it; ids as they
    are."""
    if not isinstance(given, str):
        return tuple(given)
    tokens, _ = text_row(served.tokenizer, given)
    if not tokens:
        raise InputError("the text is empty.", where=where, remedy="Give at least one token.")
    return tokens


def _written(vector: torch.Tensor, in_base64: bool) -> list[float] | str:
    if in_base64:
        return base64.b64encode(vector.numpy().astype("<f4").tobytes()).decode()
    values: list[float] = vector.tolist()
    return values


def _usage(tokens: int) -> Json:
    return {"prompt_tokens": tokens, "total_tokens": tokens}
