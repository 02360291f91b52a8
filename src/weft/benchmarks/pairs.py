"""A prompt and its completion as ids, divided where the completion begins."""

from __future__ import annotations

from collections.abc import Sequence

from weft.core.errors import InputError
from weft.tokenizers import Tokenizer


def encoded_pair(tokenizer: Tokenizer, prompt: str, completion: str, known: Sequence[int] | None = None, *,
                 specials: bool = False) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The ids of a prompt and those of the completion that follows it.

    Both are encoded as one text, as a reader would meet them, and the completion's ids are those after as many as the
    prompt has alone. White space at the end of the prompt is moved to the beginning of the completion, since most
    vocabularies join a space to the word behind it. Where an id spans the border and none is left for the completion,
    the completion is encoded by itself. All but the last rule are those of lm-eval (Gao et al. 2021).

    Args:
        tokenizer: of the model.
        prompt: text, which may be empty.
        completion: text.
        known: the ids of the prompt without its white space at the end, if they are known.
        specials: whether special tokens that the texts spell are recognised; only for trusted text.

    Raises:
        InputError: the completion has no tokens.
        TokenizerError: the tokenizer cannot express a text.
    """
    bare = prompt.rstrip()
    completion = prompt[len(bare):] + completion
    context = tokenizer.encode(bare, specials=specials) if known is None else known
    targets = tokenizer.encode(bare + completion, specials=specials)[len(context):]
    targets = targets or tokenizer.encode(completion, specials=specials)
    if not targets:
        raise InputError("the completion has no tokens.", where=repr(completion), remedy="Give text.")
    return tuple(context), tuple(targets)
