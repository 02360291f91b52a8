"""Bodies of ``/v1/completions`` as requests, and their events as completions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

from weft.api.generating import Ends, ending_of
from weft.api.translating import MORE_TOKENS
from weft.core.errors import InputError
from weft.decoding import Ending, NewToken
from weft.decoding.beam import SearchRule
from weft.decoding.choosing import RowSettings
from weft.server.fields import MOST_CHOICES, CompletionBody
from weft.server.replies import FINISH, Json, ReadBody, Reply
from weft.server.served import Served
from weft.serving.requests import PromptRead, Request, TokenLogProb

DEFAULT_TOKENS = 16
"""New tokens of a completion whose body and model say nothing, as OpenAI has it."""


def read_completion(served: Served, body: CompletionBody) -> ReadBody:
    """The requests of a body, and the answer that they make. Raises `InputError`: fields that do not fit together, or
    prompts that the model cannot take."""
    n, best_of = body.n or 1, body.best_of or body.n or 1
    adapter = served.adapter(body.model)
    prompts = _prompts(body.prompt)
    _require_consistent(body, len(prompts), n, best_of)
    if body.echo and served.require_language_model().takes_source:
        raise InputError("the prompt is a source, which the answer does not begin with.", where="echo",
                         remedy="Leave it out.")
    rows = [served.row(prompt, "prompt" if isinstance(body.prompt, str) else f"prompt[{place}]")
            for place, prompt in enumerate(prompts)]
    sampling, default, seed = served.sampling(body, 0)
    ending = ending_of(served.loaded, Ends(stops_of(body.stop), at_end=not body.ignore_eos))
    told = body.logprobs is not None
    most = [served.new_tokens(len(row.tokens), body.max_tokens, default or (
        DEFAULT_TOKENS if row.source is None else len(row.source) + MORE_TOKENS), "prompt") for row in rows]
    beams, each = (_rule(served, body, best_of, ending), 1) if body.use_beam_search else (None, best_of)
    requests = [Request(row, RowSettings(most[place], sampling, ending, index, seed, told or each > n,
                                         top=body.logprobs or 0),
                        prompt_log_probs=body.logprobs if body.echo else None, adapter=adapter, beams=beams)
                for place, row in enumerate(rows) for index in range(place * each, (place + 1) * each)]
    answer = Completions(served, requests, prompts, n, each, body)
    return ReadBody(tuple(requests), answer, bool(body.stream))


def _rule(served: Served, body: CompletionBody, beams: int, ending: Ending) -> SearchRule:
    """How answers are searched. Raises `InputError`: a field that a search cannot follow."""
    for name in UNSEARCHED:
        if getattr(body, name) not in (None, False) and not (name == "temperature" and body.temperature == 0):
            raise InputError("a search of beams ends at tokens, draws none and tells of whole texts alone.", where=name,
                             remedy="Leave it out, or use_beam_search.")
    if body.max_tokens == 0:
        raise InputError("a search makes at least 1 token.", where="max_tokens", remedy="Ask for more.")
    tokenizer, model = served.loaded.tokenizer, served.require_language_model()
    penalty = 1.0 if body.length_penalty is None else body.length_penalty
    return SearchRule(beams, penalty, "power", frozenset(ending.tokens),
                      model.vocab_size if tokenizer is None else tokenizer.vocab_size)


UNSEARCHED = ("stream", "stop", "logprobs", "echo", "temperature", "top_p", "top_k", "min_p", "repetition_penalty",
              "presence_penalty", "frequency_penalty", "logit_bias")
"""Fields that a search of beams cannot follow."""


def stops_of(stop: str | list[str] | None) -> tuple[str, ...]:
    """The texts that end an answer."""
    return () if stop is None else (stop,) if isinstance(stop, str) else tuple(stop)


def _prompts(prompt: str | list[str] | list[int] | list[list[int]]) -> list[str | list[int]]:
    """Each prompt by itself."""
    if isinstance(prompt, str):
        return [prompt]
    ids = [each for each in prompt if isinstance(each, int)]
    return [ids] if ids else [each for each in prompt if not isinstance(each, int)]


def _require_consistent(body: CompletionBody, prompts: int, n: int, best_of: int) -> None:
    if not prompts:
        raise InputError("no prompts.", where="prompt", remedy="Give at least one.")
    if best_of < n:
        raise InputError(f"best_of is {best_of} and n is {n}.", where="best_of", remedy="Give at least n.")
    if body.length_penalty is not None and not body.use_beam_search:
        raise InputError("it ranks beams, and there are none.", where="length_penalty", remedy="Set use_beam_search to "
                         "true.")
    if best_of > n and body.stream and not body.use_beam_search:
        raise InputError("the best of several answers is known when all have ended.", where="best_of",
                         remedy="Leave stream out, or best_of.")
    if prompts * best_of > MOST_CHOICES:
        raise InputError(f"{prompts} prompts with {best_of} answers each are {prompts * best_of}; at most "
                         f"{MOST_CHOICES} are made at once.", where="prompt", remedy="Send several requests.")
    if body.stream_options is not None and not body.stream:
        raise InputError("options of a stream without one.", where="stream_options", remedy="Set stream to true.")


@final
class Completions(Reply):
    """The answer to a body of ``/v1/completions``.

    Args:
        prompts: texts or ids, each with ``best_of`` requests.
        n: number of choices of each prompt.
        best_of: number of requests of each prompt.
        body: what was asked.
    """

    chunk_object = whole_object = "text_completion"

    def __init__(self, served: Served, requests: Sequence[Request], prompts: Sequence[str | list[int]], n: int,
                 best_of: int, body: CompletionBody) -> None:
        super().__init__("cmpl", requests, range(0, len(requests), best_of), body.model or served.name,
                         body.stream_options is not None and body.stream_options.include_usage)
        self._n, self._best_of = n, best_of
        self._made = [CompletedText(served, request, prompts[place // best_of] if body.echo else None, body.logprobs)
                      for place, request in enumerate(requests)]

    def take(self, place: int, event: PromptRead | NewToken) -> list[Json]:
        """See `Reply.take`."""
        choice = self._made[place].take(event, last=self.rows[place].done)
        return [] if choice is None else [{"index": place, **choice}]

    def choices(self) -> list[Json]:
        """See `Reply.choices`."""
        found: list[Json] = []
        for first in range(0, len(self._made), self._best_of):
            found += [{"index": len(found) + rank, "text": each.text or "", "logprobs": None,
                       "finish_reason": "stop" if each.stopped else "length"}
                      for rank, each in enumerate(self.rows[first].hypotheses[:self._n])]
            if self.rows[first].hypotheses:
                continue
            places = sorted(range(first, first + self._best_of), key=lambda place: -self.rows[place].log_prob / max(
                1, self.rows[place].tokens))[:self._n]
            places = sorted(places) if self._n == self._best_of else places
            found += [{"index": len(found) + rank, **self._made[place].whole()} for rank, place in enumerate(places)]
        return found


@final
class CompletedText:
    """One choice of a completion.

    Args:
        prompt: with which its text begins; None: it does not.
        top: number of most probable tokens that are told of each; None: nothing is.
    """

    def __init__(self, served: Served, request: Request, prompt: str | list[int] | None, top: int | None) -> None:
        self._served, self._request, self._top = served, request, top
        self._pieces, self._finish = list[str](), "length"
        self._log_probs: Json = {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}
        self._places = None if top is None else Places(served, request.settings.ending)
        self._prompt = prompt

    def take(self, event: PromptRead | NewToken, *, last: bool) -> Json | None:
        """Take an event; what a stream tells of it, None if there is nothing."""
        told = len(self._log_probs["tokens"])
        if isinstance(event, PromptRead):
            text = self._read(event)
        else:
            text = event.text or ""
            self._tell(TokenLogProb(event.token, event.log_prob, event.top))
            self._finish = FINISH[event.finish] if event.finish else self._finish
        self._pieces.append(text)
        if not text and not last and len(self._log_probs["tokens"]) == told:
            return None
        return {"text": text, "logprobs": self._told(told), "finish_reason": self._finish if last else None}

    def whole(self) -> Json:
        """The choice of the whole answer."""
        text = "".join(self._pieces)
        found = self._told(0)
        if found is not None:
            found["text_offset"] = [min(place, len(text)) for place in found["text_offset"]]
        return {"text": text, "logprobs": found, "finish_reason": self._finish}

    def _read(self, event: PromptRead) -> str:
        """Take the prompt; the text with which the choice begins."""
        ids = self._request.row.tokens
        if self._prompt is None:
            if self._places is not None:
                self._places.follow(ids)
            return ""
        for token in event.log_probs or ():
            self._tell(token)
        if isinstance(self._prompt, str):
            return self._prompt
        tokenizer = self._served.loaded.tokenizer
        return "" if tokenizer is None else tokenizer.decode([each for each in ids if each < tokenizer.vocab_size])

    def _tell(self, token: TokenLogProb) -> None:
        if self._places is None:
            return
        spelling, log_probs = self._served.spelling, self._log_probs
        log_probs["tokens"].append(spelling.text(token.token))
        log_probs["token_logprobs"].append(token.log_prob)
        log_probs["text_offset"].append(self._places.next(token.token))
        log_probs["top_logprobs"].append(None if token.log_prob is None else {
            **{spelling.text(each): value for each, value in token.top},
            **({spelling.text(token.token): token.log_prob} if self._top else {})})

    def _told(self, first: int) -> Json | None:
        """The log-probabilities from a token on."""
        if self._top is None:
            return None
        found: Json = {name: values[first:] for name, values in self._log_probs.items()}
        return found if self._top else {**found, "top_logprobs": None}


@final
class Places:
    """The place in the text, in characters, at which each token begins; all tokens of one character begin at it."""

    def __init__(self, served: Served, ending: Ending) -> None:
        tokenizer = served.loaded.tokenizer
        self._size = 0 if tokenizer is None else tokenizer.vocab_size
        self._decoder = None if tokenizer is None else tokenizer.stream(specials=bool(ending.spelled))
        specials = () if tokenizer is None or not ending.spelled else tokenizer.special_tokens.values()
        self._silent, self._place = frozenset(specials).difference(ending.spelled), 0

    def follow(self, tokens: Sequence[int]) -> None:
        """Read tokens that are not of the text."""
        if self._decoder is not None:
            self._decoder.follow(token for token in tokens if token < self._size)

    def next(self, token: int) -> int:
        """The place of the next token."""
        begins = self._place
        if self._decoder is not None and token < self._size and token not in self._silent:
            self._place += len(self._decoder.push(token))
        return begins
