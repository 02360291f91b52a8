"""Using a model: generate, score, evaluate."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from weft.api.arguments import one_or_more
from weft.api.models import Model, load
from weft.checkpoints import Loaded
from weft.core.errors import InputError
from weft.decoding import GREEDY, CompiledStep, Generated, NewToken, Row, RowLike, Sampling, for_decoding
from weft.decoding import generate as continue_rows
from weft.decoding import stream as stream_rows
from weft.decoding.generate import Ending
from weft.evaluation import Evaluation, Scored
from weft.evaluation import evaluate as evaluate_stream
from weft.evaluation import score as score_rows
from weft.evaluation.evaluate import Mode
from weft.interop.huggingface.text import end_ids
from weft.tokenizers import Tokenizer
from weft.training.config import DataSettings
from weft.training.material import HeldOut, held_out, text_stream


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
    loaded = load(model)
    return continue_rows(loaded.model, prompt_rows(loaded, prompts), max_new_tokens=max_new_tokens, sampling=sampling,
                         ending=_ending(loaded, ends or Ends()), tokenizer=loaded.tokenizer,
                         start=_start(loaded.tokenizer), seed=seed, log_probs=log_probs,
                         compiled=CompiledStep(loaded.model) if compile else None)


def laid_out(model: Model, *, rows: int = 1) -> Loaded:
    """The model with its weights laid out as this machine decodes ``rows`` rows fastest, after a second of measuring;
    see `weft.decoding.for_decoding`. Numbers may differ in their last bits. It serves decoding only."""
    loaded = load(model)
    return replace(loaded, model=for_decoding(loaded.model, rows=rows).model)


def stream(model: Model, prompt: str | RowLike, *, max_new_tokens: int = 200, sampling: Sampling = GREEDY,
           ends: Ends | None = None, seed: int = 0, compile: bool = False) -> Iterable[NewToken]:
    """Like `generate` for one prompt, token by token."""
    loaded = load(model)
    return stream_rows(loaded.model, prompt_rows(loaded, [prompt]), max_new_tokens=max_new_tokens, sampling=sampling,
                       ending=_ending(loaded, ends or Ends()), tokenizer=loaded.tokenizer,
                       start=_start(loaded.tokenizer), seed=seed,
                       compiled=CompiledStep(loaded.model) if compile else None)


def score(model: Model, rows: str | Sequence[str | RowLike], *, logits: bool = False) -> Scored:
    """Log-probabilities of a text or texts (from their document's start on) or rows of ids; see
    `weft.evaluation.score`."""
    loaded = load(model)
    rows = one_or_more(rows)
    texts = all(isinstance(row, str) for row in rows)
    start = _start(loaded.tokenizer) if texts else None
    return score_rows(loaded.model, prompt_rows(loaded, rows, open_text=False), start=start, logits=logits)


def evaluate(model: Model, data: str | Path | None = None, *, context: int | None = None, stride: int | None = None,
             mode: Mode = "windows", batch_size: int = 8, part: HeldOut = "validation") -> Evaluation:
    """Perplexity and bits per byte of a text, by default of what the model's run held out.

    Args:
        model: the checkpoint.
        data: a text, or a folder of prepared data, whose validation part is taken.
        context: tokens of a window; the model's by default.
        stride: tokens by which windows advance.
        mode: windows, or whole documents with the state carried through.
        batch_size: windows or documents at once.
        part: without ``data``: which of the texts that the run held out.
    """
    loaded = load(model)
    tokenizer = _tokenizer(loaded)
    if data is not None:
        tokens = text_stream(data, tokenizer)
    elif loaded.run is not None:
        tokens = held_out(DataSettings.model_validate(loaded.run["data"]), tokenizer, part)
    else:
        raise InputError("the checkpoint knows no run, so it has no text of its own.", where="data",
                         remedy="Give the path of a text.")
    return evaluate_stream(loaded.model, tokens, context=context, stride=stride, mode=mode, batch_size=batch_size)


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
