"""Use of models that decode a target from a source: translation, and its comparison with references."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from weft.api.configs import one_or_more
from weft.api.generating import Ends, ending_of, require_tokenizer
from weft.api.models import Model, load, load_language_model
from weft.api.using import run_of
from weft.checkpoints import Loaded
from weft.core.errors import InputError
from weft.core.model import LanguageModel
from weft.core.strict_json import Record
from weft.data.pairs import ends_of, texts_of
from weft.decoding import Beams, LengthFormula, Row
from weft.decoding import beam_search as search_rows
from weft.decoding.beam import MOST_PENALTY
from weft.evaluation.bleu import Bleu, bleu
from weft.interop.huggingface.generation import FOLLOWED, GENERATION, MOST, told
from weft.tasks.sequence_to_sequence import SequenceToSequenceConfig
from weft.tasks.token_streams import HeldOut

MORE_TOKENS = 50
"""Tokens by which a target may be longer than its source, where no number is given (Vaswani et al. 2017, section
6.1)."""

BATCH = 32

SETTINGS: Mapping[str, Callable[[Any], bool]] = MappingProxyType({
    "num_beams": lambda value: type(value) is int and value >= 1,
    "length_penalty": lambda value: type(value) in (int, float) and 0 <= value <= MOST_PENALTY, MOST: FOLLOWED[MOST]})
"""Keys of ``generation_config.json`` that a search follows, each with the values that it can follow."""


@dataclass(frozen=True)
class Search:
    """How targets are searched, see `weft.decoding.beam_search`; what is None, see `search_defaults`.

    Attributes:
        beams: hypotheses of a target; 1: the most probable token at every step.
        length_penalty: exponent of the length.
        length_formula: see `weft.decoding.beam.length_divisor`.
        max_new_tokens: most tokens of a target; None: 50 more than its source has.
        batch_size: sources that are searched together, which does not change the results.
        cut: whether sources longer than the encoder's limit are cut at their ends; otherwise they are refused.
    """

    beams: int | None = None
    length_penalty: float | None = None
    length_formula: LengthFormula | None = None
    max_new_tokens: int | None = None
    batch_size: int = BATCH
    cut: bool = False


@dataclass(frozen=True)
class Translated(Record):
    """The targets of some sources.

    Attributes:
        texts: the best target of each.
        beams: all of them.
        cut: number of sources that were cut to the encoder's limit.
    """

    texts: tuple[str, ...]
    beams: Beams
    cut: int

    def to_json(self) -> dict[str, Any]:
        """Return plain data: the hypotheses of each source, and the number of sources that were cut."""
        return {**self.beams.to_json(), "cut": self.cut}


def search_defaults(model: Model, search: Search) -> tuple[Search, str]:
    """Return a search without a None but for ``max_new_tokens``, and a line that says what of it the model's
    ``generation_config.json`` decided and which settings there are not followed (empty: none).

    Where neither the search nor the file decides, there are four beams, and log-probabilities are divided as in
    Vaswani et al. 2017, section 6.1, by ((5 + length) / 6)^0.6. A file that names ``num_beams`` or ``length_penalty``
    means what `transformers` does with it: log-probabilities divided by the length to that power, which is 1 where the
    file does not say it.
    """
    facts = load(model).facts
    content: Mapping[str, Any] = facts.get(GENERATION) or {}
    options = {"num_beams": search.beams, "length_penalty": search.length_penalty, MOST: search.max_new_tokens}
    said = {key: content[key] for key, able in SETTINGS.items() if key in content and able(content[key])}
    used = {key: value for key, value in said.items() if options[key] is None}
    if search.length_formula == "gnmt":
        used.pop("length_penalty", None)
    power = search.length_penalty is None and search.length_formula != "gnmt" and bool({*said} - {MOST})
    formula: LengthFormula = "power" if power else "gnmt"
    chosen = {"num_beams": 4, "length_penalty": 1.0 if power else 0.6, MOST: None, **used,
              **{key: value for key, value in options.items() if value is not None}}
    found = replace(search, beams=chosen["num_beams"], length_penalty=chosen["length_penalty"],
                    length_formula=search.length_formula or formula, max_new_tokens=chosen[MOST])
    inert = set() if content.get("do_sample") else {"temperature", "top_k", "top_p", "min_p", "typical_p"}
    return found, told(facts, used, {*said, *inert})


def translate(model: Model, sources: str | Sequence[str], search: Search | None = None) -> Translated:
    """Search the target of each source text with an encoder-decoder; what the search leaves open is as
    `search_defaults` says, with a warning where the model's files decide.

    Raises:
        InputError: the model takes no source or has no tokenizer; a source is empty, or longer than the encoder's
            limit.
    """
    loaded, causal = load_language_model(model, "translating")
    given = Search() if search is None else search
    search, line = search_defaults(loaded, given)
    if line and None in (given.beams, given.length_penalty, given.length_formula):
        warnings.warn(line, stacklevel=2)
    if not causal.takes_source:
        raise InputError(f"a model of kind {causal.config.kind!r} takes no source.", where=str(loaded.path),
                         remedy="Give an encoder-decoder, or continue texts with weft generate.")
    rows, cut = _limited([source_row(loaded, text, place) for place, text in enumerate(one_or_more(sources))],
                         causal.source_limit(), search.cut)
    assert search.beams is not None and search.length_penalty is not None and search.length_formula is not None
    found = search_rows(causal, rows, max_new_tokens=[_most(row, causal, search) for row in rows], beams=search.beams,
                        length_penalty=search.length_penalty, length_formula=search.length_formula,
                        stop=ending_of(loaded, Ends()).tokens, tokenizer=require_tokenizer(loaded),
                        batch_size=search.batch_size)
    return Translated(tuple((hypotheses[0].text or "").strip() for hypotheses in found.rows), found, cut)


def source_row(loaded: Loaded, text: str, place: int = 0) -> Row:
    """Encode a source as the model's task does: the text and the token that ends it, after the token that begins it
    where the tokenizer declares one; and the token from which the target is decoded.

    Raises:
        InputError: the text is empty, or no token opens a target.
    """
    tokenizer = require_tokenizer(loaded)
    if not text.strip():
        raise InputError("the source is empty.", where=f"sources[{place}]", remedy="Leave it out.")
    opening, closing = (ids.tolist() for ids in ends_of(tokenizer))
    begins = [tokenizer.bos_id] if tokenizer.conventions.adds_bos and tokenizer.bos_id is not None else []
    facts: tuple[dict[str, Any], ...] = (loaded.facts.get(GENERATION) or {}, loaded.facts.get("kept") or {})
    declared = [ids["decoder_start_token_id"] for ids in facts if ids.get("decoder_start_token_id") is not None]
    start = declared[:1] or opening
    if not start:
        raise InputError(f"the tokenizer {tokenizer.name} has no token that opens a text, from which a target's first "
                         "token is predicted.", where=str(loaded.path), remedy="Use a model with another tokenizer.")
    return Row(tuple(start), (*begins, *tokenizer.encode(text), *closing))


def _limited(rows: list[Row], limit: int | None, cut: bool) -> tuple[list[Row], int]:
    """The rows, those with sources beyond the encoder's limit cut, and their number."""
    longer = [place for place, row in enumerate(rows) if limit is not None and len(row.source or ()) > limit]
    if longer and not cut:
        place = longer[0]
        more = f" ({len(longer)} sources are longer than that)" if len(longer) > 1 else ""
        raise InputError(f"{len(rows[place].source or ())} tokens, and the encoder has positions for {limit}{more}.",
                         where=f"sources[{place}]", remedy="Shorten it, or let sources be cut (--cut).")
    return [row if row.source is None else Row(row.tokens, row.source[:limit]) for row in rows], len(longer)


