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
with the output's multiplier. Where the deviation of embeddings follows the width (``std: inverse_sqrt_width``), that of
the base is meant. What is input, hidden and output is found by comparing the shapes of the model's linear
maps with those of the base, not from names; what else of a part follows the width, the part declares
(`weft.core.declarations.WidthRoles`), and its configuration declares the fields that do (`width_fields`). A rate
that is divided by m comes with a weight decay that is multiplied by it, so that their product, which is what a
decoupled decay applies, stays.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal, TypeVar

import torch
from pydantic import BaseModel, Field
from torch import nn

from weft.core.declarations import WidthRoles
from weft.core.errors import ConfigError
from weft.core.layer import Layer, Part
from weft.core.model import Model, ModelConfig
from weft.core.part_config import ModuleConfig, Settings
from weft.linear.linear import Linear, unadapted

M = TypeVar("M", bound=Model)


class WidthTransferSettings(Settings):
    """How a model is parametrized so that settings found on a narrow one hold for a wide one.

    Attributes:
        kind: ``mup``, see `weft.models.width_transfer`.
        base_width: ``d_model`` of the base, at which the model is as it would be without this.
    """

    kind: Literal["mup"] = "mup"
    base_width: int = Field(gt=0)


def based(config: ModelConfig, settings: WidthTransferSettings) -> ModelConfig:
    """The configuration of the base: widths in proportion, everything else as it is. Raises `ConfigError`: a width is
    not a whole number in the base."""
    problems: list[str] = []
    narrow = _narrowed(config, settings.base_width, int(config.dump()["d_model"]), "model", problems)
    if problems:
        raise ConfigError(problems)
    return type(config).model_validate({key: value for key, value in narrow.dump().items()
                                        if key not in ("kind", "parametrization")})


