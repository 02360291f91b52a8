"""A verdict from the laws of `weft.laws` on a model of Weft's: a configuration, a run, a checkpoint or a part."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from weft.judge.judgement import Found, LawResult, Thing, Verdict, word_of
from weft.laws.check import CheckResult
from weft.laws.plain_words import meaning
from weft.laws.report import Finding

LAW_OF: Mapping[str, str] = MappingProxyType({
    "readout": "sums-to-one", "finite": "sums-to-one", "head": "sums-to-one", "causality": "causality",
    "ragged": "separate-rows", "selection": "separate-rows", "admission": "separate-rows", "seeds": "separate-rows",
    "reuse": "repeats", "inference": "repeats", "training": "repeats", "forks": "repeats", "split": "pieces",
    "continuation": "pieces", "stability": "pieces", "trimming": "pieces", "rewinding": "pieces", "bounded": "pieces",
    "memory": "pieces", "packed": "documents", "persistence": "saved", "saving": "saved"})
"""The law of a verdict that each law of Weft's is a form of; those of training and of kernels are none."""
BY_LENGTH = ("its positions are scaled by the length of the row, which it is told before the first token, so rows of "
             "one length are compared; whoever must not know the length breaks the law pieces so (scaled_positions)")
NOT_ASKED = {"bytes": "weft data inspect shows what a tokenizer loses", "evaluation": "weft eval measures it itself",
             "seen": "weft compare tells how much of the test text stands in the training text"}


def verdict_of(thing: Thing, checked: CheckResult, *, by_length: bool = False,
               beside: Mapping[str, LawResult] = MappingProxyType({})) -> Verdict:
    """The verdict that follows from the reports of `weft.laws.check.check`.

    Args:
        by_length: the model's positions are scaled by the length of the row, which its state is told before the first
            token.
        beside: laws that were asked of its weights, by name.
    """
    findings = [finding for report in checked.reports() for finding in report.findings]
    laws = [_law(name, [each for each in findings if LAW_OF.get(each.law) == name])
            for name in dict.fromkeys(LAW_OF.values())]
    laws += [LawResult(name=name, outcome="not tried", why=why) for name, why in NOT_ASKED.items()]
    laws += beside.values()
    others = sorted({each.law for each in findings if not each.holds and each.law not in LAW_OF})
    word, why = word_of(laws, list(beside))
    others_said = f"of training and kernels these do not hold: {', '.join(others)} (see weft check)" if others else ""
    why = "; ".join(filter(None, (why, others_said, BY_LENGTH if by_length else "")))
    return Verdict(thing=thing, verdict=word, why=why, laws=tuple(laws),
                   seconds=checked.seconds)


def _law(name: str, findings: list[Finding]) -> LawResult:
    """One law of the verdict, from the comparisons of all that are a form of it."""
    if not findings:
        return LawResult(name=name, outcome="not tried", why="the model declares nothing that it could be asked of")
    worst = max(findings, key=lambda each: each.difference / each.bound)
    names = ", ".join(dict.fromkeys(each.law for each in findings))
    found = None
    if not worst.holds:
        found = Found(sentence=f"{meaning(worst.law, None).capitalize()}; seen where {worst.case}.",
                      token=None if worst.token is None else worst.token - 1, measured=worst.difference,
                      allowed=worst.bound)
    return LawResult(name=name, outcome="broken" if found else "held", found=found,
                     tried=f"{len(findings):,} comparisons of weft check ({names})")
