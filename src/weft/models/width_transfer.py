"""Width transfer: a model whose best learning rate does not depend on its width.

muP, the maximal update parametrization of Yang and Hu 2021 and Yang et al. 2022, "Tensor Programs V" (table 8, for
Adam), relative to a *base*: the same model of width ``base_width``, which is as it would be without this. With m =
width / base_width,

    role of a matrix          initial deviation        multiplier      rate of Adam
    input (few -> width)      that of the base         1               lr
    hidden (width -> width)   that of the base / √m    1               lr / m
    output (width -> few)     that of the base         1 / m           lr
    attention scores                                   that of the base · base d_head / d_head

Gains, biases and embeddings are input, as are vectors of any length; a tied embedding is initialised as input, and read
with the output's multiplier. What is input, hidden and output is found by comparing the shapes of the model's linear
maps with those of the base, not from names. A rate that is divided by m comes with a weight decay that is multiplied by
it, so that their product, which is what a decoupled decay applies, stays.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Literal, TypeVar

import torch
from pydantic import Field
from torch import nn

from weft.core.errors import ConfigError
from weft.core.layer import Part
from weft.core.model import Model, ModelConfig
from weft.core.part_config import Settings, parts_in
from weft.heads.readout import LinearReadout
from weft.linear.linear import Linear
from weft.mixers.attention import Attention

M = TypeVar("M", bound=Model)
WIDTHS = ("d_model", "d_ff", "d_value")
"""Fields that grow with the width, where they are given."""
HEADS = ("n_heads", "n_kv_heads")
"""Fields that grow with it where the size of a head is given; otherwise heads grow and their number stays."""
TRANSFERS = frozenset({"attention", "mlp", "glu"})
"""Mixers and feed-forwards that consist of linear maps whose sums the table covers. Others have matrices
that are no linear maps, products of vectors with states, scans or convolutions."""


class WidthTransferSettings(Settings):
    """How a model is parametrized so that settings found on a narrow one hold for a wide one.

    Attributes:
        kind: ``mup``, see `weft.models.width_transfer`.
        base_width: ``d_model`` of the base, at which the model is as it would be without this.
    """

    kind: Literal["mup"] = "mup"
    base_width: int = Field(gt=0)


def based(config: ModelConfig, settings: WidthTransferSettings) -> ModelConfig:
    """The configuration of the base: widths in proportion, everything else as it is.

    Raises:
        ConfigError: a width is not a whole number in the base.
    """
    plain = config.dump()
    width = int(plain["d_model"])
    problems: list[str] = []
    _scale(plain, settings.base_width, width, "model", problems)
    if problems:
        raise ConfigError(problems)
    return type(config).model_validate({key: value for key, value in plain.items()
                                        if key not in ("kind", "parametrization")})


def _scale(plain: Any, base: int, width: int, place: str, problems: list[str]) -> None:
    """Replace the widths in plain data by those of the base."""
    if isinstance(plain, list):
        for index, item in enumerate(plain):
            _scale(item, base, width, f"{place}.{index}", problems)
    if not isinstance(plain, dict):
        return
    for key, value in plain.items():
        counts = key in HEADS and plain.get("d_head") is not None
        if isinstance(value, int) and (key in WIDTHS or counts):
            if value * base % width:
                problems.append(f"{place}.{key}: {value}, which at parametrization.base_width {base} would be "
                                f"{value * base / width:g}. Choose a multiple of {width // base if base else width}.")
            plain[key] = max(1, value * base // width)
        else:
            _scale(value, base, width, f"{place}.{key}", problems)


def transferred(config: ModelConfig, settings: WidthTransferSettings, build: Callable[[Any], M]) -> M:
    """The model of ``config`` in muP.

    Args:
        config: of a model with ``d_model``.
        settings: of the parametrization.
        build: makes a model of a configuration, as it is without this.

    Raises:
        ConfigError: a part whose sums the table does not cover; each is named.
    """
    if problems := list(_untransferable(config)):
        raise ConfigError(problems)
    model = build(config)
    with torch.device("meta"):
        base = build(based(config, settings))
    twins = dict(base.named_modules())
    problems = [problem for name, module in model.named_modules() for problem in _unknown(name, module, twins[name])]
    if problems:
        raise ConfigError(problems)
    tables = {id(module.weight) for module in model.modules() if isinstance(module, nn.Embedding)}
    for name, module in model.named_modules():
        _adapt(module, twins[name], tables)
    model.rate_factors = dict(_rates(model, twins))
    return model


def _untransferable(config: ModelConfig) -> Iterator[str]:
    """Parts that the table does not cover, by their kinds, and scales that grow with the width."""
    for part in parts_in(config):
        if part.group in ("mixer", "feedforward") and part.kind not in TRANSFERS:
            yield (f"model.parametrization: mup says nothing about a {part.group} of kind {part.kind!r}. "
                   f"Leave it out, or use {', '.join(sorted(TRANSFERS))}.")
    plain: dict[str, Any] = config.dump()
    for key, value in (("scale", "sqrt_width"), ("std", "inverse_sqrt_width")):
        if plain["embedding"][key] == value:
            yield (f"model.embedding.{key}: {value}, while under mup embeddings have the same size at every width. "
                   "Give a number.")
    if config.rewrites:
        yield "model.parametrization: mup beside rewrites, which change what is trained. Leave out one of them."


def _grown(tensor: torch.Tensor, twin: torch.Tensor) -> tuple[bool, ...]:
    """Which dimensions grow with the width."""
    return tuple(mine != its for mine, its in zip(tensor.shape, twin.shape, strict=True))


def _unknown(name: str, module: nn.Module, twin: nn.Module) -> Iterator[str]:
    """Tensors of a module itself that have no role in the table."""
    for own, parameter in module.named_parameters(recurse=False):
        grown = _grown(parameter, twin.get_parameter(own))
        mapped = isinstance(module, Linear) and own == "weight"
        output = isinstance(module, LinearReadout) and own == "weight"
        table = isinstance(module, nn.Embedding) or (isinstance(module, Part) and module.holds_table)
        if mapped and grown == (False, True):
            yield (f"model.parametrization: {name} maps the width to {parameter.shape[0]} numbers inside the model, to "
                   "which mup gives a multiplier that this map does not have. Leave one of them out.")
        elif sum(grown) and parameter.dim() > 1 and not (mapped or output or table):
            yield (f"model.parametrization: {name}.{own} is no matrix of a linear map, so mup says nothing about it. "
                   "Leave the parametrization out, or use another part.")


def _adapt(module: nn.Module, twin: nn.Module, tables: set[int]) -> None:
    """Multipliers, and initial values whose deviation is that of the base where it depends on the width. Those of
    matrices of linear maps fall with the root of their inputs as they are, and those of embeddings are a number."""
    if isinstance(module, Attention) and isinstance(twin, Attention):
        module.scale = twin.scale * twin.sizes.d_head / module.sizes.d_head
    if isinstance(module, LinearReadout) and isinstance(twin, LinearReadout):
        ratio = module.weight.shape[1] / twin.weight.shape[1]
        module.scale = twin.scale / ratio
        if id(module.weight) not in tables:
            _rescale(module.weight, ratio)
    if isinstance(module, Linear) and isinstance(twin, Linear) and module.bias is not None:
        # torch.nn.Linear draws a bias as it does its matrix, from a range of one over the root of the inputs.
        _rescale(module.bias, module.in_features / twin.in_features)


def _rescale(parameter: torch.Tensor, ratio: float) -> None:
    with torch.no_grad():
        parameter.mul_(ratio ** 0.5)


def _rates(model: nn.Module, twins: dict[str, nn.Module]) -> Iterator[tuple[str, float]]:
    """The factors of the learning rate that are not one, by parameter."""
    for name, module in model.named_modules():
        twin = twins[name]
        if isinstance(module, Linear) and isinstance(twin, Linear) and all(_grown(module.weight, twin.weight)):
            yield f"{name}.weight", twin.in_features / module.in_features
