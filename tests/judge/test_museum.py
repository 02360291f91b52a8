"""The museum: every exploit is caught by the law that is named for it, and no twin is accused; also in processes of
their own, of which ``make judge`` starts one for each file and ``make test`` those of a few."""

from __future__ import annotations

import os
import runpy
from pathlib import Path
from typing import Any

import pytest
import yaml

from judged_in_process import InProcess
from weft.judge.judgement import Verdict
from weft.judge.questions import Judged
from weft.judge.referee import LAWS, judge_file

ROOT = Path(__file__).parents[2]
MUSEUM = ROOT / "examples" / "museum"
EXHIBITS: dict[str, dict[str, Any]] = yaml.safe_load((MUSEUM / "exhibits.yaml").read_text(encoding="utf-8"))
RECOGNISED = {
    "hashed_cache", "target_gate", "maximum_of_models", "late_inflation", "mask_off_by_one", "mask_beyond_2048",
    "batch_norm", "shifted_padding", "dropout_left_on", "prompt_hash", "changed_input", "scaled_positions",
    "carried_state", "missing_buffer", "claimed_size", "casefold", "unknown_words", "trained_first", "first_part",
    "padding_counted", "natural_log", "compile_left_out", "chosen_seed", "memorised_text", "trained_canaries",
    "trained_on_test"}
"""Exploits that the verdict names; of the others it names one that breaks the same law in the same way."""
IN_PROCESSES = list(EXHIBITS) if os.environ.get("WEFT_JUDGE") else ["target_gate", "casefold", "missing_buffer"]


def require_caught(name: str, verdict: Verdict) -> None:
    broken = {law.name: law.found for law in verdict.laws if law.outcome == "broken"}
    assert verdict.verdict == "unlawful" and EXHIBITS[name]["law"] in broken, verdict.model_dump_json(indent=1)
    found = broken[EXHIBITS[name]["law"]]
    assert found is not None and found.sentence and found.resembles is not None
    assert EXHIBITS[found.resembles]["law"] == EXHIBITS[name]["law"]
    assert found.resembles == name or name not in RECOGNISED


def require_lawful(verdict: Verdict) -> None:
    assert verdict.verdict == "lawful", verdict.model_dump_json(indent=1)


@pytest.mark.parametrize("name", EXHIBITS)
def test_the_exploit_is_caught(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("weft.judge.case.Worker", InProcess)
    monkeypatch.setattr("weft.judge.case.SMALL", -1)  # one process has one source of random numbers
    require_caught(name, judge_file(Judged(MUSEUM / name / "cheat.py")))


@pytest.mark.parametrize("name", EXHIBITS)
def test_its_twin_is_not_accused(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("weft.judge.case.Worker", InProcess)
    monkeypatch.setattr("weft.judge.case.SMALL", -1)  # one process has one source of random numbers
    require_lawful(judge_file(Judged(MUSEUM / name / "sound.py")))


@pytest.mark.parametrize("name", IN_PROCESSES)
def test_the_exploit_is_caught_in_a_process(name: str) -> None:
    require_caught(name, judge_file(Judged(MUSEUM / name / "cheat.py")))


@pytest.mark.parametrize("name", IN_PROCESSES)
def test_its_twin_is_not_accused_in_a_process(name: str) -> None:
    require_lawful(judge_file(Judged(MUSEUM / name / "sound.py")))


def test_the_museum_has_more_than_forty_exploits_each_with_a_twin_and_a_source() -> None:
    assert len(EXHIBITS) == 42
    assert {path.name for path in MUSEUM.iterdir() if path.is_dir()} == set(EXHIBITS)
    for name, exhibit in EXHIBITS.items():
        assert set(exhibit) == {"title", "law", "source", "gained"}, name
        assert exhibit["law"] in LAWS and all(each.startswith("https://") for each in exhibit["source"]), name
        cheat, sound = ((MUSEUM / name / f"{kind}.py").read_text(encoding="utf-8") for kind in ("cheat", "sound"))
        assert cheat != sound and max(len(cheat.splitlines()), len(sound.splitlines())) <= 80, name
    assert {exhibit["law"] for exhibit in EXHIBITS.values()} == set(LAWS), "every law has an exploit that breaks it"


def test_the_page_lists_every_exploit_as_its_files_describe_it() -> None:
    made = runpy.run_path(str(ROOT / "docs" / "museum.py"))
    page = (ROOT / "docs" / "museum.md").read_text(encoding="utf-8")
    assert made["with_exhibits"](page, ROOT) == page, "run docs/generate.py"
    assert set(made["LAWS"]) == set(LAWS)
    assert all(page.count(f"](../examples/museum/{name}/cheat.py)") == 1 for name in EXHIBITS)
