"""Context parallelism: several processes compute pieces of the same rows.

Each process has the whole rows of ids and their span, which are small, and computes the vectors of its own tokens:
embeddings, layers and loss. What a piece needs of earlier ones its layers receive (`weft.core.pieces`):

    with context.piece(model, tokens.shape, span) as piece:      # an encoder is called without piece.state
        out = model.hidden(tokens[:, piece.tokens], piece.state, piece.span)
        piece.closed(loss of these tokens).backward()

Orders, documents, positions and lengths are those of the whole rows, worked out by every process, so they continue
across a cut, and a document may begin before, at or after one. The sums of losses and of gradients over all processes
are those of one process with the whole rows, up to rounding; a layer's own auxiliary losses (load balance of experts)
are those of each piece, as they are those of each batch under accumulation.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from weft.core.clock import Clock, ResolvedCall, Ticks
from weft.core.declarations import Trait
from weft.core.errors import InputError
from weft.core.history import GrowingHistory
from weft.core.layer import Layer, LayerState, needs_of, traits_of
from weft.core.model import LanguageModel, Model
from weft.core.span import WHOLE, Span
from weft.models.decoder import Decoder
from weft.models.encoder import TokenEncoder
from weft.parallel.collectives import Closed
from weft.parallel.thread_communication import Chain, HandedPieces, Line


@dataclass(frozen=True, eq=False)
class RowPiece:
    """This process's piece of the rows of one call.

    Attributes:
        tokens: which of the rows' tokens.
        span: of the piece, resolved: pass it with ``state``.
        state: before the piece, None where tokens read later ones. What layers keep of earlier tokens arrives while
            they run.
    """

    tokens: slice
    span: Span
    state: Any
    chain: Chain

    def closed(self, loss: Tensor) -> Tensor:
        """The loss, whose backward pass takes part in that of the other pieces. All processes must call ``backward`` on
        what this returns, even where none of their tokens is scored."""
        closed: Tensor = Closed.apply(loss, self.chain.thread)  # type: ignore[no-untyped-call]
        return closed


class Context:
    """The processes that compute pieces of the same rows, in the order of the pieces.

    Args:
        group: of torch; None: all processes.
    """

    def __init__(self, group: dist.ProcessGroup | None = None) -> None:
        chosen = dist.group.WORLD if group is None else group
        assert chosen is not None, "the processes are connected"
        self.line = Line(chosen.group_name, dist.get_rank(chosen), dist.get_world_size(chosen))

    @contextmanager
    def piece(self, part: Layer | Model, shape: tuple[int, ...], span: Span | None = None) -> Iterator[RowPiece]:
        """This process's piece, inside ``with`` until its backward pass is done.

        Args:
            part: the layer or model, which is called with the piece's tokens, state and span.
            shape: of the whole rows, [B,T,...].
            span: of the whole rows, the same on all processes.

        Raises:
            InputError: rows of fewer tokens than processes.
        """
        device = next((each.device for each in part.parameters()), torch.device("cpu"))
        ends = cuts(shape[1], self.line.count)
        whole = (WHOLE if span is None else span).resolve(None, torch.empty(shape[0], shape[1], device=device))
        chain = Chain(torch.zeros((), device=device, requires_grad=torch.is_grad_enabled()))
        pieces, state = HandedPieces(ends, self.line.place, whole, self.line, chain), None
        before = after = None
        if Trait.BIDIRECTIONAL not in traits_of(part):
            assert isinstance(part, Layer | LanguageModel), "other models read later tokens"
            before, after = (clock_at(part, whole, shape[0], order) for order in (pieces.start, pieces.stop))
            state = part.start(before, capacity=None, dtype=needs_of(part).dtype, memory=whole.memory)
        own = span_of_piece(whole, pieces, shape[0], before, after)
        yield RowPiece(slice(pieces.start, pieces.stop), own, state, chain)


def cuts(tokens: int, count: int) -> list[int]:
    """The order at which each of ``count`` pieces ends, whose sizes differ by one token at most. Raises `InputError`:
    there are fewer tokens than pieces."""
    if tokens < count:
        raise InputError(f"rows of {tokens} tokens for {count} processes, each of which computes a piece.",
                         where="training.mesh.context", remedy=f"Give rows of at least {count} tokens, or choose "
                         "fewer processes.")
    return [tokens * (place + 1) // count for place in range(count)]


def clock_at(part: Layer | LanguageModel, whole: Span, rows: int, order: int) -> Clock:
    """The clock of rows that have been read up to a cut.

    Args:
        part: whose layers read what the clock keeps of earlier tokens.
        whole: the span of the whole rows, resolved.
    """
    ticks = whole.ticks
    last = max(0, order - 1)

    def at_last(values: Tensor) -> Tensor:
        return values[:, last].expand(rows).clone()

    seen = torch.full((rows,), order, device=ticks.order.device)
    seen = seen if whole.count is None else seen.minimum(whole.count)
    positions = None
    if needs_of(part).lookbacks:
        kept = ticks.position[:, :order]
        positions = GrowingHistory(kept.expand(rows, *kept.shape[1:]), None)
    return Clock(seen, at_last(ticks.begin), at_last(ticks.prefix_end), at_last(ticks.length), fresh=order == 0,
                 positions=positions)


def span_of_piece(whole: Span, pieces: HandedPieces, rows: int, before: Clock | None, after: Clock | None) -> Span:
    """The span of a piece, resolved: its ticks are a part of those of the whole rows. Without clocks for a call without
    a state."""
    cut, ticks = slice(pieces.start, pieces.stop), whole.ticks

    def part(values: Tensor | None) -> Tensor | None:
        return None if values is None else values[:, cut]

    fresh, level = pieces.place == 0, whole.count is None
    # As in every call with a state, no dimension of rows is shared.
    order, begin, prefix_end, length = (values[:, cut].expand(rows, -1) for values in (
        ticks.order, ticks.begin, ticks.prefix_end, ticks.length))
    own = Ticks(order, begin, prefix_end, length, part(ticks.coordinates), part(ticks.valid), ticks.packed, ticks.facts)
    count = None if whole.count is None else (whole.count - pieces.start).clamp(0, pieces.stop - pieces.start)
    facts: Mapping[str, Tensor] | None = None if whole.facts is None else {
        name: fact[:, cut] for name, fact in whole.facts.items()}
    untyped: Any = ResolvedCall(before, own, after)  # without a state its clocks are None, and no layer reads them
    return Span(count=count, begins=part(whole.begins), prefix=part(whole.prefix), facts=facts,
                coordinates=part(whole.coordinates), memory=whole.memory, fresh=fresh,
                bound=pieces.stop if level else None, uniform=level and whole.begins is None,
                pieces=pieces, moment=untyped, ticks=own, before=untyped.before, after=untyped.after)


def problems_of(model: Model) -> list[str]:
    """Why the rows of this model cannot be cut among processes, by field; empty if they can."""
    where = "training.mesh.context"
    if not isinstance(model, Decoder | TokenEncoder):
        return [f"{where}: a model of kind {model.config.kind!r} does not hand its state on by layers. Use a decoder "
                "or an encoder of tokens, or set context to 1."]
    found = []
    if Trait.BATCH_STATISTICS in traits_of(model):
        found.append(f"{where}: batch normalisation needs the statistics of the whole rows. Use another norm, or set "
                     "context to 1.")
    if isinstance(model, TokenEncoder) and model.padding_id is not None:
        found.append(f"{where}: positions that leave out tokens with the id padding_id depend on the ids of the whole "
                     "rows. Leave padding_id out of the encoder, or set context to 1.")
    if isinstance(model, TokenEncoder) and (kinds := sorted({type(layer).__name__ for layer in apart_layers(model)})):
        found.append(f"{where}: {', '.join(kinds)}, which in an encoder runs on the whole rows, gives values to other "
                     "layers or takes them, of which each process has a piece. Use another layer, or set context to 1.")
    return found


def apart_layers(model: TokenEncoder) -> list[Layer]:
    """The layers of an encoder that would run on the whole rows, beside others whose values are those of a piece."""
    layers = [each for each in model.modules() if isinstance(each, Layer) and not each.state_type.composite]
    return [each for each in layers if each.state_type is not LayerState
            and (each.declares().gives or each.declares().takes) and not each.declares().joins_without_state]


@dataclass(frozen=True, eq=False)
class BatchPart:
    """A batch, or a process's piece of it, as a task computes it.

    Attributes:
        given: the batch's tensors and span.
        piece: None for a whole batch.
    """

    given: Any
    state: Any
    piece: RowPiece | None = None

    def closed(self, loss: Tensor) -> Tensor:
        """The loss to differentiate, see `RowPiece.closed`."""
        return loss if self.piece is None else self.piece.closed(loss)


@contextmanager
def part_of(context: Context | None, model: Model, given: Any, state: Any) -> Iterator[BatchPart]:
    """This process's part of a batch, inside ``with`` until its backward pass is done.

    Args:
        context: the processes that share the rows; None: this one has whole rows.
        given: a NamedTuple of one span and of tensors [B,T,...].
        state: before whole rows.
    """
    if context is None:
        yield BatchPart(given, state)
        return
    (span,) = (value for value in given if isinstance(value, Span))
    shape = next(value.shape for value in given if isinstance(value, Tensor))
    with context.piece(model, tuple(shape), span) as piece:
        own = (piece.span if value is span else value[:, piece.tokens] for value in given)
        yield BatchPart(type(given)(*own), piece.state, piece)
