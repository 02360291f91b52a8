"""Answers of a `TextModel` to the requests of lm-eval, by lm-eval's own rules for encoding, cutting and windows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, final

from weft.benchmarks.text_model import TextModel, Writing, encoded_pair
from weft.core.errors import InputError, UnsupportedError, nearest
from weft.decoding import GREEDY, Sampling
from weft.evaluation.completions import Completion

LENGTHS = ("max_gen_toks", "max_new_tokens", "max_tokens", "max_completion_tokens")
"""Names of the most new tokens, the first that is given counting."""
NEW_TOKENS = 256
"""The most new tokens where a task does not say it."""
SAMPLED = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")
KNOWN = ("until", "do_sample", *LENGTHS, *SAMPLED)


@final
class HarnessModel:
    """Answers to the three kinds of requests of lm-eval (Gao et al. 2021), as its model ``hf`` gives them.

    Special tokens that a text spells are recognised. The opening token is put before a text if the tokenizer is
    declared to add it, unless the text spells it already.

    Raises:
        InputError: no token begins a document.
    """

    def __init__(self, model: TextModel) -> None:
        if model.beginning is None:
            raise InputError("the tokenizer has no token that begins or ends a document, which lm-eval puts before a "
                             "text without a context.", where=model.name,
                             remedy="Give a checkpoint whose tokenizer has one.")
        self._model, self._tokenizer, self._prefix = model, model.tokenizer, model.beginning
        self._spelled = model.tokenizer.decode([self._prefix], specials=True)

    def likelihoods(self, pairs: Sequence[tuple[str, str]]) -> list[tuple[float, bool]]:
        """The log-probability in nats of each continuation after its context, and whether greedy decoding would write
        it."""
        found = self._model.completed([self._completion(*pair) for pair in pairs])
        return [(each.log_prob, each.greedy) for each in found]

    def _completion(self, context: str, continuation: str) -> Completion:
        if context:
            before, targets = encoded_pair(self._tokenizer, context, continuation, specials=True)
            return Completion((*self._opening(context), *before) or (self._prefix,), targets)
        ids = tuple(self._tokenizer.encode(continuation, specials=True))
        if ids and ids[0] == self._prefix:
            return Completion(ids[:1], ids[1:])
        return Completion((self._prefix,), ids)

    def _opening(self, text: str) -> tuple[int, ...]:
        opening = self._model.opening
        return () if opening is None or (self._spelled and text.startswith(self._spelled)) else (opening,)

    def _encoded(self, text: str) -> tuple[int, ...]:
        return (*self._opening(text), *self._tokenizer.encode(text, specials=True))

    def rolling(self, texts: Sequence[str]) -> list[float]:
        """The log-probability of each whole text in nats, in windows of the context, each as full as it can be."""
        windows = [list(self._windows(self._encoded(text))) for text in texts]
        found = iter(self._model.completed([window for own in windows for window in own]))
        return [sum(next(found).log_prob for _ in own) for own in windows]

    def _windows(self, tokens: tuple[int, ...]) -> Iterator[Completion]:
        """The windows of a text: every token is a target once."""
        most = self._model.context
        if tokens:
            yield Completion((self._prefix,), tokens[:most])
        for done in range(most, len(tokens), most):
            last = min(done + most, len(tokens))
            yield Completion(tokens[last - most - 1 : done], tokens[done:last])

    def written(self, requests: Sequence[tuple[str, Mapping[str, Any]]]) -> list[str]:
        """A continuation of each context, up to the first of the strings that end it. Raises `UnsupportedError`: a
        setting of the generation that is not known here."""
        groups: dict[Writing, list[int]] = {}
        for place, (_, settings) in enumerate(requests):
            groups.setdefault(writing_of(settings), []).append(place)
        found: dict[int, str] = {}
        for writing, places in groups.items():
            rows = [self._encoded(requests[place][0]) or (self._prefix,) for place in places]
            found.update(zip(places, self._model.continued(rows, writing), strict=True))
        return [found[place] for place in range(len(requests))]


def writing_of(settings: Mapping[str, Any]) -> Writing:
    """How a text is continued, from lm-eval's settings of a task. Raises `UnsupportedError`: one of them is not known
    here."""
    if unknown := [name for name in settings if name not in KNOWN]:
        raise UnsupportedError(f"the task generates with {unknown[0]!r}, which is not known here.",
                               where="generation_kwargs", remedy=nearest(unknown[0], KNOWN))
    until = settings.get("until") or ()
    stops = tuple(stop for stop in ((until,) if isinstance(until, str) else until) if stop)
    most = next((int(settings[name]) for name in LENGTHS if settings.get(name) is not None), NEW_TOKENS)
    temperature = float(settings.get("temperature") or 0.0)
    drawn = settings.get("do_sample", temperature > 0)
    if not drawn:
        return Writing(most, stops, GREEDY)
    more = {name: settings[name] for name in SAMPLED[1:] if settings.get(name) is not None}
    return Writing(most, stops, Sampling(temperature or 1.0, top_k=more.get("top_k"), top_p=more.get("top_p"),
                                         min_p=more.get("min_p"),
                                         repetition_penalty=more.get("repetition_penalty", 1.0)))
