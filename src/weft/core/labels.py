"""Labels of the modules of a model, in the words that its parts declare (`weft.core.declarations`)."""

from __future__ import annotations

from torch import nn

from weft.core.layer import Layer, Part

EMBEDDINGS, LOGITS = "embeddings", "logits"
"""The roles of the model's input and output vocabulary matrices."""


def label_modules(model: nn.Module) -> dict[str, str]:
    """The label of the part that each module belongs to, by the module's path: the role that the module, or the part
    that contains it, declares."""
    declared = dict[int, str]()  # for modules inside a part, by their identities: they may have several paths
    for part in model.modules():
        roles = part.declares().child_roles if isinstance(part, Part) else {}
        inside = dict(part.named_modules(remove_duplicate=False)) if roles else {}
        declared |= {id(inside[path]): role for path, role in roles.items() if path in inside}
    labels: dict[str, str] = {}
    prefixes: dict[str, str] = {}
    for path, module in model.named_modules():
        holder = path.rpartition(".")[0]
        inherited, prefix = labels.get(holder, ""), prefixes.get(holder, "")
        own = module.declares().prefix if isinstance(module, Part) and path else ""
        prefixes[path] = own or prefix
        role = "" if own else _role(module) or declared.get(id(module), "")
        if not inherited and "." not in path and not isinstance(module, Layer | nn.ModuleDict):
            inherited = path  # a direct child of the model
        labels[path] = own or f"{prefix} {role}".strip() if own or role else inherited
    return labels


def _role(module: nn.Module) -> str:
    """The role that a module declares for itself."""
    if isinstance(module, Part):
        return module.declares().role
    return EMBEDDINGS if isinstance(module, nn.Embedding) else ""
