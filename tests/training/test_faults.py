"""Full disks, lost weights, interrupts, locks: the run stops with a message, and nothing that was saved is lost."""

from __future__ import annotations

import errno
import math
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from training.tiny_runs import ATTENTION, LSTM, same_weights, tiny_run
from weft.checkpoints import load_checkpoint
from weft.checkpoints import save as saving
from weft.core.errors import ConfigError, DivergedError, TrainingError
from weft.training import Event, Progress, RunConfig, Saved, parse_run, train
from weft.training.folder import RunFolder, writing
from weft.training.interrupt import Terminated
from weft.training.loop import require_finite
from weft.training.material import prepare
from weft.training.run_training import build_model
from weft.training.trainer import Trainer

FULL = OSError(errno.ENOSPC, "No space left on device")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunConfig:
    """A run with checkpoints in steps 2, 4, 6 and 8, of which two stay."""
    plain = tiny_run(tmp_path_factory.mktemp("text"), LSTM, steps=8)
    return parse_run(plain.dump(), ["report.eval_every=2", "report.log_every=2", "report.keep=1"])


@pytest.fixture(scope="module")
def whole(run: RunConfig, tmp_path_factory: pytest.TempPathFactory) -> torch.nn.Module:
    return train(run, tmp_path_factory.mktemp("whole") / "run").model


def after_saving(step: int, act: Any) -> Any:
    """A listener that acts once the checkpoint of that step stands."""
    return lambda event: act() if isinstance(event, Saved) and event.step == step else None


