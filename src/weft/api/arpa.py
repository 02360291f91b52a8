"""``convert`` for ARPA files of n-gram models: which conversions concern them, and with which options."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from weft.checkpoints import find_checkpoint
from weft.checkpoints.layout import RUN_CHECKPOINTS
from weft.core.config import parse_part
from weft.core.errors import InputError
from weft.interop.arpa.convert import is_arpa
from weft.tokenizers import Tokenizer, load_tokenizer
from weft.tokenizers.config import ByteTokenizerConfig, TokenizerConfig, known_tokenizers
from weft.tokenizers.files import folder_of_own
from weft.training.overrides import apply_overrides

TARGET = "arpa"


def concerns_arpa(source: object, out: str | Path, to: str | None, tokenizer: str | None,
                  others: Mapping[str, object]) -> bool:
    """Return whether a conversion reads or writes an ARPA file, as the file names' suffixes show.

    Args:
        source: the model to convert.
        out: the file or folder to write.
        to: the requested format, or None.
        tokenizer: the tokenizer whose pieces are the words of the ARPA file, or None.
        others: options of other formats alone; None or False where they are not set.

    Raises:
        InputError: an option or a format that does not apply to the files, or no format.
    """
    reads, writes = isinstance(source, str | Path) and is_arpa(source), is_arpa(out)
    if not reads and tokenizer is not None:
        raise InputError("a tokenizer for a model that brings its own.", where="tokenizer",
                         remedy="Leave it out: it is for reading ARPA files (.arpa, .arpa.gz), whose words are its "
                                "pieces or ids.")
    if not reads and not writes:
        _require_format(to)
        return False
    if reads and writes:
        raise InputError("both are ARPA files.", where=str(out),
                         remedy="Name a folder to make a checkpoint in.")
    target = TARGET if writes else "weft"
    if to not in (None, target):
        raise InputError(f"the format {to!r}, while the files' names say {target!r}.", where="to",
                         remedy="Leave it out, or convert in two steps.")
    for name, value in others.items():
        if value:
            raise InputError(f"{value!r} says nothing of an ARPA file.", where=name, remedy="Leave it out.")
    return True


def given_tokenizer(tokenizer: str | None) -> Tokenizer | None:
    """Load the tokenizer that a user names: by a checkpoint or run, a tokenizer's file or folder, or ``bytes``.

    Raises:
        InputError: a tokenizer that would have to be trained.
        TokenizerError: the file cannot be read.
        CheckpointError: the run has no checkpoint.
    """
    if tokenizer is None:
        return None
    path = Path(tokenizer)
    if (path / RUN_CHECKPOINTS).is_dir():
        path = find_checkpoint(path)
    own = folder_of_own(path)
    if own is not None:
        return load_tokenizer(own, kinds=known_tokenizers())
    plain = {"kind": "file", "path": tokenizer} if path.exists() else apply_overrides(
        {}, [f"tokenizer={tokenizer}"])["tokenizer"]
    config = parse_part(("tokenizer",), plain)
    assert isinstance(config, TokenizerConfig), "the group tokenizer holds tokenizer configurations"
    loaded = config.fit(()) if isinstance(config, ByteTokenizerConfig) else config.from_file()
    if loaded is None:
        raise InputError(f"a tokenizer of kind {config.kind!r} is learned from text, and an ARPA file has none.",
                         where="tokenizer", remedy="Name a checkpoint or a file that holds the tokenizer.")
    return loaded


def _require_format(to: str | None) -> None:
    if to is None:
        raise InputError("no format is given.", where="to",
                         remedy="Give one with --to, or name the file .arpa or .arpa.gz for an n-gram model.")
    if to == TARGET:
        raise InputError("an ARPA model is a file.", where="to", remedy="Name it .arpa or .arpa.gz.")
