"""Text from a model: continued greedily, by sampling or by beams, with what the model's own files say about it."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from types import MappingProxyType

from weft.api.configs import one_or_more
from weft.api.models import Model, load, load_language_model
from weft.checkpoints import Loaded
from weft.core.errors import InputError
from weft.decoding import Beams, CompiledStep, Ending, Generated, NewToken, Row, RowLike, Sampling, combined
from weft.decoding import beam_search as search_rows
from weft.decoding import generate as continue_rows
from weft.decoding import stream as stream_rows
from weft.interop.huggingface.generation import MOST, end_ids, followed, told
from weft.tasks.next_token import NextTokenConfig
from weft.tasks.prefix_lm import PrefixLMConfig
from weft.tokenizers import Tokenizer


@dataclass(frozen=True)
class Ends:
    """When generation stops before its maximum number of tokens, and what the text leaves out.

    Attributes:
        strings: strings of text that end it.
        at_end: stop at the tokens that end a document or a turn, which the tokenizer declares or, without a tokenizer,
            the model's own files.
        tokens: further ids that end it.
        spelled: special tokens that the text spells; it leaves out all others.
    """

    strings: str | tuple[str, ...] = ()
    at_end: bool = True
    tokens: tuple[int, ...] = ()
    spelled: tuple[int, ...] = ()


NO_OPTIONS: Mapping[str, float | None] = MappingProxyType({})


def decoding_defaults(model: Model, options: Mapping[str, float | None] = NO_OPTIONS, *, draws: bool = False,
                      most: int = 200, beams: bool = False) -> tuple[Sampling, int, str]:
    """Return how text of a model is chosen, how many new tokens it has at most, and a line that says what of it the
    model's ``generation_config.json`` decided and which settings there are not followed (empty: none).

    Args:
        model: the checkpoint.
        options: explicit values, which win: ``max_new_tokens``, and fields of `Sampling` by their names; None: not
            given.
        draws: whether tokens are drawn where neither options nor the file decide.
        most: the number of new tokens likewise.
        beams: whether the text is searched by beams, which takes of the file the number of tokens alone.

    Raises:
        InputError: an option out of range.
    """
    facts = load(model).facts
    given = {name: value for name, value in options.items() if value is not None}
    said = {name: value for name, value in followed(facts).items() if not beams or name == MOST}
    chosen = {name: value for name, value in given.items() if name != MOST}
    sampling, plain = (combined(chosen, from_file, draws=draws) for from_file in (said, {}))
    length = int(given.get(MOST, said.get(MOST, most)))
    used = {name: value for name, value in asdict(sampling).items() if value != asdict(plain)[name]}
    used |= {MOST: length} if MOST in said and MOST not in given else {}
    inert = set() if beams else {*asdict(sampling), "do_sample"}
    return sampling, length, told(facts, used, {*given, *(inert & set(said))})


def _settled(loaded: Loaded, sampling: Sampling | None, max_new_tokens: int | None) -> tuple[Sampling, int]:
    """The arguments of `generate`, where they are not given by the model's files; a warning says what these decided."""
    found, most, line = decoding_defaults(loaded, {MOST: max_new_tokens})
    if sampling is None and line:
        warnings.warn(line, stacklevel=3)
    return found if sampling is None else sampling, most


def generate(model: Model, prompts: str | Sequence[str | RowLike], *, max_new_tokens: int | None = None,
             sampling: Sampling | None = None, ends: Ends | None = None, seed: int = 0, log_probs: bool = False,
             compile: bool = False) -> Generated:
    """Continue a text, texts, or rows of ids; see `weft.decoding.generate`. What is not given is as the model's
    ``generation_config.json`` says (`decoding_defaults`), or else greedy and 200 tokens. With ``compile`` the step of
    one token is compiled first, which takes about a minute."""
    loaded, causal = load_language_model(model, "generating text")
    sampling, most = _settled(loaded, sampling, max_new_tokens)
    return continue_rows(causal, prompt_rows(loaded, prompts), max_new_tokens=most, sampling=sampling,
                         ending=ending_of(loaded, ends or Ends()), tokenizer=loaded.tokenizer,
                         start=start_of(loaded.tokenizer), seed=seed, log_probs=log_probs,
                         compiled=CompiledStep(causal) if compile else None)


