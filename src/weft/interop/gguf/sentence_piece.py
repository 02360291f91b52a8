"""SentencePiece's vocabularies for llama.cpp: its models, and merges expressed as scores."""

from __future__ import annotations

from typing import TYPE_CHECKING

from weft.interop.gguf.tokens import GGUFVocabulary, Inexpressible, Token, TokenType
from weft.tokenizers.library_pieces import SPACE
from weft.tokenizers.model_proto import read_model_facts
from weft.tokenizers.sentence_piece import SentencePieceTokenizer
from weft.tokenizers.sentence_piece_model import MODEL_FILE

if TYPE_CHECKING:
    from sentencepiece import SentencePieceProcessor
from collections.abc import Mapping, Sequence

NORMALISED = "ﬁ ① Ａ é　x"
"""A ligature, a number in a circle, a wide letter, a letter and its accent, a wide space: NFKC changes each."""


def sentence_pieces(tokenizer: SentencePieceTokenizer) -> GGUFVocabulary:
    """Pieces, kinds and scores.

    Raises:
        Inexpressible: the model does something that llama.cpp's SentencePiece does not.
    """
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
    tokens = {place: Token(library.id_to_piece(place), _kind(library, place), library.get_score(place))
              for place in range(size)}
    added = tokenizer.settings()["added"]
    kinds = {True: TokenType.CONTROL, False: TokenType.USER_DEFINED}
    tokens |= {token["id"]: Token(token["content"], kinds[token["special"]]) for token in added}
    return GGUFVocabulary("llama", "default", tokens, space_first=facts.add_dummy_prefix)


def _is_bpe(library: SentencePieceProcessor) -> bool:
    """Whether a model is BPE: its scores are then minus the ranks of merges, whole numbers, and otherwise
    logarithms."""
    normal = (place for place in range(library.get_piece_size()) if _kind(library, place) == TokenType.NORMAL)
    return all(float(library.get_score(place)).is_integer() for place in normal)


def _kind(library: SentencePieceProcessor, place: int) -> TokenType:
    tests = ((library.is_unknown, TokenType.UNKNOWN), (library.is_control, TokenType.CONTROL),
             (library.is_unused, TokenType.UNUSED), (library.is_byte, TokenType.BYTE))
    return next((kind for test, kind in tests if test(place)), TokenType.NORMAL)


def scores(vocabulary: Mapping[str, int], merges: Sequence[tuple[str, str]]) -> dict[str, float]:
    """Minus the rank of each piece that results from a merge.

    Raises:
        Inexpressible: with scores in place of merges, tokens would differ.
    """
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