@contextmanager
def largest_file(size: int) -> Iterator[None]:
    """The system refuses files beyond a size, as a quota does."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


WRITERS = ("write_tensors", "write_manifest", "replacing")


@pytest.mark.parametrize("writer", WRITERS)
def test_a_disk_that_is_full_in_the_middle_of_a_checkpoint(
        run: RunConfig, whole: torch.nn.Module, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, writer: str) -> None:
    def fill(*_: Any, **__: Any) -> None:
        raise FULL

    with monkeypatch.context() as patch, pytest.raises(
            TrainingError, match=r"checkpoints/00000006: there is no space for the checkpoint, which takes "
                                 r"[\d,]+ bytes; .* free there .*The last good .*/00000004\. Free space") as caught:
        train(run, tmp_path / "run", on_event=after_saving(4, lambda: patch.setattr(saving, writer, fill)))
    assert caught.value.exit_code == 1
    assert sorted(path.name for path in (tmp_path / "run/checkpoints").iterdir()) == ["00000002", "00000004"]
    assert same_weights(train(run, tmp_path / "run", resume=True).model, whole)


def test_a_quota_of_the_system_itself(run: RunConfig, whole: torch.nn.Module, tmp_path: Path) -> None:
    """The tensors are the largest file; the limit lies below them and above everything else."""
    with (pytest.raises(TrainingError, match=r"00000006: there is no space.*(\(os error 27\)|File too large)"),
          largest_file_after(4) as listener):
        train(run, tmp_path / "run", on_event=listener)
    assert load_checkpoint(tmp_path / "run").facts["step"] == 4
    assert same_weights(train(run, tmp_path / "run", resume=True).model, whole)


@contextmanager
def largest_file_after(step: int) -> Iterator[Any]:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        yield after_saving(step, lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (12_000, before[1])))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_metrics_that_cannot_be_written(run: RunConfig, whole: torch.nn.Module, tmp_path: Path,
                                        monkeypatch: pytest.MonkeyPatch) -> None:
    """Half a line is written before the disk is full."""
    log = RunFolder.log

    def cut_off(folder: RunFolder, event: Event) -> None:
        if isinstance(event, Progress) and event.step == 6:
            with (folder.path / "metrics.jsonl").open("a") as file:
                file.write('{"event": "prog')
            with writing(folder.path / "metrics.jsonl"):
                raise FULL
        log(folder, event)

    with monkeypatch.context() as patch:
        patch.setattr(RunFolder, "log", cut_off)
        with pytest.raises(TrainingError, match=r"metrics\.jsonl: the file cannot be written \(No space left on device"
                                                r"\); [\d,]+ bytes are free there\. The last good checkpoint is .*"
                                                r"/00000004\. Free space, then go on with --resume"):
            train(run, tmp_path / "run")
    assert same_weights(train(run, tmp_path / "run", resume=True).model, whole)


def test_a_description_that_cannot_be_written_leaves_no_run(
        run: RunConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with largest_file(100), pytest.raises(TrainingError, match=r"run\.json: the file cannot be written"):
        train(run, tmp_path / "run")
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == [".lock"]
    train(run, tmp_path / "run")


def test_a_loss_that_is_not_finite_stops_the_run_and_keeps_the_last_checkpoint(tmp_path: Path) -> None:
    run = tiny_run(tmp_path, LSTM, steps=400, optimizer={"kind": "sgd", "lr": 1e20}, clip_norm=None,
                   schedule={"kind": "constant", "warmup": 0.0})
    with pytest.raises(DivergedError, match=r"diverged at step \d+: the loss became .* No checkpoint had been saved "
                                            r"yet\. Lower training\.optimizer\.lr, lengthen"):
        train(run, tmp_path / "none")
    first: list[Path] = []
    run = tiny_run(tmp_path, LSTM, steps=400, optimizer={"kind": "sgd", "lr": 1e20}, clip_norm=None,
                   schedule={"kind": "wsd", "warmup": 0.99, "cooldown": 0.001})
    run = run.model_copy(update={"report": run.report.model_copy(update={"eval_every": 1})})
    with pytest.raises(DivergedError, match=r"The last good checkpoint is .*checkpoints/0000000") as caught:
        train(run, tmp_path / "some", on_event=lambda e: first.append(e.path) if isinstance(e, Saved) else None)
    assert caught.value.exit_code == 1
    weights = load_checkpoint(first[-1]).model.state_dict().values()
    assert all(bool(tensor.isfinite().all()) for tensor in weights)


def test_weights_that_a_step_itself_loses_are_never_saved(tmp_path: Path) -> None:
    """The loss and the gradient of the step are finite, and the weights after it are not."""
    run = tiny_run(tmp_path, LSTM, steps=3, optimizer={"kind": "sgd", "lr": 3e38}, clip_norm=1e10,
                   schedule={"kind": "constant", "warmup": 0.0})
    run = parse_run(run.dump(), ["report.checkpoint_every=1", "report.eval_every=3"])
    with pytest.raises(DivergedError, match=r"at step \d: (the weights are no longer finite|the loss became)"):
        train(run, tmp_path / "run")
    for path in (tmp_path / "run").glob("checkpoints/[0-9]*"):
        assert all(bool(tensor.isfinite().all()) for tensor in load_checkpoint(path).model.state_dict().values())
    model = build_model(run)
    require_finite(model, 1)
    with torch.no_grad():
        next(model.parameters()).view(-1)[0] = torch.inf
    with pytest.raises(DivergedError, match=r"at step 7: the weights are no longer finite \(.*\)\. Lower training"):
        require_finite(model, 7)


def test_a_loss_far_above_a_uniform_guess_ends_the_run_at_once(tmp_path: Path) -> None:
    """Adam moves each weight by about the rate, however large the gradient, so that at 1e9 all stays finite."""
    run = tiny_run(tmp_path, LSTM, steps=400, optimizer={"kind": "adamw", "lr": 1e9},
                   schedule={"kind": "constant", "warmup": 0.0})
    seen: list[Event] = []
    with pytest.raises(DivergedError, match=r"diverged at step (\d+): the loss became [\d.e+]+ nats per token, where a "
                                            r"uniform guess has 5\.\d\d\.") as caught:
        train(run, tmp_path / "run", on_event=seen.append)
    assert caught.value.step <= 3, "the first losses after the rate has come into force"


def test_a_model_that_begins_far_above_a_uniform_guess_has_not_diverged(tmp_path: Path) -> None:
    """What counts is the larger of a uniform guess and the first loss, which a resumed run knows, too."""
    model = {**LSTM, "embedding": {"std": 1e4}}  # tied to the readout: logits of about 1e4
    run = tiny_run(tmp_path, model, steps=4)
    stream = prepare(run).train
    tried = Trainer(run, build_model(run), stream, steps=4, device="cpu")
    first = tried.advance().sums
    assert first.nats / first.tokens > 100 * math.log(257)
    tried.advance()
    again = Trainer(run, build_model(run), stream, steps=4, device="cpu")
    again.resume(tried.tensors(), step=2, seconds=0.0, where="")
    assert again.tensors()["first_loss"].item() == first.nats / first.tokens
    again.advance()


def test_ctrl_c_saves_the_step_under_way_and_the_next_ends_at_once(tmp_path: Path) -> None:
    run, numbers = tiny_run(tmp_path, LSTM), (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    handlers = [signal.getsignal(number) for number in numbers]
    whole = train(run, tmp_path / "whole").model

    def send(*numbers: int, step: int = 5) -> Any:
        def listener(event: Event) -> None:
            if isinstance(event, Progress) and event.step == step:
                for number in numbers:
                    signal.raise_signal(number)
        return listener

    with pytest.raises(KeyboardInterrupt) as caught:
        train(run, tmp_path / "once", on_event=send(signal.SIGINT))
    assert not isinstance(caught.value, Terminated)
    assert load_checkpoint(tmp_path / "once").facts["step"] == 5
    with pytest.raises(Terminated):
        train(run, tmp_path / "once", resume=True, on_event=send(signal.SIGTERM, step=15))
    assert load_checkpoint(tmp_path / "once").facts["step"] == 15
    assert [signal.getsignal(number) for number in numbers] == handlers
    assert same_weights(train(run, tmp_path / "once", resume=True).model, whole)

    with pytest.raises(KeyboardInterrupt):
        train(run, tmp_path / "twice", on_event=send(signal.SIGINT, signal.SIGINT))
    assert not list((tmp_path / "twice").glob("checkpoints/*"))
    with pytest.raises(Terminated):
        train(run, tmp_path / "twice", resume=True, on_event=send(signal.SIGINT, signal.SIGTERM))
    assert same_weights(train(run, tmp_path / "twice", resume=True).model, whole)


def test_a_second_ctrl_c_while_a_checkpoint_is_written(run: RunConfig, whole: torch.nn.Module, tmp_path: Path,
                                                        monkeypatch: pytest.MonkeyPatch) -> None:
    """The checkpoint under way is given up, the ones before stay."""
    manifest = saving.write_manifest

    def interrupted(folder: Path) -> None:
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)
        manifest(folder)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        train(run, tmp_path / "run",
              on_event=after_saving(4, lambda: patch.setattr(saving, "write_manifest", interrupted)))
    assert sorted(path.name for path in (tmp_path / "run/checkpoints").iterdir()) == ["00000002", "00000004"]
    assert same_weights(train(run, tmp_path / "run", resume=True).model, whole)


HOLDER = """
import fcntl, os, sys, time
lock = open(sys.argv[1], "w")
fcntl.flock(lock, fcntl.LOCK_EX)
print(os.getpid(), file=lock, flush=True)
print("held", flush=True)
time.sleep(60)
"""
"""What a run does with its lock, in a process that need not import torch."""


def test_two_runs_in_one_folder_and_the_lock_of_one_that_was_killed(tmp_path: Path) -> None:
    lock = tmp_path / "run/.lock"
    lock.parent.mkdir()
    holder = subprocess.Popen([sys.executable, "-c", HOLDER, str(lock)], stdout=subprocess.PIPE, text=True)
    try:
        assert holder.stdout is not None and holder.stdout.readline() == "held\n"
        with pytest.raises(ConfigError, match=rf"another process \({holder.pid}\) is training in .*run\. Wait for it"):
            train(tiny_run(tmp_path, LSTM, steps=1), lock.parent)
    finally:
        holder.kill()
        holder.communicate()
    assert lock.read_text().startswith(f"{holder.pid}\n")
    with RunFolder(lock.parent, resume=False):
        assert lock.read_text().startswith(f"{os.getpid()}\n")


def test_a_run_that_began_while_this_one_waited_for_the_lock_is_noticed(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run", resume=False)
    train(tiny_run(tmp_path, ATTENTION, steps=1), tmp_path / "run")
    with pytest.raises(ConfigError, match="holds a run already"), folder:
        pass
    with RunFolder(tmp_path / "run", resume=True):
        pass
