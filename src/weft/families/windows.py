"""Sliding windows: the masks of each layer in the configurations of several families.

A window of W tokens includes the query's own: the keys j of query i are those with i - W < j <= i.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from weft.families.keys import KeyProblem, KeyRule, Raw, Together, typed
from weft.families.template import N_LAYERS, Facts
from weft.masks.expression import parse_mask

CAUSAL = "causal"
FULL, SLIDING = "full_attention", "sliding_attention"


def mask_of(window: int | None) -> str:
    """The mask of a window; plain causal attention for None."""
    return CAUSAL if window is None else f"causal & window({window})"


def window_of(mask: str) -> int | None:
    """The window that a mask is; None for plain causal attention. Raises `KeyProblem`: the mask is something else."""
    pattern = parse_mask(mask).causal_window()
    if pattern is None:
        raise KeyProblem(f"cannot express the mask {mask!r}; only causal attention and windows of it.")
    return pattern.size


def one_window(default: int | None) -> KeyRule:
    """``sliding_window``: one for all layers (Mistral). The fact is ``mask``."""
    def read(raw: Raw, facts: Facts) -> Facts:
        return {"mask": mask_of(typed("sliding_window", raw.get("sliding_window", default), int))}

    def write(facts: Facts) -> dict[str, Any]:
        return {"sliding_window": window_of(facts["mask"])}

    return Together(("sliding_window",), read, write)


def windows_by_layer(default: int | None = 4096, max_window_layers: int = 28, *,
                     slides: Callable[[int, int], bool] = lambda index, first: index >= first) -> KeyRule:
    """``use_sliding_window``, ``sliding_window``, ``max_window_layers`` and ``layer_types`` (Qwen). The fact ``masks``
    has one mask a layer.

    ``layer_types`` takes precedence where it is given; else the first ``max_window_layers`` layers have no window, or
    those have one for which ``slides`` says so, given the layer's index from 0 and that number.
    """
    def read(raw: Raw, facts: Facts) -> Facts:
        used = typed("use_sliding_window", raw.get("use_sliding_window", False), bool)
        window = typed("sliding_window", raw.get("sliding_window", default), int) if used else None
        first = typed("max_window_layers", raw.get("max_window_layers", max_window_layers), int)
        n_layers = facts[N_LAYERS]
        types = raw.get("layer_types") or [SLIDING if window is not None and slides(index, first) else FULL
                                           for index in range(n_layers)]
        return {"masks": [mask_of(window if kind == SLIDING else None)
                          for kind in layer_types(types, n_layers, window)]}

    def write(facts: Facts) -> dict[str, Any]:
        windows = [window_of(mask) for mask in facts["masks"]]
        size = single_size(windows)
        types = [FULL if window is None else SLIDING for window in windows]
        first = types.index(SLIDING) if SLIDING in types else len(types)
        return {"use_sliding_window": size is not None, "sliding_window": size,
                "max_window_layers": first, "layer_types": types}

    return Together(("use_sliding_window", "sliding_window", "max_window_layers", "layer_types"), read, write)


def windows_by_type(window: int, every: int, pattern: str | None = None) -> KeyRule:
    """``sliding_window`` and ``layer_types`` (Gemma 2 and 3, OLMo 3). The fact ``masks`` has one mask a layer.

    Args:
        window: the default width.
        every: where ``layer_types`` is missing, layers ``every``, 2 ``every``, ... (from 1) have no window.
        pattern: the key of another such number; None: there is none.
    """
    def read(raw: Raw, facts: Facts) -> Facts:
        width = typed("sliding_window", raw.get("sliding_window", window), int)
        step = every if pattern is None else typed(pattern, raw.get(pattern), int) or every
        n_layers = facts[N_LAYERS]
        types = raw.get("layer_types") or [SLIDING if (index + 1) % step else FULL for index in range(n_layers)]
        return {"masks": [mask_of(width if kind == SLIDING else None) for kind in layer_types(types, n_layers, width)]}

    def write(facts: Facts) -> dict[str, Any]:
        windows = [window_of(mask) for mask in facts["masks"]]
        types = [FULL if each is None else SLIDING for each in windows]
        return {"sliding_window": single_size(windows) or window, "layer_types": types}

    names = ("sliding_window", "layer_types")
    return Together(names if pattern is None else (*names, pattern), read, write)


def single_size(windows: list[int | None]) -> int | None:
    """The one size of the windows; None if there are none. Raises `KeyProblem`: there are several."""
    sizes = sorted({window for window in windows if window is not None})
    if len(sizes) > 1:
        raise KeyProblem(f"layers have windows of {', '.join(map(str, sizes))} tokens; the file has one size.")
    return sizes[0] if sizes else None


def layer_types(types: Any, n_layers: int, window: int | None) -> list[str]:
    """The types of layers, checked. Raises `KeyProblem`: not one of the two types for each layer, or sliding layers
    without a window."""
    typed("layer_types", types, list)
    wrong = sorted({str(kind) for kind in types} - {FULL, SLIDING})
    if wrong:
        raise KeyProblem(f"layer_types: {', '.join(wrong)}, but only {FULL} and {SLIDING} can be read.")
    if len(types) != n_layers:
        raise KeyProblem(f"layer_types: {len(types)} types for {n_layers} layers.")
    if SLIDING in types and window is None:
        raise KeyProblem(f"layer_types: some are {SLIDING}, but sliding_window, their width, is missing.")
    return list(types)


