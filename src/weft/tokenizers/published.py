"""Published vocabularies: recognise the tokenizer of a folder, and read it with the files beside it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import tokenizers

from weft.core.errors import TokenizerError
from weft.tokenizers.base import SETTINGS_FILE, Tokenizer
from weft.tokenizers.declared import DeclaredFiles, read_declared, read_file
from weft.tokenizers.files import folder_of_own, load_tokenizer
from weft.tokenizers.library import LIBRARY_FILE, FileTokenizer, parse_library
from weft.tokenizers.rwkv_world import END_ID, WORLD_FILE, RWKVWorldTokenizer
from weft.tokenizers.sentence_piece import Prefix, SentencePieceTokenizer
from weft.tokenizers.sentence_piece_model import MODEL_FILE
from weft.tokenizers.specials import END_OF_DOCUMENT, AddedToken, library_errors
from weft.tokenizers.vocabulary_files import CLASS_OF_MODEL, pair_library, word_piece_file

CLASS_ADDS: Mapping[str, tuple[bool, bool]] = MappingProxyType(
    {**dict.fromkeys(("LlamaTokenizer", "GemmaTokenizer"), (True, False)),
     **dict.fromkeys(("RobertaTokenizer", "BartTokenizer", "LongformerTokenizer", "LEDTokenizer"), (True, True)),
     "T5Tokenizer": (False, True)}
)
"""Whether classes whose files may omit it add the opening and the closing token."""

USUAL_SPECIALS = (END_OF_DOCUMENT, "<s>", "</s>", "<pad>", "<mask>", "[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
"""Special tokens of older vocabularies, whose files do not name them."""

USUAL_ENDS = ((END_OF_DOCUMENT, END_OF_DOCUMENT), ("<s>", "</s>"), ("[CLS]", "[SEP]"))
"""The opening and the closing token of such vocabularies."""


def read_tokenizer(path: str | Path, *, bos: str | None = None, eos: str | None = None) -> Tokenizer:
    """Read the tokenizer of a folder, or of a file with one of these names.

        weft_tokenizer.json                     saved by Weft
        tokenizer.json                          the tokenizers library
        tokenizer.model, spiece.model           SentencePiece
        vocab.json and merges.txt               BPE as of GPT-2 (also encoder.json and vocab.bpe)
        vocab.txt                               BERT's WordPiece
        rwkv_vocab_v20230424.txt                RWKV World

    The first that exists is read. ``tokenizer_config.json``, ``special_tokens_map.json``, ``added_tokens.json``,
    ``generation_config.json``, ``config.json`` and chat templates beside it are read as well: they name the special
    tokens and give the `Conventions`.

    Args:
        path: a folder, or one of these files (the others are read from its folder); any ``*.json`` or ``*.model`` is
            accepted.
        bos: the token that opens a document, instead of the one that the files declare.
        eos: the token that closes a document, likewise.

    Raises:
        TokenizerError: there is no such file, or one is damaged.
        CheckpointError: a damaged ``weft_tokenizer.json``.
        MissingExtra: a SentencePiece model without its library.
    """
    path = Path(path)
    own = folder_of_own(path) if path.is_dir() else path.parent if path.name == SETTINGS_FILE else None
    if own is not None:
        return load_tokenizer(own)
    file = _find(path) if path.is_dir() else path
    declared = read_declared(file.parent)
    if file.name == WORLD_FILE:
        end = next((token.content for token in declared.added if token.id == END_ID), END_OF_DOCUMENT)
        return RWKVWorldTokenizer(read_file(file), end=end, conventions=declared.conventions(None, None))
    if file.suffix == ".model":
        return read_sentence_piece(file, bos=bos, eos=eos)
    if file.suffix == ".json" and file.name not in PAIRS:
        return read_tokenizer_json(file, bos=bos, eos=eos)
    return _vocabulary(file, declared, bos, eos)


def read_tokenizer_json(path: str | Path, *, bos: str | None = None, eos: str | None = None) -> FileTokenizer:
    """Read the tokenizer of a ``tokenizer.json``, or of a folder that has one; see `read_tokenizer`. Raises
    `TokenizerError`: no such file, or not a tokenizer of the library."""
    path = Path(path)
    path = path / LIBRARY_FILE if path.is_dir() else path
    source, declared = read_file(path), read_declared(path.parent)
    library = parse_library(source)
    with library_errors("be used as its files say", str(path)):
        changed = _add(library, declared)
        opening, closing = _roles(library, declared, bos, eos)
        adds = _adds(library, opening, closing)
    conventions = declared.conventions(*adds)
    return FileTokenizer(library.to_str() if changed else source, bos=opening, eos=closing, conventions=conventions)


def read_sentence_piece(path: str | Path, *, bos: str | None = None, eos: str | None = None) -> SentencePieceTokenizer:
    """Read the tokenizer of a SentencePiece model, or of a folder that has one; see `read_tokenizer`.

    Raises:
        TokenizerError: no such file, or not a SentencePiece model.
        MissingExtra: its library is not installed.
    """
    path = Path(path)
    file = next((path / name for name in MODEL_FILES if (path / name).exists()), path / MODEL_FILES[0])
    file = file if path.is_dir() else path
    declared = read_declared(file.parent)
    model = read_file(file)
    bare = SentencePieceTokenizer(model)
    pieces = bare.pieces
    added = [token for token in declared.added if pieces.get(token.content) != token.id]
    given = {token.content for token in added} | set(bare.special_tokens) | {bare.unknown}
    added += [AddedToken(name, pieces[name]) for name in declared.special_names if name in pieces and name not in given]
    kind = declared.tokenizer_class or CLASS_OF_MODEL.get(declared.model_type, "")
    if kind == "T5Tokenizer" and not any(token.content.startswith("<extra_id_") for token in added):
        added += sentinels(declared.config.get("extra_ids", 100), bare.vocab_size)
    adds = CLASS_ADDS.get(kind, (None, None))
    return SentencePieceTokenizer(model, bos=bos or declared.token("bos_token"), eos=eos or declared.token("eos_token"),
                                  added=added, conventions=declared.conventions(*adds), prefix=_prefix(declared))


def sentinels(count: Any, first: int) -> list[AddedToken]:
    """The tokens for hidden spans that T5's class adds behind the pieces of its model, the first with the highest id.
    Raises `TokenizerError`: ``count`` is no number of tokens."""
    if type(count) is not int or not 0 <= count <= MOST_SENTINELS:
        raise TokenizerError(f"extra_ids is {count!r}, and no number of tokens.", where="tokenizer_config.json",
                             remedy=f"Give a whole number from 0 to {MOST_SENTINELS}.")
    return [AddedToken(f"<extra_id_{index}>", first + count - 1 - index) for index in reversed(range(count))]


MOST_SENTINELS = 10_000


def _prefix(declared: DeclaredFiles) -> Prefix:
    """Where the class of `transformers` puts the space that the model adds to a text."""
    if declared.tokenizer_class not in PREFIX_ONCE:
        return "always"
    if declared.flag("add_prefix_space") is False:
        return "never"
    return "always" if declared.flag("legacy") else "first"


PREFIX_ONCE = frozenset({"LlamaTokenizer", "CodeLlamaTokenizer"})
"""Classes that by default put the space before the text only, and not after special tokens."""

MODEL_FILES = (MODEL_FILE, "spiece.model")
"""Names of SentencePiece models."""

PAIRS: Mapping[str, str] = MappingProxyType({"vocab.json": "merges.txt", "encoder.json": "vocab.bpe"})
"""Vocabularies of byte-pair encodings, and the file of merges that belongs to each."""


def _find(folder: Path) -> Path:
    names = (SETTINGS_FILE, LIBRARY_FILE, *MODEL_FILES, *PAIRS, "vocab.txt", WORLD_FILE)
    for name in names:
        if (folder / name).exists():
            return folder / name
    there = ", ".join(sorted(item.name for item in folder.iterdir())[:8]) or "nothing"
    raise TokenizerError(f"no tokenizer here: looked for {', '.join(names)}; the folder holds {there}.",
                         where=str(folder), remedy="Give the folder or the file of a tokenizer.")


def _vocabulary(file: Path, declared: DeclaredFiles, bos: str | None, eos: str | None) -> FileTokenizer:
    if file.name in PAIRS:
        library = _guarded(lambda: pair_library(file, file.parent / PAIRS[file.name], declared), file)
    elif file.suffix == ".txt":
        library = _guarded(lambda: word_piece_file(file, declared), file)
    else:
        raise TokenizerError(
            f"{file.name!r} is not a known tokenizer file: {LIBRARY_FILE}, *.model, {', '.join(PAIRS)}, "
            f"vocab.txt, {WORLD_FILE}.", where=str(file), remedy="Give such a file, or a folder that has one.")
    _add(library, declared)
    opening, closing = _roles(library, declared, bos, eos)
    usual = [pair for pair in USUAL_ENDS if None not in map(library.token_to_id, pair)]
    if opening is None and closing is None and usual and not declared.declares("bos_token"):
        opening, closing = usual[0]
    adds = CLASS_ADDS.get(declared.tokenizer_class, (False, False))
    return FileTokenizer(library.to_str(), bos=opening, eos=closing, conventions=declared.conventions(*adds))


def _guarded(build: Callable[[], tokenizers.Tokenizer], file: Path) -> tokenizers.Tokenizer:
    """Build a tokenizer with the library; its errors become a `TokenizerError`."""
    try:
        return build()
    except (TokenizerError, KeyboardInterrupt):
        raise
    except BaseException as error:  # bare Exception for inconsistent files, or a panic, which is none
        raise TokenizerError(f"the files of the vocabulary are inconsistent ({error}).", where=str(file),
                             remedy="Copy the tokenizer's folder again, whole.") from None


def _add(library: tokenizers.Tokenizer, declared: DeclaredFiles) -> bool:
    """Add to the library what the files beside the vocabulary declare: new tokens, and which old ones are special.

    Returns:
        whether anything was added.

    Raises:
        TokenizerError: a token that cannot get the id it was declared with.
    """
    already = {token.content for token in library.get_added_tokens_decoder().values()}
    named = declared.special_names or (() if already else USUAL_SPECIALS)
    fresh = [name for name in named if name not in already and library.token_to_id(name) is not None]
    library.add_special_tokens([tokenizers.AddedToken(name, special=True, normalized=False) for name in fresh])
    for token in declared.added:
        if token.content not in already:
            made = tokenizers.AddedToken(
                token.content, special=token.special, lstrip=token.lstrip, rstrip=token.rstrip, normalized=False)
            fresh.append(token.content)
            (library.add_special_tokens if token.special else library.add_tokens)([made])
        found = library.token_to_id(token.content)
        if found != token.id:
            raise TokenizerError(
                f"the added token {token.content!r} is declared with id {token.id}, while the vocabulary has it as "
                f"{found}.", where="added tokens",
                remedy="Copy the tokenizer's folder again, whole; its files do not belong together.")
    return bool(fresh)


def _adds(library: tokenizers.Tokenizer, opening: str | None, closing: str | None) -> tuple[bool, bool]:
    """Whether the file's post-processor puts the opening token before a text and the closing one after it."""
    bare = library.encode("a", add_special_tokens=False).tokens
    whole = library.encode("a", add_special_tokens=True).tokens
    extra = len(whole) - len(bare)
    before = next((count for count in range(extra + 1) if whole[count : count + len(bare)] == bare), 0)
    return opening in whole[:before], closing in whole[before + len(bare) :]


def _roles(library: tokenizers.Tokenizer, declared: DeclaredFiles, bos: str | None,
           eos: str | None) -> tuple[str | None, str | None]:
    """The opening and the closing token: the caller's, or else those of the tokenizer's files, or the model's; where
    neither names one, those that an encoder is trained with before and after a text ([CLS] and [SEP])."""
    opening = bos or _role("bos_token", declared, declared.bos_ids, library)
    closing = eos or _role("eos_token", declared, declared.eos_ids, library)
    if opening is None and closing is None:
        return declared.token("cls_token"), declared.token("sep_token")
    return opening, closing


def _role(name: str, declared: DeclaredFiles, ids: Sequence[int], library: tokenizers.Tokenizer) -> str | None:
    if declared.declares(name):
        return declared.token(name)
    token: str | None = library.id_to_token(ids[0]) if ids else None
    return token
