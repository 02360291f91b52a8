"""A checkpoint is whole or absent, and the one before it is never lost, wherever writing stops."""

from __future__ import annotations

import errno
import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from checkpoints.tiny_models import model_of
from weft.checkpoints import load_checkpoint, save_checkpoint
from weft.checkpoints import save as save_module
from weft.core.errors import CheckpointError, FailedError
from weft.disk.atomic import discard, replacing, standing, tidy, write_file
from weft.tokenizers import ByteTokenizer


class Killed(BaseException):
    """The process ends here."""


def saved_step(path: Path) -> int:
    return int(load_checkpoint(path).facts["step"])


@pytest.mark.parametrize("dies_in", ["write_tensors", "write_manifest"])
def test_a_writer_that_dies_before_the_rename_leaves_the_old_checkpoint(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dies_in: str) -> None:
    save_checkpoint(tmp_path / "a", model_of(), ByteTokenizer(), facts={"step": 1})

    def die(*_: Any) -> None:
        raise Killed

    monkeypatch.setattr(save_module, dies_in, die)
    for name in ("a", "b"):
        with pytest.raises(Killed):
            save_checkpoint(tmp_path / name, model_of(), ByteTokenizer(), facts={"step": 2}, replace=True)
    assert saved_step(tmp_path / "a") == 1
    assert not (tmp_path / "b").exists()


def test_an_error_of_a_full_disk_names_what_was_to_be_written(tmp_path: Path) -> None:
    """It comes from a file that is open already, and has no name of its own."""
    with pytest.raises(OSError, match="No space left") as caught, replacing(tmp_path / "pictures"):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    assert caught.value.filename == str(tmp_path / "pictures") and not list(tmp_path.iterdir())
    with pytest.raises(OSError, match="Permission") as caught, replacing(tmp_path / "pictures"):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), "another")
    assert caught.value.filename == "another"


@pytest.mark.parametrize("renames", [0, 1, 2])
def test_a_writer_that_dies_between_the_renames_leaves_one_that_is_found(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch, renames: int) -> None:
    save_checkpoint(tmp_path / "a", model_of(), None, facts={"step": 1})
    rename = os.rename
    done: list[Any] = []

    def die_later(source: Any, target: Any) -> None:
        if len(done) == renames:
            raise Killed
        done.append(target)
        rename(source, target)
        if len(done) == renames:
            raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(os, "rename", die_later)
        with pytest.raises(Killed):
            save_checkpoint(tmp_path / "a", model_of(), None, facts={"step": 2}, replace=True)
    assert saved_step(tmp_path / "a") == (2 if renames == 2 else 1)
    save_checkpoint(tmp_path / "a", model_of(), None, facts={"step": 3}, replace=True)
    assert saved_step(tmp_path / "a") == 3
    assert [path.name for path in tmp_path.iterdir()] == ["a"], "nothing is left lying about"


