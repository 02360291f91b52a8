"""Speeds beside other libraries, of the committed figures of the benchmarks: each library in its fastest form, or both
in turns where they were timed so."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

DTYPES = ("float32", "bfloat16")
FROM = "weft"
Row = tuple[str, str, tuple[float, ...]]
"""What is done, the other library, and the ratios."""


class Files(NamedTuple):
    """The files of one processor's figures, in ``benchmarks/results``."""

    training: str
    decoding: str
    recurrent: str


PROCESSORS = {"AMD EPYC": Files("training_epyc.json", "decoding_llama_cpp_30m_kept_epyc.json", "recurrent_epyc.json"),
              "Intel Xeon": Files("training_bfloat16.json", "decoding_llama_cpp_30m_kept_xeon.json", "recurrent.json")}


class Speed(NamedTuple):
    """A comparison on one processor.

    Attributes:
        what: is done, and by which model.
        peer: the other library, which is taken in the form that is fastest.
        processor: one of `PROCESSORS`.
        ratios: Weft's tokens per second over the other's; of one text and of 8 at once where two are given.
        file: of the figures, in ``benchmarks/results``.
    """

    what: str
    peer: str
    processor: str
    ratios: tuple[float, ...]
    file: str


def speeds(folder: Path) -> list[Speed]:
    """What the README says of speed, from the figures in ``folder``.

    Raises:
        ValueError: A file is of another processor than the one it stands for.
    """
    found = []
    for processor, files in PROCESSORS.items():
        training, decoding, recurrent = (_read(folder, name, processor) for name in files)
        found += [Speed(what, peer, processor, ratios, name) for name, rows in
                  ((files.training, _trained(training)), (files.decoding, _decoded(decoding)),
                   (files.recurrent, [_mamba(recurrent)])) for what, peer, ratios in rows]
    return found


def _read(folder: Path, name: str, processor: str) -> Mapping[str, Any]:
    found: dict[str, Any] = json.loads((folder / name).read_text(encoding="utf-8"))
    if processor.split()[0] not in found["processor"]:
        raise ValueError(f"{name} is of {found['processor']}, and stands for {processor}")
    return found


def _trained(found: Mapping[str, Any]) -> list[Row]:
    """Training, by dtype and library."""
    size = f"{found['parameters'] / 1e6:.1f}M parameters"
    return [(f"training a Transformer of {size}, {dtype}", peer, (_faster(found["rows"], peer, dtype=dtype),))
            for dtype in DTYPES for peer in ("transformers", "litgpt")]


def _decoded(found: Mapping[str, Any]) -> list[Row]:
    """Generating beside llama.cpp, which is made for it, by dtype. Its weights of eight and four bits are q8_0 and
    q4_0."""
    return [(f"generating text with it, one and 8 texts at once, {dtype}", "llama.cpp",
             tuple(_generated(found["rows"], dtype, texts) for texts in (1, 8)))
            for dtype in ("float32", "bfloat16", "int8", "int4")]


def _generated(rows: Iterable[Mapping[str, Any]], dtype: str, texts: int) -> float:
    """Weft's speed over llama.cpp's, as timed in turns in one process, which the speed of memory from one minute to the
    next does not change; where they were not, of their fastest forms."""
    rows = list(rows)
    turns = [row["turns"]["llama.cpp"] for row in rows if (row["dtype"], row["batch"]) == (dtype, texts)
             and "llama.cpp" in row.get("turns", {})]
    return float(turns[0]) if turns else _faster(rows, "llama.cpp", dtype=dtype, batch=texts)


def _mamba(found: Mapping[str, Any]) -> Row:
    """Training a Mamba beside another implementation in plain PyTorch."""
    contenders = found["mixers"]["mamba"]["training"]["contenders"]
    size = f"{contenders['weft']['parameters'] / 1e6:.1f}M parameters"
    return (f"training a Mamba of {size}", "mambapy",
            (contenders["weft"]["tokens per second"] / contenders["mambapy"]["tokens per second"],))


def _faster(rows: Iterable[Mapping[str, Any]], peer: str, **wanted: object) -> float:
    """The fastest row of Weft over the fastest of the other library, among rows with the wanted facts."""
    found = [row for row in rows if "tokens_per_second" in row  # the others could not be measured
             and all(row[name] == value for name, value in wanted.items())]
    own, other = (max(row["tokens_per_second"] for row in found if row["library"] == library)
                  for library in (FROM, peer))
    return float(own / other)
