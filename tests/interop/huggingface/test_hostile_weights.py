"""Files of weights that say other than they hold: refused in a line, in little memory."""

from __future__ import annotations

import io
import json
import struct
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from bounded import memory
from weft.checkpoints.sharded import StoredTensors
from weft.checkpoints.tensors import read_tensors
from weft.core.errors import CheckpointError
from weft.disk.documents import MOST_INDEX_BYTES
from weft.interop.huggingface.stored import open_stored, read_pickled

ROOM = 256 << 20
GIGABYTE = 1 << 30


def refused(path: Path) -> str:
    with pytest.raises(CheckpointError) as caught, memory(ROOM):
        read_pickled(path)
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 1_000
    return str(caught.value)


def test_members_of_an_archive_are_not_packed(tmp_path: Path) -> None:
    """4 MiB of zeros take 4 kB in an archive, and 3 GB three megabytes."""
    path = tmp_path / "a.bin"
    made = io.BytesIO()
    torch.save({"w": torch.ones(3)}, made)
    for packed in ("data.pkl", "data/0"):
        with zipfile.ZipFile(made) as source, zipfile.ZipFile(path, "w") as target:
            for name in source.namelist():
                more = bytes(4 << 20) if name.endswith(packed) else b""
                target.writestr(zipfile.ZipInfo(name), source.read(name) + more,
                                zipfile.ZIP_DEFLATED if more else zipfile.ZIP_STORED)
        assert path.stat().st_size < 10_000
        assert f"/{packed}' is compressed." in refused(path)


def test_sizes_that_an_archive_says_and_has_not(tmp_path: Path) -> None:
    path = tmp_path / "a.bin"
    torch.save({"w": torch.ones(3)}, path)
    content = bytearray(path.read_bytes())
    assert list(read_pickled(path)) == ["w"]
    place = content.rindex(b"PK\x01\x02", 0, content.index(b"data.pkl", content.index(b"PK\x01\x02")))
    for size in (3 * GIGABYTE, 2**32 - 1):
        content[place + 20:place + 28] = struct.pack("<2I", size, size)
        path.write_bytes(content)
        assert "damaged" in refused(path)
    content[place + 20:place + 28] = struct.pack("<2I", 1, 3 * GIGABYTE)
    path.write_bytes(content)
    assert "is compressed." in refused(path)


def test_a_member_that_is_there_twice(tmp_path: Path) -> None:
    path = tmp_path / "a.bin"
    torch.save({"w": torch.ones(3)}, path)
    with zipfile.ZipFile(path, "a") as archive, pytest.warns(UserWarning, match="Duplicate"):
        archive.writestr(archive.namelist()[0], b"other")
    assert "is there twice" in refused(path)


def test_numbers_of_a_tensor_are_in_the_file(tmp_path: Path) -> None:
    for old in (False, True):
        path = tmp_path / f"{old}.bin"
        one = torch.ones(1)
        torch.save({"w": one.expand(10**6, 10**6)}, path, _use_new_zipfile_serialization=not old)
        assert path.stat().st_size < 2_000
        assert "'w' is no tensor whose numbers are all in the file." in refused(path)
        torch.save({"w": torch.empty(10**9, device="meta")}, path)
        assert "'w' is no tensor" in refused(path)
        shared = torch.arange(6.0)
        torch.save({"a": shared[:2], "b": shared.view(2, 3).T}, path, _use_new_zipfile_serialization=not old)
        assert read_pickled(path)["b"].tolist() == [[0, 3], [1, 4], [2, 5]], "views are tensors like others"


def header(path: Path, content: Any, data: bytes = b"", size: int | None = None) -> None:
    text = json.dumps(content).encode()
    path.write_bytes(struct.pack("<Q", len(text) if size is None else size) + text + data)


def entry(shape: list[int], begin: int, end: int, dtype: str = "F32") -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


@pytest.mark.parametrize(("content", "data"), [
    ({"a": entry([2], 0, 8), "b": entry([2], 4, 12)}, bytes(12)), ({"a": entry([-2], 0, 8)}, bytes(8)),
    ({"a": entry([2**32, 2**32], 0, 8)}, bytes(8)), ({"a": entry([2], 8, 0)}, bytes(8)),
    ({"a": entry([2], 0, 2**63)}, bytes(8)), ({"a": entry([3], 0, 12)}, bytes(8)), ({"a": entry([1], 0, 4)}, bytes(8)),
    ({"a": entry([2], 0, 8, "F9")}, bytes(8)), ({"a": None}, b""), ([1], b""),
    ({"__metadata__": {"complex": "[" * 2_000}, "a": entry([2], 0, 8)}, bytes(8)),
    ({"__metadata__": {"complex": "7"}, "a": entry([2], 0, 8)}, bytes(8)),
    ({"__metadata__": {"complex": "[[\"a\"]]"}, "a": entry([2], 0, 8)}, bytes(8)),
    ({"__metadata__": {"complex": "[\"a\"]"}, "a": entry([3], 0, 12)}, bytes(12)),
    ({"__metadata__": {"complex": "[\"a\"]"}, "a": entry([2], 0, 16, "I64")}, bytes(16))], ids=str)
