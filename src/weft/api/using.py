"""Using a model: generate, score, evaluate."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeGuard, cast

from weft.api.arguments import one_or_more
from weft.api.models import Model, load, load_language_model
from weft.checkpoints import Loaded
from weft.core.config import parse
from weft.core.errors import InputError
from weft.core.model import LanguageModel
from weft.data import TokenStream
from weft.decoding import GREEDY, Beams, CompiledStep, Ending, Generated, NewToken, Row, RowLike, Sampling, for_decoding
from weft.decoding import beam_search as search_rows
from weft.decoding import generate as continue_rows
from weft.decoding import stream as stream_rows
from weft.decoding.rows import parse_rows
from weft.evaluation import Evaluation, Scored
from weft.evaluation import evaluate as evaluate_stream
from weft.evaluation import score as score_rows
from weft.evaluation.evaluate import Mode
from weft.interop.huggingface.text import end_ids
from weft.tasks import Validation
from weft.tasks.answers import Answer, score_hidden, text_row
from weft.tasks.answers import classify as answers_of
from weft.tasks.material import HeldOut, held_out_text, text_stream
from weft.tasks.next_token import NextTokenConfig
from weft.tokenizers import Tokenizer
from weft.training.config import DataSettings, RunConfig


@dataclass(frozen=True)
class Ends:
    """When generation stops early: ``strings`` in the text; ``at_end``, at the tokens that end a document or a
    turn, by the tokenizer or, without one, by the model's own files; further ``tokens``."""

    strings: str | tuple[str, ...] = ()
    at_end: bool = True
    tokens: tuple[int, ...] = ()


def generate(model: Model, prompts: str | Sequence[str | RowLike], *, max_new_tokens: int = 200,
             sampling: Sampling = GREEDY, ends: Ends | None = None, seed: int = 0, log_probs: bool = False,
             compile: bool = False) -> Generated:
    """Continue a text, texts, or rows of ids; see `weft.decoding.generate`. ``compile``: compile the step of one token
    first, which takes a minute."""
    loaded, causal = load_language_model(model, "generating text")
    return continue_rows(causal, prompt_rows(loaded, prompts), max_new_tokens=max_new_tokens, sampling=sampling,
                         ending=_ending(loaded, ends or Ends()), tokenizer=loaded.tokenizer,
                         start=_start(loaded.tokenizer), seed=seed, log_probs=log_probs,
                         compiled=CompiledStep(causal) if compile else None)


def beam_search(model: Model, prompts: str | Sequence[str | RowLike], *, max_new_tokens: int = 200, beams: int = 4,
                length_penalty: float = 1.0, ends: Ends | None = None) -> Beams:
    """The most probable continuations of a text, texts, or rows of ids; see `weft.decoding.beam_search`. Of ``ends``
    only tokens end a continuation.

    Raises:
        InputError: rows or options that cannot be used, strings in ``ends`` among them.
    """
    loaded, causal = load_language_model(model, "generating text")
    ending = _ending(loaded, ends or Ends())
    if ending.strings:
        raise InputError("a search ends at tokens, not at text.", where="ends.strings",
                         remedy="Leave the strings out, or generate without beams.")
    return search_rows(causal, prompt_rows(loaded, prompts), max_new_tokens=max_new_tokens, beams=beams,
                       length_penalty=length_penalty, stop=ending.tokens, tokenizer=loaded.tokenizer,
                       start=_start(loaded.tokenizer))


def laid_out(model: Model, *, rows: int = 1) -> Loaded:
    """The model with its weights laid out as this machine decodes ``rows`` rows fastest, after a second of measuring;
    see `weft.decoding.for_decoding`. Numbers may differ in their last bits. It serves decoding only."""
    loaded, causal = load_language_model(model, "decoding")
    return replace(loaded, model=for_decoding(causal, rows=rows).model)


