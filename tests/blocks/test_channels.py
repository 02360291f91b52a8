"""What a layer gives reaches the layers that take it, in training, in pieces, while decoding; what would not is refused
when the stack is built."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from blocks.sharing import (
    GiveKeys,
    GiveValues,
    KeyTaker,
    SharingConfig,
    TakeKeys,
    TakeValues,
    ValueResidual,
)
from weft.core.errors import ConfigError, InputError
from weft.core.part_config import Dims
from weft.core.state import State
from weft.decoding import Row, generate
from weft.laws import LAWS, Hybrids, examine, examine_long, model_subject, subject_of
from weft.models.decoder import Decoder, DecoderConfig

MLP = {"kind": "mlp", "d_ff": 12}
PAIRS = [pytest.param(GiveValues, TakeValues, id="values"), pytest.param(GiveKeys, TakeKeys, id="keys")]
BLOCKS = ["pre", "post", "sandwich", "plain", "parallel"]


def model(*blocks: list[Any], kind: str = "pre", **fields: Any) -> Decoder:
    torch.manual_seed(0)
    listed = [{"kind": kind, "layers": layers} for layers in blocks]
    return DecoderConfig.model_validate({"vocab_size": 11, "context": 32, "d_model": 8, "blocks": listed,
                                         **fields}).build().double().eval()


def tokens(steps: int = 9) -> Tensor:
    return torch.randint(11, (2, steps), generator=torch.Generator().manual_seed(1))


def stacked(giver: type[SharingConfig], taker: type[SharingConfig], **fields: Any) -> Decoder:
    """A giver, two takers behind it, one of them in a third block."""
    return model([giver(), MLP], [taker()], [MLP, taker()], **fields)


def numpy_attention(layer: Any, x: np.ndarray, first: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
    """One head over one row, token by token; the values that it used."""
    weight, bias = (getattr(layer.qkv, name).detach().numpy() for name in ("weight", "bias"))
    q, k, v = np.split(x @ weight.T + bias, 3, axis=1)
    if first is not None:
        one, two = layer.shares.detach().numpy()
        v = one * first + two * v
    outs = []
    for t in range(len(x)):
        scores = np.array([q[t] @ k[s] for s in range(t + 1)]) / np.sqrt(k.shape[1])
        weights = np.exp(scores - scores.max())
        mixed = sum(w * v[s] for s, w in enumerate(weights / weights.sum()))
        outs.append(layer.output.weight.detach().numpy() @ mixed + layer.output.bias.detach().numpy())
    return np.array(outs), v


def test_a_value_residual_equals_a_loop_over_the_formula() -> None:
    one = model([GiveValues()], [TakeValues()], kind="plain")
    x = tokens()[:1]
    first, second = (block.children_layers()[0] for block in one.stack.children_layers())  # type: ignore[attr-defined]
    stream = one.embedding.tokens.weight.detach().numpy()[x[0].numpy()]
    y, values = numpy_attention(first, stream, None)
    stream = stream + y
    y, _ = numpy_attention(second, stream, values)
    found = one.hidden(x).y[0].detach().numpy()
    np.testing.assert_allclose(found, stream + y, rtol=0, atol=1e-13)


def test_layers_of_one_parallel_block_pass_values_on() -> None:
    config = DecoderConfig.model_validate({"vocab_size": 11, "context": 32, "d_model": 8, "blocks": [
        {"kind": "parallel", "norm": "none", "layers": [GiveValues(), TakeValues()]}]})
    torch.manual_seed(0)
    one = config.build().double().eval()
    x = tokens()[:1]
    first, second = one.stack.children_layers()[0].children_layers()  # type: ignore[attr-defined]
    stream = one.embedding.tokens.weight.detach().numpy()[x[0].numpy()]
    y, values = numpy_attention(first, stream, None)
    z, _ = numpy_attention(second, stream, values)
    found = one.hidden(x).y[0].detach().numpy()
    np.testing.assert_allclose(found, stream + y + z, rtol=0, atol=1e-13)


@pytest.mark.parametrize(("giver", "taker"), PAIRS)
@pytest.mark.parametrize("kind", BLOCKS)
def test_laws_hold_through_every_block(giver: type[SharingConfig], taker: type[SharingConfig], kind: str) -> None:
    one = stacked(giver, taker, kind=kind)
    laws = tuple(law for law in LAWS if law != "compile" or kind == "pre")
    report = examine(model_subject("sharing", one, bound=1e-9), laws=laws)
    assert report.holds, "\n".join(map(str, report.broken()[:10]))


@pytest.mark.parametrize(("giver", "taker"), PAIRS)
def test_laws_hold_on_long_rows(giver: type[SharingConfig], taker: type[SharingConfig]) -> None:
    report = examine_long(model_subject("sharing", stacked(giver, taker), bound=1e-9), 386)
    assert report.holds, "\n".join(map(str, report.broken()[:10]))


@pytest.mark.parametrize("taker", [TakeValues, TakeKeys])
def test_a_taker_alone_is_tried_behind_its_giver(taker: type[SharingConfig]) -> None:
    subject = subject_of(taker(), "taker")
    assert subject is not None and [type(part) for part in subject.module.modules()
                                    if isinstance(part, ValueResidual | KeyTaker)] != []
    assert examine(subject, laws=("split", "packed", "ragged", "bounded")).holds


@pytest.mark.parametrize(("giver", "taker"), PAIRS)
@pytest.mark.parametrize("kept", ["costly", "inputs"])
def test_gradients_are_the_same_with_activations_made_again(giver: type[SharingConfig], taker: type[SharingConfig],
                                                            kept: Any) -> None:
    one, found = stacked(giver, taker).train(), []
    for how in ("everything", kept):
        one.stack.kept_activations = how
        one(tokens()).y.square().sum().backward()
        found.append([p.grad for p in one.parameters()])
        one.zero_grad(set_to_none=True)
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))


@pytest.mark.parametrize(("giver", "taker"), PAIRS)
def test_gradients_flow_to_the_giver(giver: type[SharingConfig], taker: type[SharingConfig]) -> None:
    """Numerically: what the taker does with it reaches the giver's weights."""
    one = stacked(giver, taker)
    weight = one.get_submodule("stack.layers.0.layers.0.qkv").weight
    loss = one(tokens()).y.square().sum()
    loss.backward()
    slope = float(weight.grad[-1, 0])  # type: ignore[index]
    with torch.no_grad():
        losses = []
        for step in (1e-5, -2e-5):
            weight[-1, 0] += step
            losses.append(float(one(tokens()).y.square().sum()))
    # Central differences with a step of 1e-5 in float64 are good to about 1e-10 of the loss over the step.
    assert slope == pytest.approx((losses[0] - losses[1]) / 2e-5, rel=1e-4)
    assert abs(slope) > 1e-3


