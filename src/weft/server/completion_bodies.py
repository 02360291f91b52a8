"""Bodies of ``/v1/completions`` as requests, and their events as completions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

from weft.api.generating import Ends, ending_of
from weft.core.errors import InputError
from weft.decoding import Ending, NewToken
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
    rows = [served.row(prompt, "prompt" if isinstance(body.prompt, str) else f"prompt[{place}]")
            for place, prompt in enumerate(prompts)]
    sampling, default, seed = served.sampling(body, DEFAULT_TOKENS)
    ending = ending_of(served.loaded, Ends(stops_of(body.stop), at_end=not body.ignore_eos))
    told = body.logprobs is not None
    most = [served.new_tokens(len(row.tokens), body.max_tokens, default, "prompt") for row in rows]
    requests = [Request(row, RowSettings(most[place], sampling, ending, index, seed, told or best_of > n,
                                         top=body.logprobs or 0),
                        prompt_log_probs=body.logprobs if body.echo else None, adapter=adapter)
                for place, row in enumerate(rows) for index in range(place * best_of, (place + 1) * best_of)]
    answer = Completions(served, requests, prompts, n, best_of, body)
    return ReadBody(tuple(requests), answer, bool(body.stream))


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
    if best_of > n and body.stream:
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
            places = sorted(range(first, first + self._best_of), key=self._badness)[:self._n]
            places = sorted(places) if self._n == self._best_of else places
            found += [{"index": len(found) + rank, **self._made[place].whole()} for rank, place in enumerate(places)]
        return found

    def _badness(self, place: int) -> float:
        """Minus the mean log-probability of a row's tokens."""
        row = self.rows[place]
        return -row.log_prob / max(1, row.tokens)


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
