"""The laws on long rows: what they run on, that every part obeys them, that they can fail."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from laws import injected
from laws import mutants_of_borders as borders
from weft.core.declarations import Trait
from weft.core.layer import LayerState, borders_of
from weft.core.part_config import PartConfig
from weft.feedforward.mlp import MLPConfig
from weft.laws import every_example, examine, examine_far, examine_long, layer_subject, subject_of
from weft.laws.check import LONGEST
from weft.laws.length import LEAST, SINGLE, across, around, length_past, one_by_one
from weft.laws.long_laws import LONG_LAWS
from weft.laws.report import first_wrong
from weft.laws.subject import Subject
from weft.masks import parse_mask
from weft.mixers.attention import AttentionConfig
from weft.mixers.gated_convolution import GatedConvolutionConfig
from weft.models.ngram import NgramConfig
from weft.positions.learned import LearnedPositionConfig

EXAMPLES = [pytest.param(name, config, id=name) for name, config in every_example()]
FIRST, SHORT = 12_000, 5_000
"""Tokens of stability for the first example of a kind, and for the others; `weft check` reads 100,000."""


def built(config: PartConfig) -> Subject:
    torch.manual_seed(0)
    found = subject_of(config, config.kind)
    assert found is not None
    return found


@pytest.mark.parametrize(("name", "config"), EXAMPLES)
def test_laws_hold_past_the_longest_border(name: str, config: PartConfig) -> None:
    """Token by token from the beginning for the first example of a kind, for the others across the borders alone: two
    fifths of the time went into single tokens between borders."""
    torch.manual_seed(0)
    subject = subject_of(config, name)
    if subject is None:
        return
    report = examine_long(subject, length_past(subject, 768), singles=SINGLE if name.endswith(".0") else 0)
    assert report.steps >= (1.5 * LEAST if subject.limit is None else subject.limit)
    assert report.holds, "\n".join(map(str, report.broken()[:10]))
    tried = {finding.law for finding in report.findings}
    wanted = {"finite", "ragged", "packed", "inference"}
    if subject.stateful:
        wanted |= {"split", "causality", "selection", "persistence", "bounded"}
    if subject.differentiable:
        wanted |= {"precision", "slopes"} | ({"split gradients", "continuation"} if subject.stateful else set())
    assert wanted <= tried


@pytest.mark.parametrize(("name", "config"), [case for case in EXAMPLES
                                              if case.values[1].group in ("mixer", "feedforward", "model")])
def test_bounded_states_are_stable(name: str, config: PartConfig) -> None:
    """Over more tokens for the first example of a kind."""
    subject = built(config)
    report = examine_far(subject, tokens=FIRST if name.endswith(".0") else SHORT, calls=0)
    assert report.holds, "\n".join(map(str, report.broken()))
    grows = subject.stateful and any(spec.grows is not None for _, spec in subject.start(
        1, subject.memory(1, torch.Generator()), None, 1).tensors().values())
    assert len(report.findings) == (0 if grows or not subject.stateful else 2)


FAR = {borders.LeaksBeyond2048: "causality", borders.ForgetsAt2500: "split", borders.ForgetsAt4096: "split",
       borders.StopsGradientsLate: "split gradients"}
"""Defects that begin beyond the rows of many comparisons, and the law that finds each on the longest rows."""


@pytest.mark.parametrize("kind", [*FAR, injected.Average])
def test_what_begins_beyond_two_thousand_tokens_is_found(kind: type[injected.Average]) -> None:
    torch.manual_seed(0)
    subject = replace(layer_subject(kind.__name__, kind(2).double(), 2), thorough=False)
    broken = {finding.law for finding in examine_long(subject, LONGEST, laws=("split", "causality")).broken()}
    assert (FAR[kind] in broken) if kind in FAR else not broken


@pytest.mark.parametrize("kind", [borders.TiresOfCalls, injected.Average])
def test_what_begins_after_three_thousand_calls_is_found(kind: type[injected.Average]) -> None:
    torch.manual_seed(0)
    report = examine_far(layer_subject(kind.__name__, kind(2).double(), 2), tokens=100)
    broken = [finding.case for finding in report.broken()]
    assert broken == (["16 calls of one token, after 3,088 others"] if kind is borders.TiresOfCalls else [])


def test_borders_are_declared_by_the_parts() -> None:
    windowed = AttentionConfig.model_validate({"n_heads": 2, "mask": "causal & window(40)"})
    assert borders_of(built(windowed).module) == {40}
    assert borders_of(built(GatedConvolutionConfig(d_conv=5, dilation=100)).module) == {401}
    assert borders_of(built(NgramConfig(vocab_size=11, order=3)).module) == {3}
    assert borders_of(built(MLPConfig(d_ff=12)).module) == set()


@pytest.mark.parametrize(("mask", "borders"), [
    ("causal", ()), ("causal & window(9)", (9, 9)), ("causal & (window(4) | global(0, 70))", (4, 71)),
    ("per_head(dilated(8, 4), strided(30))", (29, 30)), ("window(4) | fixed(64, 8)", (4, 64)), ("block(17)", (17,))])
def test_borders_of_masks(mask: str, borders: tuple[int, ...]) -> None:
    assert parse_mask(mask).borders() == borders


def test_rows_go_past_the_longest_border_as_far_as_positions_do() -> None:
    assert length_past(built(MLPConfig(d_ff=12)), 10_000) == 386
    wide = built(GatedConvolutionConfig(d_conv=5, dilation=100))
    assert (length_past(wide, 10_000), length_past(wide, 500)) == (602, 500)
    assert length_past(built(NgramConfig(vocab_size=11, context=1000, order=2)), 10_000) == 1500
    assert length_past(built(LearnedPositionConfig(max_length=64)), 10_000) == 64


@pytest.mark.parametrize("steps", [16, 33, 386, 768])
def test_every_way_of_cutting_covers_the_row(steps: int) -> None:
    for sizes in (around((16, 32, 64), steps), across(steps), one_by_one((), steps), one_by_one((16, 32, 512), steps),
                  one_by_one((16, 32, 512), steps, 0)):
        assert sum(sizes) == steps and min(sizes) >= 0
    assert 0 in across(steps) and around((), steps) == [steps]
    assert around((16,), 33) == [15, 1, 1, 16]
    assert one_by_one((16,), 33, 0) == [3, 10, *[1] * 6, 11, 1, 1, 1] and one_by_one((16,), 33) == [3, *[1] * 30]
    assert one_by_one((16, 512), 768) == [3, *[1] * 400, 106, *[1] * 6, 250, 1, 1, 1]


def test_the_first_wrong_token_is_told() -> None:
    expected = torch.zeros(2, 9, 3)
    found = expected.clone()
    found[1, 4, 2], found[0, 7, 0] = 0.5, torch.nan
    assert first_wrong(found, expected, 0.1) == 5
    assert first_wrong(found, expected, 0.6) == 8
    assert first_wrong(expected, expected, 0.0) is None
    assert first_wrong(found[:1], expected, 0.1) is None


def average(kind: type[injected.Average]) -> Subject:
    torch.manual_seed(0)
    return layer_subject(kind.__name__, kind(8).double(), 8)


RED = {injected.ForgetsAt32: {"split", "split gradients", "inference"}, injected.LeaksFuture: {"causality"},
       injected.LeaksDocuments: {"packed"}, injected.GrowsUndeclared: {"bounded"},
       injected.LosesField: {"persistence"}, injected.OverflowsAt100: {"finite"},
       injected.WrongInFloat32Continuation: {"continuation"}, borders.TooSteepLate: {"slopes"}}


@pytest.mark.parametrize("kind", RED)
def test_long_laws_can_fail(kind: type[injected.Average]) -> None:
    broken = {finding.law for finding in examine_long(average(kind), 386).broken()}
    assert RED[kind] <= broken
    assert kind is not borders.TooSteepLate or broken == {"slopes"}, "which no other law sees"


class ForgetsSingly(injected.Average):
    """Drops what it knows in a call with nothing but the token at ``at``."""

    at = 510

    def before(self, x: torch.Tensor, state: LayerState | None) -> torch.Tensor:
        found = super().before(x, state)
        lost = state is not None and x.shape[1] == 1 and int(state.clock.seen[0]) == self.at
        return torch.zeros_like(found) if lost else found


@pytest.mark.parametrize(("at", "singles", "seen"), [(200, SINGLE, True), (200, 0, False), (510, SINGLE, True),
                                                     (510, 0, True)])
def test_single_tokens_are_read_from_the_beginning_and_across_far_borders(at: int, singles: int, seen: bool) -> None:
    subject = average(ForgetsSingly)
    subject.module.at = at  # type: ignore[assignment]
    broken = {(finding.law, finding.case, finding.token) for finding in
              examine_long(subject, 600, laws=("split",), singles=singles).broken()}
    assert broken == ({("split", "single tokens", at + 1)} if seen else set())


class RowsMixed(injected.Average):
    """Adds a little of the other rows."""

    def seen(self, averages: torch.Tensor) -> torch.Tensor:
        return averages + 0.1 * averages.mean(0, keepdim=True)


def test_ragged_and_selection_can_fail() -> None:
    broken = {finding.law for finding in examine_long(average(RowsMixed), 386).broken()}
    assert {"ragged", "selection"} <= broken


class Drifts(injected.Average):
    """Rounds its state at the end of each call."""

    def after(self, average: torch.Tensor, state: object, span: object) -> object:  # type: ignore[override]
        return super().after(average.float().double(), state, span)  # type: ignore[arg-type]


def test_stability_can_fail() -> None:
    report = examine_far(average(Drifts), tokens=3000, calls=0)
    drift, growth = report.findings
    assert not drift.holds and drift.token is not None and drift.token > 128
    assert growth.holds
    report = examine_far(average(injected.GrowsUndeclared), tokens=3000, calls=0)
    assert [finding.holds for finding in report.findings] == [True, False]
    # Its error lies at a place of the call, so two rows that are cut alike would agree.
    assert not examine_far(average(injected.ForgetsAt32), tokens=3000, calls=0).findings[0].holds


def test_without_a_state_only_what_needs_none_is_run() -> None:
    subject = built(AttentionConfig.model_validate({"n_heads": 2, "mask": "bidirectional"}))
    assert Trait.BIDIRECTIONAL in subject.traits
    laws = {finding.law for finding in examine_long(subject, 386).findings}
    assert laws == {"finite", "slopes", "ragged", "packed", "precision", "inference"} <= {"finite", *LONG_LAWS}


class WrongInFloat32(injected.Average):
    """Loses a part of what it knows, in float32 alone."""

    def carried(self, average: torch.Tensor, index: int) -> torch.Tensor:
        return 0.9 * average if average.dtype == torch.float32 else average


def test_outputs_that_are_all_zero_are_compared_as_they_are() -> None:
    """No token of a short row sees any where a mask shows far ones alone."""
    subject = built(AttentionConfig.model_validate({"n_heads": 2, "mask": "causal & global(300, 301)"}))
    reports = (examine(subject, laws=("precision", "continuation")),
               examine_long(subject, 40, laws=("precision", "continuation")))
    assert all(report.findings and report.holds for report in reports), [report.broken() for report in reports]


def test_precision_can_fail() -> None:
    assert "precision" in {finding.law for finding in examine_long(average(WrongInFloat32), 64).broken()}
