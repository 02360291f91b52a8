"""Pictures of a model."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from weft.api.configs import Config, one_or_more, read_config, read_run
from weft.api.examining import Target, resolved_target
from weft.api.generating import prompt_rows
from weft.checkpoints import Loaded
from weft.checkpoints.layout import RUN_CHECKPOINTS
from weft.core.base_model import built_empty
from weft.core.errors import InputError
from weft.core.model import ModelConfig, built_model
from weft.decoding.rows import parse_rows
from weft.pictures.attention import attention_maps
from weft.pictures.gallery import DrawnFiles, Gallery, ReadText, gallery
from weft.pictures.picture_files import require_writable, write
from weft.tokenizers import Tokenizer
from weft.tokenizers.config import ByteTokenizerConfig
from weft.training.config import RunConfig


@dataclass(frozen=True)
class Text:
    """A text that the model reads, whose attention is drawn.

    Attributes:
        text: read after the token that begins a document, if the tokenizer has one.
        source: for a model that reads a source, followed by the token that ends a document.
    """

    text: str
    source: str | None = None


def draw(target: Target, overrides: Iterable[str] = (), *, out: str | Path, text: Text | None = None,
         png: bool = False, replace: bool = False) -> DrawnFiles:
    """Draw a configuration or a checkpoint: its architecture, masks and positions, a
    recurrent model unrolled in time, and attention maps of a text.

    Args:
        target: what is drawn. A configuration is drawn without its weights; for a text it is built with random ones.
        overrides: ``key.path=value`` changes to a configuration that is no object of a model.
        out: a new folder, or a file ``.html``, ``.svg`` or ``.png``; see `weft.pictures.picture_files.write`.
        text: what the model reads, for attention maps.
        png: a PNG beside each SVG.
        replace: replace a folder that Weft wrote.

    Raises:
        OccupiedError: something is at ``out``.
        InputError: a text that cannot be encoded, or longer than the model's limit; overrides for a checkpoint.
        UnsupportedError: attention maps of a model without attention.
        MissingExtra: PNG files need a package that is not installed.
    """
    require_writable(Path(out), png=png, replace=replace)
    return write(pictures(target, overrides, text=text), Path(out), png=png, replace=replace)


def pictures(target: Target, overrides: Iterable[str] = (), *, text: Text | None = None) -> Gallery:
    """The pictures of a model, not written; the arguments are those of `draw`."""
    changes = one_or_more(overrides)
    found = resolved_target(target, changes)
    if isinstance(found, Loaded):
        read = None if text is None else _read(found, text)
        folder = found.path.resolve()
        name = folder.name
        if folder.parent.name == RUN_CHECKPOINTS and name.isdecimal():  # a run's checkpoint is named by its step
            name = f"{folder.parent.parent.name}, step {int(name):,}"
        return gallery(found.model, name, trained=True, read=read)
    if isinstance(target, ModelConfig):
        if text is not None:
            raise InputError("a configuration object names no tokenizer.", where="text",
                             remedy="Give a checkpoint, or the file of a run.")
        return gallery(built_empty(found), found.kind, trained=False)
    assert isinstance(target, str | Path | Mapping | RunConfig), "resolved above"
    name = Path(target).stem if isinstance(target, str | Path) else found.kind
    if text is None:
        return gallery(built_empty(found), name, trained=False)
    made = _untrained(target, changes, name)
    return gallery(made.model, name, trained=False, read=_read(made, text))


def _untrained(target: Config, changes: list[str], name: str) -> Loaded:
    """The model of a run's configuration with random weights, and its tokenizer, if nothing must be trained for it.

    Raises:
        InputError: the file names no tokenizer, or one that is trained with the run.
    """
    run = None if "kind" in read_config(target) else read_run(target, changes)
    if run is None:
        raise InputError("the configuration of a model alone names no tokenizer.", where="text",
                         remedy="Give a checkpoint, or the file of a run with a tokenizer.")
    tokenizer: Tokenizer | None = run.tokenizer.from_file()
    if tokenizer is None and not isinstance(run.tokenizer, ByteTokenizerConfig):
        raise InputError(f"the tokenizer {run.tokenizer.kind!r} is trained with the run, so there is none yet.",
                         where="text", remedy="Give a checkpoint of the run.")
    torch.manual_seed(run.seed)
    model = built_model(run.model).eval()
    return Loaded(model, tokenizer or run.tokenizer.fit(()), run.model, None, {}, Path(name))


def _read(loaded: Loaded, text: Text) -> ReadText:
    """The attention of a model over a text, and the text's tokens."""
    [row] = parse_rows(prompt_rows(loaded, text.text))
    source = None
    if text.source is not None:  # followed by the token that ends a document, as in training
        [read] = parse_rows(prompt_rows(loaded, [text.source], open_text=False))
        end = None if loaded.tokenizer is None else loaded.tokenizer.eos_id
        source = (*read.tokens, *([] if end is None else [end]))
    maps = attention_maps(loaded.model, row.tokens, source)
    return ReadText(_pieces(loaded, row.tokens), _pieces(loaded, source or ()), tuple(maps))


def _pieces(loaded: Loaded, tokens: tuple[int, ...]) -> tuple[str, ...]:
    """Each token as text."""
    tokenizer = loaded.tokenizer
    return tuple(str(token) if tokenizer is None else tokenizer.decode([token], specials=True) for token in tokens)
