"""Speeds beside other libraries, of the committed figures of the benchmarks: each library in its fastest form."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

DTYPES = ("float32", "bfloat16")
FROM = "weft"


class Speed(NamedTuple):
    """A comparison.

    Attributes:
        what: is done, and by which model.
        peer: the other library, in the form that is fastest.
        ratio: Weft's tokens per second over the other's.
        file: of the figures, in ``benchmarks/results``.
    """

    what: str
    peer: str
    ratio: float
    file: str


def speeds(folder: Path) -> list[Speed]:
    """What the README says of speed, from the figures in ``folder``."""
    return [*_trained(_read(folder, "training_bfloat16.json")), *_decoded(_read(folder, "decoding.json")),
            *_beside_llama_cpp(_read(folder, "decoding_llama_cpp.json")), _mamba(_read(folder, "recurrent.json"))]


def _read(folder: Path, name: str) -> Mapping[str, Any]:
    found: dict[str, Any] = json.loads((folder / name).read_text(encoding="utf-8"))
    return found


def _trained(found: Mapping[str, Any]) -> list[Speed]:
    """Training, by dtype and library."""
    size = f"{found['parameters'] / 1e6:.1f}M parameters"
    return [_faster(f"training a Transformer of {size}, {dtype}",
                    [row for row in found["rows"] if row["dtype"] == dtype and row["library"] in (FROM, peer)],
                    "training_bfloat16.json")
            for dtype in DTYPES for peer in ("transformers", "litgpt")]


def _decoded(found: Mapping[str, Any]) -> list[Speed]:
    """Generating, by rows at once, in float32."""
    return [_faster(f"generating text with it, {'one text' if rows == 1 else f'{rows} texts'} at once, float32",
                    [row for row in found["rows"] if row["dtype"] == "float32" and row["batch"] == rows],
                    "decoding.json") for rows in (1, 8)]


def _beside_llama_cpp(found: Mapping[str, Any]) -> list[Speed]:
    """Generating in bfloat16, by rows at once: what llama.cpp is made for."""
    return [_faster(f"generating text with it, {'one text' if rows == 1 else f'{rows} texts'} at once, bfloat16",
                    [row for row in found["rows"] if row["dtype"] == "bfloat16" and row["batch"] == rows
                     and row["library"] in (FROM, "llama.cpp")],
                    "decoding_llama_cpp.json") for rows in (1, 8)]


def _mamba(found: Mapping[str, Any]) -> Speed:
    """Training a Mamba beside another implementation in plain PyTorch."""
    contenders = found["mixers"]["mamba"]["training"]["contenders"]
    size = f"{contenders['weft']['parameters'] / 1e6:.1f}M parameters"
    return Speed(f"training a Mamba of {size}", "`mambapy`",
                 contenders["weft"]["tokens per second"] / contenders["mambapy"]["tokens per second"], "recurrent.json")


def _faster(what: str, rows: Iterable[Mapping[str, Any]], file: str) -> Speed:
    """The fastest row of Weft over the fastest of the others."""
    found = [row for row in rows if "tokens_per_second" in row]  # the others could not be measured
    own = max((row for row in found if row["library"] == FROM), key=lambda row: row["tokens_per_second"])
    other = max((row for row in found if row["library"] != FROM), key=lambda row: row["tokens_per_second"])
    form = other.get("form") or ("compiled" if other["compile"] else "eager")
    peer = f"`{other['library']}`" + (f", {form}" if form != "plain" else "")
    return Speed(what, peer, own["tokens_per_second"] / other["tokens_per_second"], file)
