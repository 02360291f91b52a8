"""The engine: requests of many clients, continued in one batch by any causal language model.

    engine = Engine(model.eval(), tokenizer)
    ticket = engine.submit(Request(Row((5, 3, 9)), RowSettings(max_new_tokens=100)), print)
    while engine.step():            or an `EngineThread`, which does this
        ...

Every step reads pieces of prompts by the model's ordinary call and then continues every row by a token. That any cut of
a prompt gives the same result is the law of every model, so recurrent, window, attention, hybrid and n-gram rows need
no code of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import final

import torch

from weft.core.errors import InputError, nearest
from weft.core.model import LanguageModel
from weft.decoding.mode import declares_length, device_of, require_causal
from weft.decoding.prompts import prepare
from weft.ops.processor import main_memory
from weft.serving.engine_rows import EngineRows
from weft.serving.prompt_reading import readable_in_pieces
from weft.serving.requests import LONGEST, EngineLimits, Event, Figures, Request
from weft.serving.row_adapters import row_adapted, share_weights
from weft.serving.scheduler import Scheduler, Ticket
from weft.serving.speculation import Drafts
from weft.tokenizers import Tokenizer


@final
class Engine:
    """Rows of many clients in one batch.

    Args:
        model: any causal language model, in evaluation mode as long as the engine is used.
        tokenizer: decodes the text; required for stop strings; ids outside its vocabulary are never chosen.
        start: the token that begins a document, put before empty prompts.
        limits: numbers of rows, tokens and bytes; None: those of `EngineLimits`.
        adapters: the model with adapters, by the names that requests may give. Their tensors that equal the model's
            become the model's own; where terms of low rank beside maps are all that differs, rows of all of them are
            computed in one batch (`weft.serving.row_adapters`), and of the others each adapter has a batch of its own.
        drafting: makes what guesses the tokens of one row (`weft.serving.speculation`); None: none are guessed.

    Raises:
        InputError: the model is in training mode, or its rows cannot be read ahead of what is chosen.
        UnsupportedError: the model is bidirectional.
    """

    def __init__(self, model: LanguageModel, tokenizer: Tokenizer | None, *, start: int | None = None,
                 limits: EngineLimits | None = None, adapters: Mapping[str, LanguageModel] | None = None,
                 drafting: Callable[[], Drafts] | None = None) -> None:
        require_causal(model, "serving")
        limits = limits or EngineLimits()
        self._models: dict[str | None, LanguageModel] = {None: model}
        self._models.update(adapters or {})
        if any(each.training for each in self._models.values()):
            raise InputError("the model is in training mode, so its tokens would be drawn with dropout.",
                             where="model", remedy="Call model.eval() first.")
        for each in self._models.values():
            share_weights(model, each)
        if many := row_adapted(model, adapters or {}):
            self._models.update(dict.fromkeys((None, *many.names), many))
        self._tokenizer, self._start = tokenizer, start
        self._by_length = {name: declares_length(each) for name, each in self._models.items()}
        self._context = min(limits.context or LONGEST, model.limit() or LONGEST)
        if drafting is not None and declares_length(model):
            raise InputError("positions of this model turn with the length of the row, so no guess can be read ahead.",
                             where="drafting", remedy="Serve it without drafts.")
        self._rows = EngineRows(self._models, self._context, limits, tokenizer, drafting)
        most = _half_of_free_memory(device_of(model)) if limits.state_bytes is None else limits.state_bytes
        self._scheduler = Scheduler(self._rows, limits, most)

    def submit(self, request: Request, tell: Callable[[Event], None]) -> Ticket:
        """Put a request into the queue; thread-safe.

        Args:
            request: the row and its settings.
            tell: is called with every event of the request, in the thread that steps. If it raises, the row ends.

        Raises:
            InputError: the request cannot be served: ids outside the vocabulary, settings that cannot be used, more
                tokens than a row may read, or a larger state than all rows together may have.
            OverloadedError: the queue is full.
            StoppedError: the engine takes no more requests.
        """
        prepared = self._prepared(request)
        whole = prepared.beams is not None or not readable_in_pieces(
            prepared.row, self._by_length[prepared.adapter])
        ticket = Ticket(prepared, tell, self._rows.nbytes(prepared), whole)
        self._scheduler.submit(ticket)
        return ticket

    def require_room(self, entering: int) -> None:
        """See `Scheduler.require_room`; thread-safe."""
        self._scheduler.require_room(entering)

    def cancel(self, ticket: Ticket) -> None:
        """End a request without a further event; thread-safe, and without effect on one that has ended. Its slot is
        free within one step."""
        self._scheduler.cancel(ticket)

    def step(self) -> bool:
        """Do one step, and return whether there was anything to do. All steps are done in one thread."""
        return self._scheduler.step()

    def figures(self) -> Figures:
        """The numbers of now; thread-safe."""
        kept = self._rows.prefixes
        return replace(self._scheduler.figures(), prefix_bytes=kept.nbytes, prefixes=len(kept))

    def wait(self, seconds: float) -> None:
        """Sleep in the thread that steps, until there has been a request, a cancellation or `wake` since its last
        step, or until the time is over."""
        self._scheduler.news.wait(seconds)

    def wake(self) -> None:
        """Wake the thread that waits; thread-safe."""
        self._scheduler.news.set()

    def refuse_more(self) -> None:
        """Take no more requests; thread-safe. Those that are there go on."""
        self._scheduler.refuse_more()

    def close(self) -> None:
        """End every request that is left with `Failed`, and free all states. Call it in the thread that steps, or when
        no thread does."""
        self._scheduler.close()

    def _prepared(self, request: Request) -> Request:
        """The request with its prompt as it is read. Raises `InputError`: it cannot be served."""
        if request.adapter not in self._models:
            raise InputError(f"there is no adapter {request.adapter!r}.", where="adapter",
                             remedy=nearest(str(request.adapter), [name for name in self._models if name]))
        model, settings = self._models[request.adapter], request.settings
        settings.require_usable(model, self._tokenizer)
        row, = prepare(model, [request.row], max_new_tokens=settings.max_new_tokens, start=self._start,
                       known=self._context)
        if request.prompt_log_probs is not None and request.prompt_log_probs < 0:
            raise InputError(f"{request.prompt_log_probs} is negative.", where="prompt_log_probs",
                             remedy="Give 0 or more.")
        prepared = replace(request, row=row)
        if prepared.tokens > self._context:
            raise InputError(f"{len(row.tokens)} tokens of prompt and {settings.max_new_tokens} new ones are "
                             f"{prepared.tokens} to read, and a row of this engine may read {self._context}.",
                             where="request", remedy="Shorten the prompt or lower max_new_tokens.")
        return prepared


def _half_of_free_memory(device: torch.device) -> int:
    """Half of the bytes that are free: the copies by which batches grow, and places without a row, have the rest."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0] // 2
    described = Path("/proc/meminfo")
    lines = described.read_text(encoding="ascii").splitlines() if described.exists() else []
    free = next((int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")), main_memory())
    return (free or 2 << 30) // 2
