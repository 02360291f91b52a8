"""The architecture of a model as data: columns of boxes and blocks, read from the model that was built."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from torch import nn

from weft.blocks.base import Block, Composite, Skip
from weft.core.layer import Layer
from weft.core.model import Encoder, Model
from weft.core.part_config import PartConfig
from weft.models.decoder import Embedding
from weft.norms.base import NoNorm
from weft.ops.dropout import Dropout
from weft.pictures.folding import Fold, folded
from weft.pictures.labels import HARD, acting, amount, in_brackets, resolved, settings, sizes
from weft.positions.base import PositionScheme


@dataclass(frozen=True)
class PartBox:
    """A part.

    Attributes:
        note: at the right of the title: its number of parameters.
        thin: whether it is a small part such as a norm.
        memory: whether it reads the encoded source.
    """

    title: str
    lines: tuple[str, ...] = ()
    note: str = ""
    thin: bool = False
    memory: bool = False


@dataclass(frozen=True)
class BranchPicture:
    """A layer with the norms before and after it."""

    layer: PartBox
    before: PartBox | None = None
    after: PartBox | None = None


@dataclass(frozen=True)
class StepPicture:
    """Branches that read the same vectors, and their sum; see `weft.blocks.base.Step`."""

    branches: tuple[BranchPicture, ...]
    entering: PartBox | None = None
    skip: Skip = "stream"
    scale: float = 1.0
    after: PartBox | None = None


TIED = "tied: the token embedding"
"""Said of a readout that has no matrix of its own."""

Steps: TypeAlias = tuple[StepPicture, ...]


@dataclass(frozen=True)
class BlockPicture:
    """A block: its kind and its steps, or, if it does not say how it is wired, a step of its own for each layer.

    Attributes:
        wired: whether the block says how it is wired.
    """

    kind: str
    steps: Steps
    wired: bool = True


Element: TypeAlias = "PartBox | BlockPicture | Fold[BlockPicture]"


@dataclass(frozen=True)
class ModelColumn:
    """The stages that a row of tokens passes, in order, from the bottom of the drawing to its top.

    Attributes:
        enters: what enters at the bottom, in words.
    """

    title: str
    elements: tuple[Element, ...]
    enters: str


@dataclass(frozen=True)
class ModelDrawing:
    """The columns of a model; an encoder stands before the decoder that reads it."""

    title: str
    columns: tuple[ModelColumn, ...]


def architecture_of(model: Model, title: str = "") -> ModelDrawing:
    """The architecture of a built model, on any device, the meta device included."""
    encoders = [module for module in model.children() if isinstance(module, Encoder)]
    columns = tuple(ModelColumn(module.config.kind, tuple(_elements(module)),
                                "tokens of the source") for module in encoders)
    own = ModelColumn("decoder" if encoders else model.config.kind, tuple(_elements(model)), "tokens")
    return ModelDrawing(title or model.config.kind, (*columns, own))


def _elements(model: Model) -> Iterator[Element]:
    """The parts of a model in the order in which tokens pass them."""
    config = model.config
    shared: Mapping[str, PartConfig] = dict(config).get("shared", {})
    found = [(name, module) for name, module in model.named_children()
             if not isinstance(module, Encoder | nn.ModuleDict | NoNorm | Dropout)]
    if not any(isinstance(module, Embedding) for _, module in found):
        yield PartBox(config.kind, tuple(settings(config, shared, {name for name, _ in found})))
    for name, module in found:
        own = dict(config).get(name)
        if isinstance(module, Embedding):
            yield from _embedding(module, config, shared)
        elif isinstance(module, Composite):
            layers = module.children_layers()
            pictures = [block_picture(layer, shared) for layer in layers]
            yield from folded(pictures, [_key(layer, picture) for layer, picture in zip(layers, pictures, strict=True)])
        else:
            box = _part(name, module, resolved(own, shared) if isinstance(own, PartConfig) else None, shared)
            yield replace(box, lines=(*box.lines, TIED), note="") if _is_tied(module, model) else box


def _is_tied(module: nn.Module, model: Model) -> bool:
    """Whether its matrices are the token embedding's, and no others."""
    tables = {id(inner.weight) for inner in model.modules() if isinstance(inner, nn.Embedding)}
    matrices = [value for value in module.parameters() if value.dim() > 1]
    return not isinstance(module, nn.Embedding) and bool(matrices) and all(id(value) in tables for value in matrices)