def test_a_full_disk_is_an_error_that_leaves_the_old_checkpoint(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_checkpoint(tmp_path / "a", model_of(), None, facts={"step": 1})

    def fill(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(save_module, "write_tensors", fill)
    with pytest.raises(FailedError, match=r"/a: there is no space for the checkpoint, which takes [\d,]+ bytes; [\d,]+ "
                                          r"are free there .*No space left on device.*checkpoints are unchanged"):
        save_checkpoint(tmp_path / "a", model_of(), None, facts={"step": 2}, replace=True)
    assert saved_step(tmp_path / "a") == 1


@contextmanager
def largest_file(size: int) -> Iterator[None]:
    """The system refuses files beyond a size, as a quota does."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_file_that_the_system_cuts_off_leaves_the_old_checkpoint(tmp_path: Path) -> None:
    """The limit is the system's own, so every writer meets it, that of the tensors too."""
    model = model_of()
    save_checkpoint(tmp_path / "a", model, ByteTokenizer(), facts={"step": 1}, training={"x": torch.zeros(3000)})
    sizes = sorted({path.stat().st_size for path in (tmp_path / "a").iterdir()})
    for size in sizes:
        with largest_file(size - 1), pytest.raises(FailedError, match="there is no space for the checkpoint"):
            save_checkpoint(tmp_path / "a", model, ByteTokenizer(), facts={"step": 2}, replace=True,
                            training={"x": torch.zeros(3000)})
        assert saved_step(tmp_path / "a") == 1
        assert [path.name for path in tmp_path.iterdir()] == ["a"]
    save_checkpoint(tmp_path / "a", model, ByteTokenizer(), facts={"step": 2}, replace=True,
                    training={"x": torch.zeros(3000)})
    assert saved_step(tmp_path / "a") == 2


def test_a_folder_that_may_not_be_written_to_is_the_users_to_correct(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(save_module, "write_tensors", refuse)
    with pytest.raises(CheckpointError, match=r"cannot be written .*Permission denied.*Choose a folder that can be"):
        save_checkpoint(tmp_path / "a", model_of(), None)


def test_a_rename_that_fails_puts_the_old_checkpoint_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_checkpoint(tmp_path / "a", model_of(), None, facts={"step": 1})
    rename = os.rename

    def fail_for_drafts(source: Any, target: Any) -> None:
        if str(source).endswith("weft-draft"):
            raise OSError(errno.ENOSPC, "No space left on device")
        rename(source, target)

    with monkeypatch.context() as patch:
        patch.setattr(os, "rename", fail_for_drafts)
        with pytest.raises(FailedError, match="no space"):
            save_checkpoint(tmp_path / "a", model_of(), None, facts={"step": 2}, replace=True)
    assert [path.name for path in tmp_path.iterdir()] == ["a"]
    assert saved_step(tmp_path / "a") == 1


def test_what_cannot_be_put_back_at_once_is_kept_and_put_back_later(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_checkpoint(tmp_path / "a", model_of(), None, facts={"step": 1})
    rename = os.rename

    def fail_for_the_place(source: Any, target: Any) -> None:
        if Path(target) == tmp_path / "a":
            raise OSError(errno.ENOSPC, "No space left on device")
        rename(source, target)

    with monkeypatch.context() as patch:
        patch.setattr(os, "rename", fail_for_the_place)
        with pytest.raises(FailedError, match="no space"):
            save_checkpoint(tmp_path / "a", model_of(), None, facts={"step": 2}, replace=True)
    assert not (tmp_path / "a").exists() and saved_step(tmp_path / "a") == 1
    tidy(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["a"]
    assert saved_step(tmp_path / "a") == 1


def test_a_run_whose_only_checkpoint_stepped_aside_still_has_one(tmp_path: Path) -> None:
    place = tmp_path / "checkpoints/00000007"
    save_checkpoint(place, model_of(), None, facts={"step": 7})
    (place.parent / ".00000007.1.draft").mkdir()
    place.rename(place.parent / ".00000007.1.draft/weft-before")
    assert saved_step(tmp_path) == 7


def test_what_is_discarded_is_gone_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_checkpoint(tmp_path / "00000005", model_of(), None)

    def die(*_: Any, **__: Any) -> None:
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(os, "unlink", die)
        with pytest.raises(Killed):
            discard(tmp_path / "00000005")
    assert not (tmp_path / "00000005").exists()
    tidy(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_what_writers_that_died_have_left_is_put_back_or_removed(tmp_path: Path) -> None:
    """And nothing else is: neither files with such names, nor a folder of that name that holds more."""
    for name in (".00000010.77.draft/weft-draft", ".00000005.78.draft/weft-before", ".x.1.draft/weft-discarded",
                 ".y.1.draft", ".z.1.draft/weft-draft", ".z.1.draft/mine"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / ".00000010.77.draft/weft-draft/model.safetensors").write_text("half")
    (tmp_path / ".run.json.77.draft").mkdir()
    (tmp_path / ".run.json.77.draft/weft-draft").write_text("half")
    mine = [".notes.5.draft", ".letter.draft", ".00000005.previous/letter", ".z.1.draft/mine/letter"]
    for name in mine:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("mine")
    for step in (5, 6):
        save_checkpoint(tmp_path / f"0000000{step}", model_of(), None, facts={"step": step})
    (tmp_path / ".00000006.1.draft").mkdir()
    (tmp_path / "00000006").rename(tmp_path / ".00000006.1.draft/weft-before")
    tidy(tmp_path)
    assert [saved_step(tmp_path / f"0000000{step}") for step in (5, 6)] == [5, 6]
    left = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*")
            if path.parts[-2] not in ("00000005", "00000006")}
    assert left == {*mine, ".00000005.previous", ".z.1.draft", ".z.1.draft/mine", ".z.1.draft/weft-draft", "00000005",
                    "00000006"}
    assert all((tmp_path / name).read_text() == "mine" for name in mine)


def test_a_file_is_replaced_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_file(tmp_path / "run.json", "old")

    def die(*_: Any) -> None:
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", die)
        with pytest.raises(Killed):
            write_file(tmp_path / "run.json", "new")
    assert (tmp_path / "run.json").read_text() == "old"
    write_file(tmp_path / "run.json", "new")
    assert (tmp_path / "run.json").read_text() == "new"


def test_saving_does_not_change_the_model(tmp_path: Path) -> None:
    model = model_of()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    save_checkpoint(tmp_path / "a", model, None)
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


def test_a_name_with_a_line_end_is_a_name_like_any_other(tmp_path: Path) -> None:
    """What a process leaves that died in the middle of it is recognised too."""
    name = "a\nb"
    workspace = tmp_path / f".{name}.{2**22 + 1}.draft"
    (workspace / "weft-before").mkdir(parents=True)
    (workspace / "weft-before/old").touch()
    assert standing(tmp_path / name) == workspace / "weft-before"
    tidy(tmp_path)
    assert (tmp_path / name / "old").exists() and not workspace.exists()
    with replacing(tmp_path / name, proof=lambda _: []) as draft:
        (draft / "new").touch()
    write_file(tmp_path / f"{name}.txt", "text")
    assert sorted(path.name for path in tmp_path.rglob("*")) == [name, f"{name}.txt", "new"]
