"""Adapters on one base: its weights are in memory once, and rows of different adapters are computed in one call.

    share_weights(model, adapted)                   equal tensors are the base's from now on
    many = row_adapted(model, {"poet": adapted})    one model of all of them; None where one call cannot serve any
    with many.starting("poet"):
        state = many.init_state(2)                  two rows of this adapter

The adapter of a row is a field of its state, so rows that join, move, leave or are kept for later prompts take it
along, and a recorded step reads it as it reads the rest of the state. Every map with adapters multiplies by all of
their first matrices at once, sets the values that belong to other adapters than the row's to zero, and multiplies by
all of their second matrices: two products more, however many adapters there are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Bool, Int64
from torch import Tensor, nn

from weft.core.clock import Clock
from weft.core.errors import UnsupportedError
from weft.core.model import LanguageModel, ModelState
from weft.core.span import Memory, Output, Span
from weft.core.state import child_field, tensor_field
from weft.decoding.mode import declares_length, device_of
from weft.linear.law import ROUNDING, TOKENS
from weft.linear.linear import Linear, Rewritten
from weft.linear.low_rank import Adapted, adapted_maps
from weft.linear.replacing import replaced_copy
from weft.ops.linear import linear


def share_weights(model: LanguageModel, adapted: LanguageModel) -> None:
    """Put the tensors of a model in the place of equal ones of the same model with adapters, so that only what training
    has changed takes memory of its own."""
    own = {_plain(path, name): tensor for path, module in model.named_modules(remove_duplicate=False)
           for name, tensor in (*module._parameters.items(), *module._buffers.items())}
    for path, module in adapted.named_modules(remove_duplicate=False):
        for table in (module._parameters, module._buffers):
            for name, tensor in table.items():
                base = own.get(_plain(path, name))
                if tensor is not None and base is not None and (type(base), base.dtype, base.device) == (
                        type(tensor), tensor.dtype, tensor.device) and torch.equal(base, tensor):
                    table[name] = base


def _plain(path: str, name: str) -> str:
    return ".".join(each for each in (*path.split("."), name) if each not in ("base", "map"))


def row_adapted(model: LanguageModel, adapters: Mapping[str, LanguageModel]) -> RowAdapted | None:
    """One model that computes each row with its own adapter; None if there is none that can be.

    Args:
        model: in evaluation mode.
        adapters: the model with each, after `share_weights`. One is left out that is more than terms of low rank beside
            maps that are called on whole rows: trained lengths, further parameters, terms in recurrent matrices.
    """
    if model.takes_source or declares_length(model):
        return None
    fit = {name: each for name, each in adapters.items()
           if _plain_terms(model, each) and _verified(model, {name: each}) is not None}
    return _verified(model, fit) if fit else None


def _plain_terms(model: LanguageModel, adapted: LanguageModel) -> bool:
    """Whether a model differs from its base by terms of low rank beside maps alone."""
    maps, places = adapted_maps(adapted), dict(model.named_modules())
    own = {id(tensor) for tensor in (*model.parameters(), *model.buffers())}
    own |= {id(tensor) for each in maps.values() for tensor in each.trained()}
    plain = all(term.magnitude is None for each in maps.values() for term in each.terms().values())
    return plain and all(isinstance(places.get(path), Linear | Rewritten) for path in maps) and all(
        id(tensor) in own for tensor in (*adapted.parameters(), *adapted.buffers()))


def _verified(model: LanguageModel, adapters: Mapping[str, LanguageModel]) -> RowAdapted | None:
    """The model of several adapters, if a short call of it on a row of each gives what their own models give."""
    many = RowAdapted(model, adapters)
    rows = torch.arange(len(adapters) + 1, device=device_of(model))
    tokens = torch.arange(TOKENS + (len(rows) == TOKENS), device=rows.device)[None] % model.vocab_size
    with suppress(Exception), torch.inference_mode():  # a part may raise anything where a map's result is not as it was
        state = many.init_state(len(rows)).replace(adapter=rows)
        found = many.readout.logits(many.hidden(tokens.expand(len(rows), -1), state).y).double()
        own = [each.readout.logits(each.hidden(tokens).y)[0].double() for each in (model, *adapters.values())]
        off = (found - torch.stack(own)).abs().amax()
        rounding = ROUNDING.get(many.readout.logits(model.hidden(tokens).y).dtype, ROUNDING[torch.float32])
        if bool(off <= rounding * torch.stack(own).abs().amax()):  # written so that NaN fails
            return many
    return None


@dataclass(frozen=True)
class RowAdaptedState(ModelState):
    """The state of a model whose rows have adapters.

    Attributes:
        adapter: the number of each row's adapter, 0 for none.
        inner: the state of the model itself.
    """

    adapter: Int64[Tensor, " B"] = tensor_field(keeps_dtype=True)
    inner: ModelState = child_field()


@final
class RowAdapted(LanguageModel):
    """A model each row of which is computed with its own adapter.

    Args:
        model: the base, whose tensors it shares.
        adapters: the base with each adapter, which it reads and does not keep.

    Attributes:
        names: of its adapters, of which the first has the number 1.
    """

    def __init__(self, model: LanguageModel, adapters: Mapping[str, LanguageModel]) -> None:
        super().__init__(model.config)
        self.names, self.vocab_size = tuple(adapters), model.vocab_size
        self._now, self._started = _AdaptersNow(), 0
        terms: dict[str, list[tuple[int, Adapted]]] = {}
        for number, adapted in enumerate(adapters.values(), 1):
            for path, module in adapted_maps(adapted).items():
                terms.setdefault(path, []).append((number, module))
        self.inner = replaced_copy(model, lambda path, module: RowTerms(
            module, terms[path], self._now) if path in terms else module).model
        self.readout = self.inner.readout
        self.eval()

    @contextmanager
    def starting(self, name: str | None) -> Iterator[None]:
        """Inside, rows that start are of this adapter, and so are those of calls without a state."""
        before, self._started = self._started, 0 if name is None else 1 + self.names.index(name)
        try:
            yield
        finally:
            self._started = before

    def aside(self, work: Callable[[], None]) -> None:
        """Do work inside a call of this model, which calls of it on other rows may interrupt."""
        before = self._now.rows, self._now.others_of
        work()
        self._now.rows, self._now.others_of = before

    def start(self, clock: Clock, *, capacity: int | None, dtype: torch.dtype,
              memory: Memory | None) -> RowAdaptedState:
        inner = self.inner.start(clock, capacity=capacity, dtype=dtype, memory=memory)
        return RowAdaptedState(clock, self.fingerprint, torch.full_like(clock.seen, self._started), inner)

    def run(self, tokens: Tensor, state: ModelState | None, span: Span) -> Output[ModelState]:
        assert isinstance(state, RowAdaptedState | None), "of this model"
        self._now.enter(torch.full_like(tokens[:, 0], self._started) if state is None else state.adapter)
        out = self.inner.run(tokens, None if state is None else state.inner, span)
        if state is None or out.state is None:
            return out
        return out._replace(state=RowAdaptedState(span.after, state.owner, state.adapter, out.state))

    def limit(self) -> int | None:
        return self.inner.limit()


@final
class _AdaptersNow:
    """The adapters of the rows of the call that is being made."""

    def __init__(self) -> None:
        self.rows = torch.zeros(0, dtype=torch.int64)
        self.others_of, self._owners = dict[int, Tensor](), dict[tuple[int, ...], Tensor]()

    def enter(self, rows: Int64[Tensor, " B"]) -> None:
        """Begin a call on rows with these adapters."""
        self.rows, self.others_of = rows, {}

    def others(self, owners: Int64[Tensor, " R"]) -> Bool[Tensor, "B R"]:
        """Where a value belongs to another adapter than its row's."""
        if id(owners) not in self.others_of:
            self.others_of[id(owners)] = owners != self.rows[:, None]
        return self.others_of[id(owners)]

    def owners(self, numbers: tuple[int, ...], device: torch.device) -> Int64[Tensor, " R"]:
        """The adapter of each value between two matrices, one tensor for all maps where they are alike."""
        return self._owners.setdefault(numbers, torch.tensor(numbers, device=device))


