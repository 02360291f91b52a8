"""The law ``evaluation``: the figure that a model reports of itself is that of its distributions on the whole text."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Sequence

import numpy as np

from weft.judge.canaries import bits_in_rows
from weft.judge.case import NUMBERS, Case, OutputForm, first_difference
from weft.judge.judgement import Found, LawResult, ids, result
from weft.judge.questions import EndedError, ModelError, Surroundings, elsewhere
from weft.judge.sample import SAMPLE, SURE_BITS
from weft.judge.text_bytes import encoded

NAME = "evaluation"
SLACK = 0.01
"""The share by which a figure may differ from the one that is computed here, besides the first token's bits, of which a
model may or may not say something: averages are taken in float32, and figures are rounded."""
LATE = 0.5
"""Seconds that an evaluation may take beyond what it reports, or as much again as it reports: reading and output."""


def evaluation(case: Case) -> LawResult:
    """The law ``evaluation``."""
    if "evaluate" not in case.offered:
        return LawResult(name=NAME, outcome="not tried", why="it has no evaluate whose figure could be compared")
    try:
        text = cut_to(case, SAMPLE)
        tokens = len(encoded(case, text))
    except ModelError as error:
        return LawResult(name=NAME, outcome="not tried", why=f"no text of its own length: {error}")
    with case.beside(case.process(elsewhere(Surroundings()))) as fresh:
        fresh.worker.begin()
        found = _first_call(fresh, text) or _random_text(fresh)
    found = found or _unsaid_learning(case, text) or _of_texts(case, text)
    return result(NAME, f"its figure of {len(text):,} characters in {tokens:,} tokens, of each half, of lines of "
                  "unequal length and of a longer text; twice; its time; its distributions before and after; and its "
                  "figure of random characters", found)


def cut_to(case: Case, text: str) -> str:
    """The beginning of a text that one row holds."""
    while (count := len(encoded(case, text))) > case.length:
        text = text[: int(len(text) * case.length / count * 0.95)]
    return text


def bits_of(case: Case, text: str) -> list[tuple[float, float]]:
    """The least and most bits of a text that one row holds, of each way of the model to give probabilities: without and
    with those of its first token."""
    tokens, found = encoded(case, text), []
    if tokens.size and tokens.max() >= case.vocab:
        raise EndedError(f"encode gives the id {int(tokens.max())}, and it has {case.vocab:,} ids")
    for view in case.views:
        nats = -nats_of(case, view, tokens[None])[0]
        rest = float(nats[1:].sum()) / math.log(2)
        first = float(nats[0]) / math.log(2) if math.isfinite(nats[0]) else 0.0
        found.append((rest, rest + max(first, math.log2(case.vocab))))
    return found


def nats_of(case: Case, view: OutputForm, rows: np.ndarray) -> np.ndarray:
    """The log-probability of each token of rows [B,T]; of the first nan where it has none."""
    if view.scores:
        return case.log_probs(view, rows)
    places = list(range(max(rows.shape[1] - 1, 1)))
    values = case.log_probs(view, rows, places)[:, : rows.shape[1] - 1]
    told = np.take_along_axis(values, rows[:, 1:, None], axis=-1)[..., 0]
    return np.concatenate([np.full((len(rows), 1), math.nan), told], axis=1)


def bits_of_texts(case: Case, texts: Sequence[str]) -> list[float]:
    """The bits of texts of any length by the way of the model that its figure is from; infinite where it lacks an id.
    A model that tells only of the next token is asked about rows of 64."""
    view = case.views[-1]
    longest = 64 if view.gives.startswith("next") else 512
    return bits_in_rows([encoded(case, each) for each in texts], min(case.length, longest), view.vocab,
                        lambda rows: nats_of(case, view, rows)[:, 1:].sum(axis=1),
                        NUMBERS // (1 if view.scores else view.vocab))


def asked(case: Case, text: str) -> dict[str, float]:
    """The figures that ``evaluate`` gives for a text.

    Raises:
        EndedError: there is no figure.
    """
    message, _ = case.worker.ask("evaluate", text=text, seconds=case.limits.answer)
    told = {str(key): float(value) for key, value in dict(message["told"]).items()}
    if not math.isfinite(told.get("bits_per_byte", math.nan)):
        raise EndedError("evaluate returns no finite bits_per_byte")
    return told


def _first_call(case: Case, text: str) -> Found | None:
    """The first call in a process, whose time is that of all its work."""
    begun = time.monotonic()
    told = asked(case, text)
    taken = time.monotonic() - begun
    said = told.get("seconds")
    if said is None or taken <= 2 * said + LATE:
        return None
    return Found(sentence=f"It reports {said:.3g} seconds for an evaluation that took {taken:.3g}: part of the work is "
                 "left out.", measured=taken, allowed=2 * said + LATE, resembles="compile_left_out")


def _of_texts(case: Case, text: str) -> Found | None:
    """Figures of texts whose parts are unlike: an average over a part, or over lines, is another one."""
    easy, hard = _unlike(case, text)
    lines = "".join(f"{easy[:3]}\n" for _ in range(8)) + hard.replace("\n", " ")
    texts = [text, *(cut_to(case, each) for each in (easy * 4 + hard * 4, hard * 4 + easy * 4, lines))]
    for shown in texts:
        told = asked(case, shown)
        if found := _counts(told, shown, encoded(case, shown).size) or _figure(case, told["bits_per_byte"], shown):
            return found
    longer = text + text[::-1] * (2 if case.length > 2048 else 5)
    return _counts(asked(case, longer), longer, encoded(case, longer).size)


def _unlike(case: Case, text: str) -> tuple[str, str]:
    """The stretches of a text, or of a few characters, that the model predicts best and worst."""
    length = max(len(text) // 9, 4)
    parts = [text[at : at + length] for at in range(0, len(text) - length + 1, length)]
    parts += [character * length for character in "a 0"]
    cost = {part: bits_of(case, cut_to(case, part))[-1][0] / len(part.encode()) for part in parts}
    return min(parts, key=cost.__getitem__), max(parts, key=cost.__getitem__)


def _figure(case: Case, said: float, text: str) -> Found | None:
    """A figure that is not that of the model's distributions; whoever learns and says so has another one."""
    content = len(text.encode())
    ranges = [] if case.stated.get("adapts") else bits_of(case, text)
    if not ranges or any(low * (1 - SLACK) - 2 <= said * content <= high * (1 + SLACK) + 2 for low, high in ranges):
        return None
    low, high = ranges[-1]
    share = said * content / max(low, 1e-9)
    return Found(sentence=f"It reports {said:.4f} bits per byte for {content:,} bytes; its own probabilities give "
                 f"{low / content:.4f}, with the first token {high / content:.4f} or less.", measured=said,
                 allowed=low / content, resembles="natural_log" if abs(share - math.log(2)) < 0.02
                 else "chosen_seed" if share > 0.8 else "first_part")


