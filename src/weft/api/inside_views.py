"""The intermediate results of a model: hidden vectors, attention weights and sizes of states, in one call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from weft.api.configs import one_or_more
from weft.api.generating import prompt_rows
from weft.api.models import Model, load
from weft.core.declarations import Trait
from weft.core.errors import UnsupportedError
from weft.core.layer import traits_of
from weft.core.model import LanguageModel
from weft.core.model import Model as AnyModel
from weft.core.probes import points_of, probe
from weft.core.span import Span
from weft.decoding import RowLike
from weft.decoding.rows import check_rows, parse_rows
from weft.evaluation.measuring import evaluating
from weft.tasks.whole_rows import inputs_of, whole_rows

POINTS = ("stream", "weights")


@dataclass(frozen=True, eq=False)
class Insides:
    """The intermediate results of a model for one row of T tokens.

    Attributes:
        tokens: the row's ids.
        last: the vectors from which the readout or the head predicts, [T,D].
        streams: the residual stream of each block by its path, [T,D].
        weights: the attention weights of each layer that has some by its path, [H,T,S]: of head h what token t takes
            from token s.
        state_bytes: of each tensor of the state after the row by its path; empty for a model without a state.
    """

    tokens: tuple[int, ...]
    last: Float[Tensor, "T D"]
    streams: Mapping[str, Float[Tensor, "T D"]]
    weights: Mapping[str, Float[Tensor, "H T S"]]
    state_bytes: Mapping[str, int]


def insides(model: Model, rows: str | Sequence[str | RowLike]) -> tuple[Insides, ...]:
    """Run a model on a text, texts or rows of ids, each alone, and return what it computed on the way; `probe` gives
    the values of any other point.

    Args:
        model: a checkpoint, a loaded model, or a built one, which takes rows of ids alone.
        rows: texts, which are read as prompts are, or rows of ids.

    Raises:
        UnsupportedError: the model reads a source or images.
        InputError: ids outside the vocabulary, or text for a model without a tokenizer.
    """
    loaded = load(model)
    inner, given = loaded.model, parse_rows(prompt_rows(loaded, one_or_more(rows)))
    if "tokens" not in inner.reads() or (isinstance(inner, LanguageModel) and inner.takes_source):
        raise UnsupportedError(f"a model of kind {inner.config.kind!r} does not read rows of tokens alone.",
                               where="model", remedy="Give a language model or an encoder of tokens; weft.probe "
                               "records what any model computes.")
    if isinstance(inner, LanguageModel):
        check_rows(given, inner)
    names = [name for name in points_of(inner) if name.rpartition(".")[2] in POINTS]
    with evaluating(inner) as device:
        return tuple(_of_row(inner, row.tokens, row.prefix, names, device) for row in given)


def _of_row(model: AnyModel, tokens: tuple[int, ...], prefix: int, names: Sequence[str],
            device: torch.device) -> Insides:
    ids, sizes = torch.tensor([tokens], device=device), dict[str, int]()
    flags = torch.arange(len(tokens), device=device)[None] < prefix if prefix else None
    with probe(model, *names) if names else nullcontext(dict[str, list[Tensor]]()) as seen:
        if isinstance(model, LanguageModel) and Trait.BIDIRECTIONAL not in traits_of(model):
            horizon = torch.tensor([len(tokens)], device=device)
            out = model.hidden(ids, model.init_state(1, device=device, horizon=horizon),
                               Span(prefix=flags, fresh=True, bound=len(tokens), uniform=True))
            assert out.state is not None, "a call with a state returns one"
            sizes = {path: tensor.nbytes for path, (tensor, _) in out.state.tensors().items()}
        else:
            out = model.vectors(inputs_of(whole_rows(model, [tokens]), device))
    found = {point: {name.rpartition(".")[0]: values[0][0] for name, values in seen.items()
                     if name.endswith(f".{point}") and values} for point in POINTS}
    return Insides(tokens, out.y[0], found["stream"], found["weights"], sizes)
