"""Runs that start from the weights of a checkpoint: which are taken, which are new, and what is refused.

``start:`` names the folder of a checkpoint or of a run, or one that `transformers` wrote. A ``model`` without a kind is
that of the folder, changed by the fields that are given, and the folder's tokenizer is used where none is given, so
that fine-tuning needs little more than a new head:

    start: runs/pretrained
    model: {head: {kind: pooled, n_classes: 2}}
    task: classify
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from weft.checkpoints.load import Loaded, load_checkpoint, read_facts, read_model_config
from weft.checkpoints.locate import find_checkpoint
from weft.checkpoints.tensors import own_tensors, tensors_digest
from weft.core.config import parse
from weft.core.declarations import Trait
from weft.core.errors import ConfigError
from weft.core.layer import traits_of
from weft.core.model import Model, ModelConfig
from weft.core.registry import REGISTRY
from weft.core.strict_json import Record
from weft.families.family import families
from weft.interop.adapters.base import is_adapter
from weft.interop.adapters.opening import adapted_config, load_adapted
from weft.interop.huggingface.folder import is_foreign, open_folder, read_raw
from weft.interop.huggingface.generation import GENERATION, ORIGIN
from weft.interop.huggingface.loading import LETTERS, load_folder
from weft.interop.huggingface.text import VOCABULARIES
from weft.interop.huggingface.with_code import KEY, build, has_code
from weft.linear.merging import merged
from weft.linear.rewrite import drawn_by_rewrites, rewritten
from weft.tokenizers.files import folder_of_own
from weft.training.config import RunConfig
from weft.training.filling import ids_added, task_of, tokenizer_of, vocab_size_of
from weft.training.vocabulary import VocabularySettings, resized

HEAD = "head"
MAY_DIFFER = (HEAD, "context", "rewrites")
"""Fields in which a run's model may differ from the model that it starts from."""
CARRIED = ("family", "kept", GENERATION, ORIGIN, LETTERS)
"""Facts of a checkpoint that a run that starts from it keeps, see `StartWeights`."""
DROPOUT = "dropout"
"""So may every field whose name ends so: dropout concerns how a model is trained and not what it computes."""


def opened(folder: Path, *, device: torch.device | str = "cpu", dtype: torch.dtype | None = None,
           purpose: str | None = None, base: str | None = None, strict: bool = False) -> Loaded:
    """The model and tokenizer of a checkpoint's folder, Weft's or one that `transformers` wrote, or of an adapter's
    folder with the model under it.

    Args:
        device: where the model goes.
        dtype: of the weights; None: as they are stored.
        purpose: see `load_checkpoint`.
        base: the model under an adapter; None: the one that its folder names.
        strict: of a folder that `transformers` wrote, see `load_folder`.

    Raises:
        CheckpointError: it cannot be read.
        UnsupportedError: ``purpose`` needs a language model, and this is none.
    """
    if is_adapter(folder):
        return load_adapted(folder, base=base, device=device, dtype=dtype)
    if is_foreign(folder):
        return load_folder(folder, device=device, dtype=dtype, strict=strict)
    found = load_checkpoint(folder, device=device, purpose=purpose)
    if dtype is not None:
        found.model.to(dtype)
    return found


def with_start(plain: Mapping[str, Any]) -> dict[str, Any]:
    """Fill in the model and the tokenizer of the folder that a run's ``start`` names: the model where no kind of model
    is given, the tokenizer where none is given. Any other configuration is returned unchanged. Raises
    `CheckpointError`: there is no checkpoint, or its configuration is damaged."""
    filled = dict(plain)
    if not isinstance(filled.get("start"), str):
        return filled
    folder = find_checkpoint(filled["start"])
    filled["start"] = str(folder)
    given = filled.get("model", {})
    if isinstance(given, Mapping) and "kind" not in given:
        base = _config_of(folder)
        filled["model"] = _laid_over(base.dump(), _with_family_head(given, base, folder))
    if folder_of_own(folder) is not None or any((folder / name).is_file() for name in VOCABULARIES):
        filled.setdefault("tokenizer", {"kind": "file", "path": str(folder)})
    return _with_vocabulary(filled, given)


def begun_from(plain: Mapping[str, Any], folder: str | Path) -> dict[str, Any]:
    """A run's plain configuration that starts from ``folder``, whose model and tokenizer take the place of its own. Of
    its model a head stays, and all fields if it has no kind."""
    model = plain if "kind" in plain else plain.get("model", {})
    rest = {} if "kind" in plain else {key: value for key, value in plain.items() if key not in ("model", "tokenizer")}
    if not isinstance(model, Mapping):
        model = {}
    kept = {key: value for key, value in model.items() if key == HEAD} if "kind" in model else dict(model)
    return {**rest, "start": str(folder), "model": kept}


def _adds(tokenizer: Any, tokens: list[str]) -> bool:
    """Whether plain data of a tokenizer say that it adds these tokens."""
    return isinstance(tokenizer, Mapping) and tokens in (tokenizer.get("added_tokens"), tokenizer.get("tokens"))


