"""`train`: from a configuration to a trained model in a run folder."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import torch

import weft
from weft.checkpoints.load import load_checkpoint, read_training
from weft.core.errors import ConfigError, DataError
from weft.core.layer import traits_of
from weft.core.model import LanguageModel, parameter_count
from weft.core.traits import Trait
from weft.tokenizers import Tokenizer
from weft.training.budget import settle_steps
from weft.training.config import RunConfig
from weft.training.counting import count
from weft.training.events import Listener, Notice, Started
from weft.training.folder import RunFolder, require_same_run
from weft.training.loop import Finish, Run, descend
from weft.training.material import prepare
from weft.training.trainer import Trainer
from weft.training.validation import Validation


@final
@dataclass(frozen=True, eq=False)
class TrainResult:
    """A finished run.

    Attributes:
        model: in evaluation mode.
        tokenizer: what it was trained with.
        config: the run's.
        steps: updates of the weights; 1 for a model that was fitted by counting.
        seconds: of training, evaluation and saving not counted.
        validation: at the end.
        checkpoint: the last.
        best: the checkpoint with the fewest bits per byte.
    """

    model: LanguageModel
    tokenizer: Tokenizer
    config: RunConfig
    steps: int
    seconds: float
    validation: Validation
    checkpoint: Path
    best: Path


def train(config: RunConfig, out: str | Path, *, resume: bool = False, device: torch.device | str = "cpu",
          on_event: Listener | None = None) -> TrainResult:
    """Train the model of a run, by gradients or by counting, whichever it is made for.

    Ctrl-C saves a checkpoint after the step that is under way and raises KeyboardInterrupt; a second one raises it at
    once. torch's random numbers outside are left as they were.

    Args:
        config: the run.
        out: its folder, see `RunFolder`.
        resume: go on from the last checkpoint in ``out``, to the same weights as without the interruption (same
            machine, threads and version of torch).
        device: where to compute.
        on_event: called with every event.

    Raises:
        ConfigError: the configuration cannot be built or run, or ``out`` does not fit.
        DataError: the text cannot be used, or is not the one that the run began with.
        TrainingError: the loss is not finite; the checkpoints stay.
    """
    place = torch.device(device)
    # Random numbers of the CPU are forked in any case; those of an accelerator when it is the one that is used.
    with RunFolder(out, resume=resume) as folder, torch.random.fork_rng([place] if place.type == "cuda" else []):
        if resume:
            require_same_run(folder.read()["config"], config.dump(), where=str(folder.path))
        material = prepare(config)
        torch.manual_seed(config.seed)
        run = Run(config, build_model(config).to(place), material, folder, place, on_event)
        counted = Trait.NOT_DIFFERENTIABLE in traits_of(run.model)
        finish = _count(run, resume) if counted else _descend(run, resume)
        best = folder.best()
        assert best is not None, "the last checkpoint of a run is evaluated"
        return TrainResult(run.model.eval(), material.tokenizer, config, finish.step, finish.seconds,
                           finish.validation, finish.checkpoint, best)


def build_model(config: RunConfig) -> LanguageModel:
    """The model of a run, with fresh weights.

    Raises:
        ConfigError: it cannot be built, or is no language model.
    """
    model = config.model.build()
    if not isinstance(model, LanguageModel):
        raise ConfigError([f"model: a {config.model.kind!r} is not a language model. Give a model that predicts the "
                           "next token."])
    return model


def _descend(run: Run, resume: bool) -> Finish:
    stream = run.material.train
    if resume:
        steps = _require_same_material(run)
    else:
        steps = settle_steps(run.config, run.model, stream, run.device)
    trainer = Trainer(run.config, run.model, stream, steps=steps, device=run.device)
    if resume:
        _restore(run, trainer)
    else:
        run.folder.describe(_description(run, steps))
    run.tell(_started(run, trainer.step, steps, trainer.batches.tokens_per_batch * run.config.training.accumulation))
    return descend(run, trainer)


def _count(run: Run, resume: bool) -> Finish:
    if resume:
        _require_same_material(run)
    else:
        run.folder.describe(_description(run, 1))
    run.tell(_started(run, 0, 0, len(run.material.train)))
    seconds = run.timed(lambda: count(run.model, run.material.train))
    validation = run.evaluate(run.model, 1, seconds)
    return Finish(1, seconds, validation, run.save(1, seconds, validation, {}))


def _restore(run: Run, trainer: Trainer) -> None:
    last = run.folder.last()
    if last is None:
        run.folder.forget_after(0)
        run.tell(Notice(0, "no checkpoint had been saved yet: starting from the first step"))
        return
    loaded = load_checkpoint(last)
    step = int(loaded.facts["step"])
    run.folder.forget_after(step)
    with torch.no_grad():
        for mine, saved in zip(_values(trainer.model), _values(loaded.model), strict=True):
            mine.copy_(saved)
    trainer.precision.refresh(buffers=True)
    trainer.resume(read_training(last), step=step, seconds=float(loaded.facts["seconds"]), where=str(last))


def _values(model: LanguageModel) -> list[torch.Tensor]:
    return [*model.parameters(), *model.buffers()]


def _description(run: Run, steps: int) -> dict[str, Any]:
    material = run.material
    machine = {"weft": weft.__version__, "torch": torch.__version__, "threads": torch.get_num_threads(),
               "device": str(run.device)}
    return {"config": run.config.dump(), "steps": steps, "corpus": material.corpus,
            "corpus_sha256": material.corpus_sha256, "tokenizer_sha256": material.tokenizer.fingerprint(),
            "machine": machine}


def _require_same_material(run: Run) -> int:
    """The number of steps that the run settled on, if text and tokenizer are still the same."""
    before, now = run.folder.read(), _description(run, 0)
    if before["corpus_sha256"] != now["corpus_sha256"] or before["tokenizer_sha256"] != now["tokenizer_sha256"]:
        raise DataError(f"the text is not the one that the run began with: it was {before['corpus']}; now it is "
                        f"{now['corpus']}.", where=str(run.folder.path),
                        remedy="Put the text back, or start a run in another folder.")
    changed = [f"{name} {old} (now {now['machine'].get(name)})" for name, old in before["machine"].items()
               if now["machine"].get(name) != old]
    if changed:
        run.tell(Notice(0, f"the run began with {', '.join(changed)}: the weights may differ in their last bits from "
                        "those of a run that was not interrupted"))
    return int(before["steps"])


def _started(run: Run, step: int, steps: int, tokens_per_step: int) -> Started:
    material = run.material
    return Started(step, parameter_count(run.model), steps, tokens_per_step, len(material.train),
                   len(material.validation), material.corpus)
