"""Folders with a modelling file, for models that no native class of `transformers` can express.

    config.json              model_type "weft", Weft's whole configuration of the model, auto_map
    configuration_weft.py    the code with which `transformers` opens it: the files in `bundled`, which need `weft`
    modeling_weft.py
    model.safetensors        every tensor under "model." and its own name; in shards where it is large
    generation_config.json and the tokenizer's files, as in every folder

Weft reads such a folder from its data alone and never runs its code.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from weft.checkpoints.layout import CONFIG_FILE
from weft.checkpoints.load import Loaded
from weft.checkpoints.tensors import assign_tensors, own_tensors
from weft.core.declarations import Trait
from weft.core.errors import CheckpointError, ConfigError, UnsupportedError
from weft.core.images import ImageModel
from weft.core.layer import traits_of
from weft.core.model import Classifier, Counted, Model, Readout, parse_model
from weft.core.part import kept_dtypes
from weft.core.registry import PLUGIN
from weft.core.version import VERSION
from weft.interop.huggingface.folder import is_foreign, read_raw
from weft.interop.huggingface.generation import GENERATION, read_generation, special_ids
from weft.interop.huggingface.stored import COPY_AGAIN, Stored, listed, open_stored
from weft.interop.huggingface.text import folder_tokenizer, reads_whole, takes_source
from weft.interop.huggingface.writing import write_json, write_weights
from weft.masks.expression import parts_and_masks
from weft.positions.frequencies import Constant
from weft.tokenizers import Tokenizer, load_tokenizer
from weft.tokenizers.config import known_tokenizers
from weft.tokenizers.files import APART, folder_of_own
from weft.tokenizers.library import LIBRARY_FILE

MODEL_TYPE = "weft"
KEY = "weft"
"""The key of config.json for Weft's configuration."""

FORMAT = 1
PREFIX = "model."
CODE_FILES = ("configuration_weft.py", "modeling_weft.py")
BUNDLED = Path(__file__).parent / "bundled"
HEADS = ("ForCausalLM", "ForSeq2SeqLM", "ForMaskedLM", "ForSequenceClassification", "ForTokenClassification",
         "ForImageClassification", "Model")
"""Ends of the names of the bundled classes."""
KEEP = "Keep it as a Weft checkpoint."


def has_code(folder: Path) -> bool:
    """Whether a folder has such a modelling file."""
    return is_foreign(folder) and read_raw(folder).get("model_type") == MODEL_TYPE


def brings_bundled_code(folder: Path) -> bool:
    """Whether the code in a folder is, byte for byte, that which Weft writes."""
    if not has_code(folder) or read_raw(folder).get("auto_map") not in [_auto_map(head) for head in HEADS]:
        return False
    found = {path.name for path in folder.rglob("*.py")}
    return found == set(CODE_FILES) and all(
        (folder / name).read_bytes() == (BUNDLED / name).read_bytes() for name in CODE_FILES)


def head_of(model: Model) -> str:
    """The end of the name of the bundled class that serves a model."""
    if not reads_whole(model):
        return "ForSeq2SeqLM" if takes_source(model) else "ForCausalLM"
    if isinstance(model.head, Classifier):
        rows = "ForImageClassification" if isinstance(model, ImageModel) else "ForSequenceClassification"
        return rows if model.head.pooled else "ForTokenClassification"
    return "ForMaskedLM" if isinstance(model.head, Readout) else "Model"


def _auto_map(head: str) -> dict[str, str]:
    auto = "AutoModel" if head == "Model" else f"AutoModel{head}"
    return {"AutoConfig": "configuration_weft.WeftConfig", auto: f"modeling_weft.Weft{head}"}


def _classes(head: Classifier) -> dict[str, Any]:
    """The keys of config.json for the classes or values of a head."""
    names = head.labels or [f"LABEL_{index}" for index in range(head.n_outputs)]
    return {"id2label": {str(index): name for index, name in enumerate(names)},
            "label2id": {name: index for index, name in enumerate(names)},
            "problem_type": "regression" if head.values else "single_label_classification" if head.pooled else None}


def require_writable(model: Model) -> None:
    """Raise unless the bundled modelling file can serve a model. Raises `UnsupportedError`: a bidirectional model of
    the next token, tables of counts, parts from a plugin's file."""
    what = None
    if not reads_whole(model) and Trait.BIDIRECTIONAL in traits_of(model):
        what = "this model attends to later tokens, so it cannot be opened as a causal language model."
    elif isinstance(model, Counted):
        what = "tables of counts are not weights that `transformers` could load."
    if what is not None:
        raise UnsupportedError(what, where="model", remedy=KEEP)
    plugins = sorted({part.kind for part in parts_and_masks(model.config) if type(part).__module__.startswith(PLUGIN)})
    if plugins:
        raise UnsupportedError(f"{', '.join(plugins)}: from a plugin's file, which the folder would not contain.",
                               where="model", remedy="Make the plugin an installed package with an entry point of the "
                               "group weft.parts, or keep the model as a Weft checkpoint.")


