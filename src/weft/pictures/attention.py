"""Attention maps of a text: the weights that a model used, by layer and head, with their entropy and their sinks.

For a head with the weights w of its queries over S keys,

    entropy     mean over queries of -sum_s p_s ln p_s, p = w / sum_s w_s      nats; 0 for a single key, at most ln S
    on first n  mean over queries after the first n tokens of sum_{s<n} w_s     the share of attention sinks (Xiao 2024)

Cross-attention has no tokens in common with its keys, so all of its queries count. A row whose weights sum to less than
one leaves the rest to a learned sink (`sink`, the mean of 1 - sum_s w_s).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from weft.core.errors import InputError, UnsupportedError
from weft.core.layer import Layer
from weft.core.model import EncoderInputs, LanguageModel, Model
from weft.core.probes import points_of, probe
from weft.core.span import WHOLE
from weft.core.strict_json import Record
from weft.decoding.mode import device_of, evaluation_mode
from weft.drawing.figure import Figure
from weft.drawing.marks import label
from weft.drawing.markup import field, join
from weft.pictures.masks import blocks_in, sentence

POINT, FIRST = "weights", 4
"""The probe point of attention layers; tokens that may be sinks besides the first."""
MOST_TOKENS = 512
"""Tokens of a text: a map of more has pixels too small to see."""
SIDE, BESIDE, PER_ROW = 150.0, 14.0, 6
"""Units of a map; between maps; maps beside one another."""


@dataclass(frozen=True)
class HeadNumbers(Record):
    """The numbers of one head.

    Attributes:
        layer: path of the layer.
        place: the layer in a few words: ``block 0``, ``block 0, cross``.
        entropy: in nats.
        on_first: share on the first token.
        on_first_four: share on the first four tokens.
        sink: share on a learned sink, which is no token; 0 without one.
    """

    layer: str
    place: str
    head: int
    entropy: float
    on_first: float
    on_first_four: float
    sink: float


@dataclass(frozen=True)
class AttentionMap:
    """The weights of a layer.

    Attributes:
        cross: whether its keys are of another row than its queries: an encoded source.
    """

    path: str
    cross: bool
    weights: Float[Tensor, "H T S"]

    def place(self) -> str:
        """The layer in a few words."""
        return blocks_in([self.path]) + (", cross" if self.cross else "")

    def title(self) -> str:
        """The layer in words."""
        return f"{sentence(blocks_in([self.path]))[:-1]}: {'cross-attention' if self.cross else 'attention'}"


def attention_maps(model: Model, tokens: Sequence[int], source: Sequence[int] | None = None) -> list[AttentionMap]:
    """The attention weights of every layer for one row, in evaluation mode, in the order in which layers run.

    Args:
        model: any model with attention.
        tokens: ids of the row, at most `MOST_TOKENS`.
        source: ids of the source, for a model that reads one; None for others.

    Raises:
        UnsupportedError: the model has no attention.
        InputError: an empty row, one longer than the model's limit or than can be drawn, an id outside of the
            vocabulary, a source that is missing or that nobody reads.
    """
    if not any(point.name == POINT for point in points_of(model).values()):
        raise UnsupportedError(f"a model of kind {model.config.kind!r} without attention has no attention maps.",
                               where="text", remedy="Draw it without a text, or give a model with attention.")
    reads = isinstance(model, LanguageModel) and model.takes_source
    if reads == (source is None):
        raise InputError("the model reads a source." if reads else "the model reads no source.", where="source",
                         remedy="Give one (--source)." if reads else "Leave it out.")
    _require(tokens, model.vocab_size, _limit(model), "text")
    device = device_of(model)
    with evaluation_mode(model), torch.inference_mode(), probe(model, f"*{POINT}") as values:
        row = torch.tensor([list(tokens)], device=device)
        if not isinstance(model, LanguageModel):
            model.vectors(EncoderInputs(tokens=row))
        elif source is None:
            model.hidden(row)
        else:
            _require(source, model.source_vocab_size, None, "source")
            memory = model.encode(EncoderInputs(tokens=torch.tensor([list(source)], device=device)))
            model.hidden(row, None, WHOLE.replace(memory=memory))
    maps = list[AttentionMap]()
    for name, found in values.items():
        path = name.rpartition(".")[0]
        layer = model.get_submodule(path)
        cross = isinstance(layer, Layer) and layer.declares().source_width is not None
        maps += [AttentionMap(path, cross, weights[0].double().cpu()) for weights in found]
    return sorted(maps, key=lambda found: not found.path.startswith("encoder."))


def _limit(model: Model) -> int:
    limit = model.limit()
    return MOST_TOKENS if limit is None else min(limit, MOST_TOKENS)


def _require(tokens: Sequence[int], vocabulary: int, limit: int | None, where: str) -> None:
    if not tokens:
        raise InputError("no tokens.", where=where, remedy="Give a text with at least one.")
    if limit is not None and len(tokens) > limit:
        why = "are drawn at most" if limit == MOST_TOKENS else "have positions in this model"
        raise InputError(f"{len(tokens)} tokens, of which {limit} {why}.", where=where, remedy="Give a shorter text.")
    wrong = next((token for token in tokens if not 0 <= token < vocabulary), None)
    if wrong is not None:
        raise InputError(f"the id {wrong}, and the vocabulary has the ids 0 to {vocabulary - 1}.", where=where,
                         remedy="Use the model's own tokenizer.")


def head_numbers(found: AttentionMap) -> list[HeadNumbers]:
    """Entropy and sinks of every head of a layer."""
    weights = found.weights
    total = weights.sum(-1, keepdim=True)
    shares = weights / total.clamp(min=torch.finfo(weights.dtype).tiny)
    entropy = -(shares * shares.clamp(min=torch.finfo(weights.dtype).tiny).log()).sum(-1).mean(-1)
    # The mean weight of all later queries on the first tokens; of all queries where there are no later ones.
    first, some = (weights[:, 0 if found.cross or weights.shape[1] <= count else count:, :count].sum(-1).mean(-1)
                   for count in (1, FIRST))
    sink = (1 - total[..., 0]).clamp(min=0).mean(-1)
    # Softmax in float32 sums to one within its rounding.
    sink = torch.where(sink < 1e-5, 0.0, sink)
    return [HeadNumbers(found.path, found.place(), head, float(entropy[head]), float(first[head]), float(some[head]),
                        float(sink[head])) for head in range(weights.shape[0])]


def map_figure(found: AttentionMap, name: str) -> Figure:
    """The maps of a layer's heads: rows are queries, columns keys; the opacity of a point is the square root of its
    weight, so that small ones are seen."""
    heads, steps, keys = found.weights.shape
    high = SIDE if steps >= keys else max(30.0, SIDE * steps / keys)
    wide = SIDE if keys >= steps else max(30.0, SIDE * keys / steps)
    numbers = head_numbers(found)
    marks = []
    for head in range(heads):
        x, y = head % PER_ROW * (SIDE + BESIDE), 4 + head // PER_ROW * (high + 40)
        marks += [label(x, y + 10, f"head {head}", kind="name"),
                  label(x, y + 22, f"entropy {numbers[head].entropy:.2f}, first {numbers[head].on_first:.0%}"),
                  field(x + 1, y + 28, wide, high, found.weights[head].clamp(0, 1).sqrt().tolist())]
    rows = -(-heads // PER_ROW)
    width = max(min(heads, PER_ROW) * (SIDE + BESIDE) - BESIDE + 2, 260.0)
    words = f"Attention weights of {heads} heads over {steps} queries and {keys} keys: rows are queries, columns keys."
    return Figure(name, found.title(), words, width, 4 + rows * (high + 40), join(*marks))


def map_figures(maps: Sequence[AttentionMap]) -> list[Figure]:
    """A figure for each layer."""
    return [map_figure(found, f"attention-{index}") for index, found in enumerate(maps)]
