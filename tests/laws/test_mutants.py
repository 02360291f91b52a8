"""The laws can fail: layers that are wrong in one way (`mutants`) turn red, and their healthy twins stay green."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import pytest
import torch
from torch import nn

from laws import mutants as wrong
from laws import mutants_of_borders as borders
from laws import mutants_of_cases as cases
from laws import mutants_of_serving as serving
from laws.injected import Average
from weft.blocks.residual import PreNormConfig
from weft.core.layer import Layer
from weft.core.model import Encoder
from weft.core.part_config import Dims
from weft.feedforward.glu import GLU
from weft.feedforward.mlp import MLP
from weft.feedforward.moe import MixtureOfExperts
from weft.heads.classifier import PooledConfig, PooledHead
from weft.heads.readout import LinearReadout, LinearReadoutConfig
from weft.laws import LAWS, Report, encoder_subject, examine, layer_subject, model_subject, subject_of
from weft.laws.subject import Subject
from weft.masks import Bidirectional, Causal, Mask, Window
from weft.mixers.attention import Attention, AttentionConfig
from weft.mixers.cross_attention import CrossAttention, CrossAttentionConfig
from weft.mixers.gated_convolution import GatedConvolution
from weft.mixers.gru import GRU
from weft.mixers.s4d import S4D, S4DConfig
from weft.mixers.self_attention import ScoreSettings, head_sizes
from weft.models.decoder import DecoderConfig
from weft.models.encoder import TokenEncoder, TokenEncoderConfig
from weft.norms.layernorm import LayerNormConfig

WIDTH = 8
DIMS = Dims(WIDTH, 11, 32)


def attention(kind: type[Attention], **fields: Any) -> Attention:
    config = AttentionConfig.model_validate({"n_heads": 2, **fields})
    sizes = head_sizes(2, None, None, None, DIMS)
    return kind(config, sizes, config.position.build_for_heads(DIMS, 2, sizes.d_head), DIMS)


def window(kind: type[Attention]) -> Attention:
    return attention(kind, mask=Causal() & Window(3))


def masked(kind: type[Mask]) -> Attention:
    return attention(Attention, mask=kind())


def rope(kind: type[Attention]) -> Attention:
    return attention(kind, position="rope")


def cross(kind: type[CrossAttention]) -> CrossAttention:
    return kind(CrossAttentionConfig(n_heads=2), head_sizes(2, None, None, None, DIMS), DIMS)


def alibi(kind: type[Attention]) -> Attention:
    return attention(kind, position="alibi")


def dropping(kind: type[CrossAttention]) -> CrossAttention:
    config = CrossAttentionConfig(n_heads=2, scores=ScoreSettings(dropout=0.5))
    return kind(config, head_sizes(2, None, None, None, DIMS), DIMS)


def in_block(kind: type[GRU]) -> Layer:
    """On a clock that others share."""
    block = PreNormConfig.model_validate({"layers": ["gru"]}).build(DIMS)
    block.layers[0] = kind(WIDTH)
    return block


def encoder(kind: type[TokenEncoder]) -> TokenEncoder:
    return kind(TokenEncoderConfig.examples()[1])


def pooling(kind: type[PooledHead]) -> nn.Module:
    head = PooledConfig(pool="mean", n_classes=3)
    model = TokenEncoderConfig.examples()[0].model_copy(update={"head": head}).build()
    model.head = kind(head, DIMS, 3)
    return model


def experts(kind: type[MixtureOfExperts]) -> MixtureOfExperts:
    return kind(WIDTH, [GLU(WIDTH, 6) for _ in range(3)], 2)


def gated(kind: type[GLU]) -> GLU:
    return kind(WIDTH, 6)


def block(norm: type) -> Layer:
    return PreNormConfig(layers=["channel_mix"], norm=norm()).build(DIMS)  # type: ignore[list-item]


def decoder(kind: type[LinearReadout]) -> nn.Module:
    readout = LinearReadoutConfig(tied=False, softcap=0.5)
    model = DecoderConfig.model_validate({"vocab_size": 11, "d_model": WIDTH, "readout": readout, "blocks": [
        {"kind": "pre", "layers": ["gru"]}]}).build()
    model.readout = kind(readout, None, DIMS)
    return model


def plain(kind: type[Layer]) -> Layer:
    return kind(WIDTH)  # type: ignore[call-arg]


def perceptron(kind: type[MLP]) -> MLP:
    return kind(WIDTH, 6)


def s4d(kind: type[S4D]) -> S4D:
    return kind(WIDTH, S4DConfig(d_state=4))


def bidirectional(kind: type[Attention]) -> Attention:
    return attention(kind, mask=Bidirectional())


@dataclass(frozen=True)
class Case:
    """A mutant, its twin, what builds either, and the findings (by the name of their law) that must turn red or, to
    show that no other law would have caught it, stay green."""

    mutant: type
    twin: type
    build: Callable[[Any], nn.Module]
    red: frozenset[str]
    green: frozenset[str] = frozenset()


def case(mutant: type, twin: type, build: Callable[[Any], nn.Module], red: str, green: str = "") -> Any:
    """Findings' laws are separated by commas."""
    names = [frozenset(name.strip() for name in text.split(",") if name.strip()) for text in (red, green)]
    return pytest.param(Case(mutant, twin, build, *names), id=mutant.__name__)


