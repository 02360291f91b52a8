"""`judge_file`: the laws on a file, in the order in which they are tried, and the verdict that follows."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

from weft.core.errors import InputError
from weft.judge.by_steps import pieces, saved
from weft.judge.case import Case, NotJudgedError, UnsteadyError
from weft.judge.judgement import LawResult, Thing, Verdict, word_of
from weft.judge.later_tokens import causality
from weft.judge.normalised import sums_to_one
from weft.judge.other_rows import documents, separate_rows
from weft.judge.own_figures import evaluation
from weft.judge.questions import EndedError, FileLimits, Judged, ModelError
from weft.judge.repeating import repeats
from weft.judge.seen_text import canaries, fresh_text, laws_of, seen
from weft.judge.text_bytes import text_bytes

Law = Callable[[Case], LawResult]
LAWS: dict[str, Law] = {"sums-to-one": sums_to_one, "causality": causality, "separate-rows": separate_rows,
                        "repeats": repeats, "bytes": text_bytes, "pieces": pieces,
                        "documents": documents, "saved": saved, "evaluation": evaluation, "seen": seen,
                        "canaries": canaries, "fresh-text": fresh_text}
"""The laws by name, in the order in which they are told."""
BESIDE = ("sums-to-one", "separate-rows", "repeats", "bytes", "pieces", "documents", "saved")
"""Laws that are tried while a further process of a small model answers for causality."""


def judge_file(judged: Judged, *, gives: str | None = None, limits: FileLimits | None = None,
               texts: Mapping[str, Path] = MappingProxyType({}), on_law: Callable[[str], None] | None = None
               ) -> Verdict:
    """The verdict on a Python file.

    Args:
        judged: the file.
        gives: how its output is read, one of `weft.judge.case.GIVES`; None: worked out.
        limits: of its process; None: the usual ones.
        texts: files by ``test_text``, ``fresh_text`` and ``canaries``; of the others those that the file claims.
        on_law: called for progress with the name of the law that begins.

    Raises:
        InputError: the file cannot be read.
        UnsupportedError: this machine cannot confine it.
    """
    asked = laws_of(texts)
    begun, limits, path = time.monotonic(), limits or FileLimits(), judged.path.resolve()
    if not path.is_file():
        raise InputError("there is no such file.", where=str(path), remedy="Give a Python file, or FILE.py:NAME.")
    thing = Thing(kind="file", path=str(path), sha256=hashlib.sha256(path.read_bytes()).hexdigest(), call=judged.call)
    try:
        case = Case(replace(judged, path=path), gives, limits, texts)
    except (NotJudgedError, EndedError, ModelError) as error:
        return Verdict(thing=thing, verdict="not judged", why=f"{error}", seconds=time.monotonic() - begun)
    try:
        laws = _tried(case, on_law)
    finally:
        case.end()
    thing = thing.model_copy(update={"gives": case.views[0].gives, "parameters": case.about["parameters"] or None})
    word, why = word_of(laws, list(asked))
    return Verdict(thing=thing, verdict=word, why=why, laws=laws, seconds=time.monotonic() - begun,
                   limits=f"{limits.seconds:g} s in all, {limits.answer:g} s an answer, {limits.memory >> 20:,} MiB, "
                   f"{limits.threads} threads, confined by {', '.join(case.worker.by) or 'nothing'}")


def _tried(case: Case, on_law: Callable[[str], None] | None) -> tuple[LawResult, ...]:
    """The outcomes in the order of `LAWS`. Causality takes about as long as all others, and a small model is asked of
    it in a further process beside `BESIDE`; the later laws measure time, and have the machine for themselves."""
    def told(name: str) -> LawResult:
        if on_law is not None:
            on_law(name)
        return _timed(case, name, LAWS[name])

    if not case.small:
        return tuple(told(name) for name in LAWS)
    with ThreadPoolExecutor(1) as pool, case.beside(case.further) as beside:
        causal = pool.submit(_timed, beside, "causality", causality)
        found = {**{name: told(name) for name in BESIDE}, "causality": causal.result()}
    return tuple(found.get(name) or told(name) for name in LAWS)


def _timed(case: Case, name: str, law: Law) -> LawResult:
    begun = time.monotonic()
    return _outcome(case, name, law).model_copy(update={"seconds": round(time.monotonic() - begun, 3)})


def _outcome(case: Case, name: str, law: Law) -> LawResult:
    """The outcome of a law, where the process may end during it."""
    if case.left() <= 0:
        return LawResult(name=name, outcome="not tried", why="the time for the verdict was up")
    try:
        return law(case)
    except (UnsteadyError, InputError) as error:  # of what the file itself claims
        return LawResult(name=name, outcome="not tried", why=f"{error}")
    except EndedError as error:
        why = f"{error}"
    except ModelError as error:
        why = f"it ended in an error ({error})"
    try:
        case.again()
    except (EndedError, ModelError):
        why += "; and it did not begin again"
    return LawResult(name=name, outcome="not tried", why=why)