def beam_search(model: Model, prompts: str | Sequence[str | RowLike], *, max_new_tokens: int = 200, beams: int = 4,
                length_penalty: float = 1.0, ends: Ends | None = None) -> Beams:
    """Search the most probable continuations of a text, texts, or rows of ids; see `weft.decoding.beam_search`. A
    continuation ends at tokens only.

    Raises:
        InputError: rows or options that cannot be used, including strings in ``ends``.
    """
    loaded, causal = load_language_model(model, "generating text")
    ending = ending_of(loaded, ends or Ends())
    if ending.strings:
        raise InputError("beam search stops at tokens, not at text.", where="ends.strings",
                         remedy="Leave the strings out, or generate without beams.")
    return search_rows(causal, prompt_rows(loaded, prompts), max_new_tokens=max_new_tokens, beams=beams,
                       length_penalty=length_penalty, stop=ending.tokens, tokenizer=loaded.tokenizer,
                       start=start_of(loaded.tokenizer), spelled=ending.spelled)


def stream(model: Model, prompt: str | RowLike, *, max_new_tokens: int | None = None, sampling: Sampling | None = None,
           ends: Ends | None = None, seed: int = 0, compile: bool = False) -> Iterable[NewToken]:
    """Continue one prompt as `generate` does, and yield it token by token."""
    loaded, causal = load_language_model(model, "generating text")
    sampling, most = _settled(loaded, sampling, max_new_tokens)
    return stream_rows(causal, prompt_rows(loaded, [prompt]), max_new_tokens=most, sampling=sampling,
                       ending=ending_of(loaded, ends or Ends()), tokenizer=loaded.tokenizer,
                       start=start_of(loaded.tokenizer), seed=seed,
                       compiled=CompiledStep(causal) if compile else None)


def task_kind(loaded: Loaded) -> str:
    """Return the kind of the task that a checkpoint was trained on; ``next_token`` if it records no run."""
    task = (loaded.run or {}).get("task") or {}
    return str(task.get("kind", NextTokenConfig.kind))


def prompt_rows(loaded: Loaded, prompts: str | Sequence[str | RowLike], *, open_text: bool = True) -> list[RowLike]:
    """Encode a text or texts, each after the token that begins a document if the tokenizer has one and is not declared
    to add none; rows of ids stay as they are. With ``open_text`` False no such token is added. For a model that was
    trained on `prefix_lm`, texts that it continues are prefixes."""
    rows: list[RowLike] = []
    for prompt in one_or_more(prompts):
        if not isinstance(prompt, str):
            rows.append(prompt)
            continue
        tokenizer = require_tokenizer(loaded)
        opens = open_text and tokenizer.conventions.adds_bos is not False
        start = start_of(tokenizer) if opens else None
        tokens = (*([] if start is None else [start]), *tokenizer.encode(prompt))
        rows.append(Row(tokens, prefix=len(tokens) if open_text and task_kind(loaded) == PrefixLMConfig.kind else 0))
    return rows


def require_tokenizer(loaded: Loaded) -> Tokenizer:
    """Return the model's tokenizer.

    Raises:
        InputError: it has none.
    """
    if loaded.tokenizer is None:
        raise InputError("the checkpoint has no tokenizer.", where=str(loaded.path),
                         remedy="Give rows of token ids instead of text.")
    return loaded.tokenizer


def start_of(tokenizer: Tokenizer | None) -> int | None:
    """Return the token that begins a document: the start token, or without one the token that ends the document
    before."""
    if tokenizer is None:
        return None
    return tokenizer.eos_id if tokenizer.bos_id is None else tokenizer.bos_id


def ending_of(loaded: Loaded, ends: Ends) -> Ending:
    """Return what ends a generation of this model: its own tokens, unless ``ends`` leaves them out, and those of
    ``ends``."""
    own: tuple[int, ...] = ()
    if ends.at_end:
        known = loaded.tokenizer
        own = end_ids(loaded.facts, loaded.model.vocab_size) if known is None else known.end_ids
    return Ending(tuple(dict.fromkeys((*own, *ends.tokens))), tuple(one_or_more(ends.strings)), ends.spelled)