CASES = [
    case(wrong.ForgetsAcrossLongChunks, GRU, plain, "split, split gradients, packed", "causality, ragged"),
    case(wrong.ForgetsAtEmptyChunks, GRU, plain, "split, split gradients", "causality, ragged, selection"),
    case(wrong.RunsThroughPadding, GRU, plain, "split, packed gradients", "causality, ragged, selection"),
    case(wrong.CutsGradients, GRU, plain, "split gradients, packed gradients", "split, packed, ragged, selection"),
    case(wrong.NeverResets, GRU, plain, "packed, packed gradients", "split, causality, ragged"),
    case(wrong.RecursOverDocuments, S4D, s4d, "packed, packed gradients", "split, causality, ragged"),
    case(wrong.TapsAcrossDocuments, GatedConvolution, plain, "packed, packed gradients", "split, causality, ragged"),
    case(wrong.KeepsOldDocument, GatedConvolution, plain, "packed, packed gradients", "split, causality, ragged"),
    case(wrong.SeesNextToken, Attention, attention, "causality, split", "ragged"),
    case(wrong.WidensWindowLater, Attention, window, "split", "causality, ragged"),
    case(wrong.ShortRollingBuffer, Attention, window, "split", "causality, ragged"),
    case(wrong.NoFence, Attention, attention, "packed, packed gradients", "split, causality, ragged"),
    case(wrong.SeesPadding, Attention, bidirectional, "ragged"),
    case(wrong.RestartsPositions, Attention, rope, "split", "causality, ragged"),
    case(wrong.RotatesOneTooFar, Attention, rope, "split", "causality, ragged"),
    case(wrong.AdvancesByWidth, Attention, rope, "split", "causality, ragged, selection"),
    case(wrong.SeesSourcePadding, CrossAttention, cross, "ragged", "split, causality"),
    case(wrong.MixesRows, MLP, perceptron, "ragged, selection", "causality"),
    case(wrong.LeavesPadding, MLP, perceptron, "ragged, packed", "split, selection"),
    case(wrong.DropsTokens, MixtureOfExperts, experts, "ragged, selection, split"),
    case(wrong.ExchangesWhenFused, GLU, gated, "inference", "split, ragged"),
    case(wrong.ChoosesWorst, MixtureOfExperts, experts, "precision", "ragged, selection, split"),
    case(wrong.OverTimeConfig, LayerNormConfig, block, "causality, split, packed"),
    case(wrong.OverBatchConfig, LayerNormConfig, block, "ragged, selection"),
    case(wrong.ForgetsSoftcap, LinearReadout, decoder, "readout", "split, causality"),
    case(wrong.IgnoresOnLoad, MLP, perceptron, "persistence", "split, ragged"),
    case(wrong.WritesBehindAutograd, wrong.Shift, plain, "split gradients", "causality, ragged"),
    case(wrong.HidesState, wrong.Shift, plain, "selection, persistence", "split, causality, ragged"),
    case(wrong.GrowsUndeclared, wrong.Shift, plain, "bounded", "split, causality, ragged"),
    case(cases.RoundsWhenContinued, GRU, plain, "continuation", "precision, split, packed"),
    case(cases.KeepsWholePositions, Attention, alibi, "coordinates", "split, packed, ragged"),
    case(cases.ForksShareBuffers, Attention, attention, "forks", "split, selection, persistence"),
    case(cases.PartsFromItsClock, GRU, in_block, "saving", "split, selection, persistence"),
    case(cases.TakesUsedStates, GRU, plain, "reuse", "split, selection, forks"),
    case(cases.LargerInTraining, MLP, perceptron, "training", "split, ragged, precision"),
    case(cases.NeverDrops, CrossAttention, dropping, "training", "split, ragged, selection"),
    case(cases.AlwaysDrops, CrossAttention, dropping, "training"),
    case(cases.TiresOfAnExpert, MixtureOfExperts, experts, "seeds, ragged", "split, selection, precision"),
    case(cases.KeepsTheChunk, wrong.Shift, plain, "memory", "bounded, split"),
    case(cases.TakesNotes, wrong.Shift, plain, "memory", "bounded, split, selection"),
    case(cases.IgnoresTypes, TokenEncoder, encoder, "inputs", "ragged, packed"),
    case(cases.ReadsOnTheHost, MLP, perceptron, "compile", "split, ragged, precision"),
    case(serving.TakesTurns, wrong.Shift, plain, "admission", "split, ragged, selection, persistence, rewinding"),
    case(serving.KeepsOneSlotMore, wrong.Shift, plain, "trimming", "split, selection, admission, rewinding"),
    case(serving.KeepsNewestFirst, wrong.Shift, plain, "rewinding", "split, selection, admission, trimming"),
    case(serving.ReadsPastItsMap, MLP, perceptron, "rewriting", "split, ragged, inference, persistence"),
    case(serving.KeepsItsMatrix, MLP, perceptron, "rewriting", "split, ragged, inference, persistence"),
    case(serving.KeepsItsMatrixForSteps, MLP, perceptron, "rewriting", "split, ragged, inference, persistence"),
    case(serving.NamesItsMatrixTwice, MLP, perceptron, "rewriting", "split, ragged, inference, persistence"),
    case(serving.KeepsItsMap, MLP, perceptron, "rewriting", "split, ragged, inference, persistence"),
    case(serving.MeansOverPadding, PooledHead, pooling, "head", "ragged, inference, persistence"),
    case(borders.StartsInsidePieces, Average, plain, "packed", "split, ragged, causality"),
    case(borders.StartsInLongPieces, Average, plain, "packed", "split, ragged, causality"),
    case(borders.TiresAtRest, Average, plain, "split", "ragged, causality"),
    case(borders.CountsOrDocuments, Average, plain, "packed, packed gradients", "split, ragged"),
    case(borders.MixesManyRows, MLP, perceptron, "ragged", "split, selection, packed"),
    case(borders.DrawsAtFirstCall, MLP, perceptron, "persistence", "split, ragged, saving"),
    case(borders.DrawsUnsaved, MLP, perceptron, "persistence", "split, ragged, saving"),
    case(borders.TooSteep, MLP, perceptron, "slopes", "split, split gradients, packed gradients"),
    case(borders.StopsGradients, Average, plain, "slopes", "split, split gradients, packed gradients"),
    case(borders.SmallerInHalf, borders.AddsItsInput, perceptron, "precision", "split, continuation"),
    case(borders.SmallerInFloat16, borders.AddsItsInput, perceptron, "precision", "split, continuation"),
    case(borders.DeniesItsHeads, Causal, masked, "masks", "split, causality, ragged, packed"),
    case(wrong.RoundsAccumulator, wrong.RunningSum, plain, "precision", "split, ragged"),
]


