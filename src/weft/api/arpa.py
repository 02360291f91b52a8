"""``convert`` for ARPA files of n-gram models: which conversions these are, and what may be said of them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from weft.checkpoints import find_checkpoint
from weft.checkpoints.layout import RUN_CHECKPOINTS
from weft.core.config import parse_part
from weft.core.errors import InputError
from weft.interop.arpa.convert import is_arpa
from weft.tokenizers import Tokenizer, load_tokenizer
from weft.tokenizers.base import SETTINGS_FILE
from weft.tokenizers.config import ByteTokenizerConfig, TokenizerConfig, known_tokenizers
from weft.training.overrides import apply_overrides

TARGET = "arpa"


def concerns_arpa(source: object, out: str | Path, to: str | None, tokenizer: str | None,
                  others: Mapping[str, object]) -> bool:
    """Whether a conversion is from or to an ARPA file, which their names say.

    Args:
        source: what is converted.
        out: what is written.
        to: the format, where it is given.
        tokenizer: the one of an ARPA file's pieces.
        others: options that say something of other formats alone; None or False where they are not given.

    Raises:
        InputError: an option, or a format, that does not go with the files; or no format.
    """
    reads, writes = isinstance(source, str | Path) and is_arpa(source), is_arpa(out)
    if not reads and tokenizer is not None:
        raise InputError("a tokenizer for a model that brings its own.", where="tokenizer",
                         remedy="It is for reading ARPA files (.arpa, .arpa.gz), whose words are its pieces or ids.")
    if not reads and not writes:
        _require_format(to)
        return False
    if reads and writes:
        raise InputError("both are ARPA files.", where=str(out), remedy="Name a folder to make a checkpoint in.")
    wanted = TARGET if writes else "weft"
    if to not in (None, wanted):
        raise InputError(f"the format {to!r}, while the files' names say {wanted!r}.", where="to",
                         remedy="Leave it out, or convert in two steps.")
    for name, value in others.items():
        if value:
            raise InputError(f"{value!r} says nothing of an ARPA file.", where=name, remedy="Leave it out.")
    return True


def given_tokenizer(tokenizer: str | None) -> Tokenizer | None:
    """The tokenizer that a user names: a checkpoint or run, a tokenizer's file or folder, or ``bytes``.

    Raises:
        InputError: one that would have to be learned.
        TokenizerError: the file cannot be read.
        CheckpointError: a run without a checkpoint.
    """
    if tokenizer is None:
        return None
    path = Path(tokenizer)
    if (path / RUN_CHECKPOINTS).is_dir():
        path = find_checkpoint(path)
    if (path / SETTINGS_FILE).is_file():
        return load_tokenizer(path, kinds=known_tokenizers())
    plain = {"kind": "file", "path": tokenizer} if path.exists() else apply_overrides(
        {}, [f"tokenizer={tokenizer}"])["tokenizer"]
    config = parse_part(("tokenizer",), plain)
    assert isinstance(config, TokenizerConfig), "the group tokenizer holds tokenizer configurations"
    found = config.fit(()) if isinstance(config, ByteTokenizerConfig) else config.from_file()
    if found is None:
        raise InputError(f"a tokenizer of kind {config.kind!r} is learned from text, and an ARPA file has none.",
                         where="tokenizer", remedy="Name a checkpoint or a file that holds the tokenizer.")
    return found


def _require_format(to: str | None) -> None:
    if to is None:
        raise InputError("no format is given.", where="to",
                         remedy="Give one with --to, or name the file .arpa or .arpa.gz for an n-gram model.")
    if to == TARGET:
        raise InputError("an ARPA model is a file.", where="to", remedy="Name it .arpa or .arpa.gz.")