@final
class RowTerms(Rewritten):
    """y = W x + b + D_r x with the D of each row's adapter r, D_0 = 0.

    Args:
        base: the map W x + b.
        terms: numbers of adapters with their D.
        now: the adapters of the rows.
    """

    first: Tensor
    second: Tensor
    owners: Tensor

    def __init__(self, base: nn.Module, terms: Sequence[tuple[int, Adapted]], now: _AdaptersNow) -> None:
        super().__init__()
        assert isinstance(base, Linear | Rewritten), "only maps are adapted"
        self.base, self.in_features, self.out_features = base, base.in_features, base.out_features
        self.outputs, self._now = base.outputs, now
        self._axis: int | None = None  # of rows in x: some recurrences have the tokens first
        factors = [each.factors() for _, each in terms]
        self.register_buffer("first", torch.cat([first for first, _ in factors]).detach())
        self.register_buffer("second", torch.cat([second for _, second in factors], dim=1).detach())
        numbers = tuple(number for (number, _), (first, _) in zip(terms, factors, strict=True) for _ in first)
        self.register_buffer("owners", now.owners(numbers, self.first.device))

    def forward(self, x: Tensor) -> Tensor:
        others = self._now.others(self.owners)
        if self._axis is None:  # in the first call, which has other numbers of rows and of tokens
            self._axis = next((axis for axis in (0, 1) if x.dim() == 3 and x.shape[axis] == len(others)), None)
            if self._axis is None:
                raise UnsupportedError(f"a map is called on {list(x.shape)} numbers, which are not rows of tokens.",
                                       where="adapters", remedy="Serve this adapter apart.")
        narrow = linear(x, self.first).masked_fill(others if self._axis else others[:, None], 0)
        y: Tensor = self.base(x)
        return y + linear(narrow, self.second)

    def merged(self) -> Linear:
        raise UnsupportedError("a map with terms of several adapters is no single map.", where="adapters",
                               remedy="Merge the model of one adapter.")

    def dense(self) -> None:
        return None