def subject(build: Callable[[Any], nn.Module], kind: type) -> Subject:
    torch.manual_seed(0)
    module = build(kind).double()
    if isinstance(module, Layer):
        found = layer_subject(kind.__name__, module, WIDTH)
    elif isinstance(module, Encoder):
        found = encoder_subject(kind.__name__, module)
    else:
        found = model_subject(kind.__name__, module)  # type: ignore[arg-type]
    return replace(found, rebuild=lambda: build(kind).double().eval())


def needed(given: Case) -> tuple[str, ...]:
    """The laws that yield the findings in question; "split gradients" come from "split"."""
    wanted = {name.removesuffix(" gradients") for name in given.red | given.green}
    return tuple(name for name in LAWS if name in wanted)


@cache
def healthy(twin: type, build: Callable[[Any], nn.Module], law: str) -> Report:
    """The twin's findings; several mutants share one."""
    return examine(subject(build, twin), laws=(law,))


def broken(report: Report) -> set[str]:
    return {finding.law for finding in report.broken()}


@pytest.mark.parametrize("given", CASES)
def test_mutant_turns_the_law_red_and_its_twin_green(given: Case) -> None:
    report = examine(subject(given.build, given.mutant), laws=needed(given))
    found = broken(report)
    assert given.red <= found, f"not caught by {set(given.red) - found}"
    assert not given.green & found, [str(finding) for finding in report.broken()]
    twins = [healthy(given.twin, given.build, law) for law in needed(given)]
    assert all(twin.holds for twin in twins), [str(finding) for twin in twins for finding in twin.broken()]
    assert {finding.law for twin in twins for finding in twin.findings} >= given.red | given.green


