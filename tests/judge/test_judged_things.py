"""Things of Weft's through the command: a run, a configuration, a plugin and a folder of another library, lawful,
broken and not to be judged; each verdict is JSON by the published schema."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
import torch
import yaml

import weft
from cli.conftest import RUN, call
from fresh import check_near
from interop.huggingface.tiny_folders import write
from judge.judged_files import TABLE
from judged_in_process import InProcess
from taken_back import taken_back

ROOT = Path(__file__).parents[2]
SCHEMA = jsonschema_rs.validator_for(json.loads((ROOT / "docs" / "verdict.schema.json").read_text(encoding="utf-8")))
OUT = "    out = TABLE[ids]\n"
DYNAMIC = {"kind": "rope", "scaling": {"kind": "dynamic", "factor": 2.0, "original_length": 4}}


@pytest.fixture(scope="module", autouse=True)
def quick_checks() -> Any:
    with pytest.MonkeyPatch.context() as patch:
        check_near(patch)
        yield


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a tiny run."""
    folder = tmp_path_factory.mktemp("judged")
    (folder / "text.txt").write_text("the cat sat on the mat. " * 400, encoding="utf-8")
    weft.train({**RUN, "data": {"path": str(folder / "text.txt")}}, out=folder / "run")
    return folder / "run"


def judged(*arguments: object) -> tuple[int, dict[str, Any]]:
    """The exit code of the command and its verdict."""
    told = call("judge", *map(str, arguments), "--json")
    verdict = json.loads(told.out)
    SCHEMA.validate(verdict)
    assert told.code == {"lawful": 0, "unlawful": 1, "not judged": 2}[verdict["verdict"]]
    return told.code, verdict


def broken(verdict: dict[str, Any]) -> set[str]:
    return {law["name"] for law in verdict["laws"] if law["outcome"] == "broken"}


def configuration(folder: Path, layer: Any, **fields: Any) -> Path:
    path = folder / "model.yaml"
    path.write_text(yaml.safe_dump({**RUN["model"], "blocks": [{"kind": "pre", "layers": [layer]}], "vocab_size": 64,
                                    **fields}), encoding="utf-8")
    return path


def test_a_run_is_judged(run: Path) -> None:
    code, verdict = judged(run)
    assert (code, verdict["thing"]["kind"], verdict["why"]) == (0, "run", "")
    held = {law["name"] for law in verdict["laws"] if law["outcome"] == "held"}
    assert held == {"sums-to-one", "causality", "separate-rows", "repeats", "pieces", "documents", "saved"}


@pytest.mark.parametrize("name", ["model.safetensors", "weft_tokenizer.json"])
def test_a_run_whose_files_were_changed_is_not_judged(name: str, run: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(run, tmp_path / "run"))
    [path] = copy.rglob(name)
    content = bytearray(path.read_bytes())
    content[-9] ^= 1
    path.write_bytes(content)
    code, verdict = judged(copy)
    assert (code, verdict["thing"]["kind"], verdict["laws"]) == (2, "run", [])
    assert f"{name} has changed: its SHA-256 differs" in verdict["why"]


def test_a_checkpoint_whose_numbers_are_none_is_unlawful(run: Path, tmp_path: Path) -> None:
    loaded = weft.load(run)
    with torch.no_grad():
        next(loaded.model.parameters()).fill_(torch.nan)
    weft.save(loaded, tmp_path / "lost")
    code, verdict = judged(tmp_path / "lost")
    assert (code, verdict["thing"]["kind"]) == (1, "run")
    assert "sums-to-one" in broken(verdict)


def test_a_configuration_that_is_told_the_length_of_the_row_is_judged_and_said(tmp_path: Path) -> None:
    """The museum's ``scaled_positions`` is the same in a file, where it is an exploit."""
    code, verdict = judged(configuration(tmp_path, {"kind": "attention", "n_heads": 2, "position": DYNAMIC}))
    assert (code, verdict["thing"]["kind"]) == (0, "configuration")
    assert "its positions are scaled by the length of the row" in verdict["why"]


def test_a_plugin_is_judged_and_one_that_reads_ahead_is_unlawful(tmp_path: Path) -> None:
    source = (ROOT / "examples" / "min_gru.py").read_text(encoding="utf-8")
    ahead = "Recurred(h.roll(-1, 1).to(projected.dtype), (last,))"
    kept = "Recurred(h.to(projected.dtype), (last,))"
    for changed, laws in ((source, set()), (source.replace(kept, ahead), {"causality", "pieces"})):
        (tmp_path / "gru.py").write_text(changed, encoding="utf-8")
        with taken_back():
            code, verdict = judged(configuration(tmp_path, "min_gru"), "--plugin", tmp_path / "gru.py")
        assert code == bool(laws) and verdict["thing"]["kind"] == "configuration"
        assert laws <= broken(verdict)
        assert all(law["found"]["sentence"].endswith(".") for law in verdict["laws"] if law["outcome"] == "broken")


def test_a_folder_of_another_library_is_judged_by_its_family(tmp_path: Path) -> None:
    write(tmp_path / "llama")
    code, verdict = judged(tmp_path / "llama")
    assert (code, verdict["thing"]["kind"]) == (0, "folder")
    (tmp_path / "llama" / "model.safetensors").write_bytes(b"none")
    code, verdict = judged(tmp_path / "llama")
    assert (code, verdict["thing"]["kind"]) == (2, "folder") and "model.safetensors" in verdict["why"]


@pytest.mark.skipif(sys.platform != "linux", reason="files are confined by Linux's means")
def test_a_file_s_verdict_is_of_the_schema(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("weft.judge.case.Worker", InProcess)
    monkeypatch.setattr("weft.judge.case.SMALL", -1)  # one process has one source of random numbers
    path = tmp_path / "judged.py"
    lost = TABLE.replace(OUT, OUT + "    out[ids == 3] = np.nan\n")
    for source, code in ((TABLE, 0), (lost, 1), ("model = None\n", 2)):
        path.write_text(source, encoding="utf-8")
        found, verdict = judged(path)
        assert (found, verdict["thing"]["kind"]) == (code, "file")
