"""The formats that a model can be converted to: what each can hold, how it is written, and how it is read back.

`published`: the models of each family as they were published, with their parameters.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeAlias

import torch
from torch import Tensor

from weft.checkpoints.load import Loaded, load_checkpoint
from weft.checkpoints.save import fill_checkpoint
from weft.core.errors import UnsupportedError
from weft.core.model import LanguageModel, Model, language_model
from weft.data.layout import layout_of
from weft.disk.manifest import write_manifest
from weft.families.family import Family, families
from weft.index.records import Published
from weft.interop.adapters.base import trained_tensors, write_own
from weft.interop.adapters.opening import load_adapted
from weft.interop.adapters.peft import write_peft
from weft.interop.gguf.architectures import ARCHITECTURES
from weft.interop.gguf.target import GgufFile, foreign_llama
from weft.interop.huggingface.folder import is_foreign
from weft.interop.huggingface.from_text import ComparedTexts, reads_pairs
from weft.interop.huggingface.generation import GENERATION, GENERATION_FILE, NO_SETTINGS, ORIGIN, generation_of
from weft.interop.huggingface.loading import load_folder, write_letters
from weft.interop.huggingface.text import takes_source, write_tokenizer
from weft.interop.huggingface.with_code import CODE_FILES, require_writable, write_own_tokenizer, write_with_code
from weft.interop.huggingface.writing import fit, write_json, write_model
from weft.interop.verify import foreign_logits
from weft.preset_files.published_models import Size
from weft.tokenizers.files import folder_of_own


@dataclass(frozen=True, eq=False)
class ConversionSource:
    """The source of a conversion.

    Attributes:
        loaded: the model and its tokenizer, as they were read.
        model: the model to write: that of ``loaded``, or one with pooled heads.
        family: the only family to write; None: the one it came from, or any that fits.
        shard_bytes: most bytes of one file.
        with_code: write a modelling file where no native class can express the model.
        base: the model under the adapters, for formats that hold these alone.
    """

    loaded: Loaded
    model: Model
    family: str | None
    shard_bytes: int
    with_code: bool = False
    base: str = ""

    @property
    def causal(self) -> LanguageModel:
        """The model to write, for formats that only hold language models. Raises `UnsupportedError`: it is not a
        language model."""
        return language_model(self.model, "this format", where=str(self.loaded.path))

    @property
    def kept(self) -> dict[str, Any]:
        """Values of `Kept` keys: from the foreign folder that the model came from, or else from its tokenizer."""
        kept: dict[str, Any] = dict(self.loaded.facts.get("kept") or {})
        tokenizer = self.loaded.tokenizer
        if not kept and tokenizer is not None:
            kept = {"bos_token_id": tokenizer.bos_id, "eos_token_id": tokenizer.eos_id}
            if takes_source(self.model):
                kept["decoder_start_token_id"] = layout_of(tokenizer).opening
        return kept

    @property
    def generation(self) -> dict[str, Any]:
        """The content of generation_config.json in a written folder."""
        return generation_of(self.loaded.facts, self.kept, self.loaded.tokenizer)


Written: TypeAlias = tuple[str | None, tuple[str, ...]]
"""The result of writing a target: the family, if it has one, and notes for the user."""


@dataclass(frozen=True)
class Foreign:
    """Another program that opens a format.

    Attributes:
        logits: computes the logits of rows of tokens, or None, and notes for the user; and compares what it makes of
            texts, for a source.
        rounds: the dtypes in which it rounds, besides that of the weights.
    """

    name: str
    logits: Callable[[ConversionSource, Path, Tensor], tuple[Tensor | None, tuple[str, ...]]]
    rounds: Callable[[ConversionSource], tuple[torch.dtype, ...]] = lambda source: ()


@dataclass(frozen=True)
class Target:
    """A format to convert to.

    Attributes:
        check: raises for a source that it cannot hold, before anything is written.
        write: fills an empty folder, or writes a file.
        read: reads the model back, for the verification.
        foreign: another program that opens the format.
        single: whether the format is one file, not a folder.
        causal: whether it holds language models alone.
        adapts: whether it holds adapters alone, apart from the model under them.
    """

    check: Callable[[ConversionSource], object]
    write: Callable[[ConversionSource, Path], Written]
    read: Callable[[ConversionSource, Path], Model]
    foreign: Foreign | None = None
    single: bool = False
    causal: bool = False
    adapts: bool = False

    @property
    def kind(self) -> str:
        """``file`` or ``folder``, for messages."""
        return "file" if self.single else "folder"


def _fitted(source: ConversionSource) -> Any:
    """The native class that can hold the model; None: none can, and a modelling file is to be written."""
    try:
        return fit(source.model.config, source.kept, family=source.family, first=source.loaded.facts.get("family"))
    except UnsupportedError:
        if not source.with_code:
            raise
        require_writable(source.model)
        return None


def _write_hf(source: ConversionSource, draft: Path) -> Written:
    fitted = _fitted(source)
    if fitted is None:
        return _write_code(source, draft)
    write_model(fitted, source.model, draft, shard_bytes=source.shard_bytes)
    write_json(draft / GENERATION_FILE, source.generation)
    notes = write_tokenizer(source.loaded.tokenizer, _origin(source), draft, source.model)
    write_letters(source.loaded.facts, source.loaded.tokenizer, source.generation, draft)
    if source.with_code:
        notes += [f"the native class of {fitted.family.name} opens this model, so no modelling file was needed"]
    write_manifest(draft)
    return fitted.family.name, tuple(notes)


def _write_code(source: ConversionSource, draft: Path) -> Written:
    write_with_code(source.model, source.kept, draft, shard_bytes=source.shard_bytes)
    write_json(draft / GENERATION_FILE, source.generation)
    notes = [f"transformers opens it with trust_remote_code=True, where weft is installed: {', '.join(CODE_FILES)}"]
    origin, tokenizer = _origin(source), source.loaded.tokenizer
    if origin is not None or tokenizer is None:
        notes += write_tokenizer(tokenizer, origin, draft, source.model)
    else:
        write_tokenizer(tokenizer, None, draft, source.model)  # the next line reports what it lacks
        notes += write_own_tokenizer(tokenizer, draft)
    write_manifest(draft)
    return None, tuple(notes)


def _origin(source: ConversionSource) -> Path | None:
    """The foreign folder whose tokenizer's files are copied unchanged; None where the tokenizer is Weft's own."""
    folder = source.loaded.path
    return folder if is_foreign(folder) and folder_of_own(folder) is None else None


def _write_weft(source: ConversionSource, draft: Path) -> Written:
    loaded = source.loaded
    fill_checkpoint(draft, source.model, loaded.tokenizer, run=loaded.run, facts=loaded.facts)
    return None, ()


def _write_adapter(source: ConversionSource, draft: Path) -> Written:
    write_own(source.model, source.base, draft)
    return None, ()


def _write_peft(source: ConversionSource, draft: Path) -> Written:
    write_peft(source.loaded, source.base, draft)
    return None, ()


def _read_adapter(source: ConversionSource, draft: Path) -> Model:
    return load_adapted(draft, base=source.base, dtype=next(source.model.parameters()).dtype).model


def _gguf(source: ConversionSource) -> GgufFile:
    return GgufFile.of(source.loaded, source.causal, source.kept, source.family)


def _write_gguf(source: ConversionSource, draft: Path) -> Written:
    file = _gguf(source)
    left = sorted(set(source.loaded.facts.get(GENERATION) or {}) - NO_SETTINGS)
    where = source.loaded.facts.get(ORIGIN, GENERATION_FILE)
    notes = (f"{where} sets {', '.join(left)}, which the file cannot hold: give them to llama.cpp.",)
    return file.fitted.family, (*file.write(draft), *(notes if left else ()))


def _in_transformers(source: ConversionSource, folder: Path, tokens: Tensor) -> tuple[Tensor | None, tuple[str, ...]]:
    """The logits of `transformers`, and whether a text gives the prediction there that it gives here."""
    tokenizer = source.loaded.tokenizer
    texts = None if tokenizer is None else ComparedTexts(tokenizer, source.model, own=_origin(source) is None,
                                                         pairs=reads_pairs(source.loaded.run))
    return foreign_logits(folder, tokens, texts)


TARGETS: Mapping[str, Target] = MappingProxyType({
    "hf": Target(_fitted, _write_hf, lambda source, folder: load_folder(folder).model,
                 Foreign("transformers", _in_transformers)),
    "weft": Target(lambda source: None, _write_weft, lambda source, folder: load_checkpoint(folder).model),
    "gguf": Target(_gguf, _write_gguf, lambda source, file: _gguf(source).read(file),
                   Foreign("llama.cpp", lambda source, file, tokens: foreign_llama(file, tokens),
                           lambda source: _gguf(source).rounds()), single=True,
                   causal=True),
    "adapter": Target(lambda source: trained_tensors(source.model, "adapter"), _write_adapter, _read_adapter,
                      adapts=True),
    "peft": Target(lambda source: trained_tensors(source.model, "peft"), _write_peft, _read_adapter, adapts=True)})
"""Formats by their names for ``--to``."""


def published(only: str | None = None) -> Iterator[Published]:
    """Every published model, by family; ``only``: of one family."""
    for family in families().values():
        if only in (None, family.name):
            for size in family.sizes:
                yield entry(family, size)


def entry(family: Family, size: Size) -> Published:
    """A published model of a family."""
    model_type, architecture = ("", "") if family.native is None else (family.native.model_type,
                                                                      family.native.architecture)
    gguf = ARCHITECTURES[family.name].name if family.name in ARCHITECTURES else ""
    return Published(family.name, model_type, architecture, gguf, size.name, size.count, size.parameters,
                     agrees(size, size.count), size.source)


def agrees(size: Size, count: int) -> bool:
    """Whether a count equals the published number to its published digits; so it does where there is none."""
    if size.parameters is None:
        return True
    if size.rounded is None:
        return count == size.parameters
    return f"{count:.{size.rounded - 1}e}" == f"{size.parameters:.{size.rounded - 1}e}"
