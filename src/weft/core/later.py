"""Names of a package that are imported when the first of them is used, so that whoever needs one module of the package
does not wait for the others."""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any


def names_of(package: str, module: str) -> Callable[[str], Any]:
    """The function ``__getattr__`` of a package all of whose names are those of one of its modules.

    Args:
        package: its full name.
        module: the full name of the module, whose ``__all__`` lists the names.
    """

    def found(name: str) -> Any:
        held = import_module(module)
        if name != "__all__" and name not in held.__all__:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(held, name)
        setattr(sys.modules[package], name, value)  # so that it is looked up once
        return value

    return found