def write_with_code(model: Model, kept: Mapping[str, Any], draft: Path, *, shard_bytes: int) -> None:
    """Fill an empty folder, except for the tokenizer's files.

    Args:
        kept: ids of special tokens by their keys.
        shard_bytes: most bytes of one file of weights.
    """
    own = own_tensors(model)
    dtype = str(next(model.parameters()).dtype).removeprefix("torch.")
    head = head_of(model)
    classes = _classes(model.head) if isinstance(model.head, Classifier) else {}
    write_json(draft / CONFIG_FILE, {
        "architectures": [f"Weft{head}"], "model_type": MODEL_TYPE, "auto_map": _auto_map(head), "dtype": dtype,
        "torch_dtype": dtype, **special_ids(kept), **classes,
        **({"is_encoder_decoder": True} if head == "ForSeq2SeqLM" else {}),
        KEY: {"format": FORMAT, "version": VERSION, "model": model.config.dump()}})
    for name in CODE_FILES:
        (draft / name).write_bytes((BUNDLED / name).read_bytes())
    sizes = {f"{PREFIX}{name}": tensor.nbytes for name, tensor in own.items()}
    write_weights(((f"{PREFIX}{name}", tensor) for name, tensor in own.items()), sizes, draft, shard_bytes=shard_bytes)


def write_own_tokenizer(tokenizer: Tokenizer, draft: Path) -> list[str]:
    """Save a tokenizer in Weft's format into a folder of its own, beside the files of `write_tokenizer`, which for
    `transformers` put tokens around texts.

    Returns:
        Notes for the user: a tokenizer that `transformers` cannot read.
    """
    tokenizer.save(draft / APART)
    return [] if LIBRARY_FILE in tokenizer.files() else [
        f"the tokenizer {tokenizer.name!r} has no tokenizer.json, so only Weft reads it; give transformers token ids."]


def build(content: Any, where: str = CONFIG_FILE) -> Model:
    """Build a model, freshly initialised, from the content of config.json under `KEY`. Called by the bundled file.
    Raises `CheckpointError`: it is missing, of a newer format, or has parts that are not registered here."""
    version = content.get("format") if isinstance(content, Mapping) else None
    if not isinstance(version, int) or not isinstance(content.get("model"), Mapping):
        raise CheckpointError(f"there is no configuration of Weft under {KEY!r}.", where=where,
                              remedy="Copy the folder again, whole.")
    if version > FORMAT:
        raise CheckpointError(f"format {version} is newer than this Weft reads ({FORMAT}); it was written by Weft "
                              f"{content.get('version')}.", where=where, remedy="Update Weft.")
    try:
        return parse_model(content["model"]).build()
    except ConfigError as error:
        listed = "".join(f"\n  - {problem}" for problem in error.problems)
        raise CheckpointError(f"the model of this folder cannot be built here:{listed}\n", where=where,
                              remedy=f"It was written by Weft {content.get('version')}: use that one or a later one, "
                                     "with the packages that add those parts.") from None


def tied_names(model: nn.Module) -> dict[str, str]:
    """The names of tensors that repeat others, with the first name of each."""
    first = {id(tensor): name for name, tensor in own_tensors(model).items()}
    return {name: first[id(tensor)] for name, tensor in model.state_dict(keep_vars=True).items()
            if name != first[id(tensor)]}


def exact_names(model: nn.Module) -> set[str]:
    """The names of parameters that stay in float32 where the model is opened in a narrower dtype."""
    exact = kept_dtypes(model).exact
    return {name for name, parameter in model.named_parameters() if id(parameter) in exact}


@torch.no_grad()
def set_constants(module: nn.Module) -> None:
    """Write constants again after `transformers` has allocated a module's memory. Called by the bundled file."""
    if isinstance(module, Constant):
        module.to_empty(device=module.numbers.device)


def load_with_code(folder: Path, *, device: torch.device | str = "cpu", dtype: torch.dtype | None = None,
                   strict: bool = False) -> Loaded:
    """The model and tokenizer of a folder that `write_with_code` or, from there, `transformers` wrote.

    Args:
        device: where the model goes.
        dtype: of the weights; None: as they are stored.
        strict: refuse tensors that hold NaN, for which every one is read once more.

    Raises:
        CheckpointError: listing everything that is wrong.
    """
    raw = read_raw(folder)
    model = build(raw.get(KEY), str(folder / CONFIG_FILE))
    assign_tensors(model, _tensors(model, open_stored(folder), folder, strict), where=str(folder))
    generation = read_generation(folder, raw)
    facts = {"family": MODEL_TYPE, **generation,
             "kept": {**special_ids(generation.get(GENERATION, {})), **special_ids(raw)}}
    model = model.to(device=device, dtype=dtype).eval()
    return Loaded(model, _tokenizer(folder, model.vocab_size), model.config, None, facts, folder)


def _tensors(model: Model, stored: Stored, folder: Path, strict: bool) -> dict[str, Tensor]:
    """The stored tensors by the model's names. Of tied tensors a file may hold any one."""
    tied = tied_names(model)
    found: dict[str, Tensor] = {}
    problems: list[str] = []
    for name in stored.entries:
        own = name.removeprefix(PREFIX)
        tensor, own = stored.get(name), tied.get(own, own)
        if strict and tensor.is_floating_point() and bool(tensor.isnan().any()):
            problems.append(f"{name}: holds NaN.")
        if own in found and not torch.equal(found[own], tensor):
            problems.append(f"{name}: differs from {own}, though the configuration ties them.")
        found[own] = tensor
    if problems:
        raise listed(problems, "tensor", folder, COPY_AGAIN)
    return found


def _tokenizer(folder: Path, vocab_size: int) -> Tokenizer | None:
    """The tokenizer in Weft's format where the folder has it, else that of `transformers`."""
    own = folder_of_own(folder)
    return folder_tokenizer(folder, vocab_size) if own is None else load_tokenizer(own, kinds=known_tokenizers())
