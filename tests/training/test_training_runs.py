"""Whole runs: they learn, they tell, they keep, they stop."""

from __future__ import annotations

import json
import math
import os
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
import yaml

from training.tiny_runs import ATTENTION, LSTM, same_weights, tiny_run
from weft.checkpoints import load_checkpoint, read_training
from weft.core.errors import ConfigError
from weft.core.layer import Part
from weft.core.model import Counted, ModelConfig
from weft.core.part_config import Dims
from weft.training import Event, Notice, Progress, Saved, Started, Validated, parse_run, print_event, train
from weft.training.events import clock_time
from weft.training.folder import RunFolder
from weft.training.material import prepare


def unigram_bits_per_byte(tokens: np.ndarray) -> float:
    counts = np.bincount(tokens)
    shares = counts[counts > 0] / counts.sum()
    return float(-(shares * np.log2(shares)).sum())


def test_a_transformer_learns_the_standard_library_beyond_unigrams(tmp_path: Path) -> None:
    model = {"kind": "decoder", "d_model": 32, "context": 64, "norm": "rmsnorm", "blocks": [
        {"kind": "pre", "norm": "rmsnorm", "layers": [{"kind": "attention", "n_heads": 2, "position": "rope"}, "mlp"]}]}
    run = parse_run({"model": model, "data": {"max_bytes": 150_000, "validation": 0.3},
                     "training": {"steps": 120, "batch_size": 8, "optimizer": {"lr": 1e-2}},
                     "report": {"eval_every": 120}})
    result = train(run, tmp_path / "run")
    entropy = unigram_bits_per_byte(prepare(run).validation.tokens)
    # The unigram entropy of the held-out text itself, which no unigram model can beat, is about 4.7 bits; 200 steps
    # reach about 3.5. A margin of half a bit is far beyond what unigrams or a broken context could give.
    assert result.validation.bits_per_byte < entropy - 0.5
    assert result.validation.bits_per_byte == pytest.approx(
        result.validation.loss * result.validation.tokens / math.log(2) / result.validation.bytes, rel=1e-12)


def test_a_run_tells_what_it_does_and_writes_it_down(tmp_path: Path) -> None:
    events: list[Event] = []
    result = train(tiny_run(tmp_path, LSTM), tmp_path / "run", on_event=events.append)
    kinds = [type(event) for event in events]
    assert kinds == [Started, Progress, Progress, Validated, Saved, Progress, Progress, Validated, Saved]
    assert [event.step for event in events] == [0, 5, 10, 10, 10, 15, 20, 20, 20]
    assert all("\n" not in event.line() for event in events)
    records = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    assert [record["event"] for record in records] == [event.name for event in events]
    readable = parse_run(yaml.safe_load((tmp_path / "run/config.yaml").read_text()))
    assert readable == tiny_run(tmp_path, LSTM)
    first, last = events[1], events[6]
    assert isinstance(first, Progress)
    assert isinstance(last, Progress)
    # Bytes are the tokens, but for the single end of a document in a text of 6,000.
    assert first.bits_per_byte == pytest.approx(first.loss / math.log(2), rel=1e-3)
    assert last.loss < first.loss < math.log(257) + 0.1
    assert first.seconds_left == pytest.approx(3 * first.seconds)
    assert last.seconds_left == 0
    assert result.steps == 20
    assert result.checkpoint == tmp_path / "run/checkpoints/00000020"


def test_lines_of_progress_carry_every_figure() -> None:
    progress = Progress(1500, 20000, 2.5, 1.75, 123456.7, 3723.0, 59.6, 1e-3, 0.5)
    assert progress.line() == ("step 1,500/20,000  loss 2.5000 nats/token  1.7500 bits/byte  123,457 tokens/s  "
                               "1:02:03 elapsed  01:00 left")
    full = replace(progress, mfu=0.4321, resident_bytes=123_456_789, allocated_bytes=12_345_678_901)
    assert "123,457 tokens/s  MFU 43.2%  memory 123 MB  GPU 12.3 GB  1:02:03 elapsed" in full.line()
    assert Notice(0, "so").line() == "so"
    assert clock_time(0) == "00:00"
    assert Saved(3, Path("a")).to_json() == {"event": "saved", "step": 3, "path": "a"}
    started = Started(7, 1000, 20, 32, 5000, 600, "text").line()
    assert started == ("1,000 parameters, 20 steps of 32 tokens, from step 7; 5,000 tokens to train on, 600 held out; "
                       "text")
    assert "counting;" in Started(0, 0, 0, 32, 5000, 600, "text").line()
    assert ", 1 step of 32" in Started(0, 1000, 1, 32, 5000, 600, "text").line()


