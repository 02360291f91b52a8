"""The script that takes the figures on a GPU, tried on a processor: it writes, resumes, and names what it misses."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOME = ("card", "attention/causal", "operations/short_convolution", "plan/llama")


def run(out: Path, *arguments: str) -> str:
    done = subprocess.run([sys.executable, str(ROOT / "benchmarks/gpu.py"), "--tiny", "--out", str(out), *arguments],
                          capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def taken(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("gpu") / "gpu.json"
    run(out, "--only", *SOME)
    return out


def content(out: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(out.read_text("utf-8"))
    return found


def test_figures_are_written_with_their_circumstances(taken: Path) -> None:
    found = content(taken)
    assert set(found["figures"]) == {"card/speed", *SOME[1:]} and found["not taken"] == {}
    for each in found["figures"].values():
        assert {"card", "torch", "sources", "date", "seconds", "value"} <= set(each)
    speed = found["figures"]["card/speed"]["value"]
    assert speed["copy"] > 0 and all(rate > 0 for rate in speed["products"].values())
    errors = found["figures"]["operations/short_convolution"]["value"]["error"]
    assert errors and all(0 <= each["output"] < 1e-2 for each in errors.values())  # bfloat16 has 8 bits


def test_what_stands_is_not_taken_again(taken: Path) -> None:
    before = taken.read_text("utf-8")
    assert "0 of 4 figures are due" in run(taken, "--only", *SOME)
    assert taken.read_text("utf-8") == before


def test_a_budget_that_is_used_up_is_named(taken: Path, tmp_path: Path) -> None:
    out = tmp_path / "gpu.json"
    out.write_text(json.dumps({"figures": {"card/speed": {"card": "another", "value": 1}}, "not taken": {}}))
    run(out, "--only", "card", "--budget", "0")
    assert content(out)["figures"]["card/speed"]["card"] == "another"
    assert "8 s stated, and 0 s were left" in content(out)["not taken"]["card/speed"]


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import gpu

    return gpu


def test_a_failure_and_an_end_cost_one_figure_each(script: Any, tmp_path: Path,
                                                   monkeypatch: pytest.MonkeyPatch) -> None:
    """The process of the second figure ends; the fourth is taken by another one."""
    import os

    from gpu_timing import Figure

    def fails(tiny: bool, known: object) -> dict[str, Any]:
        raise ValueError("no such kernel")

    takes = {"card/1": fails, "card/2": lambda tiny, known: os._exit(7), "card/3": lambda tiny, known: {"tiny": tiny},
             "card/4": lambda tiny, known: {"seen": sorted(known)}}
    monkeypatch.setattr(script, "all_figures", lambda: {name: Figure(1, take) for name, take in takes.items()})
    results = script.Results.read(tmp_path / "gpu.json")
    script.Section(results, {"card": "none"}, True, script.time.monotonic() + 100).take(list(takes))
    found = content(tmp_path / "gpu.json")
    assert found["not taken"] == {"card/1": "ValueError: no such kernel", "card/2": "its process ended with 7"}
    assert [each["value"] for each in found["figures"].values()] == [{"tiny": True}, {"seen": ["card/3"]}]


def test_figures_of_other_circumstances_are_due(script: Any) -> None:
    now = {"card": "H100", "torch": "2.11", "sources": "a"}
    assert script.stands({**now, "date": "x"}, now, False) and not script.stands(None, now, False)
    for key in now:
        assert not script.stands({**now, key: "other"}, now, False)
    assert script.stands({**now, "sources": "b"}, now, True)
    with pytest.raises(SystemExit, match="no figure is called 'cards'"):
        script.chosen({"card/speed": None}, ["cards"])


def test_lengths_cross_and_are_drawn(script: Any) -> None:
    import gpu_lengths

    rates = {"attention": {"1024": 9.0, "2048": 5.0, "4096": 1.0}, "rwkv7": {"1024": 4.0, "2048": 6.0, "4096": 4.0},
             "slow": {"1024": 1.0, "2048": "failed: no memory", "4096": 0.5}}
    found = gpu_lengths.crossings(rates)
    assert found == {"attention": None, "rwkv7": 2048, "slow": None}
    picture = gpu_lengths.drawing({"tokens per second": rates, "tokens of a batch": 1 << 17}, "a card")
    assert picture.lstrip().startswith("<") and picture.count("data-curve") == 3