@pytest.mark.parametrize(("giver", "taker"), PAIRS)
def test_decoding_continues_as_the_whole_row_says(giver: type[SharingConfig], taker: type[SharingConfig]) -> None:
    one, prompt, new = stacked(giver, taker), [1, 2, 3], 40
    found = generate(one, [Row(prompt)], max_new_tokens=new).rows[0].tokens
    with torch.no_grad():
        logits = one(torch.tensor([[*prompt, *found]])).y[0]
    assert list(found) == logits[len(prompt) - 1:-1].argmax(-1).tolist()


def test_what_reads_another_s_keys_keeps_none_of_its_own() -> None:
    def kept(state: State) -> set[str]:
        return {path for path, (tensor, spec) in state.tensors().items() if spec.grows is not None}

    paths = kept(stacked(GiveKeys, TakeKeys).init_state(1, capacity=8))
    assert paths == {"stack.layers.0.layers.0.keys", "stack.layers.0.layers.0.values"}
    assert len(kept(stacked(GiveValues, TakeValues).init_state(1, capacity=8))) == 6


def test_the_last_layer_that_gave_is_taken_from() -> None:
    """Pairs of layers that share: each taker reads the giver before it."""
    one = model([GiveKeys(), TakeKeys()], [GiveKeys(), TakeKeys()], kind="plain")
    x = tokens()
    base = one.hidden(x).y
    with torch.no_grad():
        one.get_submodule("stack.layers.1.layers.0.output").weight.zero_()
        one.get_submodule("stack.layers.1.layers.0.output").bias.zero_()
        silent = one.hidden(x).y
        one.get_submodule("stack.layers.1.layers.0.qkv").weight.mul_(2)
        changed = one.hidden(x).y
    # The second giver adds nothing to the stream any more, so only its taker can have seen its keys change.
    assert not torch.equal(changed, silent) and not torch.equal(silent, base)


