"""Continue rows of tokens with any language model, greedily or by sampling: all tokens at once or token by token."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from weft.core.model import LanguageModel
from weft.decoding.choosing import RowSettings
from weft.decoding.compiled import CompiledStep
from weft.decoding.mode import evaluation_mode
from weft.decoding.prompts import prepare
from weft.decoding.rows import Row, RowLike, parse_rows
from weft.decoding.sampling import GREEDY, Sampling, ensure
from weft.decoding.slots import Slots
from weft.decoding.stopping import NEVER, Ending, Generated, GeneratedRow, NewToken
from weft.tokenizers import Tokenizer

FREE_SHARE = 0.25
"""Share of free slots from which they are removed once no row waits: it copies the state, and makes steps faster."""


def generate(model: LanguageModel, rows: Sequence[RowLike], *, max_new_tokens: int, sampling: Sampling = GREEDY,
             ending: Ending = NEVER, tokenizer: Tokenizer | None = None, start: int | None = None, seed: int = 0,
             log_probs: bool = False, batch_size: int | None = None, compiled: CompiledStep | None = None) -> Generated:
    """Continue every row; the arguments and errors are those of `stream`."""
    prompts = parse_rows(list(rows))
    found: list[list[NewToken]] = [[] for _ in prompts]
    for new in stream(model, prompts, max_new_tokens=max_new_tokens, sampling=sampling, ending=ending,
                      tokenizer=tokenizer, start=start, seed=seed, log_probs=log_probs, batch_size=batch_size,
                      compiled=compiled):
        found[new.row].append(new)
    return Generated(tuple(GeneratedRow(
        tuple(new.token for new in row), "".join(new.text or "" for new in row) if tokenizer else None,
        tuple(new.log_prob for new in row if new.log_prob is not None) if log_probs else None,
        (row[-1].finish if row else None) or "length") for row in found))


def stream(model: LanguageModel, rows: Sequence[RowLike], *, max_new_tokens: int, sampling: Sampling = GREEDY,
           ending: Ending = NEVER, tokenizer: Tokenizer | None = None, start: int | None = None, seed: int = 0,
           log_probs: bool = False, batch_size: int | None = None,
           compiled: CompiledStep | None = None) -> Iterator[NewToken]:
    """Continue every row, and yield each token as soon as it is chosen.

    Errors in the arguments are raised by the call itself, before anything is computed. A row's tokens depend on the
    seed, its index and its own prompt, not on the other rows.

    Args:
        model: any causal language model; it is in evaluation mode during the iteration.
        rows: prompts of different lengths: ids, together with a source for an encoder-decoder.
        max_new_tokens: maximum number of new tokens of a row; 0 is allowed.
        sampling: how tokens are chosen.
        ending: stop tokens and stop strings.
        tokenizer: decodes the text; required for stop strings; ids outside its vocabulary (a model's rounded-up
            vocabulary) are never chosen.
        start: the token that begins a document, put before empty prompts.
        seed: seed of the random numbers.
        log_probs: whether to return the model's log-probability of each token.
        batch_size: number of rows that are continued together, where the next row replaces one that has ended; None:
            all.

    Raises:
        InputError: rows or options that cannot be used.
        UnsupportedError: the model is bidirectional.
        FailedError: during the iteration: the model returns NaN, or probability zero for every token.
    """
    prompts = prepare(model, parse_rows(list(rows)), max_new_tokens=max_new_tokens, start=start)
    size = len(prompts) if batch_size is None else min(batch_size, len(prompts))
    ensure("batch_size", size, size >= 1)
    settings = [RowSettings(max_new_tokens, sampling, ending, row, seed, log_probs) for row in range(len(prompts))]
    settings[0].require_usable(model, tokenizer)

    def each() -> Iterator[NewToken]:
        with evaluation_mode(model):
            longest = max(len(row.tokens) for row in prompts)
            slots = Slots(model, size, capacity=longest + max_new_tokens - 1, tokenizer=tokenizer, compiled=compiled,
                          ahead=True)
            try:
                yield from _continue(slots, prompts, settings, shrinks=compiled is None)
            finally:
                slots.close()

    return each() if max_new_tokens else iter(())


def _continue(slots: Slots, prompts: Sequence[Row], settings: Sequence[RowSettings], *,
              shrinks: bool) -> Iterator[NewToken]:
    """Yield the tokens of all rows, each of which is admitted to the first free slot."""
    admitted = 0
    while slots.live or admitted < len(prompts):
        more = slice(admitted, admitted + len(slots.free))
        admitted += len(slots.admit_all(prompts[more], settings[more]))
        if shrinks and admitted == len(prompts) and len(slots.free) >= FREE_SHARE * slots.size:
            slots.close_up()
        yield from slots.step()
