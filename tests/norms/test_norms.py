"""Norms against the oracles and torch.nn, in float64, where 1e-12 leaves some thousand roundings of values near one."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from oracles import norms as oracle
from oracles.finite_difference import gradient_agrees
from weft.core.config import parse_part
from weft.core.declarations import Trait
from weft.core.errors import ConfigError
from weft.core.layer import traits_of
from weft.core.part_config import Dims
from weft.core.registry import REGISTRY
from weft.norms.base import NoNormConfig, Norm, NormConfig
from weft.norms.batchnorm import BatchNorm, BatchNormConfig
from weft.norms.layernorm import LayerNorm, LayerNormConfig
from weft.norms.rmsnorm import RMSNorm, RMSNormConfig
from weft.ops.norms import rms_norm

B, T, D = 3, 4, 6
EXACT = {"rtol": 1e-12, "atol": 1e-12}
VALID = torch.tensor([[1, 1, 1, 1], [1, 0, 0, 0], [1, 1, 0, 0]]).bool()


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def scrambled(norm: Norm) -> Norm:
    """In float64, with parameters that are neither 0 nor 1."""
    for index, parameter in enumerate(norm.double().parameters()):
        parameter.data = random(D, seed=index + 7)
    return norm


def agrees(norm: Norm, function, valid: Tensor | None = None) -> bool:
    """Values equal and gradients of x and all parameters agree with ``function(x, *parameters)``."""
    x = random(B, T, D).requires_grad_()
    arguments = [x, *norm.parameters()]
    numbers = [a.detach().numpy() for a in arguments]
    y = norm(x, valid)
    assert_close(y.detach(), torch.from_numpy(function(*numbers)), **EXACT)
    weight = random(B, T, D, seed=9)
    gradients = [g.numpy() for g in torch.autograd.grad((y * weight).sum(), arguments)]
    return gradient_agrees(function, numbers, gradients, np.random.default_rng(0), cotangent=weight.numpy())


def test_layernorm_is_the_oracle() -> None:
    assert agrees(scrambled(LayerNorm(D, 1e-2)), lambda x, w, b: oracle.layernorm(x, w, b, 1e-2))
    assert agrees(scrambled(LayerNorm(D, bias=False)), lambda x, w: oracle.layernorm(x, w))
    assert agrees(scrambled(LayerNorm(D, weight=False)), lambda x, b: oracle.layernorm(x, None, b))
    assert agrees(scrambled(LayerNorm(D, weight=False, bias=False)), oracle.layernorm)


@pytest.mark.parametrize("offset", [False, True])
def test_rmsnorm_is_the_oracle(offset: bool) -> None:
    norm = scrambled(RMSNorm(D, 1e-2, unit_offset=offset))
    assert agrees(norm, lambda x, w: oracle.rmsnorm(x, w, 1e-2, offset))


def test_rmsnorm_without_weight_and_as_it_starts() -> None:
    assert agrees(RMSNorm(D, weight=False).double(), oracle.rmsnorm)
    x = random(5, D)
    assert_close(RMSNorm(D, unit_offset=True).double()(x), RMSNorm(D).double()(x), **EXACT)


def test_epsilons_left_out_of_a_configuration_are_the_usual_ones() -> None:
    """Of numbers so small that they decide: torch's for layer normalisation, the oracle's (Llama's) for the other."""
    x = 1e-3 * random(5, D)
    assert_close(LayerNormConfig().build_size(D).double()(x), nn.LayerNorm(D).double()(x), **EXACT)
    assert_close(RMSNormConfig().build_size(D).double()(x), torch.from_numpy(oracle.rmsnorm(x.numpy())), **EXACT)


@pytest.mark.parametrize(("ours", "theirs"), [(LayerNorm(D), nn.LayerNorm(D)), (RMSNorm(D), nn.RMSNorm(D, eps=1e-6))])
def test_norms_are_torchs(ours: Norm, theirs: nn.Module) -> None:
    scrambled(ours)
    theirs.double().load_state_dict(ours.state_dict())
    x = random(2, 3, 5, D)
    assert_close(ours(x), theirs(x), **EXACT)


@pytest.mark.parametrize("norm", [LayerNorm(512), RMSNorm(512), RMSNorm(512, unit_offset=True)])
def test_bfloat16_is_float32_rounded_once(norm: Norm) -> None:
    """Computed in bfloat16, a mean of 512 squares near 1e4 would be off by far more than one rounding of 2^-9."""
    x = (random(4, 512) + 100).bfloat16()
    for parameter in norm.parameters():
        parameter.data = (1 + random(512, seed=3)).bfloat16()
    y = norm(x)
    assert y.dtype == torch.bfloat16
    assert_close(y.double(), norm.double()(x.double()), rtol=2**-8, atol=2e-4)  # half an ulp; cancellation in x - mean


def test_batchnorm_in_training_is_the_oracle_over_real_tokens() -> None:
    mask = VALID.numpy()
    assert agrees(scrambled(BatchNorm(D)), lambda x, w, b: oracle.batchnorm(x, mask, w, b), VALID)
    assert agrees(scrambled(BatchNorm(D, 1e-2)), lambda x, w, b: oracle.batchnorm(x, None, w, b, 1e-2))


def test_batchnorm_keeps_running_statistics_and_uses_them_in_evaluation() -> None:
    norm, theirs = scrambled(BatchNorm(D, momentum=0.3)), nn.BatchNorm1d(D, momentum=0.3).double()
    mean, var = np.zeros(D), np.ones(D)
    for seed in range(3):
        x = random(B, T, D, seed=seed) * (seed + 1) + seed
        norm(x.masked_fill(~VALID[..., None], torch.nan), VALID)
        theirs(x[VALID])
        mean, var = oracle.batchnorm_running(x.numpy(), VALID.numpy(), mean, var, 0.3)
    assert_close(norm.running_mean, theirs.running_mean, **EXACT)
    assert_close(norm.running_var, theirs.running_var, **EXACT)
    assert_close(norm.running_var, torch.from_numpy(var), **EXACT)
    weight, bias = (p.detach().numpy() for p in norm.parameters())
    assert agrees(norm.eval(), lambda x, w, b: oracle.batchnorm_evaluation(x, mean, var, w, b))
    assert_close(norm.running_mean, torch.from_numpy(mean), **EXACT)
    expected = oracle.batchnorm_evaluation(random(1, 1, D).numpy(), mean, var, weight, bias)
    assert_close(norm(random(1, 1, D)).detach(), torch.from_numpy(expected), **EXACT)


def test_batchnorm_of_heads_counts_every_vector() -> None:
    x = random(B, T, 2, D)
    norm, theirs = BatchNorm(D).double(), nn.BatchNorm1d(D).double()
    assert_close(norm(x, VALID)[VALID], theirs(x[VALID].reshape(-1, D)).reshape(-1, 2, D), **EXACT)


def test_batchnorm_of_no_and_of_one_token_is_finite() -> None:
    norm = BatchNorm(D).double()
    none, one = torch.zeros(1, 4).bool(), torch.tensor([[1, 0, 0, 0]]).bool()
    norm(random(1, 4, D), none)
    assert_close(norm.running_mean, torch.zeros(D, dtype=torch.float64), rtol=0, atol=0)
    assert_close(norm.running_var, torch.ones(D, dtype=torch.float64), rtol=0, atol=0)
    assert norm(random(1, 4, D), one).isfinite().all()
    assert_close(norm.running_var, torch.full((D,), 0.9, dtype=torch.float64), **EXACT)


def test_batchnorm_compiles_without_graph_breaks() -> None:
    torch._dynamo.reset()
    plain, norm = BatchNorm(D).double(), BatchNorm(D).double()
    x = random(B, T, D)
    assert_close(torch.compile(norm, fullgraph=True, backend="eager")(x, VALID), plain(x, VALID), **EXACT)
    assert_close(norm.running_var, plain.running_var, **EXACT)


def test_batchnorm_says_what_it_cannot_do() -> None:
    held = {kind: traits_of(part.examples()[0].build(Dims(D))) for kind, part in kinds().items()}
    assert held == {"batchnorm": {Trait.BATCH_STATISTICS}, "layernorm": set(), "none": set(), "rmsnorm": set()}


def kinds() -> dict[str, type[NormConfig]]:
    return {part.kind: part for part in (BatchNormConfig, LayerNormConfig, NoNormConfig, RMSNormConfig)}


@pytest.mark.parametrize("config", [e for part in kinds().values() for e in part.examples()], ids=str)
def test_configuration_reaches_the_norm_and_survives_a_round_trip(config: NormConfig) -> None:
    assert parse_part(("norm",), config.dump()) == config
    norm = config.build_size(D).eval()
    assert norm(random(2, D).float()).shape == (2, D)
    for name, value in config.model_dump().items():
        found = getattr(norm, name)
        assert (found is not None) == value if name in ("weight", "bias") else found == value


def test_none_is_the_identity_and_build_takes_the_models_width() -> None:
    x = random(2, D)
    assert NoNormConfig().build(Dims(D))(x) is x
    assert LayerNormConfig().build(Dims(12)).size == 12


@pytest.mark.parametrize(("data", "message"), [
    ({"kind": "layernorm", "eps": 0}, "eps: Input should be greater than 0, got 0"),
    ({"kind": "rmsnorm", "weight": False, "unit_offset": True}, "unit_offset: true, but there is no weight to add"),
    ({"kind": "batchnorm", "momentum": 2}, "momentum: Input should be less than or equal to 1, got 2"),
    ({"kind": "layernorn"}, "no norm of kind 'layernorn'. Did you mean 'layernorm'?"),
])
def test_bad_configurations_are_named(data: dict[str, object], message: str) -> None:
    assert {"layernorm", "rmsnorm", "batchnorm", "none"} <= set(REGISTRY.kinds(("norm",)))
    with pytest.raises(ConfigError) as error:
        parse_part(("norm",), data)
    assert message in str(error.value)


@pytest.mark.parametrize("rows", [1, 5, 33])
@pytest.mark.parametrize("weighted", [False, True])
def test_rmsnorm_without_gradients_is_the_same_norm(rows: int, weighted: bool) -> None:
    x, weight = 3 * random(rows, 1, D), random(D, seed=1) if weighted else None
    wanted = torch.from_numpy(oracle.rmsnorm(x.numpy(), None if weight is None else weight.numpy(), 1e-2))
    with torch.no_grad():
        assert_close(rms_norm(x, weight, 1e-2), wanted, **EXACT)
        narrow = rms_norm(x.bfloat16(), None if weight is None else weight.float(), 1e-2)
    again = oracle.rmsnorm(x.bfloat16().double().numpy(), None if weight is None else weight.numpy(), 1e-2)
    assert narrow.dtype == torch.bfloat16
    assert_close(narrow.double(), torch.from_numpy(again), rtol=2**-8, atol=1e-6)  # rounded once, to eight bits
