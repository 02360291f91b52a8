"""GGUF files through the `gguf` package (the extra ``gguf``): written, and read back to be compared."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from weft.core.base_model import built_empty
from weft.core.errors import FailedError, MissingExtra
from weft.core.model import LanguageModel, language_model
from weft.interop.gguf.architecture import Value
from weft.interop.gguf.content import Content
from weft.interop.pooling import place, settle

if TYPE_CHECKING:
    import gguf

TYPES: Mapping[torch.dtype, str] = {torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16"}
"""llama.cpp's names of dtypes."""


def require_package() -> Any:
    """The `gguf` package. Raises `MissingExtra`: it is not installed."""
    try:
        import gguf
    except ImportError:
        raise MissingExtra("gguf", "gguf", "a GGUF file") from None
    return gguf


def write_content(content: Content, path: Path) -> None:
    """Write a file, one tensor in memory at a time."""
    package = require_package()
    writer = package.GGUFWriter(path, content.architecture)
    try:
        for key, value in content.keys.items():
            writer.add_key_value(key, value, _value_type(value))
        for name, shape in content.shapes.items():
            dtype = content.dtype(name)
            kind, width = package.GGMLQuantizationType[TYPES[dtype]], dtype.itemsize
            size = int(np.prod(shape)) * width
            writer.add_tensor_info(name, (*shape[:-1], shape[-1] * width), np.dtype(np.uint8), size, raw_dtype=kind)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_ti_data_to_file()
        for _, tensor in content.tensors():
            writer.write_tensor_data(tensor.view(torch.uint8).numpy())
    finally:
        writer.close()


def _value_type(value: Value) -> Any:
    """The type of a value in the file. Whole numbers are unsigned, as llama.cpp requires."""
    kinds = require_package().GGUFValueType
    match value:
        case bool():
            return kinds.BOOL
        case int():
            return kinds.UINT32
        case float():
            return kinds.FLOAT32
        case str():
            return kinds.STRING
        case _:
            return kinds.ARRAY


def compare(content: Content, path: Path) -> LanguageModel:
    """Read a file back, compare every key and number with the content that was written, and return its model. Raises
    `FailedError`: with everything that differs, or the file is damaged."""
    try:
        with np.errstate(over="ignore"):  # the sum of two 64-bit numbers of a damaged file, which lies beyond its end
            reader = require_package().GGUFReader(path)
        problems = _problems(content, reader)
    except (ValueError, LookupError, TypeError, ArithmeticError, OSError, RuntimeError) as error:
        raise FailedError(f"the file, read back, is damaged ({error!r}).", where="convert",
                          remedy="Nothing was written. Check the disk.") from None
    if problems:
        lines = "".join(f"\n  - {problem}" for problem in problems)
        raise FailedError(f"the file, read back, differs in {len(problems)} places:{lines}\n", where="convert",
                          remedy="Nothing was written. Please report this model.")
    return _model(content, {tensor.name: tensor for tensor in reader.tensors})


def _problems(content: Content, reader: gguf.GGUFReader) -> list[str]:
    problems = _differing_keys(content, reader)
    stored = {tensor.name: tensor for tensor in reader.tensors}
    problems += [f"{name}: an unexpected tensor" for name in stored if name not in content.shapes]
    for name, expected in content.tensors():
        if name not in stored or not torch.equal(_tensor(stored[name], content), expected):
            problems.append(f"{name}: the file has another tensor, or none")
    return problems


def _differing_keys(content: Content, reader: gguf.GGUFReader) -> list[str]:
    found = {key: field.contents() for key, field in reader.fields.items() if not key.startswith("GGUF.")}
    expected = {"general.architecture": content.architecture, **content.keys}
    return [f"{key}: {found.get(key)!r} where {expected.get(key)!r} was written" for key in sorted({*found, *expected})
            if _stored(found.get(key)) != _stored(expected.get(key))]


def _stored(value: Any) -> Any:
    """A value as the file has it: floats are float32."""
    if isinstance(value, list):
        return [_stored(each) for each in value]
    return float(np.float32(value)) if isinstance(value, float) else value


def _tensor(stored: gguf.ReaderTensor, content: Content) -> Tensor:
    """A tensor of the file, mapped; empty where it has another dtype than expected."""
    dtype = content.dtype(stored.name)
    if stored.tensor_type.name != TYPES[dtype]:
        return torch.empty(0)
    shape = tuple(int(side) for side in reversed(stored.shape))
    return torch.from_numpy(np.array(stored.data).view(np.uint8)).view(dtype).view(shape)


def _model(content: Content, stored: Mapping[str, gguf.ReaderTensor]) -> LanguageModel:
    """The model with the weights of the file."""
    model = language_model(built_empty(content.model.config), "the format 'gguf'")
    dtype = next(content.model.parameters()).dtype
    tensors: dict[str, Tensor] = {}
    for rule in content.account.rules:
        read = rule.read([_tensor(stored[name], content) for name in rule.theirs])
        tensors |= {name: tensor.to(dtype).contiguous() for name, tensor in zip(rule.ours, read, strict=True)}
    place(model, tensors)
    settle(model, torch.device("cpu"))
    return model.eval()
