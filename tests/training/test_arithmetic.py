"""A run goes on only where the processor's arithmetic returns the bits that it returned when the run began."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from fresh import Fresh
from training.tiny_runs import ATTENTION, same_weights, tiny_run
from weft.analysis.arithmetic import arithmetic, threads_set
from weft.checkpoints import load_checkpoint
from weft.core.errors import CheckpointError, UnsupportedError
from weft.training import RunConfig, parse_run, train

KINDS = ("matrix products", "oneDNN's products", "convolutions", "exponentials", "sums", "Fourier transforms")

def resume(out: str) -> None:
    """Go on with the run in a folder, and print why that is refused."""
    try:
        train(parse_run(json.loads((Path(out) / "run.json").read_text())["config"]), out, resume=True)
    except UnsupportedError as error:
        print(error.what)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, RunConfig]:
    """The folder of a run of 20 steps, and its configuration."""
    folder = tmp_path_factory.mktemp("whole")
    config = tiny_run(folder, ATTENTION)
    train(config, folder / "run")
    return folder / "run", config


def halfway(whole: Path, folder: Path, **record: Any) -> Path:
    """A copy of the run that was interrupted after 10 steps; ``record`` is changed in its run.json."""
    shutil.copytree(whole, folder)
    shutil.rmtree(folder / "checkpoints/00000020")
    content = json.loads((folder / "run.json").read_text()) | record
    (folder / "run.json").write_text(json.dumps(content))
    return folder


@pytest.mark.parametrize(("variable", "value", "changed"), [
    ("MKL_CBWR", "COMPATIBLE", {"matrix products"}), ("MKL_CBWR", "AVX2", set()),
    ("MKL_ENABLE_INSTRUCTIONS", "SSE4_2", set()), ("DNNL_MAX_CPU_ISA", "SSE41", {"oneDNN's products", "convolutions"}),
    ("ONEDNN_DEFAULT_FPMATH_MODE", "BF16", set()), ("ATEN_CPU_CAPABILITY", "default", {"exponentials", "sums"})])
def test_a_setting_that_changes_results_is_refused_at_resume_and_any_other_changes_no_bit(
        whole: tuple[Path, RunConfig], tmp_path: Path, variable: str, value: str, changed: set[str]) -> None:
    """``changed``: what surely differs on an x86 processor with AVX2; the others depend on the processor."""
    run = halfway(whole[0], tmp_path / "run")
    ended = Fresh(resume, str(run), folder=tmp_path, environment={variable: value}).end()
    assert ended.returncode == 0, ended.stderr
    if told := ended.stdout:
        assert "return other last bits here than when the run began, as after a change of MKL_CBWR, MKL_ENAB" in told
        assert not (run / "checkpoints/00000020").exists()
    else:
        assert same_weights(load_checkpoint(run).model, load_checkpoint(whole[0]).model)
    if torch.backends.cpu.get_cpu_capability() in ("AVX2", "AVX512") and variable not in os.environ:
        assert changed <= {kind for kind in KINDS if kind in told}


def test_the_number_of_threads_and_what_else_the_process_has_set_change_no_hash(whole: tuple[Path, RunConfig]) -> None:
    recorded = json.loads((whole[0] / "run.json").read_text())["arithmetic"]
    assert tuple(recorded) == KINDS and len(set(recorded.values())) == len(KINDS)
    random, before = torch.get_rng_state(), torch.get_num_threads()
    for threads in (1, 2, 3):
        with threads_set(threads):
            assert arithmetic() == recorded and torch.get_num_threads() == threads
    with torch.inference_mode():
        assert arithmetic() == recorded
    assert torch.get_num_threads() == before and torch.equal(torch.get_rng_state(), random)


def test_what_has_changed_is_named(whole: tuple[Path, RunConfig], tmp_path: Path) -> None:
    other = arithmetic() | {"convolutions": "0123456789abcdef"}
    run = halfway(whole[0], tmp_path / "run", arithmetic=other)
    message = (r"^run\.json: compute: convolutions return other last bits here than when the run began, as after a "
               r"change of MKL_CBWR, .* cannot go on to the same weights\. Resume it where .*--allow-inexact\.$")
    with pytest.raises(UnsupportedError, match=message):
        train(whole[1], run, resume=True)
    train(whole[1], run, resume=True, allow_inexact=True)
    now = json.loads((run / "run.json").read_text())
    assert now["arithmetic"] == arithmetic() and now["inexact"][0]["reason"].startswith("convolutions return other")
    damaged = halfway(whole[0], tmp_path / "damaged", arithmetic="other")
    with pytest.raises(CheckpointError, match=r"arithmetic: Input should be a valid dict"):
        train(whole[1], damaged, resume=True)
