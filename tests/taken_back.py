"""Taking back what plugins have registered, for tests that load one in their own process."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from weft.core.registry import PLUGIN, REGISTRY
from weft.masks.expression import MASKS
from weft.ops.forms import OPERATIONS


@contextmanager
def taken_back() -> Iterator[None]:
    """Parts, masks, operations and modules of plugins that are loaded inside are known no longer after it."""
    REGISTRY.discover()  # Weft's own parts stay, also where this is the first that asks for them
    OPERATIONS.all()
    parts = {group: dict(kinds) for group, kinds in REGISTRY._parts.items()}
    known: tuple[dict[str, Any], ...] = (REGISTRY.plugins, MASKS, OPERATIONS._known)
    tables = [(table, dict(table)) for table in known]
    modules = set(sys.modules)
    try:
        yield
    finally:
        REGISTRY._parts = parts
        for table, before in tables:
            table.clear()
            table.update(before)
        for name in [name for name in sys.modules if name.startswith(PLUGIN) and name not in modules]:
            del sys.modules[name]
