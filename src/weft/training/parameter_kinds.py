"""The kind of each parameter of a model, by which optimisers treat it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, NamedTuple, TypeAlias

from torch import nn

from weft.core.heads import Head
from weft.core.layer import Part

Kind: TypeAlias = Literal["matrices", "vectors", "embeddings", "readouts", "dynamics"]
"""``dynamics``: `Declared.dynamics`, whatever their shape; ``embeddings``: tables of tokens, types and positions, and
so a readout that is tied to one; ``readouts``: other tensors of two dimensions or more in readouts and heads;
``matrices``: all further ones; ``vectors``: what has one dimension or none, such as biases and gains."""


class Labelled(NamedTuple):
    """A trained parameter.

    Attributes:
        name: in the model, its first.
        parameter: itself.
        kind: what it is.
        hidden: whether it is the matrix [out,in] of a linear map that is not in a readout or head: not the kernel of a
            convolution, and not numbers that a layer keeps as a table, such as one gain for each feature of each head.
    """

    name: str
    parameter: nn.Parameter
    kind: Kind
    hidden: bool


def labelled(model: nn.Module) -> Iterator[Labelled]:
    """The trained parameters of a model, each once, in the model's order."""
    found = _Found(model)
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            kind = found.kind(parameter)
            yield Labelled(name, parameter, kind, kind == "matrices" and id(parameter) in found.maps
                           and parameter.dim() == 2 and not parameter.is_complex())


class _Found:
    """Identities of the parameters of a model that are something particular."""

    def __init__(self, model: nn.Module) -> None:
        self.dynamics = {id(p) for part in model.modules() if isinstance(part, Part) for p in part.declares().dynamics}
        tables = [module for module in model.modules()
                  if isinstance(module, nn.Embedding) or (isinstance(module, Part) and module.declares().holds_table)]
        self.tables = {id(p) for table in tables for p in table.parameters(recurse=False)}
        self.heads = {id(p) for module in model.modules() if isinstance(module, Head) for p in module.parameters()}
        self.maps = {id(p) for module in model.modules() if isinstance(module, nn.Linear)
                     for p in module.parameters(recurse=False)}

    def kind(self, parameter: nn.Parameter) -> Kind:
        if id(parameter) in self.dynamics:
            return "dynamics"
        if parameter.dim() < 2:
            return "vectors"
        if id(parameter) in self.tables:
            return "embeddings"
        return "readouts" if id(parameter) in self.heads else "matrices"
