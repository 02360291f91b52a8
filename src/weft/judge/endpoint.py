"""The laws asked of an endpoint with OpenAI's completions, by the log-probabilities of a prompt (``echo``)."""

from __future__ import annotations

import http.client
import json
import math
import random
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from pathlib import Path
from types import MappingProxyType
from typing import Any, final

from weft.judge.judgement import Found, LawResult, Thing, Verdict, result, word_of
from weft.judge.questions import EndedError
from weft.judge.sample import SAMPLE, SURE_BITS, TEXTS
from weft.judge.seen_text import laws_of

ALLOWED = 0.1
"""Nats by which two answers may differ: servers compute in 16-bit numbers, with other kernels for other batches."""
LIKELIEST = 5
"""Tokens whose probabilities are asked for beside the prompt's own: OpenAI's interface allows no more."""
LARGEST = 64 << 20
"""Bytes of an answer."""
TOGETHER = 16
"""Texts of one request."""
NOT_ASKED = {"documents": "an endpoint tells no id that ends a document",
             "saved": "an endpoint gives no weights", "evaluation": "an endpoint reports no figure of its own",
             "seen": "an endpoint tells nothing of its training text"}


@dataclass(frozen=True)
class ScoredPrompt:
    """A prompt as an endpoint scores it: its tokens as texts, their log-probabilities in nats (nan for the first), and
    the sum of the probabilities that are told at each."""

    tokens: tuple[str, ...]
    nats: tuple[float, ...]
    told: tuple[float, ...]


