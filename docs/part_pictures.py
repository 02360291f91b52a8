"""A picture of every part that has one, made from the part itself: for the catalogue, and for parts of plugins.

    masks                         a grid
    positions, rotary scalings    codes, proximity, bias, wavelengths
    mixers, feed-forwards         which tokens change which: |dy(t)/dx(s)| of a small layer with random weights
    norms                         vectors before and after
    blocks, models, encoders      the architecture of an example
    schedules                     the factor of the learning rate
    heads, readouts, rewrites, optimizers, tokenizers, tasks, benchmarks: see `docs/tool_pictures.py`
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import tool_pictures as tools
import torch
from torch import Tensor

from weft.core.base_model import built_empty
from weft.core.errors import ConfigError
from weft.core.layer import Layer
from weft.core.model import ModelConfig
from weft.core.part_config import Dims, PartConfig
from weft.core.registry import REGISTRY
from weft.core.span import WHOLE, Memory
from weft.drawing.chart import Curve, chart
from weft.drawing.figure import Figure
from weft.drawing.marks import label
from weft.drawing.markup import field, join
from weft.laws.discovery import host_of
from weft.masks import Mask, known_masks, parse_mask
from weft.pictures.architecture import ModelColumn, ModelDrawing, architecture_of, block_picture
from weft.pictures.diagram import figure as diagram
from weft.pictures.masks import mask_figure
from weft.pictures.positions import Placed, position_figures
from weft.pictures.proximity import wavelengths
from weft.positions.base import PositionScheme

HEADS, SIZE, CONTEXT, VOCABULARY = 4, 16, 64, 11
"""Of the schemes that are drawn."""
WIDTH, TOKENS, DIRECTIONS = 8, 20, 3
"""Of the layers that are drawn: features, tokens, and random directions of a gradient."""
STEPS = 200
"""Steps of a run whose learning rate is drawn."""

MASKS: Mapping[str, str] = MappingProxyType({
    "window": "causal & window(4)", "symmetric_window": "symmetric_window(3, 3)", "dilated": "dilated(3, 2)",
    "global": "causal & (window(3) | global(0))", "globals": "symmetric_window(1, 1) | globals",
    "prefix": "causal | prefix", "documents": "causal & documents", "same_type": "causal & same_type",
    "strided": "causal & (window(4) | strided(4))", "fixed": "block(4) | fixed(4, 1)", "block": "block(4)",
    "segments": "segments(4, 2)", "per_head": "per_head(window(4), strided(4))"})
"""How masks with arguments are drawn, most of them in the company in which they are used."""
UNKNOWN = 4
"""The arguments of a mask that is not listed."""

SCALINGS: Mapping[str, Mapping[str, Any]] = MappingProxyType({
    "longrope": {"kind": "longrope", "short_factor": [1.0] * SIZE, "original_length": CONTEXT,
                 "extended_length": 4 * CONTEXT, "long_factor": [1.0 + 0.5 * pair for pair in range(SIZE)]}})
"""Scalings that list a factor for each pair."""


def part_pictures(group: str, kind: str) -> list[Figure]:
    """The pictures of a registered part; none for a part that has none.

    Args:
        group: of the part; ``mask`` for masks.
        kind: its name in files.
    """
    name = f"{group}-{kind}"
    if group == "mask":
        return _mask(next(mask for mask in known_masks() if mask.kind == kind), name)
    draw = PICTURES.get(group)
    if draw is None:
        return []
    with torch.random.fork_rng([]):
        torch.manual_seed(0)
        return draw(REGISTRY.get((group,), kind), name)


def _mask(mask: type[Mask], name: str) -> list[Figure]:
    text = MASKS.get(mask.kind)
    required = [each for each in inspect.signature(mask).parameters.values()
                if each.default is each.empty and each.kind is not each.VAR_POSITIONAL]
    try:
        found = parse_mask(text) if text else mask(*[UNKNOWN for _ in required])
    except (ConfigError, TypeError):  # a plugin's, with arguments of another kind
        return []
    return [mask_figure(found, name, title=repr(found))]


def _position(part: type[PartConfig], name: str) -> list[Figure]:
    config: Any = part.examples()[0]
    scheme: PositionScheme = config.build_for_heads(Dims(HEADS * SIZE, VOCABULARY, CONTEXT), HEADS, SIZE)
    if not scheme.acts_on:
        return _hosted(part, name)
    placed = Placed(scheme, part.kind, HEADS, SIZE if "embeddings" not in scheme.acts_on else HEADS * SIZE, "", CONTEXT)
    return position_figures(replace(placed, heads=1) if "embeddings" in scheme.acts_on else placed, name)


def _scaling(part: type[PartConfig], name: str) -> list[Figure]:
    """The wavelengths of a document of four times its own context, beside those that are not scaled."""
    def waves(scaling: Any) -> list[float]:
        rope: Any = REGISTRY.get(("position",), "rope").model_validate({"scaling": scaling})
        return wavelengths(rope.build_for_heads(Dims(SIZE, VOCABULARY, CONTEXT), 1, 2 * SIZE), 2 * SIZE, 4 * CONTEXT)

    own = SCALINGS.get(part.kind, part.examples()[0].dump())
    curves = [Curve("unscaled", list(enumerate(waves("none"))), 7, dots=True),
              Curve(part.kind, list(enumerate(waves(own))), 0, dots=True)]
    return [chart(f"{name}-wavelengths", f"Wavelengths under {part.kind}",
                  "Tokens of a full turn of each rotated pair, scaled and not.", curves, "rotated pair",
                  "tokens of a full turn", scale="logarithmic")]


def _layer(part: type[PartConfig], name: str) -> list[Figure]:
    """Which tokens change which, in a layer with random weights."""
    return _reads(part.examples()[0], name)


def _hosted(part: type[PartConfig], name: str) -> list[Figure]:
    """Which tokens attention reads that has the part."""
    host: Any = host_of(part.examples()[0])
    return _reads(host, name, part.kind)


def _reads(config: Any, name: str, kind: str = "") -> list[Figure]:
    giver = config.giver()
    kind = kind or config.kind
    if giver is not None:
        config = REGISTRY.get(("block",), "pre").model_validate({"layers": [giver, config], "norm": "none",
                                                                 "residual": False})
    layer: Any = config.build(Dims(WIDTH, VOCABULARY, CONTEXT)).double().eval()
    values = influence(layer)
    side, high = 210.0, 210.0 * values.shape[0] / values.shape[1]
    reads = layer.declares().source_width is not None
    keys = "tokens of the source" if reads else "tokens read"
    top = float(values.max()) or 1.0
    body = join(label(16, 12, f"{keys} →"), field(17, 20, side, high, (values / top).sqrt().tolist()),
                label(16, 20 + high + 16, f"rows: tokens written, 0 to {values.shape[0] - 1}"))
    return [Figure(f"{name}-reads", f"Which tokens {kind} reads",
                   "How much each token of the output changes with each token of the input, for random weights.",
                   side + 34, high + 44, body)]


def influence(layer: Layer, tokens: int = TOKENS, seed: int = 0) -> Tensor:
    """How much the output at each token changes with the input at each token, [T,T]; with the tokens of a source, for
    a layer that reads one, [T,S].

    Args:
        layer: in float64; its input is normal with unit variance.
        tokens: T.
        seed: of the input and of the directions in which gradients are taken.
    """
    generator = torch.Generator().manual_seed(seed)
    width = layer.declares().source_width
    x = torch.randn(1, tokens, WIDTH, generator=generator, dtype=torch.float64, requires_grad=True)
    span, read = WHOLE, x
    if width is not None:
        read = torch.randn(1, tokens * 3 // 4, width, generator=generator, dtype=torch.float64, requires_grad=True)
        span = WHOLE.replace(memory=Memory(read))
    y = layer(x, None, span).y
    rows = []
    for step in range(tokens):
        directions = torch.randn(DIRECTIONS, WIDTH, generator=generator, dtype=torch.float64)
        found = [torch.autograd.grad((y[0, step] * each).sum(), read, retain_graph=True)[0][0].norm(dim=-1)
                 for each in directions]
        rows.append(torch.stack(found).square().mean(0).sqrt())
    return torch.stack(rows)


def _norm(part: type[PartConfig], name: str) -> list[Figure]:
    """Vectors of several sizes and means before and after."""
    config: Any = part.examples()[0]
    norm = config.build_size(WIDTH).double().train()
    generator = torch.Generator().manual_seed(0)
    scale = torch.linspace(0.3, 3.0, TOKENS // 2, dtype=torch.float64)[:, None]
    shift = torch.linspace(-1.0, 1.5, TOKENS // 2, dtype=torch.float64)[:, None]
    x = torch.randn(TOKENS // 2, WIDTH, generator=generator, dtype=torch.float64) * scale + shift
    with torch.no_grad():
        y = norm(x[None])[0]
    wide, high = 140.0, 170.0
    marks = [join(label(left, 12, words, kind="name"), label(left, 24, f"at most {float(value.abs().max()):.2f}"),
                  field(left + 1, 32, wide, high, (value / value.abs().max()).tolist()))
             for left, words, value in ((0.0, "before", x), (wide + 26, "after", y))]
    note = label(0, high + 48, "rows: tokens; columns: features; blue above zero")
    return [Figure(f"{name}-vectors", f"Vectors before and after {part.kind}",
                   "A row for each token and a column for each feature, before and after the norm.",
                   2 * wide + 30, high + 56, join(*marks, note))]


def _block(part: type[PartConfig], name: str) -> list[Figure]:
    config: Any = part.examples()[0]
    with torch.device("meta"):
        built = config.build(Dims(WIDTH, VOCABULARY, CONTEXT))
    column = ModelColumn("block", (block_picture(built, {}),), "stream")
    return [diagram(ModelDrawing(f"a {part.kind} block", (column,)), name)]


def _model(part: type[PartConfig], name: str) -> list[Figure]:
    config = part.examples()[0]
    assert isinstance(config, ModelConfig), "its group is a group of models"
    return [diagram(architecture_of(built_empty(config), f"an example of {part.kind}"), name)]


def _schedule(part: type[PartConfig], name: str) -> list[Figure]:
    config: Any = part.examples()[0]
    points = [(float(step), float(config.factor(step, STEPS))) for step in range(STEPS)]
    return [chart(f"{name}-factor", f"The factor of {part.kind}", f"The factor of the learning rate in {STEPS} steps.",
                  [Curve("factor", points)], "step", "factor of the learning rate", include=(0, 1))]


PICTURES: Mapping[str, Callable[[type[PartConfig], str], list[Figure]]] = MappingProxyType({
    "position": _position, "rope_scaling": _scaling, "mixer": _layer, "feedforward": _layer, "norm": _norm,
    "block": _block, "model": _model, "encoder": _model, "schedule": _schedule, "position_table": _hosted,
    "head": tools.in_host, "readout": tools.in_host, "rewrite": tools.rewrite, "optimizer": tools.optimizer,
    "tokenizer": tools.tokenizer, "task": tools.asked, "benchmark": tools.asked})
"""How parts of each group are drawn."""
