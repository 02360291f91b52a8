"""GGUF as a format to convert to: how a model is checked, written and read back.

A tokenizer as the keys of a GGUF file, or the reason why llama.cpp has no equivalent tokenizer.

GGUF files through the `gguf` package (the extra ``gguf``): written, and read back to be compared.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from weft.checkpoints.load import Loaded
from weft.core.base_model import built_empty
from weft.core.errors import FailedError, MissingExtra
from weft.core.model import LanguageModel, language_model
from weft.interop.gguf.architectures import GgufFit, fit_gguf, require_file_type
from weft.interop.gguf.content import Content, content_of
from weft.interop.gguf.llama_cpp import SAMPLES, llama_logits, tokenized
from weft.interop.gguf.naming import Value
from weft.interop.gguf.pieces import read_pieces
from weft.interop.gguf.pre_tokenizers import GGUFVocabulary, Inexpressible, Token, TokenType
from weft.interop.pooling import place, settle
from weft.tokenizers import Tokenizer

if TYPE_CHECKING:
    import gguf


@dataclass(frozen=True, eq=False)
class GgufFile:
    """A model with all that is needed to write it as a GGUF file.

    Attributes:
        fitted: the architecture that can hold it.
        content: the file's keys and tensors.
        loaded: where the model and the tokenizer come from.
    """

    fitted: GgufFit
    content: Content
    loaded: Loaded
    notes: tuple[str, ...]

    @classmethod
    def of(cls, loaded: Loaded, model: LanguageModel, kept: Mapping[str, Any], family: str | None) -> GgufFile:
        """Prepare the file of a model; everything is checked, and nothing is written.

        Args:
            loaded: the source of the conversion.
            model: the model to write, that of ``loaded`` or one made from it.
            kept: see `Family.write`.
            family: the only family to try; None: all.

        Raises:
            MissingExtra: the `gguf` package is not installed.
            UnsupportedError: llama.cpp cannot compute the model, or not in its dtype.
            InputError: see `fit_gguf`.
        """
        require_package()
        require_file_type(next(model.parameters()).dtype)
        fitted = fit_gguf(model.config, kept, family=family, first=loaded.facts.get("family"))
        found = vocabulary(loaded.tokenizer, model.vocab_size, kept)
        content = content_of(fitted, model, found.keys, loaded.path.resolve().name)
        return cls(fitted, content, loaded, (*fitted.architecture.notes(fitted.facts), *found.notes))

    def write(self, path: Path) -> tuple[str, ...]:
        """Write the file; return notes for the user, also on texts that llama.cpp, where it is installed, tokenizes
        differently."""
        write_content(self.content, path)
        return (*self.notes, *self._other_tokens(path))

    def read(self, path: Path) -> LanguageModel:
        """Read a file back and compare all of it with the content. Raises `FailedError`: something differs."""
        return compare(self.content, path)

    def rounds(self) -> tuple[torch.dtype, ...]:
        """The dtypes in which llama.cpp rounds besides that of the weights: its GELU is a table in float16."""
        return (torch.float16,) if "gelu_tanh" in self.fitted.architecture.activations else ()

    def _other_tokens(self, path: Path) -> list[str]:
        tokenizer = self.loaded.tokenizer
        if tokenizer is None or self.content.keys.items() >= NO_VOCABULARY.items():
            return []
        found = tokenized(path)
        return [] if found is None else [
            f"llama.cpp gives other tokens for the text {text!r}: {theirs} where the tokenizer gives {ours}."
            for text, theirs in zip(SAMPLES, found, strict=True) if theirs != (ours := tokenizer.encode(text))]


def foreign_llama(path: Path, tokens: Tensor) -> tuple[Tensor | None, tuple[str, ...]]:
    """llama.cpp's logits, or None with a note."""
    found = llama_logits(path, tokens)
    return found, () if found is not None else (
        "llama.cpp has not opened the file here: install llama-cpp-python, and conversion compares its logits.",)


@dataclass(frozen=True)
class Vocabulary:
    """The keys of a tokenizer, and notes for the user."""

    keys: Mapping[str, Value]
    notes: tuple[str, ...] = field(default=())


