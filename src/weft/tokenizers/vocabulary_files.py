"""Vocabularies from before ``tokenizer.json``, as tokenizers of the ``tokenizers`` library: GPT-2, GPT, Qwen2, BERT."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeAlias, TypeVar

import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers

from weft.core.errors import TokenizerError
from weft.disk.documents import parse_json
from weft.tokenizers.declared import DeclaredFiles, read_file
from weft.tokenizers.specials import require_ids
from weft.tokenizers.wordpiece import MAX_CHARACTERS, UNKNOWN, word_piece_library

WORD_END = "</w>"
QWEN2_WORDS = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
               r"|\s+(?!\S)|\s+")
"""The expression by which Qwen2's released ``tokenization_qwen2.py`` splits text into words."""

GPT2_LIKE = ("GPT2Tokenizer", "RobertaTokenizer", "BartTokenizer", "LongformerTokenizer", "LEDTokenizer",
             "CodeGenTokenizer")  # fmt: skip
BERT_LIKE = ("BertTokenizer", "DistilBertTokenizer", "ElectraTokenizer", "MobileBertTokenizer")
CLASS_OF_MODEL = {"openai-gpt": "OpenAIGPTTokenizer", "qwen2": "Qwen2Tokenizer", "qwen3": "Qwen2Tokenizer",
                  "t5": "T5Tokenizer"}
"""The tokenizer class by model type, where ``tokenizer_config.json`` names none; for all other types it is GPT-2's."""


T = TypeVar("T")
Merges: TypeAlias = list[tuple[str, str]]
Build: TypeAlias = Callable[[dict[str, int], Merges, DeclaredFiles], tokenizers.Tokenizer]


def pair_library(vocabulary: Path, merges: Path, declared: DeclaredFiles) -> tokenizers.Tokenizer:
    """BPE from a vocabulary (JSON, token to id) and its merges in order. Raises `TokenizerError`: a damaged file, or a
    class of tokenizer that these files alone do not describe."""
    ids = _ids(vocabulary)
    known: dict[str, Build] = {**dict.fromkeys(GPT2_LIKE, _gpt2), "OpenAIGPTTokenizer": _gpt, "Qwen2Tokenizer": _qwen2}
    guessed = "OpenAIGPTTokenizer" if any(token.endswith(WORD_END) for token in ids) else "GPT2Tokenizer"
    name = declared.tokenizer_class or CLASS_OF_MODEL.get(declared.model_type, guessed)
    return _choose(known, name, vocabulary)(ids, _merges(merges), declared)


def word_piece_file(vocabulary: Path, declared: DeclaredFiles) -> tokenizers.Tokenizer:
    """BERT's WordPiece from ``vocab.txt``, one token a line. Raises `TokenizerError`: a damaged file, or a class of
    tokenizer that this file alone does not describe."""
    _choose(dict.fromkeys(BERT_LIKE), declared.tokenizer_class or BERT_LIKE[0], vocabulary)
    lines = _text(vocabulary).removesuffix("\n").split("\n")
    ids = {line.removesuffix("\r"): place for place, line in enumerate(lines)}
    unknown = declared.token("unk_token") or UNKNOWN
    if unknown not in ids:
        raise _damaged(vocabulary, f"it has no {unknown!r}, the unknown word")
    lowercase, chinese = declared.flag("do_lower_case"), declared.flag("tokenize_chinese_chars")
    return word_piece_library(models.WordPiece(ids, unk_token=unknown, max_input_chars_per_word=MAX_CHARACTERS),
                              lowercase=lowercase is not False, strip_accents=declared.flag("strip_accents"),
                              split_chinese=chinese is not False)


def _gpt2(ids: dict[str, int], merges: Merges, declared: DeclaredFiles) -> tokenizers.Tokenizer:
    library = tokenizers.Tokenizer(models.BPE(ids, merges))
    prefix = declared.flag("add_prefix_space") is True
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=prefix)
    library.decoder = decoders.ByteLevel()
    return library


def _qwen2(ids: dict[str, int], merges: Merges, declared: DeclaredFiles) -> tokenizers.Tokenizer:
    library = _gpt2(ids, merges, declared)
    library.normalizer = normalizers.NFC()
    words = pre_tokenizers.Split(tokenizers.Regex(QWEN2_WORDS), "isolated")
    library.pre_tokenizer = pre_tokenizers.Sequence(
        [words, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    return library


def _gpt(ids: dict[str, int], merges: Merges, declared: DeclaredFiles) -> tokenizers.Tokenizer:
    unknown = declared.token("unk_token") or "<unk>"
    model = models.BPE(ids, merges, unk_token=unknown if unknown in ids else None, end_of_word_suffix=WORD_END)
    library = tokenizers.Tokenizer(model)
    library.normalizer = normalizers.BertNormalizer(lowercase=True)
    library.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    library.decoder = decoders.BPEDecoder(suffix=WORD_END)
    return library


def _choose(known: Mapping[str, T], name: str, path: Path) -> T:
    if name not in known:
        raise TokenizerError(
            f"the tokenizer's class is {name!r}, which this file alone does not describe (known: {', '.join(known)}).",
            where=str(path), remedy="Save the tokenizer with its tokenizer.json and give that.")
    return known[name]


def _ids(path: Path) -> dict[str, int]:
    try:
        ids = parse_json(_text(path))
    except ValueError as error:
        raise _damaged(path, str(error)) from None
    if not isinstance(ids, dict) or not all(type(place) is int and place >= 0 for place in ids.values()):
        raise _damaged(path, "it is not an object of tokens and ids")
    require_ids(1 + max(ids.values(), default=-1), str(path))
    if len(set(ids.values())) < len(ids):
        raise _damaged(path, "several tokens have one id")
    return ids


def _merges(path: Path) -> Merges:
    lines = _text(path).split("\n")
    pairs = lines[1:] if lines[0].startswith("#version") else lines
    merges = []
    for line in pairs:
        left, _, right = line.removesuffix("\r").partition(" ")
        if line.strip() and not (left and right and " " not in right):
            raise _damaged(path, f"{line!r} is not a pair of tokens")
        if line.strip():
            merges.append((left, right))
    return merges


def _text(path: Path) -> str:
    try:
        return read_file(path).decode("utf-8")
    except UnicodeDecodeError as error:
        raise _damaged(path, str(error)) from None


def _damaged(path: Path, reason: str) -> TokenizerError:
    return TokenizerError(
        f"the vocabulary is damaged: {reason}.", where=str(path), remedy="Copy the tokenizer's folder again, whole.")
