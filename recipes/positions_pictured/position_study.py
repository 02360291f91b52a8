"""Measurements of position schemes, without training: proximity, rotation, decay, and what a mask tells.

    proximity     of every scheme: monotone, translation invariant, symmetric? (`weft.pictures.proximity`)
    rotation      PE(p + k) = M_k PE(p) of sinusoidal codes, M_k known, and fitted to the codes alone
    decay         |q.R(m)k| <= max_i |h_(i+1) - h_i| sum_i |S_(i+1)| of rotary positions (Su et al. 2021, section 3.4.3)
    equivariance  f(P x) = P f(x) of attention without positions, and under a causal mask
    probe         the position, read by a linear map from what a random causal model without positions makes of tokens
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, final

import torch
from jaxtyping import Float
from torch import Tensor

from weft.core.model import EncoderInputs, built_model, parse_model
from weft.core.part_config import Dims, PartConfig
from weft.core.registry import REGISTRY
from weft.core.strict_json import Record
from weft.pictures.proximity import (
    Properties,
    by_distance,
    codes,
    properties,
    proximities,
    rotations,
    wavelengths,
)
from weft.positions.base import POINTS, PositionScheme

HEADS, SIZE = 8, 32
"""Heads of the study, and their features."""
SHIFTS = (1, 7, 64)
"""Distances k of the rotations."""
FITTED = 512
"""Positions from which a rotation is fitted, eight for each feature."""


@final
@dataclass(frozen=True)
class StudySize(Record):
    """How much is measured; the defaults are the recorded study's.

    Attributes:
        draws: random queries and keys, compared with their bound.
        models: random models of the probe: what is read from one differs much from what is read from another.
    """

    tokens: int = 128
    draws: int = 200
    models: int = 5


RECORDED = StudySize()


@final
@dataclass(frozen=True)
class SchemeRow(Record):
    """A scheme with its default settings.

    Attributes:
        acts: where it acts, in words.
        learned: whether it has weights, which are as they start.
        holds: what holds of its proximity, of the first head where heads differ; None without a proximity of its own.
        curve: the mean proximity by distance, from 0; empty without one.
    """

    kind: str
    acts: str
    learned: bool
    holds: Properties | None
    curve: tuple[float, ...]


@final
@dataclass(frozen=True)
class Rotation(Record):
    """PE(p + k) = M_k PE(p).

    Attributes:
        error: greatest difference, M_k being the block rotation by k theta_i.
        fitted: greatest difference at positions behind those from which M_k was fitted by least squares.
    """

    shift: int
    error: float
    fitted: float


@final
@dataclass(frozen=True)
class Decay(Record):
    """The bound of rotary scores.

    Attributes:
        mean_sum: (2/d) sum_j |S_j| by distance, from 0: what the bound falls with.
        worst: the greatest |q.R(m)k| over its bound, among random queries and keys and all distances.
        largest_rise: the greatest growth of ``mean_sum`` from one distance to the next.
        held_until: the distance up to which it never grows.
    """

    size: int
    mean_sum: tuple[float, ...]
    worst: float
    largest_rise: float
    held_until: int


@final
@dataclass(frozen=True)
class Equivariance(Record):
    """How much f(P x) differs from P f(x), relative to f(x), for random permutations P.

    Attributes:
        without_positions: attention without positions and mask.
        causal: the same under a causal mask.
        rotary: with rotary positions and no mask.
    """

    without_positions: float
    causal: float
    rotary: float


@final
@dataclass(frozen=True)
class Probe(Record):
    """The share of the variance of positions that a linear map of hidden vectors explains, on texts that it was not
    fitted to, of each of several random models without positions.

    Attributes:
        bidirectional: without a mask.
        embeddings: of the token embeddings alone.
    """

    causal: tuple[float, ...]
    bidirectional: tuple[float, ...]
    embeddings: tuple[float, ...]


@final
@dataclass(frozen=True)
class PositionStudy(Record):
    """All of it."""

    size: StudySize
    schemes: tuple[SchemeRow, ...]
    rotations: tuple[Rotation, ...]
    decay: Decay
    wavelengths: tuple[float, ...]
    equivariance: Equivariance
    probe: Probe


def study(size: StudySize = RECORDED) -> PositionStudy:
    """Measure everything, by default in a few seconds; equal calls give equal numbers up to the last bits."""
    with torch.random.fork_rng([]):
        torch.manual_seed(0)
        rows = tuple(scheme_row(part, size.tokens) for part in REGISTRY.parts() if part.group == "position")
        rope = default_scheme("rope")
        return PositionStudy(size, rows, tuple(rotation(shift) for shift in SHIFTS),
                             decay(rope, SIZE, draws=size.draws), tuple(wavelengths(rope, SIZE)), equivariance(),
                             probe(models=size.models))


def default_scheme(kind: str, tokens: int = RECORDED.tokens) -> PositionScheme:
    """A scheme with its default settings, or, if it has none, those of its first example, drawn with one seed."""
    part: Any = REGISTRY.get(("position",), kind)
    required = any(field.is_required() for field in part.model_fields.values())
    config = part.examples()[0] if required else part()
    torch.manual_seed(0)
    scheme: PositionScheme = config.build_for_heads(Dims(HEADS * SIZE, 11, tokens), HEADS, SIZE)
    return scheme


def proximity_of(kind: str, tokens: int) -> Float[Tensor, "T S"] | None:
    """The proximities of a scheme, of its first head; None without any."""
    found = proximities(default_scheme(kind, tokens), tokens, HEADS, SIZE)
    return None if found is None else found[0]


def scheme_row(part: type[PartConfig], tokens: int) -> SchemeRow:
    """The measurements of a scheme."""
    scheme, found = default_scheme(part.kind, tokens), proximity_of(part.kind, tokens)
    acts = " and ".join(words for point, words in POINTS.items() if point in scheme.acts_on) or "nowhere"
    learned = next(scheme.parameters(), None) is not None
    if found is None:
        return SchemeRow(part.kind, acts, learned, None, ())
    return SchemeRow(part.kind, acts, learned, properties(found), tuple(by_distance(found).tolist()))


def rotation(shift: int) -> Rotation:
    """The map from sinusoidal codes to those so many positions on, known and fitted."""
    width, tokens = FITTED // 8, 2 * FITTED + shift
    scheme: Any = REGISTRY.get(("position",), "sinusoidal")()
    code = codes(scheme.build(Dims(width)), tokens, width)
    theta = 10000.0 ** (-2 * torch.arange(width // 2, dtype=torch.float64) / width)
    cos, sin = (shift * theta).cos(), (shift * theta).sin()
    # sin(a + b) = sin a cos b + cos a sin b, cos(a + b) = cos a cos b - sin a sin b; features are sin, cos, sin, ...
    blocks = [torch.stack([torch.stack([c, s]), torch.stack([-s, c])]) for c, s in zip(cos, sin, strict=True)]
    known = code[:-shift] @ torch.block_diag(*blocks).T
    now, later = code[:-shift], code[shift:]
    fitted = torch.linalg.lstsq(now[:FITTED], later[:FITTED], driver="gelsd", rcond=1e-15).solution
    return Rotation(shift, float((known - later).abs().max()),
                    float((now[FITTED:] @ fitted - later[FITTED:]).abs().max()))


def decay(scheme: PositionScheme, size: int, tokens: int = 256, draws: int = RECORDED.draws) -> Decay:
    """The bound of section 3.4.3 by distance, and how near random queries and keys come to it."""
    theta = torch.tensor([2 * math.pi / wave for wave in wavelengths(scheme, size)], dtype=torch.float64)
    distance = torch.arange(tokens, dtype=torch.float64)
    sums = torch.polar(torch.ones(1, dtype=torch.float64), distance[:, None] * theta).cumsum(1).abs()
    mean = sums.mean(1)
    generator = torch.Generator().manual_seed(0)
    q, k = (torch.randn(draws, size, generator=generator, dtype=torch.float64) for _ in range(2))
    turned = rotations(scheme, tokens, size)
    scores = torch.einsum("ne,tef,nf->nt", q, turned.transpose(1, 2) @ turned[:1], k).abs()
    pairs = torch.complex(q[:, 0::2], q[:, 1::2]) * torch.complex(k[:, 0::2], k[:, 1::2]).conj()
    steps = torch.diff(pairs, append=pairs.new_zeros(draws, 1), dim=1).abs().amax(1)
    growth = torch.diff(mean)
    rises = (growth > 0).nonzero()
    return Decay(size, tuple(mean.tolist()), float((scores / (steps[:, None] * sums.sum(1))).max()),
                 float(growth.max()), int(rises[0]) if len(rises) else tokens - 1)


def equivariance(tokens: int = 16, permutations: int = 5) -> Equivariance:
    """Attention of permuted tokens against permuted attention."""
    def measured(**changes: Any) -> float:
        config: Any = REGISTRY.get(("mixer",), "attention").model_validate({"n_heads": 2, **changes})
        torch.manual_seed(0)
        layer = config.build(Dims(16, 11, tokens)).double()
        x = torch.randn(1, tokens, 16, dtype=torch.float64)
        with torch.no_grad():
            y, found = layer(x).y, []
            for _ in range(permutations):
                order = torch.randperm(tokens)
                found.append(float((layer(x[:, order]).y - y[:, order]).norm() / y.norm()))
        return max(found)

    return Equivariance(measured(mask="bidirectional"), measured(mask="causal"),
                        measured(mask="bidirectional", position="rope"))


def probe(tokens: int = 32, rows: int = 256, models: int = RECORDED.models) -> Probe:
    """A linear map from hidden vectors to positions, of models with random weights and no positions. Every row begins
    with the same token, as texts do; all others are random."""
    generator = torch.Generator().manual_seed(0)
    texts = torch.randint(1, 64, (rows, tokens), generator=generator)
    texts[:, 0] = 0
    return Probe(*(tuple(_explained(_hidden(texts, mask, layers, seed), tokens) for seed in range(models))
                   for mask, layers in (("causal", 2), ("bidirectional", 2), ("bidirectional", 0))))


def _hidden(texts: Tensor, mask: str, layers: int, seed: int) -> Float[Tensor, "B T D"]:
    """The vectors of a random model, or its token embeddings for no layers."""
    block = {"kind": "pre", "layers": [{"kind": "attention", "n_heads": 4, "mask": mask}, {"kind": "mlp"}]}
    torch.manual_seed(seed)
    model = built_model(parse_model({
        "kind": "encoder", "vocab_size": 64, "d_model": 64, "context": texts.shape[1], "norm": "layernorm",
        "embedding": {"std": 1.0}, "blocks": [{"repeat": max(1, layers), "of": [block]}]})).double().eval()
    inputs = EncoderInputs(tokens=texts)
    with torch.no_grad():
        if layers:
            return model.vectors(inputs).y
        table: Any = model.get_submodule("embedding.tokens")
        embedded: Tensor = table(texts)
        return embedded


def _explained(hidden: Float[Tensor, "B T D"], tokens: int) -> float:
    """The share of the variance of positions that least squares explains, fitted on half of the rows."""
    half = hidden.shape[0] // 2
    ones = torch.ones(*hidden.shape[:2], 1, dtype=hidden.dtype)
    features = torch.cat([hidden, ones], -1)[:, 1:]
    wanted = torch.arange(1, tokens, dtype=hidden.dtype).expand(hidden.shape[0], -1)
    # Normalised vectors sum to zero, so the features are dependent. PyTorch's default driver, gelsy, then finds a rank
    # that depends on what the memory of its pivots held before (pytorch/pytorch#187411); gelsd has no pivots.
    fitted = torch.linalg.lstsq(features[:half].flatten(0, 1), wanted[:half].reshape(-1, 1), driver="gelsd").solution
    left = (features[half:] @ fitted)[..., 0] - wanted[half:]
    return 1.0 - float(left.square().mean() / wanted[half:].var(correction=0))


def sentences(found: PositionStudy) -> Sequence[str]:
    """The findings in sentences, in the order of the study."""
    rows = {row.kind: row for row in found.schemes}
    monotone = [row.kind for row in found.schemes if row.holds is not None and row.holds.first_rise is None]
    invariant = [row.kind for row in found.schemes if row.holds is not None and row.holds.invariant > 1 - 1e-6]
    sines, rope = rows["sinusoidal"].holds, rows["rope"].holds
    assert sines is not None and rope is not None, "both have a proximity"
    worst, fitted = max(each.error for each in found.rotations), max(each.fitted for each in found.rotations)
    even, probe_, decay_ = found.equivariance, found.probe, found.decay
    far = decay_.mean_sum[-1] / decay_.mean_sum[0]
    return (
        f"Proximity never grows with distance under {', '.join(monotone)}.",
        f"Under sinusoidal positions it {_monotone(sines)}, and under rotary ones it {_monotone(rope)}.",
        f"Proximity depends on the difference of two positions alone under {', '.join(invariant)}.",
        f"PE(p + k) = M_k PE(p) holds to {worst:.0e} for k = {', '.join(map(str, SHIFTS))}; an M_k that is fitted to "
        f"the first {FITTED} positions alone is off by at most {fitted:.0e} at the next {FITTED}.",
        f"No score of {found.size.draws:,} random queries and keys exceeds its bound; the nearest reaches "
        f"{decay_.worst:.0%} of it.",
        f"The mean of |S_j| falls to {far:.0%} of its first value at distance {len(decay_.mean_sum) - 1}, but it "
        + ("never grows." if decay_.largest_rise <= 0 else
           f"grows again from distance {decay_.held_until} on, so only the bound decays in the long term, and not at "
           "every step."),
        f"Attention without positions is equivariant under permutations to {even.without_positions:.0e}; a causal mask "
        f"changes its result by {even.causal:.0%}, rotary positions by {even.rotary:.0%}.",
        f"A linear map reads {_mean(probe_.causal):.0%} of the variance of positions from random causal models without "
        f"positions (mean of {len(probe_.causal)}, {min(probe_.causal):.0%} to {max(probe_.causal):.0%}), "
        f"{_mean(probe_.bidirectional):.0%} without the mask, and {_mean(probe_.embeddings):.0%} from the embeddings.")


def _mean(shares: Sequence[float]) -> float:
    """The mean of explained shares, none of which counts as less than nothing."""
    return max(0.0, statistics.fmean(shares))


def _monotone(holds: Properties) -> str:
    """Whether a proximity is monotone, in words."""
    if holds.first_rise is None:
        return "never grows"
    return (f"is not monotone: it grows again from distance {holds.first_rise} on, in {1 - holds.monotone:.0%} of the "
            "steps")
