"""Adaptive softmax and adaptive embeddings against loops over clusters, PyTorch's own, and what they refuse."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from by_hand import Array, randomise, require_agreement
from weft.analysis.cost_plan import all_notes
from weft.analysis.flops import forward_flops
from weft.analysis.parts import count_parameters
from weft.analysis.shapes import shape_of
from weft.core.config import parse_part
from weft.core.errors import ConfigError, UnsupportedError
from weft.core.model import Model, built_model, parse_model
from weft.core.part_config import Dims
from weft.heads.adaptive import Transposed
from weft.heads.adaptive_embedding import AdaptiveEmbedding, ClusterSettings
from weft.ops.forms import forced
from weft.tasks.objective import ObjectiveSettings, cross_entropy

V, D = 23, 12
CUTOFFS = (5, 11, 17)
FIRSTS, ENDS = (0, *CUTOFFS), (*CUTOFFS, V)
WIDTHS = (12, 6, 3, 1)
PLAIN = {"kind": "adaptive", "cutoffs": CUTOFFS, "div_val": 2, "tied": False}


def readout(**fields: Any) -> Any:
    found = parse_part(("readout",), PLAIN | fields).build(Dims(D, V)).double().eval()
    randomise(found)
    return found


def inputs(rows: int = 3, steps: int = 13, *, grad: bool = False) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(5)
    h = torch.randn(rows, steps, D, generator=generator, dtype=torch.float64, requires_grad=grad)
    return h, torch.arange(rows * steps).view(rows, steps) * 7 % V


def log_softmax(z: Array) -> Array:
    shifted = z - z.max()
    found: Array = shifted - np.log(np.exp(shifted).sum())
    return found


def two_levels(h: Array, tables: list[Array], maps: list[Array | None], clusters: Array, biases: list[Array],
               cluster_bias: Array) -> Array:
    """The factorisation, one token and one cluster at a time (Grave et al. 2017, equation 3)."""
    found = np.zeros((*h.shape[:2], sum(len(table) for table in tables)))
    for place in np.ndindex(*h.shape[:2]):
        inner = [h[place] if each is None else each @ h[place] for each in maps]
        head = log_softmax(np.concatenate([tables[0] @ inner[0] + biases[0], clusters @ inner[0] + cluster_bias]))
        tails = [head[len(tables[0]) + i] + log_softmax(tables[i + 1] @ inner[i + 1] + biases[i + 1])
                 for i in range(len(clusters))]
        found[place] = np.concatenate([head[:len(tables[0])], *tails])
    return found


@pytest.mark.parametrize(("projections", "mapped"), [("tails", (1, 2, 3)), ("all", (0, 1, 2, 3))])
def test_values_and_gradients_are_those_of_the_two_levels(projections: str, mapped: tuple[int, ...]) -> None:
    found, (h, targets) = readout(projections=projections, bias="all"), inputs(1, 5, grad=True)
    names = dict(found.named_parameters())
    order = ["clusters", "cluster_bias", "bias", *(f"tables.{i}" for i in range(4)),
             *(f"projections.{i}.weight" for i in mapped)]
    assert sorted(order) == sorted(names)

    def by_hand(h: Array, clusters: Array, cluster_bias: Array, bias: Array, *rest: Array) -> Array:
        maps: list[Array | None] = [None] * 4
        for index, each in zip(mapped, rest[4:], strict=True):
            maps[index] = each
        return two_levels(h, list(rest[:4]), maps, clusters, np.split(bias, CUTOFFS), cluster_bias)

    learned = [h, *(names[name] for name in order)]
    require_agreement(found.logits(h), learned, by_hand)
    require_agreement(found.log_prob(h, targets), learned, lambda *each: np.take_along_axis(
        by_hand(*each), targets.numpy()[..., None], -1)[..., 0])


@pytest.mark.parametrize("head_bias", [False, True])
def test_pytorch_s_own_gives_the_same(head_bias: bool) -> None:
    """In values and in the gradients of its mean loss, which both take of every parameter."""
    theirs = nn.AdaptiveLogSoftmaxWithLoss(D, V, list(CUTOFFS), div_value=2.0, head_bias=head_bias).double()
    ours = readout(bias="head" if head_bias else "none")
    with torch.no_grad():
        pairs = [(theirs.head.weight, torch.cat([ours.tables[0], ours.clusters]))]
        pairs += [(theirs.head.bias, torch.cat([ours.bias, ours.cluster_bias]))] if head_bias else []
        for index, tail in enumerate(theirs.tail, 1):
            pairs += [(tail[0].weight, ours.projections[index].weight), (tail[1].weight, ours.tables[index])]
        for own, value in pairs:
            own.copy_(value)
    h, targets = inputs(grad=True)
    rows = h.flatten(0, 1)
    torch.testing.assert_close(ours.logits(h).flatten(0, 1), theirs.log_prob(rows), rtol=1e-12, atol=1e-13)
    loss = theirs(rows, targets.flatten()).loss
    mine = cross_entropy(ours, h, targets, torch.ones_like(targets, dtype=torch.bool), ObjectiveSettings()).loss
    torch.testing.assert_close(mine / targets.numel(), loss, rtol=1e-12, atol=0)
    wanted = torch.autograd.grad(loss, [h, *(tail[1].weight for tail in theirs.tail)])
    found = torch.autograd.grad(mine / targets.numel(), [h, *ours.tables[1:]])
    for a, b in zip(found, wanted, strict=True):  # sums of the same terms in another order, in float64
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-14)


@pytest.mark.parametrize("form", ["reference", "grouped"])
def test_probabilities_sum_to_one_and_targets_are_gathered_from_them(form: str) -> None:
    found, (h, targets) = readout(bias="all"), inputs()
    logs = found.logits(h)
    torch.testing.assert_close(logs.exp().sum(-1), torch.ones(3, 13, dtype=torch.float64), rtol=0, atol=1e-13)
    with forced({"clusters": form}):
        torch.testing.assert_close(found.log_prob(h, targets), logs.gather(-1, targets[..., None])[..., 0], rtol=1e-12,
                                   atol=0)


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_the_loss_counts_scored_tokens_alone(smoothing: float) -> None:
    found, (h, targets) = readout(bias="all"), inputs(grad=True)
    scored, logs = targets % 3 != 1, found.logits(h)
    sums = cross_entropy(found, h, targets, scored, ObjectiveSettings(label_smoothing=smoothing))
    plain = -logs.gather(-1, targets[..., None])[..., 0]
    wanted = ((1 - smoothing) * plain - smoothing * logs.mean(-1))[scored].sum()
    torch.testing.assert_close(sums.loss, wanted, rtol=1e-12, atol=0)
    torch.testing.assert_close(sums.nats, plain[scored].sum(), rtol=1e-12, atol=0)
    learned = [h, *found.parameters()]
    for mine, other in zip(torch.autograd.grad(sums.loss, learned), torch.autograd.grad(wanted, learned), strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-10, atol=1e-12)  # the same terms in another order


def test_a_z_loss_is_refused() -> None:
    found, (h, targets) = readout(), inputs()
    with pytest.raises(UnsupportedError, match=r"z-loss keeps log Z near 0.* Set it to 0, or use the linear readout"):
        cross_entropy(found, h, targets, targets >= 0, ObjectiveSettings(z_loss=1e-4))


def model_of(tied_projections: str = "tails", **fields: Any) -> Model:
    clusters = {"cutoffs": list(CUTOFFS), "div_val": 2}
    return built_model(parse_model({
        "kind": "decoder", "vocab_size": V, "context": 16, "d_model": D, "embedding": {"adaptive": clusters},
        "readout": {"kind": "adaptive", **clusters, "projections": "all", "tied_projections": tied_projections,
                    "bias": "all"},
        "blocks": [{"kind": "post", "layers": [{"kind": "attention", "n_heads": 2}]}], **fields}))


def test_an_adaptive_embedding_maps_each_cluster_to_the_width_of_the_model() -> None:
    found = AdaptiveEmbedding(ClusterSettings(cutoffs=CUTOFFS, div_val=2), D, None, Dims(D, V)).double()
    randomise(found)
    numbers = torch.arange(2 * V).view(2, V) * 5 % V
    assert [tuple(table.weight.shape) for table in found.tables] == [(5, 12), (6, 6), (6, 3), (6, 1)]

    def by_hand(*each: Array) -> Array:
        rows = []
        for number in numbers.flatten().tolist():
            cluster = max(index for index, first in enumerate(FIRSTS) if number >= first)
            rows.append(each[4 + cluster] @ each[cluster][number - FIRSTS[cluster]])
        return np.stack(rows).reshape(2, V, D)

    for form in ("reference", "grouped"):
        with forced({"clusters": form}):
            require_agreement(found(numbers), list(found.parameters()), by_hand)


@pytest.mark.parametrize("form", ["reference", "grouped"])
@pytest.mark.parametrize("wrong", [V, -1])
def test_an_id_beyond_the_vocabulary_is_refused(form: str, wrong: int) -> None:
    found = AdaptiveEmbedding(ClusterSettings(cutoffs=CUTOFFS, div_val=2), D, None, Dims(D, V))
    with forced({"clusters": form}), pytest.raises(IndexError):
        found(torch.tensor([[1, wrong]]))


@pytest.mark.parametrize(("which", "shared"), [("none", ()), ("tails", (1, 2, 3)), ("all", (0, 1, 2, 3))])
def test_matrices_and_maps_are_shared_with_the_embedding(which: str, shared: tuple[int, ...]) -> None:
    found: Any = model_of(which)
    tokens, own = found.embedding.tokens, found.readout
    assert all(mine is table.weight for mine, table in zip(own.tables, tokens.tables, strict=True))
    for index, each in enumerate(own.projections):
        assert isinstance(each, Transposed) is (index in shared)
        assert (each.weight is tokens.projections[index].weight) is (index in shared)


def test_a_transposed_map_is_the_transpose() -> None:
    found: Any = model_of("all")
    h = torch.randn(2, 3, D, generator=torch.Generator().manual_seed(0))
    weight = found.embedding.tokens.projections[2].weight
    torch.testing.assert_close(found.readout.projections[2](h), torch.einsum("btd,de->bte", h, weight), rtol=1e-5,
                               atol=1e-6)


def test_a_model_with_both_learns() -> None:
    """A cycle of ids through all clusters, to far below the log of their number, 3.1."""
    torch.manual_seed(0)
    found: Any = model_of(embedding={"adaptive": {"cutoffs": list(CUTOFFS), "div_val": 2}, "std": 0.5})
    row = (torch.arange(17) * 7 % V)[None].expand(2, -1)
    optimizer, scored = torch.optim.AdamW(found.parameters(), lr=2e-2), torch.ones(2, 16, dtype=torch.bool)
    for _ in range(80):
        loss = cross_entropy(found.readout, found.hidden(row[:, :-1]).y, row[:, 1:], scored, ObjectiveSettings()).loss
        optimizer.zero_grad()
        (loss / 32).backward()
        optimizer.step()
    assert float(loss.detach() / 32) < 0.5


def test_a_plan_counts_every_id_s_score_and_says_what_training_spares() -> None:
    found, mode = model_of(), FakeTensorMode(allow_non_fake_inputs=True)
    flops = forward_flops(shape_of(found, mode, None), mode, 16)
    sizes = [end - first for first, end in zip(FIRSTS, ENDS, strict=True)]
    products = sum(D * width + size * width for size, width in zip(sizes, WIDTHS, strict=True)) + 3 * D
    assert {part.part: part.full for part in flops.parts}["logits"] == 2 * products
    assert any(note.startswith("The adaptive softmax is counted for every token") for note in all_notes(found, flops))
    counted = count_parameters(found)
    assert counted.tied and counted.total == sum(value.numel() for value in found.parameters())


def test_clusters_are_read_as_they_were_written() -> None:
    again = parse_model(model_of().config.dump())
    assert again == model_of().config and again.dump()["embedding"]["adaptive"] == {"cutoffs": [5, 11, 17],
                                                                                   "div_val": 2}


@pytest.mark.parametrize(("fields", "said"), [
    ({"cutoffs": (5, 5)}, "cutoffs: [5, 5] do not increase from above 0. Give the first id of each cluster but the "
     "first, in increasing order."),
    ({"cutoffs": (0, 4)}, "cutoffs: [0, 4] do not increase from above 0."),
    ({"cutoffs": (5, V)}, "cutoffs: 23 leaves no id for the last cluster of a vocabulary of 23. Choose cutoffs below "
     "the number of ids."),
    ({"div_val": 4}, "div_val: 12 features divided by 4 to the power 3 leave none for the last cluster. Choose a "
     "smaller div_val, fewer cutoffs or a larger width."),
    ({"tied": True}, "tied: there is no adaptive token embedding to share. Give the model's `embedding` the same "
     "cutoffs under `adaptive` (with div_val 1 the same d_embedding), or set tied: false."),
    ({"tied": True, "div_val": 1}, "tied: there is no plain token embedding of width 12 to share."),
    ({"tied_projections": "all"}, "tied_projections: there is no adaptive embedding of widths [12, 6, 3, 1] whose maps "
     "could be shared. Leave it out")])
def test_what_does_not_fit_is_said(fields: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError) as found:
        readout(**fields)
    assert said in str(found.value)


@pytest.mark.parametrize(("fields", "said"), [
    ({"readout": {"kind": "adaptive", "cutoffs": [4], "div_val": 2}}, "readout.tied: clusters from [4] of widths [12, "
     "6]; those of the embedding begin at [5, 11, 17] and have widths [12, 6, 3, 1]. Give both the same cutoffs"),
    ({"readout": {"kind": "linear"}}, "readout.tied: the token embedding is adaptive, so it has several matrices. Give "
     "the model an adaptive readout, or set tied: false."),
    ({"embedding": {"adaptive": {"cutoffs": [9, 3]}}}, "cutoffs: [9, 3] do not increase from above 0."),
    ({"embedding": {"adaptive": {"cutoffs": [9, 40]}}}, "embedding.adaptive.cutoffs: 40 leaves no id"),
    ({"embedding": {"adaptive": {"cutoffs": [9], "div_val": 1}}}, "greater than 1")])
def test_what_does_not_fit_the_embedding_is_said(fields: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError) as found:
        model_of(**fields)
    assert said in str(found.value)


def test_an_encoder_does_not_share_an_adaptive_embedding() -> None:
    clusters = {"adaptive": {"cutoffs": [5], "div_val": 2}}
    encoder = {"kind": "encoder", "vocab_size": V, "d_model": D, "blocks": [{"kind": "pre", "layers": [
        {"kind": "attention", "n_heads": 2, "mask": "bidirectional"}]}]}
    with pytest.raises(ConfigError, match="tied_source: an adaptive embedding is not shared with the source"):
        built_model(parse_model({"kind": "encoder_decoder", "vocab_size": V, "d_model": D, "encoder": encoder,
                                 "embedding": clusters, "tied_source": True, "readout": {"kind": "linear",
                                                                                         "tied": False},
                                 "blocks": [{"kind": "pre", "layers": ["gru"]}]}))