def test_only_multi_token_continuations_catch_a_layer_that_forgets_at_them() -> None:
    """Step-by-step tests pass it."""
    report = examine(subject(plain, wrong.ForgetsAcrossLongChunks), laws=("split",))
    ones = [finding for finding in report.findings if finding.case.startswith("pieces 1+1+1")]
    assert ones and all(finding.holds for finding in ones)


def test_writing_in_place_under_gradients_is_an_error_of_autograd_and_a_finding() -> None:
    finding, *_ = examine(subject(plain, wrong.WritesInPlace), laws=("split",)).broken()
    assert finding.case.startswith("raised RuntimeError: one of the variables") and not finding.holds
    assert "modified by an inplace operation" in finding.case


def test_an_adapter_beside_a_matrix_with_two_names_is_moved_by_itself() -> None:
    """No plain part has the adapter's term at one of the names alone, so there is nothing to compare it with."""
    findings = examine(subject(perceptron, serving.NamesItsMatrixTwice), laws=("rewriting",)).findings
    cases = {finding.case: finding.holds for finding in findings if finding.case.startswith("adapters")}
    assert cases == {"adapters without effect on the output: up": False}


@pytest.mark.parametrize("maps", [None, ["*"]])
@pytest.mark.parametrize("kinds", [("int8",), ("lora",), ("int8", "lora")])
def test_models_with_rewrites_obey_the_law_of_rewriting(kinds: tuple[str, ...], maps: list[str] | None) -> None:
    """Adapters over whole numbers, and, by the second patterns, beside the matrix of the tied embeddings."""
    config = DecoderConfig.model_validate({
        "vocab_size": 11, "d_model": WIDTH, "rewrites": [{"kind": kind, "maps": maps} for kind in kinds],
        "blocks": [{"kind": "pre", "layers": [{"kind": "attention", "n_heads": 2}, "mlp"]}]})
    found = subject_of(config, "rewritten")
    assert found is not None
    report = examine(found, laws=("rewriting",))
    assert report.holds and report.findings, [str(finding) for finding in report.broken()]


def test_every_law_is_turned_red_by_some_mutant() -> None:
    """That of forms is by a plugin, in test_outside_forms.py."""
    red = {name for param in CASES for name in param.values[0].red} | {"forms"}  # type: ignore[union-attr]
    assert red >= set(LAWS)
