"""Use of models that decode a target from a source: translation, and its comparison with references."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from weft.api.configs import one_or_more
from weft.api.generating import Ends, ending_of, require_tokenizer
from weft.api.models import Model, load_language_model
from weft.api.using import run_of
from weft.checkpoints import Loaded
from weft.core.errors import InputError
from weft.core.model import LanguageModel
from weft.core.strict_json import Record
from weft.data.pairs import ends_of, texts_of
from weft.decoding import Beams, LengthFormula, Row
from weft.decoding import beam_search as search_rows
from weft.evaluation.bleu import Bleu, bleu
from weft.interop.huggingface.generation import GENERATION
from weft.tasks.material import HeldOut
from weft.tasks.sequence_to_sequence import SequenceToSequenceConfig

MORE_TOKENS = 50
"""Tokens by which a target may be longer than its source, where no number is given (Vaswani et al. 2017, section
6.1)."""

BATCH = 32


@dataclass(frozen=True)
class Search:
    """How targets are searched, as in Vaswani et al. 2017, section 6.1; see `weft.decoding.beam_search`.

    Attributes:
        beams: hypotheses of a target; 1: the most probable token at every step.
        length_penalty: exponent of the length.
        length_formula: see `weft.decoding.beam.length_divisor`.
        max_new_tokens: most tokens of a target; None: 50 more than its source has.
        batch_size: sources that are searched together, which does not change the results.
        cut: whether sources longer than the encoder's limit are cut at their ends; otherwise they are refused.
    """

    beams: int = 4
    length_penalty: float = 0.6
    length_formula: LengthFormula = "gnmt"
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


def translate(model: Model, sources: str | Sequence[str], search: Search | None = None) -> Translated:
    """Search the target of each source text with an encoder-decoder.

    Raises:
        InputError: the model takes no source or has no tokenizer; a source is empty, or longer than the encoder's
            limit.
    """
    search = Search() if search is None else search
    loaded, causal = load_language_model(model, "translating")
    if not causal.takes_source:
        raise InputError(f"a model of kind {causal.config.kind!r} takes no source.", where=str(loaded.path),
                         remedy="Give an encoder-decoder, or continue texts with weft generate.")
    rows, cut = _limited([source_row(loaded, text, place) for place, text in enumerate(one_or_more(sources))],
                         causal.source_limit(), search.cut)
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
        settings = settings.model_copy(update={"validation_path": str(data), "validation": None})
    texts = list(texts_of(run.task.held_out_texts(settings, part)))
    sources, references = texts[::2], texts[1::2]
    bleu(references[:1], references[:1], resamples=1)  # a missing package is an error before the search
    translated = translate(loaded, sources, search)
    return Compared(bleu(translated.texts, references), translated)
