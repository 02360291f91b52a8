"""Models on the Hugging Face Hub: ``org/name`` or ``org/name@revision``, downloaded once into the Hub's own cache.

`huggingface_hub` does the work (the extra ``hub``), so its environment variables hold: ``HF_HOME`` and ``HF_HUB_CACHE``
say where the cache is, ``HF_TOKEN`` or ``hf auth login`` who asks, ``HF_ENDPOINT`` whom, ``HF_HUB_OFFLINE`` that nobody
is asked. Only configuration, weights and tokenizer are fetched; code in a repository is never fetched, let alone run.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import final

from weft.checkpoints.layout import TRAINING_FILE
from weft.core.errors import CheckpointError, InputError, MissingExtra
from weft.disk.atomic import standing
from weft.disk.manifest import MANIFEST_FILE

HUB_ID = re.compile(r"(?P<name>[A-Za-z0-9][\w.-]*/[A-Za-z0-9_][\w.-]*)(?:@(?P<revision>[^@\s]+))?")
"""An owner and a name. Names alone, which the Hub knows from its first days, are taken for folders."""

FILES_OF_CONFIGS = (".yaml", ".yml", ".json", ".safetensors", ".gguf", ".bin", ".txt")

BESIDE_WEIGHTS = (
    "config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json",
    "added_tokens.json", "tokenizer.model", "spiece.model", "vocab.json", "merges.txt", "encoder.json", "vocab.bpe",
    "vocab.txt", "rwkv_vocab_v20230424.txt", "chat_template.jinja", "chat_template.json",
    "additional_chat_templates/*.jinja", "weft_tokenizer.json", MANIFEST_FILE, TRAINING_FILE)
"""Configuration and tokenizer, of `transformers` and of Weft, whose folders are taken whole."""

SAFE_WEIGHTS = ("model.safetensors", "model-*.safetensors", "model.safetensors.index.json")
PICKLED_WEIGHTS = ("pytorch_model.bin", "pytorch_model-*.bin", "pytorch_model.bin.index.json")


@final
@dataclass(frozen=True)
class HubModel:
    """A model on the Hub.

    Attributes:
        name: owner and name.
        revision: a branch, a tag or a commit; None: the main branch.
    """

    name: str
    revision: str | None = None

    def __str__(self) -> str:
        return self.name if self.revision is None else f"{self.name}@{self.revision}"


def hub_model(given: str | Path) -> HubModel | None:
    """The model that ``given`` names on the Hub; None when it is there on disk, or does not look like an id."""
    found = HUB_ID.fullmatch(str(given))
    if found is None or str(given).lower().endswith(FILES_OF_CONFIGS) or standing(Path(given)).exists():
        return None
    return HubModel(found["name"], found["revision"])


def resolve(given: str | Path, *, revision: str | None = None, offline: bool | None = None,
            allow_pickles: bool = False) -> Path:
    """The folder on disk of a model that is given as a path or as an id on the Hub. What exists on disk counts first.

    Args:
        given: a path, ``org/name`` or ``org/name@revision``.
        revision: a branch, a tag or a commit of the Hub's repository.
        offline: take what the cache has and ask nobody; None: as ``HF_HUB_OFFLINE`` says.
        allow_pickles: fetch ``pytorch_model.bin`` too where there are no safetensors. It is read without running it.

    Raises:
        CheckpointError: no network, no such repository or revision, no right to it, not in the cache, no safetensors.
        InputError: a revision of a folder, or two revisions.
        MissingExtra: `huggingface_hub` is not installed.
    """
    model = hub_model(given)
    if model is None:
        if revision is not None:
            raise InputError(f"the revision {revision!r} of what is no id on the Hub.", where=str(given),
                             remedy="Only models on the Hub, given as org/name, have revisions.")
        return Path(given)
    if revision is not None and model.revision not in (None, revision):
        raise InputError(f"two revisions, {model.revision!r} and {revision!r}.", where=str(given),
                         remedy="Give one of them.")
    wanted = HubModel(model.name, revision or model.revision)
    folder = _fetch(wanted, (*BESIDE_WEIGHTS, *SAFE_WEIGHTS), offline)
    if any(folder.glob("model*.safetensors")):
        return folder
    if not allow_pickles:
        raise CheckpointError("the repository has no weights in safetensors; pickles are not fetched unasked.",
                              where=str(wanted),
                              remedy="If you trust it, allow them (--allow-pickles, allow_pickles=True): they are read "
                                     "without running what is in them.")
    return _fetch(wanted, (*BESIDE_WEIGHTS, *PICKLED_WEIGHTS), offline)


def _fetch(model: HubModel, patterns: Sequence[str], offline: bool | None) -> Path:
    try:
        from huggingface_hub import snapshot_download
    except ImportError:
        raise MissingExtra("huggingface_hub", "hub", f"{model} is no folder here; a model on the Hub") from None
    try:
        return Path(snapshot_download(model.name, revision=model.revision, allow_patterns=list(patterns),
                                      local_files_only=bool(offline), endpoint=_endpoint()))
    except Exception as error:  # its HTTP library, which it has changed, raises errors of its own
        raise _failure(model, error, offline) from None


def _endpoint() -> str:
    """Whom to ask, by what the environment says now: the library remembers what it said at its import."""
    from huggingface_hub import constants

    return os.environ.get("HF_ENDPOINT", "").rstrip("/") or constants.ENDPOINT


def _failure(model: HubModel, error: Exception, offline: bool | None) -> CheckpointError:
    """What a user is told of a download that failed. The more special errors come first: they derive from others."""
    from huggingface_hub import constants, errors

    silent = bool(offline) or constants.HF_HUB_OFFLINE
    match error:
        case errors.GatedRepoError():
            what = "its owners let only those see it whom they know."
            remedy = f"Ask for access at {_endpoint()}/{model.name}, then give a token: HF_TOKEN, or hf auth login."
        case errors.RepositoryNotFoundError():
            what = "no such folder here, and no such model on the Hub (or it is private)."
            remedy = "Check the name; for a private one give a token: HF_TOKEN, or hf auth login."
        case errors.RevisionNotFoundError():
            what = f"the model has no revision {model.revision or 'main'!r}."
            remedy = "Give a branch, a tag or a commit of its repository."
        case errors.LocalEntryNotFoundError() if silent:
            what = "no such folder here, and the Hub's cache does not hold it whole, while nobody is asked (offline)."
            remedy = "Fetch it once without --offline and HF_HUB_OFFLINE, or give a folder."
        case errors.LocalEntryNotFoundError() | ConnectionError():
            what = f"no such folder here; taken for a model on the Hub, which cannot be reached ({_endpoint()})."
            remedy = "Check the network (or HF_ENDPOINT); what the cache holds is found without it."
        case _:
            reason = " ".join(str(error).split()) or type(error).__name__
            what, remedy = f"the download has failed: {reason}", "Try again; what has come is kept."
    return CheckpointError(what, where=str(model), remedy=remedy)