def stream(model: Model, prompt: str | RowLike, *, max_new_tokens: int = 200, sampling: Sampling = GREEDY,
           ends: Ends | None = None, seed: int = 0, compile: bool = False) -> Iterable[NewToken]:
    """Like `generate` for one prompt, token by token."""
    loaded, causal = load_language_model(model, "generating text")
    return stream_rows(causal, prompt_rows(loaded, [prompt]), max_new_tokens=max_new_tokens, sampling=sampling,
                       ending=_ending(loaded, ends or Ends()), tokenizer=loaded.tokenizer,
                       start=_start(loaded.tokenizer), seed=seed,
                       compiled=CompiledStep(causal) if compile else None)


def score(model: Model, rows: str | Sequence[str | RowLike], *, logits: bool = False) -> Scored:
    """Log-probabilities of a text or texts (from their document's start on) or rows of ids; see
    `weft.evaluation.score`. Of a model that predicts hidden tokens those of each token in its place, see
    `weft.tasks.answers.score_hidden`."""
    loaded, rows = load(model), one_or_more(rows)
    causal = loaded.model
    if not isinstance(causal, LanguageModel):
        if logits:
            raise InputError("logits of the next token, which this model does not predict.", where="logits",
                             remedy="Leave it out.")
        return score_hidden(causal, _whole_rows(loaded, rows), loaded.tokenizer)
    texts = all(isinstance(row, str) for row in rows)
    start = _start(loaded.tokenizer) if texts else None
    return score_rows(causal, prompt_rows(loaded, rows, open_text=False), start=start, logits=logits)


def classify(model: Model, rows: str | Sequence[str | tuple[str, str] | RowLike]) -> tuple[Answer, ...]:
    """The classes or values that a model's head predicts for a text or texts, pairs of texts (as the task `classify`
    reads them with ``second_field``), or rows of ids: of each row or each token, see `weft.tasks.answers.classify`."""
    loaded, seconds, made = load(model), list[int](), list[str | RowLike]()
    for row in one_or_more(rows):
        pair = text_row(_tokenizer(loaded), *row) if _is_pair(row) else None
        seconds.append(0 if pair is None else pair.second)
        made.append(cast(str | RowLike, row) if pair is None else pair.tokens)
    return answers_of(loaded.model, _whole_rows(loaded, made), seconds)


def _is_pair(row: object) -> TypeGuard[tuple[str, str]]:
    return isinstance(row, tuple) and len(row) == 2 and all(isinstance(text, str) for text in row)


def task_kind(loaded: Loaded) -> str:
    """The task that a checkpoint's run trained it on; the next token where it knows no run."""
    task = (loaded.run or {}).get("task") or {}
    return str(task.get("kind", NextTokenConfig.kind))


def _whole_rows(loaded: Loaded, rows: Sequence[str | RowLike]) -> list[tuple[int, ...]]:
    """Texts between what opens and what closes a document; rows of ids as they are."""
    texts = [text_row(_tokenizer(loaded), row).tokens if isinstance(row, str) else row for row in rows]
    found = parse_rows(texts)
    if any(row.source is not None for row in found):
        raise InputError("a source, which this model does not read.", where="rows", remedy="Give tokens alone.")
    return [row.tokens for row in found]


def evaluate(model: Model, data: str | Path | None = None, *, context: int | None = None, stride: int | None = None,
             mode: Mode = "windows", batch_size: int = 8, part: HeldOut = "validation") -> Evaluation:
    """Perplexity and bits per byte of a text, by default of what the model's run held out.

    Args:
        model: the checkpoint.
        data: a text, whose records and documents are those that the model's run would read; or a folder of prepared
            data, whose validation part is taken.
        context: tokens of a window; the model's by default.
        stride: tokens by which windows advance.
        mode: windows, or whole documents with the state carried through.
        batch_size: windows or documents at once.
        part: without ``data``: which of the texts that the run held out.
    """
    loaded, causal = load_language_model(model, "perplexity")
    tokens = evaluation_text(loaded, data, part)
    return evaluate_stream(causal, tokens, context=context, stride=stride, mode=mode, batch_size=batch_size)