def _part(name: str, module: nn.Module, config: PartConfig | None, shared: Mapping[str, PartConfig]) -> PartBox:
    if config is None:
        return PartBox(name, tuple(sizes(module)), amount(module))
    title = config.kind if config.group in ("norm", config.kind) else f"{config.kind} {config.group}"
    if config.group == "norm":
        return PartBox(title, thin=True)
    return PartBox(title, (*settings(config, shared), *sizes(module)), amount(module))


def _embedding(module: Embedding, config: PartConfig, shared: Mapping[str, PartConfig]) -> Iterator[PartBox]:
    values: Any = dict(config)
    scaled = [] if module.scale == 1.0 else [f"times {module.scale:.4g}"]
    yield PartBox("token embedding", (*sizes(module.tokens), *scaled,
                                      *([] if module.projection is None else sizes(module.projection))),
                  amount(module.tokens))
    if module.position.acts_on:
        scheme = resolved(values["position"], shared)
        how = f"concatenated, {module.position.width} features" if module.position.width else "added"
        yield PartBox(f"{scheme.kind} positions", (how, *settings(scheme, shared), *sizes(module.position)),
                      amount(module.position))
    if not isinstance(module.norm, NoNorm):
        yield PartBox(resolved(values["embedding"].norm, shared).kind, thin=True)


def _key(layer: Layer, picture: BlockPicture) -> tuple[str, BlockPicture]:
    """Equal for blocks of equal configurations that are drawn alike."""
    config = layer.config.dump() if isinstance(layer, Block) else None
    return json.dumps(config, sort_keys=True), picture


def block_picture(layer: Layer, shared: Mapping[str, PartConfig]) -> BlockPicture:
    """A block with its norms, layers and sums."""
    if not isinstance(layer, Block):
        box = PartBox(type(layer).__name__, tuple(sizes(layer)), amount(layer))
        return BlockPicture(box.title, (StepPicture((BranchPicture(box),), skip="nothing"),), wired=False)
    config, wiring = layer.config, layer.wiring()
    boxes = [_layer_box(inner, resolved(own, shared), shared)
             for inner, own in zip(layer.children_layers(), config.layers, strict=True)]
    if wiring is None:
        return BlockPicture(config.kind, tuple(StepPicture((BranchPicture(box),), skip="nothing") for box in boxes),
                            wired=False)
    norm = None if isinstance(resolved(config.norm, shared), PartConfig) and all(
        isinstance(each, NoNorm) for each in layer.norms) else PartBox(resolved(config.norm, shared).kind, thin=True)

    def normed(index: int | None) -> PartBox | None:
        return None if index is None else norm

    return BlockPicture(config.kind, tuple(StepPicture(
        tuple(BranchPicture(boxes[branch.layer], normed(branch.before), normed(branch.after))
              for branch in step.branches),
        normed(step.entering), step.skip, config.branch_scale, normed(step.after)) for step in wiring))


def _layer_box(layer: Layer, config: PartConfig, shared: Mapping[str, PartConfig]) -> PartBox:
    lines = [line for line in settings(config, shared) if not line.startswith(f"position{HARD}")]
    for module in layer.children():
        if isinstance(module, PositionScheme) and module.acts_on:
            scheme = resolved(dict(config)["position"], shared)
            lines.append(f"{scheme.kind}{in_brackets(scheme)} positions, on {acting(module)}")
    return PartBox(config.kind.replace("_", " "), (*lines, *sizes(layer)), amount(layer),
                   memory=layer.declares().source_width is not None)