def test_a_script_s_listener_prints_every_event(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    train(tiny_run(tmp_path, LSTM), tmp_path / "run", on_event=print_event)
    lines = capsys.readouterr().out.splitlines()
    assert "20 steps of" in lines[0] and lines[-1].endswith("checkpoints/00000020")
    assert any(line.startswith("step 20/20  loss ") and line.endswith(" left") for line in lines)


def test_the_checkpoint_gives_back_the_model_and_the_tokenizer(tmp_path: Path) -> None:
    run = tiny_run(tmp_path, LSTM)
    result = train(run, tmp_path / "run")
    loaded = load_checkpoint(tmp_path / "run")
    assert loaded.path == result.checkpoint
    assert same_weights(loaded.model, result.model)
    assert loaded.tokenizer is not None
    assert loaded.tokenizer.fingerprint() == result.tokenizer.fingerprint()
    assert parse_run(loaded.run or {}) == run
    assert loaded.facts["step"] == 20
    assert loaded.facts["validation"]["bits_per_byte"] == result.validation.bits_per_byte


def test_more_checkpoints_stay_when_asked_for(tmp_path: Path) -> None:
    run = parse_run(tiny_run(tmp_path, LSTM, steps=10).dump(), ["report.checkpoint_every=1", "report.keep=2"])
    train(run, tmp_path / "run")
    assert sorted(path.name for path in (tmp_path / "run/checkpoints").iterdir()) == ["00000008", "00000009",
                                                                                     "00000010"]


def test_only_the_last_and_the_best_checkpoint_stay(tmp_path: Path) -> None:
    # A learning rate that grows far beyond what can work makes an early evaluation the best.
    run = tiny_run(tmp_path, LSTM, steps=40, optimizer={"kind": "sgd", "lr": 30.0}, clip_norm=1.0,
                   schedule={"kind": "constant", "warmup": 0.99})
    saved: list[Path] = []
    result = train(run, tmp_path / "run", on_event=lambda e: saved.append(e.path) if isinstance(e, Saved) else None)
    assert len(saved) == 4
    assert {path for path in saved if path.exists()} == {result.best, result.checkpoint}
    scores = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    bits = {record["step"]: record["validation"]["bits_per_byte"] for record in scores if "validation" in record}
    assert int(result.best.name) == min(bits, key=bits.__getitem__) < 40


def test_a_budget_in_seconds_becomes_steps_and_is_written_down(tmp_path: Path) -> None:
    run = tiny_run(tmp_path, LSTM)
    run = parse_run(run.dump(), ["training.steps=null", "training.seconds=0.5"])
    result = train(run, tmp_path / "run")
    assert json.loads((tmp_path / "run/run.json").read_text())["steps"] == result.steps > 3
    # The machine may be busy, so the pace of the few steps that were timed need not last.
    assert result.seconds < 10


def test_training_leaves_the_callers_random_numbers_alone(tmp_path: Path) -> None:
    torch.manual_seed(5)
    wanted = torch.rand(1)
    torch.manual_seed(5)
    train(tiny_run(tmp_path, ATTENTION, steps=2), tmp_path / "run")
    assert torch.equal(torch.rand(1), wanted)


def test_a_folder_that_holds_a_run_is_not_written_over(tmp_path: Path) -> None:
    run = tiny_run(tmp_path, LSTM, steps=1)
    train(run, tmp_path / "run")
    with pytest.raises(ConfigError, match=r"run holds a run already\. Go on with --resume"):
        train(run, tmp_path / "run")
    with pytest.raises(ConfigError, match="there is no run to resume in"):
        train(run, tmp_path / "empty", resume=True)
    with (RunFolder(tmp_path / "locked", resume=False),
          pytest.raises(ConfigError, match=rf"another process \({os.getpid()}\) is training in"),
          RunFolder(tmp_path / "locked", resume=False)):
        pass
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="file cannot be written to"), RunFolder(tmp_path / "file", resume=False):
        pass


def test_a_counted_model_goes_through_the_same_door(tmp_path: Path) -> None:
    run = tiny_run(tmp_path, {"kind": "ngram", "order": 3, "end": 256, "context": 8})
    events: list[Event] = []
    result = train(run, tmp_path / "run", on_event=events.append)
    assert [type(event) for event in events] == [Started, Validated, Saved]
    assert isinstance(result.model, Counted)
    assert result.validation.bits_per_byte < unigram_bits_per_byte(prepare(run).validation.tokens) - 1
    loaded = load_checkpoint(result.checkpoint)
    assert same_weights(loaded.model, result.model)
    stream = prepare(run).validation
    assert run.made_task().measure(loaded.model, stream, 2) == result.validation
    assert read_training(result.checkpoint) == {}
    again = train(run, tmp_path / "run", resume=True)
    assert same_weights(again.model, result.model)


def test_a_model_that_can_neither_be_counted_nor_differentiated_is_refused(tmp_path: Path) -> None:
    run = tiny_run(tmp_path, LSTM)
    with pytest.raises(ConfigError, match=r"a model of kind 'decoder' cannot be trained by gradients and is no "
                                          r"Counted"):
        run.made_task().fit(run.model.build(), prepare(run).train)


class BareConfig(ModelConfig):
    """A model of some other sort."""

    kind: ClassVar[str] = "test_bare"

    def build(self, dims: Dims | None = None) -> Any:
        return Part()


def test_what_is_no_model_is_refused(tmp_path: Path) -> None:
    run = tiny_run(tmp_path, LSTM).model_copy(update={"model": BareConfig(vocab_size=257, context=8)})
    with pytest.raises(ConfigError, match=r"model: what a model of kind 'test_bare' builds is no "
                                          r"weft\.core\.model\.Model"):
        train(run, tmp_path / "run")
