"""Only what a manifest of Weft's own proves is replaced, and only when that was asked for."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from checkpoints.tiny_models import model_of
from weft.checkpoints import save as save_module
from weft.checkpoints import save_checkpoint
from weft.core.errors import CheckpointError, FailedError, OccupiedError
from weft.disk.atomic import new_file, replacing
from weft.disk.lock import in_the_way
from weft.disk.manifest import write_manifest
from weft.disk.ownership import by_manifest, require_free
from weft.tokenizers import ByteTokenizer, WordTokenizer

Change = Callable[[Path], object]


def everything(folder: Path) -> dict[str, bytes | str]:
    """What a folder holds: content by name, links by what they lead to, folders as such."""
    return {str(path.relative_to(folder)): os.readlink(path) if path.is_symlink() else
            path.read_bytes() if path.is_file() else "folder" for path in folder.rglob("*")}


def written(folder: Path) -> Path:
    return save_checkpoint(folder, model_of(), ByteTokenizer(), facts={"step": 1})


CHANGED = "since Weft wrote them, these have changed: config.json."
CHANGES: dict[str, tuple[Change, str]] = {
    "a file more": (lambda out: (out / "notes.txt").write_text("mine"), "no manifest of Weft's lists notes.txt."),
    "a hidden file": (lambda out: (out / ".gitignore").write_text("*"), "no manifest of Weft's lists .gitignore."),
    "a repository": (lambda out: (out / ".git/objects").mkdir(parents=True), "no manifest of Weft's lists .git."),
    "an edited file": (lambda out: (out / "config.json").write_text("{}"), CHANGED),
    "the same size": (lambda out: (out / "config.json").write_bytes(
        (out / "config.json").read_bytes().replace(b'"step": 1', b'"step": 2')), CHANGED),
    "another case": (lambda out: (out / "CONFIG.json").write_text("{}"), "no manifest of Weft's lists CONFIG.json."),
    "a link to a file": (lambda out: (out / "link").symlink_to(out / "config.json"), "Weft's lists link."),
    "a listed file as a link": (lambda out: ((out / "config.json").rename(out.parent / "real"),
                                             (out / "config.json").symlink_to(out.parent / "real")),
                                CHANGED),
    "no manifest": (lambda out: (out / "MANIFEST.json").unlink(), "lists config.json, model.safetensors"),
    "a damaged manifest": (lambda out: (out / "MANIFEST.json").write_text('{"files": 3}'),
                           "no manifest of Weft's lists MANIFEST.json, config.json"),
    "another program's manifest": (lambda out: (out / "MANIFEST.json").write_text('{"files": {"config.json": {}}}'),
                                   "no manifest of Weft's lists MANIFEST.json, config.json"),
}


@pytest.mark.parametrize("what", CHANGES)
def test_what_is_not_just_as_weft_wrote_it_is_never_replaced(tmp_path: Path, what: str) -> None:
    out = written(tmp_path / "out")
    change, told = CHANGES[what]
    change(out)
    before = everything(tmp_path)
    for replace in (False, True):
        with pytest.raises(OccupiedError) as error:
            save_checkpoint(out, model_of(), None, replace=replace)
        assert str(error.value).startswith(f"{out}: this folder holds more than Weft wrote, so it is not ")
        assert told in str(error.value) and "Choose another folder, or move your own files away" in str(error.value)
    assert everything(tmp_path) == before


def test_what_is_just_as_weft_wrote_it_is_replaced_when_that_is_asked(tmp_path: Path) -> None:
    out = written(tmp_path / "out")
    before = everything(tmp_path)
    with pytest.raises(OccupiedError, match=r"out: this folder holds what Weft wrote before\. Choose another folder, "
                                            r"or replace it \(--replace, replace=True\)"):
        save_checkpoint(out, model_of(), None)
    assert everything(tmp_path) == before
    (out / "weft_tokenizer.json").unlink()  # what is missing is nobody's loss
    save_checkpoint(out, model_of(), None, replace=True)
    assert not (out / "weft_tokenizer.json").exists() and by_manifest(out) == []
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_an_empty_folder_is_nothing_and_a_file_or_a_link_is_something(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    written(tmp_path / "empty")
    (tmp_path / "file").write_text("mine")
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    (tmp_path / "dangling").symlink_to(tmp_path / "nothing")
    before = everything(tmp_path)
    told = {"file": "there is a file at this path, and a folder is to be written",
            "link": f"this path is a symbolic link (to {tmp_path / 'real'})", "dangling": "a symbolic link (to "}
    for name, words in told.items():
        with pytest.raises(OccupiedError) as error:
            save_checkpoint(tmp_path / name, model_of(), None, replace=True)
        assert words in str(error.value) and "Choose another folder" in str(error.value)
    assert everything(tmp_path) == before


def test_a_single_file_is_never_replaced(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "nothing")
    told = {"file": "there is a file at this path already, and nothing proves that Weft wrote it, so it is not",
            "folder": "there is a folder at this path, and a file is to be written", "link": "a symbolic link (to "}
    for name, words in told.items():
        with pytest.raises(OccupiedError) as error, new_file(tmp_path / name):
            pytest.fail("nothing is begun")
        assert words in str(error.value) and "Choose another name" in str(error.value)
    assert sorted(everything(tmp_path)) == ["file", "folder", "link"] and (tmp_path / "file").read_text() == "mine"


def test_what_comes_while_something_is_written_is_not_replaced(tmp_path: Path) -> None:
    with pytest.raises(OccupiedError, match="no manifest of Weft's lists thesis"), replacing(tmp_path / "out") as draft:
        (draft / "config.json").write_text("{}")
        (tmp_path / "out").mkdir()
        (tmp_path / "out/thesis").write_text("mine")
    with pytest.raises(OccupiedError, match="there is a file at this path"), new_file(tmp_path / "file") as draft:
        draft.write_text("ours")
        (tmp_path / "file").write_text("mine")
    assert everything(tmp_path) == {"out": "folder", "out/thesis": b"mine", "file": b"mine"}


def test_a_draft_of_anothers_name_is_left_alone(tmp_path: Path) -> None:
    draft = tmp_path / f".out.{os.getpid()}.draft"
    draft.mkdir()
    (draft / "letter").write_text("mine")
    with pytest.raises(OccupiedError, match=r"\.draft: something is at this path, which is needed for a draft\. Move"):
        written(tmp_path / "out")
    assert (draft / "letter").read_text() == "mine"


def test_a_disk_that_is_full_or_read_only_leaves_everything_as_it_was(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = written(tmp_path / "out")
    before = everything(tmp_path)
    for number, kind in ((errno.ENOSPC, FailedError), (errno.EROFS, CheckpointError)):
        for name in ("mkdir", "rename", "fsync"):
            def fail(*_: Any, number: int = number) -> None:
                raise OSError(number, os.strerror(number))
            with monkeypatch.context() as patch:
                patch.setattr(os, name, fail)
                with pytest.raises(kind, match="checkpoints are unchanged"):
                    save_checkpoint(out, model_of(), None, replace=True)
            left = [path for path in tmp_path.iterdir() if path != out]
            assert all(not any(path.rglob("*")) for path in left)
            for path in left:
                path.rmdir()
            assert everything(tmp_path) == before, (number, name)
    monkeypatch.setattr(save_module, "write_manifest", lambda _: pytest.fail("a draft that is not whole"))
    with pytest.raises(pytest.fail.Exception):
        save_checkpoint(out, model_of(), None, replace=True)
    assert everything(tmp_path) == before


def test_the_folder_that_a_command_runs_in_is_not_renamed_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for path in (Path(), tmp_path):
        with pytest.raises(OccupiedError, match=r"this is the working directory .*Give a folder inside it"):
            save_checkpoint(path, model_of(), None)
    assert written(Path("out")) == Path("out") and [path.name for path in tmp_path.iterdir()] == ["out"]


def test_what_cannot_be_read_is_in_the_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = written(tmp_path / "out")

    def refuse(self: Path) -> Any:
        raise PermissionError(errno.EACCES, "Permission denied", str(self))

    monkeypatch.setattr(Path, "iterdir", refuse)
    with pytest.raises(OccupiedError, match=r"out: this path cannot be read \(Permission denied\), so nothing "
                                            r"is written to it\. Correct its permissions, or choose another place"):
        save_checkpoint(out, model_of(), None, replace=True)
    assert in_the_way(tmp_path, ("out", "none")) == ["out"]


def test_a_tokenizer_replaces_no_file_but_its_own(tmp_path: Path) -> None:
    ByteTokenizer().save(tmp_path / "a")
    ByteTokenizer().save(tmp_path / "a")  # the same once more is no loss
    (tmp_path / "b").mkdir()
    (tmp_path / "b/weft_tokenizer.json").write_text("mine")
    for folder in (tmp_path / "a", tmp_path / "b"):
        before = everything(folder)
        with pytest.raises(OccupiedError, match=r"weft_tokenizer\.json: there is a file at this path already"):
            WordTokenizer(["some", "words"]).save(folder)
        assert everything(folder) == before


def test_names_in_the_way_and_how_many(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "dangling").symlink_to(tmp_path / "nothing")
    for index in range(7):
        (tmp_path / f"{index}.txt").write_text("")
    names = ("empty", "dangling", "0.txt", "none")
    assert in_the_way(tmp_path, names) == ["dangling", "0.txt"]
    with pytest.raises(OccupiedError, match=r"lists 0\.txt, 1\.txt, 2\.txt, 3\.txt, 4\.txt and 4 more\."):
        require_free(tmp_path)


def test_a_manifest_lists_what_lies_beside_it(tmp_path: Path) -> None:
    (tmp_path / "a.bin").write_bytes(b"12")
    write_manifest(tmp_path)
    write_manifest(tmp_path)
    assert by_manifest(tmp_path) == []
    shutil.copytree(tmp_path, tmp_path / "copy")
    assert by_manifest(tmp_path / "copy") == [] and by_manifest(tmp_path) == ["no manifest of Weft's lists copy"]


def test_a_manifest_lists_what_lies_in_the_folders_too(tmp_path: Path) -> None:
    inner = tmp_path / "templates" / "more"
    inner.mkdir(parents=True)
    (inner / "a.jinja").write_text("a")
    (tmp_path / "templates" / "b.jinja").write_text("b")
    write_manifest(tmp_path)
    assert by_manifest(tmp_path) == []
    (inner / "mine.txt").write_text("mine")
    (tmp_path / "templates" / "b.jinja").write_text("edited")
    (tmp_path / "own").mkdir()
    assert by_manifest(tmp_path) == ["no manifest of Weft's lists own, templates/more/mine.txt",
                                     "since Weft wrote them, these have changed: templates/b.jinja"]
    shutil.rmtree(inner)
    inner.symlink_to(tmp_path / "own")
    assert "no manifest of Weft's lists own, templates/more" in by_manifest(tmp_path)
