"""Merges as the scores of SentencePiece's BPE, where both give the same tokens.

The tokenizers library merges the pair of least rank among those in its list; SentencePiece and llama.cpp join any two
neighbours that make a piece, that of highest score first. These agree where every way to make a piece of two others is
a merge, and where all merges that make one piece stand before all that make a later one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from weft.interop.gguf.tokens import Inexpressible


def scores(vocabulary: Mapping[str, int], merges: Sequence[tuple[str, str]]) -> dict[str, float]:
    """Minus the rank of each piece that merges make.

    Raises:
        Inexpressible: scores would give other tokens.
    """
    found: dict[str, float] = {}
    last = None
    for rank, (first, second) in enumerate(merges):
        piece = first + second
        if piece in found and piece != last:
            raise Inexpressible(f"its merges into {piece!r} do not stand together, so that no scores say their order.")
        found.setdefault(piece, -float(rank))
        last = piece
    missing = _first_missing(vocabulary, merges, found)
    if missing:
        raise Inexpressible(f"it does not merge {missing[0]!r} and {missing[1]!r}, which llama.cpp would.")
    return found


def _first_missing(vocabulary: Mapping[str, int], merges: Sequence[tuple[str, str]],
                   made: Mapping[str, float]) -> tuple[str, str] | None:
    """Two pieces that make one, and that no merge joins."""
    known = set(merges)
    halves = ((piece[:cut], piece[cut:]) for piece in made for cut in range(1, len(piece)))
    return next((pair for pair in halves if pair not in known and pair[0] in vocabulary and pair[1] in vocabulary),
                None)