@final
class Endpoint:
    """An endpoint.

    Args:
        url: up to and without ``/completions``, such as ``http://localhost:8000/v1``.
        model: the name that requests give; None: the first that it lists.
        seconds: the most that an answer may take.
    """

    def __init__(self, url: str, model: str | None, seconds: float) -> None:
        self._url, self._seconds = url.rstrip("/"), seconds
        try:
            self._model = model or str(self._get("models")["data"][0]["id"])
        except (LookupError, TypeError):
            raise EndedError(f"{self._url}/models lists no model: name one (--model)") from None

    def scored(self, prompts: Sequence[str]) -> list[ScoredPrompt]:
        """The prompts, asked for in one request."""
        choices = self._choices({"prompt": list(prompts), "max_tokens": 0, "echo": True})
        if len(choices) != len(prompts):
            raise EndedError(f"{len(prompts)} prompts have {len(choices)} answers")
        found = [_scored(each) for each in sorted(choices, key=lambda each: int(each.get("index", 0)))]
        return [_of_text(one, prompt) for one, prompt in zip(found, prompts, strict=True)]

    def bits(self, texts: Sequence[str]) -> list[float]:
        """The bits of texts, without those of the first token of each."""
        told = [one for at in range(0, len(texts), TOGETHER) for one in self.scored(texts[at : at + TOGETHER])]
        return [-sum(each.nats[1:]) / math.log(2) for each in told]

    def continued(self, prompt: str, tokens: int) -> ScoredPrompt:
        """The likeliest continuation of a prompt."""
        return _scored(self._choices({"prompt": [prompt], "max_tokens": tokens})[0])

    def _choices(self, asked: dict[str, Any]) -> list[dict[str, Any]]:
        asked = {"model": self._model, "temperature": 0, "logprobs": LIKELIEST, **asked}
        choices = self._get("completions", json.dumps(asked).encode()).get("choices")
        if not isinstance(choices, list) or not choices:
            raise EndedError("its answer has no choices")
        return choices

    def _get(self, path: str, content: bytes | None = None) -> dict[str, Any]:
        request = urllib.request.Request(f"{self._url}/{path}", content, {"Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=self._seconds) as answer:
                content = json.loads(_read(answer, time.monotonic() + self._seconds))
        except urllib.error.HTTPError as error:
            told = error.read(200).decode(errors="replace")
            where = "" if error.code != 404 or self._url.endswith("/v1") else f". Is it meant to be {self._url}/v1?"
            raise EndedError(f"{self._url}/{path} is answered by status {error.code}: {told}{where}") from None
        except ValueError:
            content = None
        except (OSError, http.client.HTTPException) as error:
            raise EndedError(f"{self._url}/{path} cannot be asked: {error or type(error).__name__}") from None
        if not isinstance(content, dict):
            raise EndedError(f"{self._url}/{path} answers with something that is no JSON object")
        return content


def _read(answer: http.client.HTTPResponse, until: float) -> bytes:
    """An answer, read to its end by a time of `time.monotonic`, however slowly it comes."""
    content = b""
    while more := answer.read1(1 << 20):
        content += more
        if time.monotonic() > until or len(content) > LARGEST:
            raise TimeoutError(f"its answer has not ended after {len(content):,} bytes")
    return content


def _scored(choice: dict[str, Any]) -> ScoredPrompt:
    try:
        told = choice["logprobs"]
        nats = tuple(math.nan if each is None else float(each) for each in told["token_logprobs"])
        likeliest = [each or {} for each in told.get("top_logprobs") or [{}] * len(nats)]
        sums = tuple(sum(math.exp(float(value)) for value in each.values()) for each in likeliest)
        tokens = tuple(map(str, told["tokens"]))
        if len(tokens) == len(nats) == len(sums) and not any(map(math.isnan, nats[2:])):
            return ScoredPrompt(tokens, nats, sums)
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError):
        pass
    raise EndedError("its answer has no log-probability of each of the prompt's tokens (echo with logprobs)")


def _of_text(one: ScoredPrompt, prompt: str) -> ScoredPrompt:
    """Without the token that a server puts before every prompt, such as ``<s>``, and that is none of the text's."""
    begins = len(one.tokens) > 1 and not prompt.startswith(one.tokens[0]) and prompt.startswith(one.tokens[1])
    return ScoredPrompt(one.tokens[1:], one.nats[1:], one.told[1:]) if begins else one


def judge_endpoint(url: str, *, model: str | None = None, seconds: float = 30.0,
                   on_law: Callable[[str], None] | None = None, texts: Mapping[str, Path] = MappingProxyType({})
                   ) -> Verdict:
    """The verdict on an endpoint; see `Endpoint` and `weft.judge.referee.judge_file` for the arguments."""
    begun, thing, laws = time.monotonic(), Thing(kind="endpoint", path=url), []
    try:
        asked = Endpoint(url, model, seconds)
        back = "".join(asked.scored([SAMPLE[:40]])[0].tokens)
        if SequenceMatcher(None, back, SAMPLE[:40]).ratio() < 0.5:
            raise EndedError(f"asked for a prompt's own tokens (echo), it answers with others: {back[:40]!r}")
    except EndedError as error:
        return Verdict(thing=thing, verdict="not judged", why=f"{error}", seconds=time.monotonic() - begun)
    kept: dict[str, Callable[[Endpoint], LawResult]] = {
        name: lambda asked, law=law: law(asked.bits) for name, law in laws_of(texts).items()}  # type: ignore[misc]
    for name, law in (LAWS | kept).items():
        if on_law is not None:
            on_law(name)
        started = time.monotonic()
        try:
            found = law(asked)
        except EndedError as error:
            found = LawResult(name=name, outcome="not tried", why=f"{error}")
        laws.append(found.model_copy(update={"seconds": round(time.monotonic() - started, 3)}))
    laws += [LawResult(name=name, outcome="not tried", why=why) for name, why in NOT_ASKED.items()]
    word, why = word_of(laws, list(kept))
    return Verdict(thing=thing, verdict=word, why=why, laws=tuple(laws), seconds=time.monotonic() - begun,
                   limits=f"{seconds:g} s an answer")


def first_unlike(one: ScoredPrompt, other: ScoredPrompt, last: int) -> tuple[int, float] | None:
    """The first of the first ``last`` tokens that two answers share and score otherwise, and by how many nats."""
    for at, (token, same) in enumerate(zip(one.tokens[:last], other.tokens[:last], strict=False)):
        if token != same:
            return None  # cut otherwise from here on, so that nothing can be compared
        gap = abs(one.nats[at] - other.nats[at])
        if gap > ALLOWED and max(one.nats[at], other.nats[at]) > -20:
            return at, gap
    return None


def _found(sentence: str, seen: tuple[int, float] | None) -> Found | None:
    return seen and Found(sentence=sentence.format(token=seen[0]), token=seen[0], measured=seen[1], allowed=ALLOWED)


def _sums(asked: Endpoint) -> LawResult:
    scored = asked.scored([SAMPLE[:200], SAMPLE[200:400]])
    highest = max((each for one in scored for each in (*one.told, *(math.exp(min(nat, 99)) for nat in one.nats[1:]))),
                  default=0.0)
    found = None if highest <= 1 + 1e-3 else Found(
        sentence=f"The probability of a token, or of its {LIKELIEST} likeliest tokens together, is {highest:.4g}.",
        measured=highest, allowed=1 + 1e-3)
    draw = random.Random(5)
    for symbols in ("ab", "abcdefghijklmnop"):
        text = "".join(draw.choice(symbols) for _ in range(300))
        one = asked.scored([text])[0]
        behind = sum(map(len, one.tokens[1:]))
        bits = -sum(each for each in one.nats[1:] if math.isfinite(each)) / math.log(2)
        if bits < behind * math.log2(len(symbols)) - SURE_BITS:
            found = found or Found(sentence=f"For {behind} characters drawn at random from {len(symbols)} it needs "
                                   f"{bits:.0f} bits, where {behind * math.log2(len(symbols)):.0f} are needed.",
                                   measured=bits, allowed=behind * math.log2(len(symbols)) - SURE_BITS)
    return result("sums-to-one", f"the sums of {LIKELIEST} probabilities at each token of two texts, and the bits of "
                  "random characters", found, "an endpoint tells only the likeliest tokens, so no whole sum is taken")


def _ahead(asked: Endpoint) -> LawResult:
    found = None
    for cut in (60, 200, 500):
        one, other = (asked.scored([SAMPLE[:cut] + tail])[0] for tail in (SAMPLE[cut : cut + 80], " 17 $ Zebra" * 6))
        shared = next((at for at, pair in enumerate(zip(one.tokens, other.tokens, strict=False))
                       if pair[0] != pair[1]), len(one.tokens))
        found = found or _found("The log-probability of token {token} changes when the text after it is replaced.",
                                first_unlike(one, other, shared))
    return result("causality", "3 texts with another end each", found)


def _beside(asked: Endpoint) -> LawResult:
    texts = [SAMPLE[at : at + 150] for at in (0, 150, 300, 450)]
    together, alone = asked.scored(texts), [asked.scored([each])[0] for each in texts]
    pairs = (first_unlike(one, other, 999) for one, other in zip(together, alone, strict=True))
    seen = next(filter(None, pairs), None)
    return result("separate-rows", "4 texts in one request and alone", _found(
        "The log-probability of token {token} is another one beside other prompts than alone.", seen))


def _again(asked: Endpoint) -> LawResult:
    first, found = asked.scored([SAMPLE[:300]])[0], None
    for when, between in (("at once", ()), ("after other prompts", (SAMPLE[300:600], SAMPLE[:290], "x"))):
        for each in between:
            asked.scored([each])
        found = found or _found(f"The same prompt has another log-probability at token {{token}} {when}.",
                                first_unlike(first, asked.scored([SAMPLE[:300]])[0], 999))
    return result("repeats", "a text again, at once and after others", found)


def _bytes(asked: Endpoint) -> LawResult:
    found = None
    for kind, text in TEXTS.items():
        back = "".join(asked.scored([text])[0].tokens)
        if back != text and found is None and "\ufffd" not in back and "bytes:" not in back:
            at = next((at for at, pair in enumerate(zip(back, text, strict=False)) if pair[0] != pair[1]),
                      min(len(back), len(text)))
            found = Found(sentence=f"Of {kind}, {text[max(0, at - 8) : at + 8]!r} comes back in its tokens as "
                          f"{back[max(0, at - 8) : at + 8]!r}.", measured=len(back), allowed=len(text))
    return result("bytes", f"{len(TEXTS)} texts against the texts of their tokens; tokens that are parts of characters "
                  "are left out", found)


def _pieces(asked: Endpoint) -> LawResult:
    prompt = SAMPLE[:120]
    made, begin = asked.continued(prompt, 12), len(asked.scored([prompt])[0].tokens)
    whole = asked.scored([prompt + "".join(made.tokens)])[0]
    rest = ScoredPrompt(whole.tokens[begin:], whole.nats[begin:], whole.told[begin:])
    return result("pieces", "12 tokens that it wrote, against the same tokens in a prompt", _found(
        "The log-probability of the token {token} that it writes is another one in a prompt.",
        first_unlike(made, rest, 12)))


LAWS: dict[str, Callable[[Endpoint], LawResult]] = {
    "sums-to-one": _sums, "causality": _ahead, "separate-rows": _beside, "repeats": _again, "bytes": _bytes,
    "pieces": _pieces}
"""The laws that can be asked of an endpoint, by name."""