def evaluation_text(loaded: Loaded, data: str | Path | None, part: HeldOut) -> TokenStream:
    """A text as a model's tokens: the one given, or what the model's run held out.

    Raises:
        InputError: no text is given, and there was no run.
    """
    tokenizer = _tokenizer(loaded)
    settings = None if loaded.run is None else DataSettings.model_validate(loaded.run["data"])
    if data is not None:
        return text_stream(data, tokenizer, settings)
    if settings is not None:
        return held_out_text(settings, tokenizer, part)
    raise InputError("the checkpoint knows no run, so it has no text of its own.", where="data",
                     remedy="Give the path of a text.")


def measure(model: Model, data: str | Path | None = None, *, part: HeldOut = "validation",
            batch_size: int | None = None) -> Validation:
    """What the task measures that the model's run trained it on (accuracy, loss, bits per byte), over the whole of what
    the run held out.

    Args:
        model: the checkpoint of a run.
        data: other held-out data, in the form of the run's own.
        part: without ``data``: which of those that the run held out.
        batch_size: rows at once; None: the run's.

    Raises:
        InputError: the checkpoint knows no run.
    """
    loaded = load(model)
    run, tokenizer = run_of(loaded), _tokenizer(loaded)
    settings = run.data
    if batch_size is not None:
        run = run.model_copy(update={"training": run.training.model_copy(update={"batch_size": batch_size})})
    if data is not None:
        settings = settings.model_copy(update={"validation_path": str(data), "validation": None})
    task = run.made_task()
    task.require(loaded.model)
    return task.measure(loaded.model, task.held_out(settings, tokenizer, part))


def run_of(loaded: Loaded) -> RunConfig:
    """The configuration of the run that wrote a checkpoint.

    Raises:
        InputError: it knows no run.
    """
    if loaded.run is None:
        raise InputError("the checkpoint knows no run, so it has no task and no data of its own.", where="data",
                         remedy="Give the checkpoint of a run; a language model also takes a text.")
    return parse(RunConfig, loaded.run, where=str(loaded.path))


def prompt_rows(loaded: Loaded, prompts: str | Sequence[str | RowLike], *, open_text: bool = True) -> list[RowLike]:
    """A text or texts encoded, behind their document's start symbol if the tokenizer has one and is not declared to add
    none; rows of ids as they are."""
    rows: list[RowLike] = []
    for prompt in one_or_more(prompts):
        if not isinstance(prompt, str):
            rows.append(prompt)
            continue
        tokenizer = _tokenizer(loaded)
        opens = open_text and tokenizer.conventions.adds_bos is not False
        start = _start(tokenizer) if opens else None
        rows.append(Row((*([] if start is None else [start]), *tokenizer.encode(prompt))))
    return rows


def _tokenizer(loaded: Loaded) -> Tokenizer:
    if loaded.tokenizer is None:
        raise InputError("the checkpoint has no tokenizer.", where=str(loaded.path),
                         remedy="Give rows of token ids instead of text.")
    return loaded.tokenizer


def _start(tokenizer: Tokenizer | None) -> int | None:
    """What opens a document: its start symbol, or else the symbol that ends the one before."""
    if tokenizer is None:
        return None
    return tokenizer.eos_id if tokenizer.bos_id is None else tokenizer.bos_id


def _ending(loaded: Loaded, ends: Ends) -> Ending:
    own: tuple[int, ...] = ()
    if ends.at_end:
        known = loaded.tokenizer
        own = end_ids(loaded.facts, loaded.model.vocab_size) if known is None else known.end_ids
    return Ending(tokens=tuple(dict.fromkeys((*own, *ends.tokens))), strings=tuple(one_or_more(ends.strings)))
