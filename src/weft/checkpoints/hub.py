"""Models on the Hugging Face Hub: ``org/name`` or ``org/name@revision``, downloaded once into the Hub's own cache.

`huggingface_hub` (the extra ``hub``) downloads them, so its environment variables apply: ``HF_HOME`` and
``HF_HUB_CACHE`` set the cache's folder, ``HF_TOKEN`` or ``hf auth login`` the access token, ``HF_ENDPOINT`` the
server, and ``HF_HUB_OFFLINE`` forbids the network. Only configuration, weights and tokenizer are downloaded; code in a
repository is neither downloaded nor run.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from weft.checkpoints.layout import TRAINING_FILE
from weft.core.errors import CheckpointError, InputError, MissingExtra
from weft.disk.atomic import standing
from weft.disk.manifest import MANIFEST_FILE

HUB_ID = re.compile(r"(?P<name>[A-Za-z0-9][\w.-]*/[A-Za-z0-9_][\w.-]*)(?:@(?P<revision>[^@\s]+))?")
"""An owner and a name. A name without an owner, which the Hub's oldest models have, is taken for a folder."""

FILES_OF_CONFIGS = (".yaml", ".yml", ".json", ".safetensors", ".gguf", ".bin", ".txt")

BESIDE_WEIGHTS = (
    "config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json",
    "added_tokens.json", "tokenizer.model", "spiece.model", "vocab.json", "merges.txt", "encoder.json", "vocab.bpe",
    "vocab.txt", "rwkv_vocab_v20230424.txt", "chat_template.jinja", "chat_template.json",
    "additional_chat_templates/*.jinja", "weft_tokenizer.json", "weft_tokenizer/*", MANIFEST_FILE, TRAINING_FILE)
"""Files of configuration and tokenizer, in the formats of `transformers` and of Weft."""

SAFE_WEIGHTS = ("model.safetensors", "model-*.safetensors", "model.safetensors.index.json")
PICKLED_WEIGHTS = ("pytorch_model.bin", "pytorch_model-*.bin", "pytorch_model.bin.index.json")


@dataclass(frozen=True)
class HubModel:
    """A model on the Hub.

    Attributes:
        revision: a branch, a tag or a commit; None: the main branch.
    """

    name: str
    revision: str | None = None

    def __str__(self) -> str:
        return self.name if self.revision is None else f"{self.name}@{self.revision}"


def hub_model(source: str | Path) -> HubModel | None:
    """The model on the Hub that ``source`` names; None if it exists on disk or has not the form of an id."""
    match = HUB_ID.fullmatch(str(source))
    if match is None or str(source).lower().endswith(FILES_OF_CONFIGS) or standing(Path(source)).exists():
        return None
    return HubModel(match["name"], match["revision"])


def resolve(source: str | Path, *, revision: str | None = None, offline: bool | None = None,
            allow_pickles: bool = False) -> Path:
    """The folder on disk of a model that is given as a path or as an id on the Hub; an existing path comes first.

    Args:
        source: a path, ``org/name`` or ``org/name@revision``.
        revision: a branch, a tag or a commit of the Hub's repository.
        offline: use the cache only, without the network; None: as ``HF_HUB_OFFLINE`` sets it.
        allow_pickles: download ``pytorch_model.bin`` if there are no safetensors. It is read without running its code.

    Raises:
        CheckpointError: the network, the repository, the revision, the right to it or the safetensors are missing, or
            offline, the cache lacks the model.
        InputError: a revision was given for a folder, or two revisions.
        MissingExtra: `huggingface_hub` is not installed.
    """
    model = hub_model(source)
    if model is None:
        if revision is not None:
            raise InputError(f"revision {revision!r} was given for a path; only models on the Hub have revisions.",
                             where=str(source), remedy="Leave it out, or give a model on the Hub as org/name.")
        return Path(source)
    if revision is not None and model.revision not in (None, revision):
        raise InputError(f"two revisions were given, {model.revision!r} and {revision!r}.", where=str(source),
                         remedy="Give one of them.")
    model = HubModel(model.name, revision or model.revision)
    folder = _fetch(model, (*BESIDE_WEIGHTS, *SAFE_WEIGHTS), offline)
    if any(folder.glob("model*.safetensors")):
        return folder
    if not allow_pickles:
        raise CheckpointError("the repository has no weights in safetensors; pickles are downloaded only if allowed.",
                              where=str(model),
                              remedy="If you trust it, allow them (--allow-pickles, allow_pickles=True): they are read "
                                     "without running their code.")
    return _fetch(model, (*BESIDE_WEIGHTS, *PICKLED_WEIGHTS), offline)


def _fetch(model: HubModel, patterns: Sequence[str], offline: bool | None) -> Path:
    try:
        from huggingface_hub import snapshot_download
    except ImportError:
        raise MissingExtra("huggingface_hub", "hub", f"{model} is no folder here; a model on the Hub") from None
    try:
        return Path(snapshot_download(model.name, revision=model.revision, allow_patterns=list(patterns),
                                      local_files_only=bool(offline), endpoint=_endpoint()))
    except Exception as error:  # its HTTP library, which differs between versions, raises its own errors
        raise _failure(model, error, offline) from None


def _endpoint() -> str:
    """The server's address from the environment as it is now; the library reads it at its import only."""
    from huggingface_hub import constants

    return os.environ.get("HF_ENDPOINT", "").rstrip("/") or constants.ENDPOINT


def _failure(model: HubModel, error: Exception, offline: bool | None) -> CheckpointError:
    """The error for a download that failed. Derived classes of errors are matched before their bases."""
    from huggingface_hub import constants, errors

    no_network = bool(offline) or constants.HF_HUB_OFFLINE
    match error:
        case errors.GatedRepoError():
            what = "its owners have restricted access to it."
            remedy = f"Ask for access at {_endpoint()}/{model.name}, then give a token: HF_TOKEN, or hf auth login."
        case errors.RepositoryNotFoundError():
            what = "no such folder here, and no such model on the Hub (or it is private)."
            remedy = "Check the name; for a private one give a token: HF_TOKEN, or hf auth login."
        case errors.RevisionNotFoundError():
            what = f"the model has no revision {model.revision or 'main'!r}."
            remedy = "Give a branch, a tag or a commit of its repository."
        case errors.LocalEntryNotFoundError() if no_network:
            what = "no such folder here, and the Hub's cache does not contain all of it (offline)."
            remedy = "Download it once without --offline and HF_HUB_OFFLINE, or give a folder."
        case errors.LocalEntryNotFoundError() | ConnectionError():
            what = f"no such folder here; taken for a model on the Hub, which cannot be reached ({_endpoint()})."
            remedy = "Check the network and HF_ENDPOINT. Models in the cache can be used with --offline."
        case _:
            reason = " ".join(str(error).split()) or type(error).__name__
            what, remedy = f"the download has failed: {reason}", "Try again; files already downloaded are kept."
    return CheckpointError(what, where=str(model), remedy=remedy)
