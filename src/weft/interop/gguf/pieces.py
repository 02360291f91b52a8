"""A tokenizer's vocabulary for llama.cpp: by which of its two algorithms, if either gives the same tokens.

SentencePiece's vocabularies for llama.cpp: its models, and merges expressed as scores.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from weft.interop.gguf.pre_tokenizers import GGUFVocabulary, Inexpressible, Token, TokenType, pre_tokenizer
from weft.tokenizers import ByteTokenizer, Tokenizer
from weft.tokenizers.library import LIBRARY_FILE, LibraryTokenizer, parse_library
from weft.tokenizers.library_pieces import SPACE, byte_alphabet
from weft.tokenizers.sentence_piece import SentencePieceTokenizer
from weft.tokenizers.sentence_piece_model import MODEL_FILE, read_model_facts

if TYPE_CHECKING:
    from sentencepiece import SentencePieceProcessor


NO_MERGES = ("☃ ☃",)
"""A file must have merges; this one never applies, since no byte has this spelling."""

Data = Mapping[str, Any]


def read_pieces(tokenizer: Tokenizer) -> GGUFVocabulary:
    """The vocabulary for llama.cpp. Raises `Inexpressible`: llama.cpp has no tokenizer that gives the same tokens."""
    if isinstance(tokenizer, SentencePieceTokenizer):
        return sentence_pieces(tokenizer)
    if isinstance(tokenizer, ByteTokenizer):
        return _bytes(tokenizer)
    if not isinstance(tokenizer, LibraryTokenizer):
        raise Inexpressible(f"llama.cpp has no tokenizer of the kind {tokenizer.kind!r}.")
    # As the library writes it: files of its first versions, such as GPT-2's, do not name the kind of their model.
    declared = json.loads(parse_library(tokenizer.files()[LIBRARY_FILE]).to_str())
    model = declared["model"]
    if model["type"] != "BPE":
        raise Inexpressible(f"llama.cpp has no tokenizer of the kind {model['type']!r} for decoders.")
    odd = [name for name in ("continuing_subword_prefix", "end_of_word_suffix", "dropout") if model.get(name)]
    if odd:
        raise Inexpressible(f"its BPE has {', '.join(odd)}, which llama.cpp's does not have.")
    return _by_scores(declared) if model.get("byte_fallback") else _by_merges(declared)


def _bytes(tokenizer: ByteTokenizer) -> GGUFVocabulary:
    """Byte-level BPE without merges."""
    tokens = {place: Token(character) for character, place in byte_alphabet().items()}
    special = {place: Token(text, TokenType.CONTROL) for text, place in tokenizer.special_tokens.items()}
    return GGUFVocabulary("gpt2", "gpt-2", tokens | special, NO_MERGES)


def _by_merges(declared: Data) -> GGUFVocabulary:
    """Byte-level BPE."""
    model = declared["model"]
    pre = pre_tokenizer(declared.get("pre_tokenizer"), ignore_merges=bool(model.get("ignore_merges")))
    tokens = {place: Token(text) for text, place in model["vocab"].items()} | _added(declared)
    merges = tuple(" ".join(pair) for pair in _merges(model))
    return GGUFVocabulary("gpt2", pre, tokens, merges or NO_MERGES,
                          notes=(*_normaliser(declared), *_stripping(declared)))


def _by_scores(declared: Data) -> GGUFVocabulary:
    """SentencePiece's BPE, which falls back to bytes, as the tokenizers library stores it: merges in place of scores,
    and the space before a text by one of two means."""
    model, notes = declared["model"], _stripping(declared)
    steps, meta = list(_steps(declared.get("normalizer"), "normalizers")), declared.get("pre_tokenizer") or {}
    prepends = {"type": "Prepend", "prepend": SPACE} in steps
    others = [step["type"] for step in steps if not _spells_spaces(step)]
    if others:
        raise Inexpressible(f"it normalises text by {', '.join(others)}, which llama.cpp does not.")
    if meta.get("type") == "Metaspace":
        if meta.get("split", True):
            raise Inexpressible("it splits text at spaces before it merges, which llama.cpp's does not.")
        prepends = prepends or meta.get("prepend_scheme", "always") != "never"
        notes += ["a text that begins with a space gets a further one from llama.cpp."] if prepends else []
    elif meta and not (meta.get("type") == "Split" and meta.get("pattern") == {"String": " "}):
        raise Inexpressible(f"it splits text by {meta['type']} before it merges, which llama.cpp's does not.")
    ranks = scores(model["vocab"], _merges(model))
    unknown = model.get("unk_token")
    tokens = {place: Token(text, _kind(text, unknown), ranks.get(text, 0.0)) for text, place in model["vocab"].items()}
    return GGUFVocabulary("llama", "default", tokens | _added(declared, unknown), space_first=prepends,
                          notes=tuple(notes))


def _kind(text: str, unknown: str | None) -> TokenType:
    if text == unknown:
        return TokenType.UNKNOWN
    return TokenType.BYTE if len(text) == 6 and text.startswith("<0x") and text.endswith(">") else TokenType.NORMAL


def _added(declared: Data, unknown: str | None = None) -> dict[int, Token]:
    kinds = {True: TokenType.CONTROL, False: TokenType.USER_DEFINED}
    return {token["id"]: Token(token["content"], kinds[bool(token["special"])])
            for token in declared.get("added_tokens", ()) if token["content"] != unknown}


def _merges(model: Data) -> list[tuple[str, str]]:
    pairs = (pair.split(" ", 1) if isinstance(pair, str) else pair for pair in model["merges"])
    return [(first, second) for first, second in pairs]


def _steps(part: Data | None, inner: str) -> Iterator[Data]:
    """A part of a tokenizer.json, or those in its sequence."""
    if part is not None:
        yield from (step for each in part[inner] for step in _steps(each, inner)) if part["type"] == "Sequence" else (
            part,)


def _spells_spaces(step: Data) -> bool:
    replaces = step.get("type") == "Replace" and step.get("pattern") == {"String": " "} and step["content"] == SPACE
    return replaces or (step.get("type") == "Prepend" and step["prepend"] == SPACE)


def _normaliser(declared: Data) -> list[str]:
    kinds = [step["type"] for step in _steps(declared.get("normalizer"), "normalizers")]
    if any(kind != "NFC" for kind in kinds):
        raise Inexpressible(f"it normalises text by {', '.join(kinds)}, which llama.cpp does not.")
    return ["the tokenizer composes characters (NFC), which llama.cpp does not: give it text in NFC."] if kinds else []


def _stripping(declared: Data) -> list[str]:
    names = [token["content"] for token in declared.get("added_tokens", ())
             if any(token.get(name) for name in ("lstrip", "rstrip", "single_word"))]
    return [f"added tokens take in the spaces around them or must be whole words ({', '.join(map(repr, names))}), "
            "which llama.cpp does not do."] if names else []


NORMALISED = "ﬁ ① Ａ é　x"
"""A ligature, a number in a circle, a wide letter, a letter and its accent, a wide space: NFKC changes each."""


def sentence_pieces(tokenizer: SentencePieceTokenizer) -> GGUFVocabulary:
    """Pieces, kinds and scores. Raises `Inexpressible`: the model does something that llama.cpp's SentencePiece does
    not."""
    from sentencepiece import SentencePieceProcessor

    content = tokenizer.files()[MODEL_FILE]
    library = SentencePieceProcessor()
    library.load_from_serialized_proto(content)
    facts = read_model_facts(content)
    size = library.get_piece_size()
    if not any(library.is_byte(place) for place in range(size)):
        raise Inexpressible("its model has no bytes to fall back to, without which llama.cpp stops at a character that "
                            "it lacks.")
    if facts.remove_extra_whitespaces:
        raise Inexpressible("its model removes repeated spaces, which llama.cpp does not.")
    if NORMALISED not in library.normalize(NORMALISED).replace(SPACE, " "):
        raise Inexpressible("its model normalises characters, which llama.cpp's does not.")
    if not _is_bpe(library):
        raise Inexpressible("its model is a unigram model; for those llama.cpp has T5's tokenizer only.")
    tokens = {place: Token(library.id_to_piece(place), _kind_of_piece(library, place), library.get_score(place))
              for place in range(size)}
    added = tokenizer.settings()["added"]
    kinds = {True: TokenType.CONTROL, False: TokenType.USER_DEFINED}
    tokens |= {token["id"]: Token(token["content"], kinds[token["special"]]) for token in added}
    return GGUFVocabulary("llama", "default", tokens, space_first=facts.add_dummy_prefix)


def _is_bpe(library: SentencePieceProcessor) -> bool:
    """Whether a model is BPE: its scores are then minus the ranks of merges, whole numbers, and otherwise
    logarithms."""
    normal = (place for place in range(library.get_piece_size()) if _kind_of_piece(library, place) == TokenType.NORMAL)
    return all(float(library.get_score(place)).is_integer() for place in normal)


def _kind_of_piece(library: SentencePieceProcessor, place: int) -> TokenType:
    tests = ((library.is_unknown, TokenType.UNKNOWN), (library.is_control, TokenType.CONTROL),
             (library.is_unused, TokenType.UNUSED), (library.is_byte, TokenType.BYTE))
    return next((kind for test, kind in tests if test(place)), TokenType.NORMAL)


def scores(vocabulary: Mapping[str, int], merges: Sequence[tuple[str, str]]) -> dict[str, float]:
    """Minus the rank of each piece that results from a merge. Raises `Inexpressible`: with scores in place of merges,
    tokens would differ."""
    found: dict[str, float] = {}
    last = None
    for rank, (first, second) in enumerate(merges):
        piece = first + second
        if piece in found and piece != last:
            raise Inexpressible(f"its merges into {piece!r} are not consecutive, so no scores express their order.")
        found.setdefault(piece, -float(rank))
        last = piece
    missing = _first_missing(vocabulary, merges, found)
    if missing:
        raise Inexpressible(f"it does not merge {missing[0]!r} and {missing[1]!r}, which llama.cpp would.")
    return found


def _first_missing(vocabulary: Mapping[str, int], merges: Sequence[tuple[str, str]],
                   made: Mapping[str, float]) -> tuple[str, str] | None:
    """Two pieces that together are a piece, and that no merge joins."""
    known = set(merges)
    halves = ((piece[:cut], piece[cut:]) for piece in made for cut in range(1, len(piece)))
    return next((pair for pair in halves if pair not in known and pair[0] in vocabulary and pair[1] in vocabulary),
                None)
