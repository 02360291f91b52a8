"""What opening and loading cost: seconds before a tensor is touched, and anonymous memory over the weights, which the
kernel's own account of the process says (Linux)."""

from __future__ import annotations

import json
import math
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

import pytest
import torch

from weft import api
from weft.core.base_model import built_empty
from weft.families.family import families
from weft.interop.huggingface.folder import open_folder

SMALL: dict[str, Any] = {"vocab_size": 512, "hidden_size": 1024, "intermediate_size": 2816, "num_hidden_layers": 4,
                         "num_attention_heads": 8}
SEVEN: dict[str, Any] = {"vocab_size": 32000, "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32,
                         "num_attention_heads": 32}


def write_sparse(folder: Path, values: Mapping[str, Any], shards: int) -> None:
    """A Llama-shaped folder in bfloat16 whose files have their whole size and take no room: all numbers are zero."""
    family = families()["llama"]
    config, facts = family.read(values)
    tensors = list(family.account(built_empty(config), facts).shapes.items())
    places = {}
    for shard in range(shards):
        name, end, entries = f"model-{shard}.safetensors", 0, {}
        for tensor, shape in tensors[shard::shards]:
            begin, end = end, end + 2 * math.prod(shape)
            entries[tensor] = {"dtype": "BF16", "shape": shape, "data_offsets": [begin, end]}
            places[tensor] = name
        header = json.dumps(entries).encode()
        with (folder / name).open("wb") as file:
            file.write(len(header).to_bytes(8, "little") + header)
            file.truncate(8 + len(header) + end)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))
    (folder / "config.json").write_text(json.dumps({"model_type": "llama", **values}))


def anonymous() -> int:
    """Bytes of this process's memory that no file backs."""
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("RssAnon:"))


class Watch:
    """How far anonymous memory rises inside the block; ``most`` in bytes."""

    def __init__(self) -> None:
        self.most, self._before, self._done = 0, anonymous(), threading.Event()
        self._thread = threading.Thread(target=self._sample)

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        self._done.set()
        self._thread.join()

    def _sample(self) -> None:
        while not self._done.wait(0.001):
            self.most = max(self.most, anonymous() - self._before)


@pytest.mark.parametrize("dtype", [None, "float32"])
def test_anonymous_memory_stays_below_the_weights_and_a_tenth(dtype: str | None, tmp_path: Path) -> None:
    write_sparse(tmp_path, SMALL, 3)
    open_folder(tmp_path)
    with Watch() as watch:
        model = api.load(tmp_path, dtype=dtype).model
    weights = sum(each.numel() * each.element_size() for each in model.parameters())
    assert weights == (2 if dtype is None else 4) * sum(each.numel() for each in model.parameters()) > 100e6
    assert watch.most < 1.1 * weights


def test_a_sharded_folder_of_seven_billion_opens_within_a_second(tmp_path: Path) -> None:
    """The quickest of three: the machine may be doing other things."""
    write_sparse(tmp_path, SEVEN, 3)
    spent = []
    for _ in range(3):
        begin = time.perf_counter()
        opened = open_folder(tmp_path)
        spent.append(time.perf_counter() - begin)
    assert sum(each.numel() for each in opened.model.parameters()) == 6_738_415_616
    assert all(each.is_meta for each in opened.model.parameters())
    assert {entry.dtype for entry in opened.stored.entries.values()} == {torch.bfloat16}
    assert min(spent) < 1