def _with_vocabulary(filled: dict[str, Any], given: Any) -> dict[str, Any]:
    """Fill in the tokenizer with the new tokens and the size of its model, where a run resizes its vocabulary.

    Args:
        filled: the run's plain configuration, with the model and the tokenizer of its ``start``.
        given: the model that it gives itself.

    Raises:
        ConfigError: the section ``vocabulary`` or ``tokenizer`` cannot be parsed.
        TokenizerError: the tokenizer cannot be read, or takes no such tokens.
    """
    if not isinstance(filled.get("vocabulary"), Mapping):
        return filled
    settings, base = parse(VocabularySettings, filled["vocabulary"], where="vocabulary"), filled.get("tokenizer")
    if settings.added_tokens and not _adds(base, settings.added_tokens):
        if base is None:
            raise ConfigError([f"vocabulary.added_tokens: {filled['start']} has no tokenizer that could take new "
                               "tokens. Name one as tokenizer, or leave it out."])
        filled = {**filled, "tokenizer": {"kind": "extended", "extends": base, "added_tokens": settings.added_tokens}}
    if not isinstance(given, Mapping) or "kind" in given:
        return filled
    made = tokenizer_of(filled).from_file()
    known = (vocab_size_of(filled) if made is None
             else made.vocab_size + ids_added(task_of(filled), tokenizer_of(filled)))
    model, size = filled["model"], settings.rounded(known)
    encoder = model.get("encoder")
    if isinstance(encoder, Mapping) and "vocab_size" in encoder:
        model = {**model, "encoder": {**encoder, "vocab_size": given.get("vocab_size", size)}}
    return {**filled, "model": {**model, "vocab_size": given.get("vocab_size", size)}}


def _config_of(folder: Path) -> ModelConfig:
    if is_adapter(folder):
        return adapted_config(folder)
    if has_code(folder):
        return build(read_raw(folder).get(KEY), str(folder)).config
    return open_folder(folder).config if is_foreign(folder) else read_model_config(folder)


def _with_family_head(given: Mapping[str, Any], base: ModelConfig, folder: Path) -> Mapping[str, Any]:
    """The fields that a run gives of the model of ``folder``. A new head has what that of the folder's family has
    besides (BERT's has a map before that of classes), so that the trained model is one of the family too."""
    head, before = given.get(HEAD), base.dump().get(HEAD)
    head = {"kind": head} if isinstance(head, str) else head
    if is_adapter(folder) or has_code(folder) or not isinstance(head, Mapping) or not isinstance(head.get("kind"), str):
        return given
    name = open_folder(folder).family.name if is_foreign(folder) else read_facts(folder).get("family")
    kind = next((part.kind for part in REGISTRY.parts(HEAD)
                 if head["kind"] in (part.kind, *part.about.also_called)), None)
    if not isinstance(name, str) or name not in families() or kind is None:
        return given
    if before is not None and before["kind"] == kind:
        return given
    return {**given, HEAD: {**families()[name].head(base, kind), **head}}