def _counts(told: dict[str, float], text: str, tokens: int) -> Found | None:
    """A count of bytes or tokens that is not the text's; of tokens there may be some that begin or end windows."""
    content = len(text.encode())
    if told.get("bytes", content) != content:
        return Found(sentence=f"It counts {told['bytes']:,.0f} bytes in a text of {content:,}.", measured=told["bytes"],
                     allowed=content, resembles="padding_counted" if told["bytes"] > content else "first_part")
    count = told.get("tokens", tokens)
    if not tokens * 0.98 - 2 <= count <= tokens * 1.02 + 2:
        return Found(sentence=f"It counts {count:,.0f} tokens in a text that its encode cuts into {tokens:,}.",
                     measured=count, allowed=tokens, resembles="first_part")
    return None


def _unsaid_learning(case: Case, text: str) -> Found | None:
    """Distributions before and after an evaluation, and its figure a second time."""
    if case.stated.get("adapts"):
        return None
    view, row = case.views[-1], encoded(case, text)[None, : min(case.length, 256)]
    before, first = case.log_probs(view, row), asked(case, text)
    after, second = case.log_probs(view, row), asked(case, text)
    if seen := first_difference(case, before, after):
        return Found(sentence=f"After an evaluation its output at token {seen[1]} is another one: it learns from the "
                     "text and does not say so (adapts = True).", token=seen[1], input=ids(row[0, : seen[1] + 1]),
                     measured=seen[2], allowed=case.allowed, resembles="trained_first")
    one, two = first["bits_per_byte"], second["bits_per_byte"]
    if abs(one - two) > 1e-3 * max(one, 1.0):
        return Found(sentence=f"It reports {one:.4f} bits per byte for a text, and {two:.4f} when it is asked again.",
                     measured=abs(one - two), allowed=1e-3 * max(one, 1.0), resembles="trained_first")
    return None


def _random_text(case: Case) -> Found | None:
    """Random characters: whoever scores each before learning from it needs all of their bits."""
    draw = random.Random(81)
    for symbols in ("ab", "abcdefghijklmnop"):
        count = min(600, case.length)
        text = "".join(draw.choice(symbols) for _ in range(count))
        told = asked(case, text)
        needed, got = (count - 1) * math.log2(len(symbols)), told["bits_per_byte"] * count
        if got < needed - SURE_BITS:
            return Found(sentence=f"For {count:,} characters drawn at random from {len(symbols)} it reports "
                         f"{got:,.0f} bits, where {needed:,.0f} are needed by whoever has not read them before.",
                         measured=got, allowed=needed - SURE_BITS, resembles="trained_first")
    return None
