"""The sizes of a mesh and the places in it, without processes."""

from __future__ import annotations

import re

import pytest
import torch

from weft.core.errors import ConfigError
from weft.parallel.mesh import AXES, Mesh, MeshSettings, require_world
from weft.training.parallel import World


def test_places_number_the_grid_with_the_last_axis_fastest() -> None:
    settings = MeshSettings(replicate=2, shard=3, context=2, tensor=2)
    meshes = [Mesh(settings, rank) for rank in range(24)]
    places = [tuple(mesh.place(axis) for axis in AXES) for mesh in meshes]
    assert places == [(r, s, c, t) for r in range(2) for s in range(3) for c in range(2) for t in range(2)]
    assert [mesh.data_rank for mesh in meshes] == [rank // 4 for rank in range(24)]
    assert {mesh.data_size for mesh in meshes} == {6}


def test_a_mesh_splits_where_a_process_has_not_all() -> None:
    assert not Mesh(MeshSettings(replicate=4)).splits
    assert all(Mesh(MeshSettings.model_validate({axis: 2})).splits for axis in AXES[1:])


@pytest.mark.parametrize(("sizes", "started", "message"), [
    ({"shard": 2, "tensor": 2}, 3, "a mesh of shard 2 x tensor 2 has 4 processes, and 3 were started. Start 4"),
    ({"tensor": 2}, 1, "a mesh of tensor 2 has 2 processes, and 1 was started. Start 2 (torchrun"),
    ({"replicate": 4, "tensor": 2}, 4, "has 8 processes, and 4 were started. Set replicate to 2, or start 8.")])
def test_another_number_of_processes_is_refused(sizes: dict[str, int], started: int, message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        require_world(MeshSettings.model_validate(sizes), started)
    with pytest.raises(ConfigError, match=r"training\.mesh"):
        Mesh.of(MeshSettings.model_validate(sizes), rank=0, size=started)


def test_a_lost_connection_is_told_without_what_the_library_guesses() -> None:
    closed = RuntimeError("[/build/gloo/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:18342. This is "
                          "typically caused by a remote worker crashing. Check the logs.")
    assert str(World(torch.device("cpu")).lost(closed)) == (
        "rank 0: the connection to another rank is lost (Connection closed by peer [127.0.0.1]:18342). See the error "
        "of that rank or why it was killed, such as for memory, then go on with --resume.")