def _laid_over(base: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """``base`` changed by the fields of ``given``; a part of another kind replaces the whole part."""
    if given.get("kind", base.get("kind")) != base.get("kind"):
        return dict(given)
    return {**base, **{key: _laid_over(base[key], value) if isinstance(value, Mapping)
                       and isinstance(base.get(key), Mapping) else value for key, value in given.items()}}


@dataclass(frozen=True)
class StartWeights(Record):
    """The weights that a run started from.

    Attributes:
        sha256: of the names and contents of the tensors that were taken.
        fresh: names of the model's tensors that are not in the checkpoint and keep their random values.
        left: names of the checkpoint's tensors that the model does not have.
        grown: new rows of the tensors of a resized vocabulary, by name.
        carried: facts of a folder of another library, which checkpoints of the run keep, so that it can be written back
            with them: settings for generating text, special tokens, chat template.
    """

    path: str
    sha256: str
    tensors: int
    numbers: int
    fresh: tuple[str, ...]
    left: tuple[str, ...]
    grown: Mapping[str, int] = field(default_factory=dict)
    carried: Mapping[str, Any] = field(default_factory=dict)

    def line(self) -> str:
        """All of it in one line."""
        fresh = f"; fresh: {', '.join(self.fresh)}" if self.fresh else "; nothing is fresh"
        left = f"; left there: {', '.join(self.left)}" if self.left else ""
        grown = "".join(f"; {rows:,} new rows in {name}" for name, rows in self.grown.items())
        return (f"starting from {self.path}: {self.tensors:,} tensors ({self.numbers:,} numbers) taken{fresh}{left}"
                f"{grown}")


def require_startable(config: RunConfig, model: Model) -> None:
    """Check from the configurations alone that the run's model can take the weights that it starts from.

    Raises:
        ConfigError: the models differ; every difference is listed.
        CheckpointError: there is no checkpoint, or its configuration is damaged.
    """
    assert config.start is not None, "the run has a start"
    if Trait.NOT_DIFFERENTIABLE in traits_of(model):
        raise ConfigError([f"start: {config.start}, and a model of kind {config.model.kind!r} is fitted by counting, "
                           "which starts from no weights. Leave it out."])
    before, now = (_sized(each, config) for each in (_config_of(find_checkpoint(config.start)).dump(),
                                                     config.model.dump()))
    given = [name for name in MAY_DIFFER if name in now or name in before]
    problems = [f"model.{path}: {new!r}, and the model of {config.start} has {old!r}. Leave it out, or start afresh."
                for path, old, new in _disagreements(_without(before, given), _without(now, given), ())]
    if problems:
        raise ConfigError(problems)


def begin_from(config: RunConfig, model: Model) -> StartWeights:
    """Copy the weights that the run starts from into its model.

    A head whose configuration differs from the checkpoint's keeps all of its random weights. Where the model has more
    ``rewrites`` than the checkpoint, the weights are copied first and rewritten then; where it has fewer or others, the
    checkpoint's are merged into its matrices before.

    Raises:
        ConfigError: tensors are missing on one side, or differ in shape.
        CheckpointError: the weights cannot be read.
        UnsupportedError: the checkpoint's rewrites cannot be merged.
    """
    assert config.start is not None, "the run has a start"
    checkpoint, rewrites = opened(find_checkpoint(config.start)), config.model.rewrites
    source, kept = checkpoint.model, checkpoint.config.rewrites
    if rewrites[: len(kept)] != kept:
        source, kept = merged(source), []
    if kept == rewrites:
        return _taken(config, checkpoint, source, model)
    with torch.random.fork_rng(devices=[]):
        before = config.model.with_(rewrites=kept).build()
        if next(source.parameters()).dtype == torch.float64:
            before.to(torch.float64)  # so that nothing is rounded on the way to the model
        taken = _taken(config, checkpoint, source, before)
        drawn = drawn_by_rewrites(model) - drawn_by_rewrites(before)
        after = own_tensors(rewritten(before, rewrites[len(kept):]))
    with torch.no_grad():
        for name, tensor in own_tensors(model).items():
            if name not in drawn:
                tensor.copy_(after[name])
    return replace(taken, fresh=tuple(sorted({*taken.fresh, *drawn})))


def _taken(config: RunConfig, checkpoint: Loaded, source: Model, model: Model) -> StartWeights:
    """Copy the tensors of ``source``, the checkpoint's model, into ``model``, whose rewrites are the same."""
    saved_as, used = checkpoint.config, None if checkpoint.tokenizer is None else checkpoint.tokenizer.vocab_size
    saved, own, grown = own_tensors(source), own_tensors(model), dict[str, int]()
    if config.vocabulary is not None:
        kept = saved_as.vocab_size if used is None else min(used, saved_as.vocab_size)
        saved, grown = resized(saved, model.config, kept, config.vocabulary, config.seed)
    if saved_as.dump().get(HEAD) != config.model.dump().get(HEAD):
        saved_here = {name: tensor for name, tensor in saved.items() if not _in_head(name)}
    else:
        saved_here = saved
    shared = {name: saved_here[name] for name in own if name in saved_here}
    fresh, left = sorted(set(own) - set(shared)), sorted(set(saved) - set(shared))
    problems = [f"start: {name} of {config.start} has shape {list(tensor.shape)}, and in the model "
                f"{list(own[name].shape)}. Give the model its shape." for name, tensor in shared.items()
                if tensor.shape != own[name].shape]
    problems += [f"start: {config.start} has no {name}. Start from a checkpoint that has it." for name in fresh
                 if not _in_head(name)]
    problems += [f"start: the model has no {name}, which {config.start} has. Leave out what removes it."
                 for name in left if not _in_head(name)]
    if problems:
        raise ConfigError(problems)
    with torch.no_grad():
        for name, tensor in shared.items():
            own[name].copy_(tensor)
    return StartWeights(str(config.start), tensors_digest(shared), len(shared), sum(map(torch.numel, shared.values())),
                        tuple(fresh), tuple(left), {name: rows for name, rows in grown.items() if name in shared},
                        {name: checkpoint.facts[name] for name in CARRIED if name in checkpoint.facts})


def _in_head(name: str) -> bool:
    return name.startswith(f"{HEAD}.")


def _sized(plain: dict[str, Any], config: RunConfig) -> dict[str, Any]:
    """A model's configuration, without its number of ids if the run resizes the vocabulary."""
    if config.vocabulary is None:
        return plain
    return {key: _sized(value, config) if key == "encoder" and isinstance(value, dict) else value
            for key, value in plain.items() if key != "vocab_size"}


def _without(plain: Mapping[str, Any], names: list[str]) -> dict[str, Any]:
    return {key: value for key, value in plain.items() if key not in names}


def _disagreements(old: Any, new: Any, place: tuple[str, ...]) -> Iterator[tuple[str, Any, Any]]:
    """Where two configurations differ in what the model computes: path, old value, new value."""
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        for key in sorted({*old, *new}):
            if not key.endswith(DROPOUT):
                yield from _disagreements(old.get(key), new.get(key), (*place, key))
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        for index, pair in enumerate(zip(old, new, strict=True)):
            yield from _disagreements(*pair, (*place, str(index)))
    elif old != new:
        yield ".".join(place), old, new