END_ROLES = ("eot", "eom")
"""Roles of further end tokens in llama.cpp: end of turn, and end of message."""

NO_VOCABULARY: Mapping[str, Value] = {"tokenizer.ggml.model": "no_vocab"}
"""The keys of a file without a tokenizer, which llama.cpp opens for token ids only."""


def vocabulary(tokenizer: Tokenizer | None, vocab_size: int, kept: Mapping[str, Any]) -> Vocabulary:
    """The keys of a tokenizer.

    Args:
        tokenizer: the model's; None: it has none.
        vocab_size: the model's; ids beyond the tokenizer's are written as unused tokens.
        kept: ids of special tokens from the model's configuration.
    """
    if tokenizer is None:
        return Vocabulary(NO_VOCABULARY, ("there is no tokenizer, so the file has none; give llama.cpp token ids.",))
    try:
        pieces = read_pieces(tokenizer)
    except Inexpressible as reason:
        return Vocabulary(NO_VOCABULARY, (f"the tokenizer {tokenizer.name!r} was not written: {reason} Give llama.cpp "
                                          "token ids.",))
    keys = {**_tokens(pieces, vocab_size), **_roles(tokenizer, pieces, kept), **_templates(tokenizer)}
    return Vocabulary(keys, (*pieces.notes, *_endless(tokenizer)))


def _tokens(pieces: GGUFVocabulary, vocab_size: int) -> dict[str, Value]:
    table = [pieces.tokens.get(place) or Token(f"[PAD{place}]", TokenType.UNUSED) for place in range(vocab_size)]
    keys: dict[str, Value] = {
        "tokenizer.ggml.model": pieces.model, "tokenizer.ggml.pre": pieces.pre,
        "tokenizer.ggml.tokens": [token.text for token in table],
        "tokenizer.ggml.token_type": [int(token.type) for token in table]}
    if pieces.model == "llama":
        keys["tokenizer.ggml.scores"] = [token.score for token in table]
        keys["tokenizer.ggml.add_space_prefix"] = pieces.space_first
    else:
        keys["tokenizer.ggml.merges"] = list(pieces.merges)
    return keys


def _roles(tokenizer: Tokenizer, pieces: GGUFVocabulary, kept: Mapping[str, Any]) -> dict[str, Value]:
    """Special tokens by their roles, and which of them are added to a text."""
    unknown = next((place for place, token in pieces.tokens.items() if token.type == TokenType.UNKNOWN), None)
    pad = kept.get("pad_token_id")
    further = _further_ends(tokenizer)
    ids = {"bos": tokenizer.bos_id, "eos": tokenizer.eos_id, **dict(zip(END_ROLES, further, strict=False)),
           "unknown": unknown,
           "padding": pad if pad in pieces.tokens else None}
    found: dict[str, Value] = {f"tokenizer.ggml.{role}_token_id": place for role, place in ids.items()
                               if place is not None}
    adds = {"bos": tokenizer.conventions.adds_bos, "eos": tokenizer.conventions.adds_eos}
    return found | {f"tokenizer.ggml.add_{role}_token": bool(value) for role, value in adds.items()}


def _templates(tokenizer: Tokenizer) -> dict[str, Value]:
    templates = tokenizer.conventions.chat_templates
    named = sorted(set(templates) - {"default"})
    found: dict[str, Value] = {f"tokenizer.chat_template.{name}": templates[name] for name in named}
    if named:
        found["tokenizer.chat_templates"] = named
    return found | ({"tokenizer.chat_template": templates["default"]} if "default" in templates else {})


def _endless(tokenizer: Tokenizer) -> list[str]:
    left = _further_ends(tokenizer)[len(END_ROLES):]
    notes = [] if tokenizer.eos_id is not None else [
        "the tokenizer has no token that ends a document; llama.cpp then uses a fixed id: give it a stop string or "
        "token."]
    return notes + ([f"the file has room for {1 + len(END_ROLES)} ids that end a generation; configure llama.cpp to "
                     f"stop also at {', '.join(map(str, left))}."] if left else [])


def _further_ends(tokenizer: Tokenizer) -> list[int]:
    """The ids that end a generation besides the one that ends a document."""
    return [place for place in tokenizer.end_ids if place != tokenizer.eos_id]


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
