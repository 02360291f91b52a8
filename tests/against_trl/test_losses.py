"""Losses and gradients of trl's trainers on tiny models in float64: answers (SFT), DPO and IPO."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from datasets import Dataset
from trl import DPOConfig, DPOTrainer, SFTConfig, SFTTrainer

from against_trl.small import (
    PAIRS,
    TALKS,
    gradients,
    in_float64,
    own_model,
    own_tokenizer,
    their_model,
    their_tokenizer,
)
from tasks.task_runs import records_file, settings
from weft.data.settings import DataSettings
from weft.tasks import AnyTask
from weft.tasks.instructions import Answers, AnswersConfig
from weft.tasks.preferences import Preferences, PreferencesConfig
from weft.tokenizers.config import TokenizerFileConfig
from weft.training.gradient import add_gradients

TOLERANCE = 1e-6
"""Relative to the largest gradient of a tensor, or to the loss; the differences are of float64's size."""
COMMON: dict[str, Any] = {"report_to": "none", "use_cpu": True, "save_strategy": "no", "bf16": False,
                          "per_device_train_batch_size": 4, "max_length": 128, "gradient_checkpointing": False}


def batch_of(made: AnyTask, folder: Path, rows: list[dict[str, Any]], reference: Any = None) -> Any:
    """All of the examples, in one batch."""
    own_tokenizer().save(folder / "own")
    path = str(records_file(folder, rows))
    held = str(records_file(folder, rows, "held.jsonl"))
    data = DataSettings(path=path, validation=None, validation_path=held)
    examples = made.material(data, TokenizerFileConfig(path=str(folder / "own"))).train
    return made.batches(examples if reference is None else made.compared(examples, reference)).batch(0)


def require_equal(made: AnyTask, batch: Any, model: Any, theirs: Any, loss: torch.Tensor, folder: Path) -> None:
    """Both losses and all gradients are equal; the largest difference is printed."""
    loss.backward()  # type: ignore[no-untyped-call]
    sums, _ = add_gradients(made, model, [batch], None, device="cpu")
    difference = abs(sums.nats / sums.tokens - loss.item()) / abs(loss.item())
    assert difference <= TOLERANCE, difference
    worst = 0.0
    for name, own, other in gradients(model, theirs, folder):
        scale = float(other.abs().max())
        assert scale > 0, f"{name} has a gradient"
        worst = max(worst, float((own - other).abs().max()) / scale)
    print(f"loss {difference:.1e}, gradients {worst:.1e}")
    assert worst <= TOLERANCE, worst


def test_answers_are_sft_on_assistants_alone(tmp_path: Path) -> None:
    theirs, tokenizer = their_model(0), their_tokenizer(tmp_path / "theirs")
    trainer = SFTTrainer(theirs, SFTConfig(output_dir=str(tmp_path), assistant_only_loss=True, **COMMON),
                         train_dataset=Dataset.from_list(TALKS), processing_class=tokenizer)
    inputs = trainer.data_collator([trainer.train_dataset[place] for place in range(len(TALKS))])
    in_float64(theirs)
    made = Answers(AnswersConfig(), settings(context=128))
    batch = batch_of(made, tmp_path, TALKS)
    assert batch.count.predictions == int((inputs["labels"] != -100).sum())
    model = own_model(theirs, tmp_path / "model")
    require_equal(made, batch, model, theirs, trainer.compute_loss(theirs, inputs), tmp_path / "gradients")


@pytest.mark.parametrize(("theirs_", "own"), [
    ({"loss_type": ["sigmoid"], "beta": 0.1}, {"beta": 0.1}),
    ({"loss_type": ["sigmoid"], "beta": 0.7}, {"beta": 0.7}),
    ({"loss_type": ["sigmoid_norm"], "beta": 0.7}, {"beta": 0.7, "per_token": True}),
    ({"loss_type": ["ipo"], "beta": 0.2}, {"loss": "ipo", "beta": 0.2, "per_token": True}),
], ids=["dpo", "dpo 0.7", "dpo per token", "ipo"])
def test_preferences_are_dpo_and_ipo(tmp_path: Path, theirs_: dict[str, Any], own: dict[str, Any]) -> None:
    theirs, reference, tokenizer = their_model(0), their_model(1), their_tokenizer(tmp_path / "theirs")
    trainer = DPOTrainer(theirs, reference, args=DPOConfig(output_dir=str(tmp_path), **theirs_, **COMMON),
                         train_dataset=Dataset.from_list(PAIRS), processing_class=tokenizer)
    inputs = trainer.data_collator([trainer.train_dataset[place] for place in range(len(PAIRS))])
    in_float64(theirs)
    in_float64(trainer.ref_model)
    made = Preferences(PreferencesConfig(**own), settings(context=128))
    batch = batch_of(made, tmp_path, PAIRS, own_model(reference, tmp_path / "reference"))
    model = own_model(theirs, tmp_path / "model")
    require_equal(made, batch, model, theirs, trainer.compute_loss(theirs.train(), inputs), tmp_path / "gradients")
