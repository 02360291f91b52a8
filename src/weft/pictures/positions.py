"""Position schemes drawn: codes, proximity, bias against distance, wavelengths."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from weft.core.config import SharedParts
from weft.core.model import Model
from weft.core.part_config import Dims, PartConfig
from weft.drawing.chart import Curve, chart
from weft.drawing.figure import Figure
from weft.drawing.marks import label
from weft.drawing.markup import Markup, field, join
from weft.drawing.numbers import integer
from weft.mixers.self_attention import HeadSizes
from weft.models.decoder import Embedding
from weft.pictures.labels import resolved
from weft.pictures.masks import blocks_in, sentence
from weft.pictures.proximity import bias, by_content, by_distance, codes, properties, proximities, wavelengths
from weft.positions.base import PositionScheme

TOKENS, MOST_HEADS, MOST_FEATURES, CONTENTS = 64, 8, 512, 6
"""Positions of a picture; heads and features that it shows; draws of content over which squares are averaged."""


@dataclass(frozen=True)
class Placed:
    """A position scheme in a model.

    Attributes:
        kind: its name in files.
        heads: query heads of the layer; 1 for one that acts on embeddings.
        size: features of a head, or of the model.
        place: where in the model, in a sentence; empty for a place that needs no words.
        context: tokens of a training window.
    """

    scheme: PositionScheme
    kind: str
    heads: int
    size: int
    place: str
    context: int


def schemes_of(model: Model) -> list[Placed]:
    """The position schemes of a model: those without weights once for each configuration and those with weights of
    their own once for each place. Of a model without values, on the meta device, they are built anew."""
    groups: dict[object, tuple[PositionScheme, str, int, int, list[str]]] = {}
    config: Any = model.config
    shared: Mapping[str, PartConfig] = dict(config).get("shared", {})
    for path, scheme, own, sizes in _found(model):
        part = resolved(own, shared)
        learns = next(scheme.parameters(), None)
        key = (part.dump().__repr__(), sizes) if learns is None or learns.is_meta else id(scheme)
        if key not in groups:
            empty = any(tensor.is_meta for tensor in (*scheme.parameters(), *scheme.buffers())) or learns is None
            real = _built(part, model, sizes, shared) if empty and next(model.parameters()).is_meta else scheme
            groups[key] = (real, part.kind, *sizes, [])
        groups[key][4].append(path)
    return [Placed(scheme, kind, heads, size, _place(paths), config.context)
            for scheme, kind, heads, size, paths in groups.values()]


def _place(paths: list[str]) -> str:
    """Where these schemes are, in words."""
    sides = {"Encoder" if path.startswith("encoder.") else "Decoder" for path in paths}
    if any(part.isdigit() for path in paths for part in path.split(".")):
        return sentence(blocks_in(paths))
    return f"{' and '.join(sorted(sides, reverse=True)).capitalize()}." if "Encoder" in sides else ""


def _found(model: Model) -> Iterator[tuple[str, PositionScheme, PartConfig, tuple[int, int]]]:
    """Every scheme that acts somewhere: its path, itself, its configuration, and heads and their size."""
    for path, module in model.named_modules(remove_duplicate=False):
        if not isinstance(module, PositionScheme) or not module.acts_on:
            continue
        parent: nn.Module = model.get_submodule(path.rpartition(".")[0])
        if isinstance(parent, Embedding):
            holder: Any = model.get_submodule("encoder") if path.startswith("encoder.") else model
            yield path, module, holder.config.position, (1, holder.config.d_model)
        else:
            settings, sizes = parent.__dict__.get("config"), parent.__dict__.get("sizes")
            if isinstance(settings, PartConfig) and isinstance(sizes, HeadSizes) and "position" in dict(settings):
                yield path, module, dict(settings)["position"], (sizes.heads, sizes.d_head)


def _built(part: PartConfig, model: Model, sizes: tuple[int, int], shared: Mapping[str, Any]) -> PositionScheme:
    """A scheme with the weights that it starts with."""
    config: Any = model.config
    dims = Dims(config.d_model, config.vocab_size, config.context, shared=SharedParts(shared))
    made: Any = part
    with torch.random.fork_rng([]):
        torch.manual_seed(0)
        built: PositionScheme = made.build_for_heads(dims, *sizes) if sizes[0] > 1 else made.build_for_heads(
            dims, 1, sizes[1])
    return built


def position_figures(placed: Placed, name: str, tokens: int | None = None) -> list[Figure]:
    """The pictures of a scheme.

    Args:
        placed: the scheme in its model.
        name: of the figures, to which each adds its own.
        tokens: positions to draw; None: `TOKENS`, or as many as the scheme has.
    """
    limit = placed.scheme.limit
    count = min(tokens or TOKENS, TOKENS * 8 if limit is None else limit)
    acts = placed.scheme.acts_on
    if "embeddings" in acts:
        found = _of_code(placed, name, count)
    elif "queries_keys" in acts:
        found = _of_rotation(placed, name, count)
    else:
        found = _of_scores(placed, name, count)
    return [replace(figure, caption=f"{placed.place} {figure.caption}" if placed.place else figure.caption)
            for figure in found]


def _of_code(placed: Placed, name: str, tokens: int) -> list[Figure]:
    code = codes(placed.scheme, tokens, placed.size)
    code = code[:, code.abs().amax(0) > 0] if placed.scheme.width else code
    proximity = proximities(placed.scheme, tokens, placed.heads, placed.size)
    assert proximity is not None, "it acts on embeddings"
    wide, high = max(160.0, min(330.0, 6.0 * code.shape[1])), max(160.0, min(220.0, 5.0 * tokens))
    top = float(code.abs().max()) or 1.0
    width, code = code.shape[1], code[:, :MOST_FEATURES]
    features = "1 feature" if width == 1 else f"{width:,} features" if width <= MOST_FEATURES else (
        f"the first {MOST_FEATURES} of {width:,} features")
    body = join(label(0, 12, f"{features} →"), field(1, 20, wide, high, (code / top).tolist()),
                label(0, 20 + high + 16, f"rows: positions 0 to {tokens - 1}; blue above zero, orange below"))
    picture = Figure(f"{name}-code", f"Code of {placed.kind} positions",
                     f"A row of numbers for each of {tokens} positions.", max(wide + 2, 300.0), high + 42, body,
                     "The code of each position.")
    return [picture, _proximity(placed, name, proximity[0])]


def _proximity(placed: Placed, name: str, proximity: Tensor) -> Figure:
    """Mean proximity against distance, and from one position in the middle."""
    curve = by_distance(proximity).tolist()
    found = properties(proximity)
    middle = proximity.shape[0] // 2
    curves = [Curve("mean", list(enumerate(curve)), 0)]
    if found.invariant < 1 - 1e-9:
        curves.append(Curve(f"from {middle}", [(float(back), float(proximity[middle, middle - back]))
                                               for back in range(middle + 1)], 1))
    shape = "never grows with distance" if found.first_rise is None else (
        f"grows again from distance {found.first_rise} on, so it is not monotone")
    return replace(chart(f"{name}-proximity", f"Proximity under {placed.kind} positions",
                         f"Proximity against distance; it {shape}.", curves, "distance in tokens", "proximity",
                         levels=(0,)),
                   caption=f"Proximity {shape}; {found.invariant:.0%} of its variance follows from the distance.")


def _of_rotation(placed: Placed, name: str, tokens: int) -> list[Figure]:
    size = placed.size
    proximity = proximities(placed.scheme, tokens, placed.heads, size)
    assert proximity is not None, "it acts on queries and keys"
    waves = wavelengths(placed.scheme, size)
    figures = [_proximity(placed, name, proximity[0])]
    if waves:
        first, last = integer(round(waves[0])), integer(round(waves[-1]))
        still = size - 2 * len(waves)
        rest = f" {still} of {size} features are not rotated." if still else ""
        figures.insert(0, replace(
            chart(f"{name}-wavelengths", f"Wavelengths of {placed.kind} positions",
                  f"Tokens of a full turn of each rotated pair, from {first} to {last}, on a logarithmic axis.",
                  [Curve("wavelength", [(float(index), wave) for index, wave in enumerate(waves)], 0, dots=True)],
                  "rotated pair", "tokens of a full turn", scale="logarithmic", levels=(placed.context,)),
            caption=f"Wavelengths from {first} to {last} tokens; the line is the training context of "
                    f"{integer(placed.context)}.{rest}"))
    return figures


def _of_scores(placed: Placed, name: str, tokens: int) -> list[Figure]:
    heads, size = placed.heads, placed.size
    if by_content(placed.scheme, heads, size):
        return [_spread(placed, name, min(tokens, TOKENS // 2))]
    term = bias(placed.scheme, tokens, heads, size)
    if all(properties(head).invariant > 1 - 1e-9 for head in term):
        return [_bias_curves(placed, name, term)]
    return [_bias_fields(placed, name, term)]


def _bias_curves(placed: Placed, name: str, term: Tensor) -> Figure:
    tokens, shown = term.shape[-1], _some(placed.heads)
    offsets = list(range(1 - tokens, 1))
    two_sided = not torch.allclose(term, term.transpose(1, 2))
    if two_sided:
        offsets += range(1, tokens)
    curves = [Curve(f"head {head}", [(float(offset), float(term[head].diagonal(offset)[0])) for offset in offsets],
                    index) for index, head in enumerate(shown)]
    words = "both sides differ" if two_sided else "the same to both sides"
    return replace(chart(f"{name}-bias", f"Bias of {placed.kind} positions",
                         f"The term on scores against the position of the key minus that of the query; {words}.",
                         curves, "key minus query, in tokens", "added to scores", levels=(0,)),
                   caption=f"{_said(shown, placed.heads)}; {words}.")


def _bias_fields(placed: Placed, name: str, term: Tensor) -> Figure:
    """Terms that depend on both positions, head by head."""
    shown, side = _some(placed.heads)[:4], 150.0
    top = float(term.abs().max()) or 1.0
    marks = [join(label(index * (side + 20), 12, f"head {head}", kind="name"),
                  field(index * (side + 20) + 1, 20, side, side, (term[head] / top).tolist()))
             for index, head in enumerate(shown)]
    note = label(0, side + 38, "rows: queries; columns: keys; blue above zero, orange below")
    return Figure(f"{name}-bias", f"Bias of {placed.kind} positions", "The term on scores by query and key position.",
                  max(len(shown) * (side + 20) - 18, 330.0), side + 46, Markup(join(*marks) + note),
                  f"{_said(shown, placed.heads)}: the term depends on both positions, not on their difference alone.")


def _spread(placed: Placed, name: str, tokens: int) -> Figure:
    """The standard deviation of a term that depends on content, by distance."""
    terms = torch.stack([bias(placed.scheme, tokens, placed.heads, placed.size, seed) for seed in range(CONTENTS)])
    squares = terms.square().mean(0)
    offsets = range(1 - tokens, tokens)
    shown = _some(placed.heads)[:4]
    curves = [Curve(f"head {head}", [(float(offset), float(squares[head].diagonal(offset).mean().sqrt()))
                                     for offset in offsets], index) for index, head in enumerate(shown)]
    return replace(chart(f"{name}-spread", f"Size of the terms of {placed.kind} positions",
                         "The root mean square of the term on scores over random queries and keys, against distance.",
                         curves, "key minus query, in tokens", "root mean square", include=(0,)),
                   caption=f"The term depends on the content of the tokens: its root mean square over random queries "
                           f"and keys of unit variance. {_said(shown, placed.heads)}.")


def _some(heads: int) -> list[int]:
    """At most `MOST_HEADS` heads, evenly."""
    if heads <= MOST_HEADS:
        return list(range(heads))
    return [round(index * (heads - 1) / (MOST_HEADS - 1)) for index in range(MOST_HEADS)]


def _said(shown: list[int], heads: int) -> str:
    return f"All {heads} heads" if len(shown) == heads else f"{len(shown)} of {heads} heads"


