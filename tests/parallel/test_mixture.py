"""A mixture read by one, two and four processes, each of which reads the files by itself: the same tokens in the same
order."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from parallel.mixture_worker import MESHES, ROWS, STEPS, worker
from parallel.processes import together


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where they have trained."""
    path = tmp_path_factory.mktemp("mixture")
    for name in "abc":
        (path / f"{name}.txt").write_text("".join(f"{name} {i * i % 89}\n" for i in range(99)), encoding="utf-8")
    for size in MESHES:
        together(size, worker, path, folder=path)
    return path


def read(folder: Path, size: int, *, replicas: bool) -> dict[str, np.ndarray]:
    """What all processes of a mesh have computed: rows side by side, in the order of the ranks that take them."""
    each = [dict(np.load(folder / f"{size}-{replicas}-{rank}.npz")) for rank in range(size)]
    by_place: dict[int, dict[str, np.ndarray]] = {}
    for found in each:
        place, count = found.pop("place").tolist()
        assert found["inputs"].shape[:2] == (2 * STEPS, ROWS // count)
        for name, values in by_place.setdefault(place, found).items():
            np.testing.assert_array_equal(found[name], values, err_msg="ranks that share rows")
    return {name: np.concatenate([by_place[place][name] for place in sorted(by_place)], 1) for name in each[0]}


@pytest.mark.parametrize(("size", "replicas"), [(2, True), (4, True), (4, False)])
def test_the_same_tokens_in_the_same_order(folder: Path, size: int, replicas: bool) -> None:
    one, many = read(folder, 1, replicas=True), read(folder, size, replicas=replicas)
    assert np.bincount(one["source"].ravel()).tolist() == [24, 8, 16], "the weights, 3 to 1 to 2"
    assert len(np.unique(one["places"])) > 300, "not the same rows again"
    for name, values in one.items():
        np.testing.assert_array_equal(many[name], values, err_msg=name)
