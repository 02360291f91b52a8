"""Powers of dense systems, S4's structure and its Cauchy products, against the NumPy oracle."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from oracles import dense_ssm as oracle
from weft.ops.dense_ssm import DenseSystem, Powers, discretise_dense
from weft.ops.hippo import diagonal_modes
from weft.ops.s4 import S4_CHUNK, Dplr, S4Call, cauchy_kernel, dense, discretised
from weft.ops.ssm_chunk import Inputs

B, H, N = 2, 3, 6
Array = np.ndarray[Any, Any]
KERNELS = {"cauchy": cauchy_kernel, "powers": lambda system, length: Powers(dense(system)).kernel(length)}


def complexes(pairs: Tensor) -> Array:
    return torch.view_as_complex(pairs.detach().contiguous()).numpy()


def random_system() -> Dplr:
    torch.manual_seed(0)
    modes, p, b, c = (torch.randn(H, N // 2, 2, dtype=torch.float64) for _ in range(4))
    modes[..., 0] = -modes[..., 0].exp()
    return Dplr(modes, p, b, c, torch.rand(H, dtype=torch.float64) + 0.1)


def legs(d_state: int, steps: list[float]) -> Dplr:
    modes, b = diagonal_modes("legs", d_state)
    torch.manual_seed(0)
    modes, b = (each.repeat(len(steps), 1, 1) for each in (modes, b))
    return Dplr(modes, b / 2 ** 0.5, b, torch.randn_like(b), torch.tensor(steps, dtype=torch.float64))


def systems(system: Dplr) -> list[tuple[Array, Array, Array]]:
    return oracle.dplr(*(complexes(each) for each in system[:4]), system.dt.numpy())


@pytest.mark.parametrize("method", ["bilinear", "zoh"])
def test_discretisation(method: Any) -> None:
    torch.manual_seed(0)
    a, b, c = (torch.randn(*shape, dtype=torch.float64) for shape in ((H, N, N), (H, N), (H, N)))
    dt = torch.tensor([0.05, 0.3, 1.0], dtype=torch.float64)
    a[0, 0] = 0  # singular
    found = discretise_dense(a, b, c, dt, method)
    for h, wanted in enumerate(oracle.linear(a.numpy(), b.numpy(), c.numpy(), dt.numpy(), method)):
        for ours, theirs in zip(found, wanted, strict=True):
            np.testing.assert_allclose(ours[h].numpy(), theirs, rtol=1e-11, atol=1e-12)


def test_structure_gives_the_dense_matrices() -> None:
    system = random_system()
    for ours, theirs in zip(dense(system), discretised(system), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("way", KERNELS)
@pytest.mark.parametrize("length", [1, 2, 3, 17, 64, 65])
def test_kernels_are_the_oracle_s(way: str, length: int) -> None:
    system = random_system()
    found = KERNELS[way](system, length).numpy()
    np.testing.assert_allclose(found, oracle.kernels(systems(system), length), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("way", KERNELS)
def test_a_longer_kernel_begins_with_the_shorter_one(way: str) -> None:
    """C is learned, and not C (I - A^L) for one length L."""
    system = legs(16, [0.001, 0.01, 0.1])
    short, long = KERNELS[way](system, 30), KERNELS[way](system, 200)
    torch.testing.assert_close(long[:, :30], short, rtol=1e-10, atol=1e-11)


@pytest.mark.parametrize("way", KERNELS)
def test_kernels_in_float32(way: str) -> None:
    """At the sizes of a model, against float64: eleven squarings, each of which may double an error of 2^-24, leave
    some 1e-4 of the largest entry at worst."""
    exact = legs(64, [0.001, 0.01, 0.1])
    wanted = KERNELS["powers"](exact, 2048)
    found = KERNELS[way](Dplr(*(each.float() for each in exact)), 2048)
    assert ((found - wanted).abs().amax(1) / wanted.abs().amax(1)).max() < 1e-4


@pytest.mark.parametrize("length", [1, 2, 5, 21, 64, 65])
def test_a_chunk_from_a_state_is_the_recurrence(length: int) -> None:
    system = random_system()
    real = dense(system)
    u, x = torch.randn(B, H, length, dtype=torch.float64), torch.randn(B, H, N, dtype=torch.float64)
    powers = Powers(real)
    carried, after = powers.response(x, length), powers.absorb(u, x, None)
    pairs = [tuple(each[h].numpy() for each in real) for h in range(H)]
    for row in range(B):
        silent, _ = oracle.channels(np.zeros((length, H)), pairs, np.zeros(H), states=x[row].numpy())
        _, last = oracle.channels(u[row].t().numpy(), pairs, np.zeros(H), states=x[row].numpy())
        np.testing.assert_allclose(carried[row].t().numpy(), silent, rtol=1e-10, atol=1e-11)
        np.testing.assert_allclose(after[row].numpy(), last, rtol=1e-10, atol=1e-11)


def test_rows_absorb_their_own_counts() -> None:
    powers = Powers(dense(random_system()))
    u, x = torch.randn(4, H, 21, dtype=torch.float64), torch.randn(4, H, N, dtype=torch.float64)
    after = powers.absorb(u, x, torch.tensor([0, 5, 16, 21]))
    torch.testing.assert_close(after[0], x[0], rtol=1e-14, atol=1e-14)
    for row, count in enumerate((0, 5, 16, 21)):
        if count:
            alone = powers.absorb(u[row:row + 1, :, :count], x[row:row + 1], None)
            torch.testing.assert_close(after[row:row + 1], alone, rtol=1e-11, atol=1e-12)


def test_a_matrix_of_rank_one_never_makes_a_system_unstable() -> None:
    """Whatever P is, no eigenvalue of the discrete matrix leaves the unit disc."""
    system = random_system()._replace(p=torch.randn(H, N // 2, 2, dtype=torch.float64) * 30)
    assert torch.linalg.eigvals(dense(system).a).abs().max() < 1


def test_forms_agree_on_a_chunk_of_65536_tokens() -> None:
    """In float32, with the slowest step of the published range, whose modes last for 2,000 tokens."""
    given = Inputs(torch.randn(1, 2 ** 16, 1), None, True, None, None)
    system = Dplr(*(each.float() for each in legs(64, [0.001])))
    found = [S4_CHUNK.form(name).run(S4Call(given, system))[0] for name in ("powers", "cauchy")]
    torch.testing.assert_close(found[0], found[1], rtol=0, atol=1e-4 * float(found[0].abs().max()))


def test_systems_of_one_state() -> None:
    found = Powers(DenseSystem(*(torch.full(shape, 0.5, dtype=torch.float64) for shape in ((1, 1, 1), (1, 1), (1, 1)))))
    torch.testing.assert_close(found.kernel(3), torch.tensor([[0.25, 0.125, 0.0625]], dtype=torch.float64))
