"""The law ``bytes``: the bytes that a text's tokens stand for are the text's."""

from __future__ import annotations

import numpy as np

from weft.judge.case import Case
from weft.judge.judgement import Found, LawResult, ids, result
from weft.judge.questions import ModelError
from weft.judge.sample import TEXTS

REPLACEMENT = "\ufffd".encode()
"""The bytes that stand for what is no character."""


def text_bytes(case: Case) -> LawResult:
    """The law ``bytes`` for texts of many kinds."""
    ways = [name for name in ("decode", "token_bytes") if name in case.offered]
    if "encode" not in case.offered or not ways:
        return LawResult(name="bytes", outcome="not tried", why="it has no encode with a decode or token_bytes")
    for kind, text in TEXTS.items():
        if found := _of_text(case, kind, text):
            return result("bytes", f"{len(TEXTS)} texts through encode and {' and '.join(ways)}", _shorter(case, found,
                                                                                                        kind, text))
    return result("bytes", f"{len(TEXTS)} texts ({', '.join(TEXTS)}) through encode and {' and '.join(ways)}", None)


def _of_text(case: Case, kind: str, text: str) -> Found | None:
    """The first loss of a text on its way through the tokenizer."""
    tokens, content = encoded(case, text), text.encode()
    if tokens.size and (tokens.min() < 0 or tokens.max() >= case.vocab):
        return Found(sentence=f"encode gives the id {int(tokens.max())} for {kind}, and it has {case.vocab:,} ids.",
                     input=ids(tokens[:64]))
    if "decode" in case.offered:
        message, _ = case.worker.ask("decode", tokens)
        back = bytes.fromhex(str(message["bytes"]))
        if back != content:
            at = next((at for at, (a, b) in enumerate(zip(back, content, strict=False)) if a != b),
                      min(len(back), len(content)))
            return Found(sentence=f"Of {kind}, {content[max(0, at - 8): at + 8]!r} comes back from encode and decode "
                         f"as {back[max(0, at - 8): at + 8]!r}: what was lost need not be predicted.",
                         input=ids(tokens[:64]), measured=len(back), allowed=len(content),
                         resembles="replacement_bytes" if REPLACEMENT in back else "unknown_words"
                         if len(back) < len(content) else "casefold")
    if "token_bytes" in case.offered:
        _, arrays = case.worker.ask("token_bytes", tokens)
        claimed = int(arrays[0].sum())
        if claimed != len(content):
            return Found(sentence=f"The tokens of {kind} are said to stand for {claimed:,} bytes, and the text has "
                         f"{len(content):,}.", input=ids(tokens[:64]), measured=claimed, allowed=len(content),
                         resembles="unknown_words")
    return None


def _shorter(case: Case, found: Found, kind: str, text: str) -> Found:
    """The finding with as little of the text as shows it, by halving."""
    for _ in range(16):
        half = len(text) // 2
        parts = [each for each in (text[:half], text[half:]) if each]
        seen = next(((each, shorter) for each in parts if (shorter := _tolerant(case, kind, each))), None)
        if len(text) < 2 or seen is None:
            return found
        text, found = seen
    return found


def _tolerant(case: Case, kind: str, text: str) -> Found | None:
    try:
        return _of_text(case, f"{kind}, {text[:16]!r}", text)
    except ModelError:
        return None


def encoded(case: Case, text: str) -> np.ndarray:
    """A text's ids, by the file's ``encode``; its bytes where it has none and bytes are ids."""
    if "encode" not in case.offered:
        return np.frombuffer(text.encode(), np.uint8).astype(np.int64)
    _, arrays = case.worker.ask("encode", text=text)
    return arrays[0].reshape(-1)
