"""Use of a model: scoring, classification, evaluation, and images of another size."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeGuard, cast

from weft.api.configs import one_or_more
from weft.api.generating import prompt_rows, require_tokenizer, start_of
from weft.api.models import Model, load, load_language_model
from weft.api.rows import measure_rows
from weft.checkpoints import Loaded, save_checkpoint
from weft.checkpoints.load import naming_parts
from weft.core.config import parse
from weft.core.errors import InputError
from weft.core.model import Classifier, LanguageModel, Readout
from weft.data import TokenStream
from weft.data.prepared_manifest import is_prepared
from weft.data.source_settings import DocumentsSetting
from weft.decoding import RowLike
from weft.decoding.rows import WordsRow, has_words, parse_rows, words_row
from weft.evaluation import Evaluation, Scored
from weft.evaluation import evaluate as evaluate_stream
from weft.evaluation import score as score_rows
from weft.evaluation.by_document import texts_of, words_in
from weft.evaluation.evaluate import Mode
from weft.evaluation.score import ScoredRow
from weft.models.image_encoder import resized
from weft.tasks import Validation
from weft.tasks.answers import Answer, TextOfWords, by_word, score_hidden, text_of_words, text_row
from weft.tasks.answers import classify as answers_of
from weft.tasks.base import require_fits
from weft.tasks.masked import mask_of
from weft.tasks.protocols import ComparesWithStart
from weft.tasks.token_streams import HeldOut, held_out_text, text_stream
from weft.tasks.whole_rows import WholeRow, head_outputs, whole_rows
from weft.training.config import DataSettings, RunConfig
from weft.training.starting import opened


def score(model: Model, rows: str | Sequence[str | tuple[str, str] | RowLike], *, logits: bool = False) -> Scored:
    """Return the log-probabilities of a text or texts (as whole documents) or of rows of ids; see
    `weft.evaluation.score`. For a model that predicts masked tokens, each token is masked in turn; see
    `weft.tasks.answers.score_hidden`. With ``logits``, of an encoder also what its head gives for each row as it is, or
    its hidden vectors [T,D] without a head (`weft.tasks.whole_rows.head_outputs`); without a mask token, or a head that
    predicts tokens, its rows have no log-probabilities then. Pairs of texts are for encoders, see `classify`."""
    loaded, given = load(model), one_or_more(rows)
    causal = loaded.model
    if not isinstance(causal, LanguageModel):
        return _score_whole(loaded, _whole_rows(loaded, given), logits)
    alone = [cast(str | RowLike, row) for row in given if not _is_pair(row)]
    if len(alone) < len(given):
        raise InputError("a pair of texts, for a model of the next token.", where="rows", remedy="Give one text.")
    start = start_of(loaded.tokenizer) if all(isinstance(row, str) for row in alone) else None
    return score_rows(causal, prompt_rows(loaded, alone, open_text=False), start=start, logits=logits)


def _score_whole(loaded: Loaded, rows: list[WholeRow], logits: bool) -> Scored:
    """The scores of an encoder for rows, see `score`."""
    model, tokenizer = loaded.model, loaded.tokenizer
    if not logits:
        return score_hidden(model, rows, tokenizer)
    masks = tokenizer is not None and mask_of(tokenizer) < model.vocab_size
    given = head_outputs(model, rows)
    if masks and isinstance(model.head, Readout):
        return Scored(score_hidden(model, rows, tokenizer).rows, given)
    return Scored(tuple(ScoredRow(row.tokens, (None,) * len(row.tokens)) for row in rows), given)


def classify(model: Model, rows: str | Sequence[str | tuple[str, str] | RowLike | WordsRow]) -> tuple[Answer, ...]:
    """Return the classes or values that a model's head predicts for each row, each token or each word; see
    `weft.tasks.answers.classify`. Rows are a text or texts, pairs of texts (as the task `classify` reads them with
    ``second_field``), rows of ids, or rows of words (``{"words": [...]}``, as the task `classify_tokens` reads them):
    each word has the prediction for its first token.

    Raises:
        InputError: rows of words, for a model that predicts one class or value of a row.
    """
    loaded, given = load(model), list(one_or_more(rows))
    made, texts = list[str | tuple[str, str] | RowLike](), dict[int, tuple[WordsRow, TextOfWords]]()
    for index, row in enumerate(given):
        words = words_row(row, f"rows[{index}]") if has_words(row) else row
        if isinstance(words, WordsRow):
            if isinstance(loaded.model.head, Classifier) and loaded.model.head.pooled:
                raise InputError("a row of words, for a model that predicts once for each row.", where=f"rows[{index}]",
                                 remedy="Give a text, or a model with head: per_token.")
            texts[index] = words, text_of_words(require_tokenizer(loaded), words.words, f"rows[{index}]")
        made.append(texts[index][1].tokens if isinstance(words, WordsRow) else words)
    answers = answers_of(loaded.model, _whole_rows(loaded, made))
    return tuple(by_word(answer, texts[index][0].words, texts[index][1].first) if index in texts else answer
                 for index, answer in enumerate(answers))


def _is_pair(row: object) -> TypeGuard[tuple[str, str]]:
    return isinstance(row, tuple) and len(row) == 2 and all(isinstance(text, str) for text in row)


def _whole_rows(loaded: Loaded, rows: Sequence[str | tuple[str, str] | RowLike]) -> list[WholeRow]:
    """Encode texts, or pairs of them, between the tokens that begin and end a document; rows of ids stay as they are.
    All are checked against the model."""
    made, seconds = list[RowLike](), list[int]()
    for row in rows:
        texts = (row,) if isinstance(row, str) else row if _is_pair(row) else ()
        tokens, second = text_row(require_tokenizer(loaded), *texts) if texts else (cast(RowLike, row), 0)
        made.append(tokens)
        seconds.append(second)
    whole: list[WholeRow | tuple[int, ...]] = []
    for index, (each, second) in enumerate(zip(parse_rows(made), seconds, strict=True)):
        if each.source is not None:
            raise InputError("the row has a source, and this model takes none.", where=f"rows[{index}]",
                             remedy="Give tokens alone.")
        if each.prefix:
            raise InputError("the row has a prefix, and this model reads all tokens in both directions.",
                             where=f"rows[{index}]", remedy="Leave it out.")
        whole.append(each.tokens if second else WholeRow(each.tokens, each.types, each.globals_))
    return whole_rows(loaded.model, whole, seconds)


def evaluate(model: Model, data: str | Path | None = None, *, context: int | None = None, stride: int | None = None,
             mode: Mode = "windows", batch_size: int = 8, part: HeldOut = "validation",
             documents: DocumentsSetting | None = None) -> Evaluation:
    """Measure perplexity and bits per byte on a text and each of its documents, by default on the text that the model's
    run held out. Words are counted where the tokens give the text back exactly, and all of it is scored.

    Args:
        model: the checkpoint.
        data: a text, which is divided into records and documents as in the model's run; or a folder of prepared data,
            whose validation part is used.
        context: length of a window in tokens; None: the model's context.
        stride: number of tokens by which windows advance.
        mode: windows, or whole documents with the state carried through.
        batch_size: number of windows or documents that run together.
        part: which of the run's held-out texts to use, without ``data``.
        documents: what is a document of ``data``, as in a run's ``data.documents``: ``file``, ``line``, ``paragraph``;
            None: as in the model's run.

    Raises:
        InputError: there is neither a text nor a run; or ``documents`` without a text that is divided here.
    """
    loaded, causal = load_language_model(model, "perplexity")
    tokens = evaluation_text(loaded, data, part, documents)
    texts = texts_of(tokens, require_tokenizer(loaded))
    found = evaluate_stream(causal, tokens, context=context, stride=stride, mode=mode, batch_size=batch_size,
                            by_document=True)
    return replace(found, words=None if texts is None else words_in(texts))


def evaluation_text(loaded: Loaded, data: str | Path | None, part: HeldOut,
                    documents: DocumentsSetting | None = None) -> TokenStream:
    """Return a text as a model's tokens: ``data``, or the text that the model's run held out; the arguments are those
    of `evaluate`."""
    tokenizer = require_tokenizer(loaded)
    settings = None if loaded.run is None else DataSettings.model_validate(loaded.run["data"])
    if documents is not None:
        if data is None or is_prepared(Path(data)):
            raise InputError("no text is divided here: that of a run and that of a prepared folder are divided "
                             "already.", where="documents", remedy="Give another text, or leave documents out.")
        settings = (settings or DataSettings()).with_(documents=documents)
    if data is not None:
        return text_stream(data, tokenizer, settings)
    if settings is not None:
        return held_out_text(settings, tokenizer, part)
    raise InputError("the checkpoint records no run, so there is no held-out text.", where="data",
                     remedy="Give the path of a text.")


def measure(model: Model, data: str | Path | None = None, *, part: HeldOut = "validation",
            batch_size: int | None = None, task: str | Mapping[str, Any] | None = None,
            length: int | None = None) -> Validation:
    """Compute the metrics of the task that the model was trained on (accuracy, loss, bits per byte) on all of the run's
    held-out data, or those of another task on rows with answers.

    Args:
        model: the checkpoint of a run; with ``task`` of any model that predicts its answers.
        data: other held-out data, in the format of the run's own.
        part: which of the run's held-out data to use, without ``data``.
        batch_size: number of rows that run together; None: the run's.
        task: kind of a task on rows with answers (`weft.tasks.rows`), or its fields; what is not given is as in the
            run, if that is of the same kind.
        length: of the rows in tokens; None: the task's.

    Raises:
        InputError: the checkpoint records no run; or ``data`` with ``task`` or ``length``.
        ConfigError: the task's rows cannot be of that length, or the model does not fit them.
    """
    loaded = load(model)
    if task is not None or length is not None:
        if data is not None:
            raise InputError("other data for rows that the task makes itself.", where="data",
                             remedy="Leave it out, or leave out task and length.")
        recorded = None if loaded.run is None else run_of(loaded)
        return measure_rows(loaded, recorded, task, length=length, part=part, batch_size=batch_size)
    run, tokenizer = run_of(loaded), require_tokenizer(loaded)
    settings = run.data
    if batch_size is not None:
        run = run.with_(training={"batch_size": batch_size})
    if data is not None:
        settings = settings.with_(validation_path=str(data), validation=None)
    made = run.made_task()
    require_fits(made, loaded.model)
    held = made.held_out(settings, tokenizer, part)
    if isinstance(made, ComparesWithStart):
        held = made.compared(held, opened(Path(str(run.start))).model)
    return made.measure(loaded.model, held)


def mixes(loaded: Loaded) -> bool:
    """Whether the run that wrote a checkpoint was on a mixture of sources."""
    return loaded.run is not None and loaded.run["data"].get("sources") is not None


def run_of(loaded: Loaded) -> RunConfig:
    """Return the configuration of the run that wrote a checkpoint.

    Raises:
        InputError: the checkpoint records no run.
        CheckpointError: its task or another part of it is not known here.
    """
    if loaded.run is None:
        raise InputError("the checkpoint records no run, so its task and its data are unknown.", where="data",
                         remedy="Give the checkpoint of a run; a language model also takes a text.")
    with naming_parts("run", str(loaded.path)):
        return parse(RunConfig, loaded.run)


def resize_images(model: Model, out: str | Path, *, height: int, width: int) -> Path:
    """Write a checkpoint of a model for images of another size, whose learned positions are interpolated; see
    `weft.models.image_encoder.resized`. A run may start from it to adapt the weights.

    Args:
        model: the checkpoint of an image encoder.
        out: a new folder.
        height: of the new images, in pixels.
        width: of the new images, in pixels.

    Raises:
        UnsupportedError: the model has no patches.
        ConfigError: patches do not divide the new size.
        OccupiedError: ``out`` exists.
    """
    loaded = load(model)
    return save_checkpoint(out, resized(loaded.model, height, width), loaded.tokenizer, facts=loaded.facts)
