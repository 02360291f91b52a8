"""Labels of the modules of a model, in the words that its parts declare (`weft.core.declarations`)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from torch import nn

from weft.core.declarations import Declared
from weft.core.layer import Layer, Part

EMBEDDINGS, LOGITS = "embeddings", "logits"
"""The roles of the model's input and output vocabulary matrices."""


def label_modules(model: nn.Module) -> dict[str, str]:
    """The label of the part that each module belongs to, by the module's path: the role that the module, or the part
    that contains it, declares."""
    declared = {module: module.declares() for module in model.modules() if isinstance(module, Part)}
    children = dict(_child_roles(declared))
    labels: dict[str, str] = {}
    prefixes: dict[str, str] = {}
    for path, module in model.named_modules():
        holder = path.rpartition(".")[0]
        inherited, prefix = labels.get(holder, ""), prefixes.get(holder, "")
        own = declared[module].prefix if module in declared and path else ""
        prefixes[path] = own or prefix
        role = declared[module].role if module in declared else EMBEDDINGS if isinstance(module, nn.Embedding) else ""
        role = "" if own else role or children.get(id(module), "")
        labels[path] = own or f"{prefix} {role}".strip() if own or role else _inherited(module, path, inherited)
    return labels


def _child_roles(declared: Mapping[Part, Declared]) -> Iterator[tuple[int, str]]:
    """The roles that parts declare for modules inside them, by the identity of the module, which may have several
    paths."""
    for holder, own in declared.items():
        if own.child_roles:
            inside = dict(holder.named_modules(remove_duplicate=False))
            yield from [(id(inside[path]), role) for path, role in own.child_roles.items() if path in inside]


def _inherited(module: nn.Module, path: str, inherited: str) -> str:
    """The label of the containing part; for a direct child of the model, its name."""
    return inherited if inherited or "." in path or isinstance(module, Layer | nn.ModuleDict) else path