def _most(row: Row, model: LanguageModel, search: Search) -> int:
    if search.max_new_tokens is not None:
        return search.max_new_tokens
    most, limit = len(row.source or ()) + MORE_TOKENS, model.limit()
    return most if limit is None else min(most, limit)


@dataclass(frozen=True)
class Compared(Record):
    """The translations of held-out sources, compared with their references.

    Attributes:
        bleu: the score.
        translated: the translations.
    """

    bleu: Bleu
    translated: Translated


def measure_bleu(model: Model, data: str | Path | None = None, *, part: HeldOut = "validation",
                 search: Search | None = None) -> Compared:
    """Translate the sources of a run's held-out pairs and compare the results with their targets.

    Args:
        model: the checkpoint of a run on pairs.
        data: other pairs, in the format of the run's own.
        part: which of the run's held-out pairs to use, without ``data``.
        search: how targets are searched.

    Raises:
        InputError: the checkpoint records no run, or one of another task.
        MissingExtra: ``sacrebleu`` is not installed.
    """
    loaded, _ = load_language_model(model, "translating")
    run = run_of(loaded)
    if not isinstance(run.task, SequenceToSequenceConfig):
        raise InputError(f"BLEU compares translations, and the model was trained on the task {run.task.kind!r}.",
                         where="bleu", remedy="Give a model that was trained on pairs.")
    settings = run.data
    if data is not None:
        settings = settings.with_(validation_path=str(data), validation=None)
    texts = list(texts_of(run.task.held_out_texts(settings, part)))
    sources, references = texts[::2], texts[1::2]
    bleu(references[:1], references[:1], resamples=1)  # a missing package is an error before the search
    translated = translate(loaded, sources, search)
    return Compared(bleu(translated.texts, references), translated)