def _narrowed(value: Any, base: int, width: int, place: str, problems: list[str]) -> Any:
    """A configuration, or what is inside one, with the fields that grow with the width as they are in the base."""
    if isinstance(value, BaseModel):
        grows = value.width_fields() if isinstance(value, ModuleConfig) else ()
        changed = {}
        for name in type(value).model_fields:
            item, at = getattr(value, name), f"{place}.{name}"
            if name not in grows or item is None:
                changed[name] = _narrowed(item, base, width, at, problems)
                continue
            if item * base % width:
                problems.append(f"{at}: {item}, which at parametrization.base_width {base} would be "
                                f"{item * base / width:g}. Choose a multiple of {width // base if base else width}.")
            changed[name] = max(1, item * base // width)
        return value.model_copy(update=changed)
    if isinstance(value, list | tuple):
        return [_narrowed(item, base, width, f"{place}.{index}", problems) for index, item in enumerate(value)]
    if isinstance(value, Mapping):
        return {name: _narrowed(item, base, width, f"{place}.{name}", problems) for name, item in value.items()}
    return value


def transferred(config: ModelConfig, settings: WidthTransferSettings, build: Callable[[Any], M]) -> M:
    """The model of ``config`` in muP.

    Args:
        config: of a model with ``d_model``.
        build: makes a model of a configuration, as it is without this.

    Raises:
        ConfigError: a part whose sums the table does not cover; each is named.
    """
    if problems := list(_untransferable(config)):
        raise ConfigError(problems)
    model = build(config)
    if problems := list(_undeclared(model)):
        raise ConfigError(problems)
    with torch.device("meta"):
        base = build(based(config, settings))
    twins = dict(base.named_modules())
    problems = [problem for name, module in model.named_modules() for problem in _unknown(name, module, twins[name])]
    if problems:
        raise ConfigError(problems)
    tables = {id(module.weight) for module in model.modules() if isinstance(module, nn.Embedding)}
    for name, module in model.named_modules():
        _adapt(module, twins[name], tables)
        if isinstance(module, nn.Embedding) and config.dump()["embedding"]["std"] == "inverse_sqrt_width":
            _rescale(module.weight, module.embedding_dim / twins[name].get_parameter("weight").shape[1])
    model.rate_factors = dict(_rates(model, twins))
    return model


def _untransferable(config: ModelConfig) -> Iterator[str]:
    """A scale of embeddings that grows with the width, and rewrites."""
    plain: dict[str, Any] = config.dump()
    if plain["embedding"]["scale"] == "sqrt_width":
        yield ("model.embedding.scale: sqrt_width, while under mup embeddings have the same size at every width. Give "
               "a number.")
    if config.rewrites:
        yield "model.parametrization: mup beside rewrites, which change what is trained. Leave out one of them."


def roles_of(module: nn.Module) -> WidthRoles | None:
    """The roles that a module itself declares of the width; None where it declares nothing."""
    roles = module.declares().width_roles if isinstance(module, Part) else None
    return roles if roles is not None and roles.of is type(module) else None


def _undeclared(model: nn.Module) -> Iterator[str]:
    """The layers, apart from those that only call others, that do not declare what follows the width; the outermost of
    several inside one another."""
    outer: list[str] = []
    for name, module in model.named_modules():
        if (isinstance(module, Layer) and not module.state_type.composite and roles_of(module) is None
                and not name.startswith(tuple(f"{each}." for each in outer))):
            outer.append(name)
            yield (f"model.parametrization: mup says nothing about {type(module).__name__}, at {name}, which does not "
                   "declare what follows the width. Leave the parametrization out, or use other layers.")


def _grown(tensor: torch.Tensor, twin: torch.Tensor) -> tuple[bool, ...]:
    """Which dimensions grow with the width."""
    return tuple(mine != its for mine, its in zip(tensor.shape, twin.shape, strict=True))


def _matrices(module: nn.Module) -> tuple[str, ...]:
    """The names of a module's own matrices that multiply vectors."""
    if isinstance(module, Linear) or unadapted(module, nn.Linear):
        return ("weight",)
    roles = roles_of(module)
    return () if roles is None else roles.matrices


def _unknown(name: str, module: nn.Module, twin: nn.Module) -> Iterator[str]:
    """Tensors of a module itself that have no role in the table."""
    matrices, roles = _matrices(module), roles_of(module)
    table = isinstance(module, nn.Embedding) or (isinstance(module, Part) and module.declares().holds_table)
    for own, parameter in module.named_parameters(recurse=False):
        grown = _grown(parameter, twin.get_parameter(own))
        known = table or own in matrices or (roles is not None and own in roles.outputs)
        if own in matrices and grown[-2:] == (False, True):
            yield (f"model.parametrization: {name} maps the width to {parameter.shape[-2]} numbers inside the model, "
                   "to which mup gives a multiplier that this map does not have. Leave one of them out.")
        elif sum(grown) and parameter.dim() > 1 and not known:
            yield (f"model.parametrization: {name}.{own} is no matrix of a linear map, so mup says nothing about it. "
                   "Leave the parametrization out, or use another part.")


def _adapt(module: nn.Module, twin: nn.Module, tables: set[int]) -> None:
    """Multipliers, and initial values whose deviation is that of the base where it depends on the width. Those of
    matrices of linear maps fall with the root of their inputs as they are, and those of embeddings are a number."""
    roles, base = roles_of(module), roles_of(twin)
    if roles is not None and base is not None:
        for name, features in roles.products.items():
            setattr(module, name, getattr(twin, name) * base.products[name] / features)
        for name, multiplier in roles.outputs.items():
            matrix = module.get_parameter(name)
            ratio = matrix.shape[1] / twin.get_parameter(name).shape[1]
            setattr(module, multiplier, getattr(twin, multiplier) / ratio)
            if id(matrix) not in tables:
                _rescale(matrix, ratio)
    if isinstance(module, nn.Linear) and isinstance(twin, nn.Linear) and module.bias is not None:
        # torch.nn.Linear draws a bias as it does its matrix, from a range of one over the root of the inputs.
        _rescale(module.bias, module.in_features / twin.in_features)


def _rescale(parameter: torch.Tensor, ratio: float) -> None:
    with torch.no_grad():
        parameter.mul_(ratio ** 0.5)


def _rates(model: nn.Module, twins: dict[str, nn.Module]) -> Iterator[tuple[str, float]]:
    """The factors of the learning rate that are not one, by parameter."""
    for name, module in model.named_modules():
        for own in _matrices(module):
            matrix, its = module.get_parameter(own), twins[name].get_parameter(own)
            if all(_grown(matrix, its)[-2:]):
                yield f"{name}.{own}", its.shape[-1] / matrix.shape[-1]
