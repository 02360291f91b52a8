"""Labels of the modules of a model, in the words that its parts declare (`weft.core.declarations`)."""

from __future__ import annotations

from torch import nn

from weft.core.layer import Layer, Part

EMBEDDINGS, LOGITS = "embeddings", "logits"
"""The roles of the model's input and output vocabulary matrices."""


def label_modules(model: nn.Module) -> dict[str, str]:
    """The label of the part that each module belongs to, by the module's path: the role that the module, or the part
    that contains it, declares."""
    declared = {module: module.declares() for module in model.modules() if isinstance(module, Part)}
    children = dict[int, str]()  # roles of modules inside a part, by their identities: they may have several paths
    for part, own in declared.items():
        inside = dict(part.named_modules(remove_duplicate=False)) if own.child_roles else {}
        children |= {id(inside[path]): role for path, role in own.child_roles.items() if path in inside}
    labels: dict[str, str] = {}
    prefixes: dict[str, str] = {}
    for path, module in model.named_modules():
        holder = path.rpartition(".")[0]
        inherited, prefix = labels.get(holder, ""), prefixes.get(holder, "")
        before = declared[module].prefix if module in declared and path else ""
        prefixes[path] = before or prefix
        role = declared[module].role if module in declared else EMBEDDINGS if isinstance(module, nn.Embedding) else ""
        role = "" if before else role or children.get(id(module), "")
        if not inherited and "." not in path and not isinstance(module, Layer | nn.ModuleDict):
            inherited = path  # a direct child of the model
        labels[path] = before or f"{prefix} {role}".strip() if before or role else inherited
    return labels