def test_headers_of_safetensors(content: Any, data: bytes, tmp_path: Path) -> None:
    header(tmp_path / "a.safetensors", content, data)
    with pytest.raises(CheckpointError, match=r"the tensors cannot be read \("), memory(ROOM):
        read_tensors(tmp_path / "a.safetensors")


def test_a_header_names_a_tensor_once(tmp_path: Path) -> None:
    """The format forbids more; libraries take the first or the last, and tell nobody."""
    path = tmp_path / "model.safetensors"
    text = json.dumps({"a": entry([1], 0, 4), "b": entry([1], 4, 8)}).replace('"b"', '"a"').encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + bytes(8))
    with pytest.raises(CheckpointError, match=r"cannot be read \((it gives 'a' twice|.*invalid)"):
        read_tensors(path)
    text = json.dumps({"a": entry([1], 0, 4)})[:-1] + ', "a": ' + json.dumps(entry([1], 0, 4)) + "}"
    path.write_bytes(struct.pack("<Q", len(text)) + text.encode() + bytes(4))
    with pytest.raises(CheckpointError, match=r"cannot be read \(it gives 'a' twice\)"):
        read_tensors(path)
    with pytest.raises(CheckpointError, match="it gives 'a' twice"):
        open_stored(tmp_path)


def test_an_index_of_many_or_of_none_is_refused_in_few_words(tmp_path: Path) -> None:
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {f"w{number}": f"{number}.safetensors" for number in range(3_000)}}))
    with pytest.raises(CheckpointError, match=r"3000 files cannot be used:(.|\n)*  - and 2,900 more\.\n") as caught:
        open_stored(tmp_path)
    assert str(caught.value).count("missing") == 100
    index.write_text(json.dumps({"weight_map": {"a": 7}}))
    with pytest.raises(CheckpointError, match=r"the index is damaged .*'7' is no name of a file"):
        open_stored(tmp_path)


def test_a_header_is_not_longer_than_an_index(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    for size in (MOST_INDEX_BYTES + 1, 2**63):
        header(path, {"a": entry([1], 0, 4)}, bytes(4), size)
        with pytest.raises(CheckpointError, match=rf"its header has {size:,} bytes; at most 67,108,864 are read"):
            read_tensors(path)
        with pytest.raises(CheckpointError, match=rf"its header has {size:,} bytes; at most 67,108,864 are read"):
            open_stored(tmp_path)


@pytest.mark.parametrize(("change", "what"), [
    ({"shape": [10**6, 10**6], "boxes": [{"shape": [10**6, 10**6]}]}, r"lists tensors of 4,\d+,\d+,\d+,\d+ bytes, and"),
    ({"shape": [-1, -6]}, r"\[-1, -6\] is no shape"), ({"shape": [2.0, 3]}, "is no shape"),
    ({"boxes": [{"file": "../model.safetensors"}]}, "is no name of a file beside it"),
    ({"boxes": [{"file": "/etc/passwd"}]}, "is no name"), ({"dtype": "nn"}, "'nn' is no dtype"),
    ({"boxes": [{"offsets": [0]}]}, "a box has another number of dimensions than its tensor, 2"),
    ({"dtype": ["a"]}, "damaged"), ({"boxes": 7}, "damaged")])
def test_the_index_of_what_many_have_written(change: dict[str, Any], what: str, tmp_path: Path) -> None:
    (tmp_path / "sharded").mkdir()
    save_file({"w": torch.ones(2, 3)}, tmp_path / "sharded/rank-00000.safetensors")
    box = {"offsets": [0, 0], "shape": [2, 3], "file": "rank-00000.safetensors", "key": "w"}
    sound = {"dtype": "float32", "shape": [2, 3], "boxes": [box]}
    index = tmp_path / "sharded/index.json"
    index.write_text(json.dumps({"model.w": sound}))
    assert StoredTensors(tmp_path).whole("model.")["w"].tolist() == torch.ones(2, 3).tolist()
    boxes = change.get("boxes")
    changed = {**change, "boxes": [{**box, **boxes[0]}]} if isinstance(boxes, list) else change
    index.write_text(json.dumps({"model.w": {**sound, **changed}}))
    with pytest.raises(CheckpointError, match=what), memory(ROOM):
        StoredTensors(tmp_path).whole("model.")