@pytest.mark.parametrize("seed", range(8))
def test_laws_hold_in_hybrids(seed: int) -> None:
    torch.manual_seed(seed)
    drawn: Any = Hybrids().draw(seed)
    giver, taker = [(GiveValues, TakeValues), (GiveKeys, TakeKeys)][seed % 2]
    first, *rest = drawn.blocks
    blocks = [first.model_copy(update={"layers": [giver(), *first.layers]}), *rest[:-1],
              rest[-1].model_copy(update={"layers": [taker(), *rest[-1].layers]})]
    subject = subject_of(drawn.model_copy(update={"blocks": blocks}), f"hybrid {seed}")
    assert subject is not None
    report = examine(subject, seed, ("split", "causality", "ragged", "selection", "packed", "persistence", "bounded"))
    # Depth adds rounding, as in the other hybrids.
    assert all(finding.difference < 1e-9 for finding in report.findings if finding.bound < 1e-8), report.broken()[:5]


def refused(*blocks: list[Any], **fields: Any) -> str:
    with pytest.raises(ConfigError) as error:
        model(*blocks, **fields)
    problem, = error.value.problems
    return problem


def test_what_would_not_be_given_is_refused_when_the_stack_is_built() -> None:
    assert refused([MLP, TakeValues()]) == (
        "blocks.0.layers.1: takes 'first_values', which no layer gives. None gives anything. Put a layer that gives it "
        "before this one.")
    assert refused([GiveKeys()], [TakeValues()]).startswith(
        "blocks.1.layers.0: takes 'first_values', which no layer gives. Did you mean 'keys_values'? Put a layer")
    assert refused([TakeKeys(), MLP], [MLP, GiveKeys()]) == (
        "blocks.0.layers.0: takes 'keys_values', which blocks.1.layers.1 gives only after it. Put that one before this "
        "one.")
    assert refused([GiveKeys(size=6)], [TakeKeys()]) == (
        "blocks.1.layers.0: takes 'keys_values' of sizes (4,), and blocks.0.layers.0 gives it of sizes (6,). Give both "
        "the same sizes.")
    assert refused([GiveKeys()], [GiveKeys(size=6), TakeKeys()]).endswith(
        "blocks.1.layers.0 gives it of sizes (6,). Give both the same sizes.")


def test_every_problem_is_told_at_once() -> None:
    with pytest.raises(ConfigError) as error:
        model([TakeValues()], [TakeKeys(), GiveValues()])
    assert [problem.partition(":")[0] for problem in error.value.problems] == ["blocks.0.layers.0", "blocks.1.layers.0"]


def test_a_taker_that_is_run_by_itself_says_what_it_lacks() -> None:
    layer = TakeKeys().build(Dims(8))
    with pytest.raises(InputError, match=r"^span.taken: no layer before this one gave 'keys_values'. Run it in a stack "
                                         r"behind a layer that gives it, or pass its value in span.taken.$"):
        layer(torch.zeros(1, 2, 8))
