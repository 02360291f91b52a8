"""Files outside the folders of results: all are listed, and only what is proved to be Weft's is deleted."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from weft.analysis.storage import storage
from weft.cli import failures

LIBRARY = b"\x7fELF of 24 bytes in all"


def build(folder: Path, library: bytes = LIBRARY) -> Path:
    """A build of C code as `weft.ops.native.build` leaves it, with another library if one is given."""
    folder.mkdir(parents=True, mode=0o700)
    (folder / "libweft.so").write_bytes(library)
    (folder / "build.json").write_text(json.dumps({"sha256": hashlib.sha256(LIBRARY).hexdigest(), "sets": []}))
    return folder


@pytest.fixture
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder in which everything is stored."""
    for name, value in {"WEFT_CACHE_DIR": "weft", "TORCHINDUCTOR_CACHE_DIR": "inductor", "TRITON_CACHE_DIR": "triton",
                        "HF_HUB_CACHE": "hub"}.items():
        monkeypatch.setenv(name, str(tmp_path / value))
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    return tmp_path


def report(places: Path) -> Path:
    """A report of an error, as a command writes it."""
    before = set((places / "temporary").iterdir())
    assert "details in" in failures._details(ValueError("x"))
    new, = set((places / "temporary").iterdir()) - before
    return new


def foreign(places: Path, told: Path, built: Path) -> list[Path]:
    """Files that have the name or the content of Weft's, never both, and those of libraries."""
    native, temporary = places / "weft/native", places / "temporary"
    texts = {temporary / "weft-error-abcdefgh.txt": b"weft 1, my own notes\n", temporary / "weft-error.txt": b"x",
             temporary / "notes.txt": told.read_bytes(), places / "weft/routes.json": b"{}",
             places / "inductor/a/b.py": b"# code", places / "hub/models--a/c": b"weights",
             native / ("a" * 32) / "note": b"a folder of a user", native / "README": b"mine"}
    for path, content in texts.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    changed = build(native / ("b" * 32), b"\x7fELF of another length")
    noted = build(native / ("c" * 32))
    (noted / "note").write_text("mine")
    named = build(native / "mine")
    links = [temporary / "weft-error-aaaaaaaa.txt", native / ("d" * 32)]
    for link, target in zip(links, (told, built), strict=True):
        link.symlink_to(target)
    return [*texts, changed, noted, named, *links]


def test_what_is_proved_is_deleted_when_that_is_asked_for_and_nothing_else(weft: Any, places: Path) -> None:
    own = [report(places), build(places / "weft/native" / ("0" * 32))]
    others = foreign(places, *own)
    told = weft("doctor", "--storage", "--json").json()
    assert told["deleted"] == [] and {path for each in told["stored"] for path in each["own"]} == set(map(str, own))
    told = weft("doctor", "--storage", "--clear", "--json").json()
    assert sorted(told["deleted"]) == sorted(map(str, own))
    assert not any(path.exists() for path in own)
    assert all(path.is_symlink() or path.exists() for path in others)
    assert not list((places / "weft/native").glob(".draft-*"))


def test_every_kind_is_listed_with_its_size(places: Path) -> None:
    own = [report(places), build(places / "weft/native" / ("0" * 32))]
    foreign(places, *own)
    found = {each.what: (each.entries, each.bytes) for each in storage()}
    assert found["code by torch.compile"] == (1, 6) and found["models from the Hub"] == (1, 7)
    assert found["code by Triton"] == (0, 0) and found["other files of Weft's cache"] == (1, 2)
    size = sum(path.stat().st_size for path in own[1].iterdir())
    entries, stored = found["compiled C code"]
    assert entries == 5, "four folders and a link"
    assert stored > size and found["reports of errors"][0] == 3


def test_the_table_names_folders_and_the_remedy(weft: Any, places: Path) -> None:
    own = report(places)
    told = " ".join(weft("doctor", "--storage").out.split())
    assert "models from" in told and "TMPDIR" in told and "--clear deletes what is Weft's" in told
    assert f"deleted {own}" in weft("doctor", "--storage", "--clear").out.replace("\n", "")


def test_clearing_without_listing_is_refused(refused: Any) -> None:
    assert refused("doctor", "--clear").endswith(
        "--clear: this deletes what --storage lists. Give both, or neither.")
