"""Weft: one frame in which every language-model architecture is declared, trained, compared, decoded and exchanged.

    import weft
    weft.train("transformer", out="runs/first")
    print(weft.generate("runs/first", ["def main("]).rows[0].text)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from weft.core.version import VERSION

__version__ = VERSION

if TYPE_CHECKING:
    from weft.api.functions import *  # noqa: F403

__all__ = ["BradleyTerry", "Elo", "Ends", "PredictionSettings", "Sampling", "Search", "beam_search", "benchmark",
           "catalogue", "check", "classify", "compare", "compare_ladder", "compare_report", "convert", "data_inspect",
           "data_mixture", "data_prepare", "data_sample", "decoding_defaults", "doctor", "draw", "evaluate", "extend",
           "generate", "insides", "load", "load_plugin", "measure", "measure_bleu", "plan", "predict", "presets",
           "probe", "rate", "read_model", "read_run", "resize_images", "save", "score", "search_defaults", "stream",
           "train", "translate", "verdict", "verdict_against"]


def __getattr__(name: str) -> Any:
    """The functions of `weft.api`, imported when first used: ``import weft`` alone does not import torch."""
    if name in __all__:
        from weft import api

        return getattr(api, name)
    hint = "; the command `weft eval` is weft.evaluate here" if name == "eval" else ""
    raise AttributeError(f"module 'weft' has no attribute {name!r}{hint}")


def __dir__() -> list[str]:
    """The public names, those that are imported when first used among them."""
    return sorted([*__all__, "__version__"])
