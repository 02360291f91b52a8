"""FSDP2 (`fully_shard`) of a hybrid over two processes: gradients of one process, and a float32 state that stays so.

FSDP's own casting of a module's arguments would turn a float32 state into bfloat16 (``cast_forward_inputs=True``), so
Weft's models are sharded without it.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

from fresh import Fresh
from integration.fsdp2_worker import WORLD, worker


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What each process found; they meet at a file and use no port of their own choosing."""
    folder = tmp_path_factory.mktemp("fsdp2")
    environment = {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    processes = [Fresh(worker, rank, str(folder), folder=folder, environment=environment) for rank in range(WORLD)]
    for end in [process.end() for process in processes]:
        assert end.returncode == 0, end.stderr
    return [torch.load(folder / f"{rank}.pt", weights_only=False) for rank in range(WORLD)]


def test_gradients_in_float32_are_those_of_one_process(results: list[dict[str, Any]]) -> None:
    """Relative to the largest entry of each parameter's gradient; float32 rounds at 6e-8."""
    assert max(found["float32"] for found in results) < 1e-6


def test_gradients_in_bfloat16_are_within_its_rounding(results: list[dict[str, Any]]) -> None:
    """bfloat16 rounds at 4e-3, and a gradient here has gone through some ten roundings; the lower bound shows that
    bfloat16 was used."""
    for found in results:
        assert 1e-4 < found["bfloat16"] < 0.1


def test_the_float32_state_stays_so_while_the_model_computes_in_bfloat16(results: list[dict[str, Any]]) -> None:
    for found in results:
        run = found["stateful"]
        assert run["logits"] == torch.bfloat16
        assert run["ended"] == run["began"]
        assert run["ended"]["stack.layers.0.layers.0.modes"] == torch.float32
        assert run["ended"]["stack.layers.1.layers.0.keys"] == torch.bfloat16
        assert run["gap"] < 0.05, "two pieces are not the whole"
