"""One contender of `run.py`, in a process of its own: trains the recipe's model for some steps and prints the seconds
and the mean loss of every interval as JSON.

Both start from the same weights, see the same batches and have the same optimiser and learning rates.
"""

from __future__ import annotations

import json
import math
import sys
import tempfile
import time
from collections.abc import Callable
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from weft import api
from weft.tasks.text import text_batches
from weft.training import Progress, RunConfig
from weft.training.material import prepare
from weft.training.run_training import build_model

WIDTH, LAYERS, HEADS = 128, 4, 4
"""Of the recipe's model."""
LAYER = {"attn.c_attn": "layers.0.qkv", "attn.c_proj": "layers.0.output", "mlp.c_fc": "layers.1.up",
         "mlp.c_proj": "layers.1.down", "ln_1": "norms.0", "ln_2": "norms.1"}
"""Parts of a block, as `transformers` calls them and as Weft does."""


class Course(NamedTuple):
    """Seconds and mean loss of every interval of ``every`` steps."""

    seconds: list[float]
    losses: list[float]


def weft(config: RunConfig, every: int) -> Course:
    """`api.train`, from one line of progress to the next; evaluation and checkpoint come after the last."""
    times, losses = [time.perf_counter()], []

    def listen(event: object) -> None:
        if isinstance(event, Progress):
            times.append(time.perf_counter())
            losses.append(event.loss)

    report = config.report.model_copy(update={"log_every": every, "eval_every": config.training.steps,
                                              "eval_batches": 1})
    with tempfile.TemporaryDirectory() as folder:
        api.train(config.model_copy(update={"report": report}), out=folder, on_event=listen)
    return Course([after - before for before, after in pairwise(times)], losses)


def transformers(config: RunConfig, every: int, *, fused: bool | None) -> Course:
    """The loop that users of `transformers` write; the batches are tensors before the clock starts."""
    steps = config.training.steps
    assert steps is not None, "the recipe counts its budget in steps"
    inputs, targets = batches(config, steps)
    step = loop(config, transformers_model(config), steps, fused)
    course = Course([], [])
    for first in range(0, steps, every):
        begun = time.perf_counter()
        losses = [step(index, inputs[index], targets[index]) for index in range(first, first + every)]
        course.seconds.append(time.perf_counter() - begun)
        course.losses.append(math.fsum(losses) / every)
    return course


def loop(config: RunConfig, model: nn.Module, steps: int, fused: bool | None) -> Callable[[int, Tensor, Tensor], float]:
    """One step of it. ``fused``: of `torch.optim.AdamW`."""
    optimizer, schedule = adamw(config, model, fused), config.training.schedule
    peak, clip = config.training.optimizer.lr, config.training.clip_norm
    assert clip is not None, "the recipe clips"

    def step(index: int, x: Tensor, y: Tensor) -> float:
        for group in optimizer.param_groups:
            group["lr"] = peak * schedule.factor(index, steps)
        logits = model(input_ids=x, use_cache=False).logits
        loss = F.cross_entropy(logits.flatten(0, 1), y.flatten())
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
        return loss.item()

    return step


def adamw(config: RunConfig, model: nn.Module, fused: bool | None) -> torch.optim.Optimizer:
    """AdamW with the recipe's settings, matrices decayed."""
    own = config.training.optimizer.dump()
    trained = [p for p in model.parameters() if p.requires_grad]
    groups = [{"params": [p for p in trained if (p.dim() >= 2) == matrix], "weight_decay": decay}
              for matrix, decay in ((True, own["weight_decay"]), (False, 0.0))]
    return torch.optim.AdamW(groups, lr=own["lr"], betas=(own["beta1"], own["beta2"]), eps=own["eps"], fused=fused)


def batches(config: RunConfig, steps: int) -> tuple[Tensor, Tensor]:
    """Inputs and targets of the run's own batches."""
    source = text_batches(config.made_task().settings, prepare(config).train)
    made = [source.batch(step) for step in range(steps)]
    return (torch.stack([torch.from_numpy(batch.inputs) for batch in made]),
            torch.stack([torch.from_numpy(batch.targets) for batch in made]))


def transformers_model(config: RunConfig) -> nn.Module:
    """GPT2LMHeadModel with the weights that the run begins with. Its biases cannot be left out: they stay at zero,
    untrained."""
    from transformers import GPT2Config, GPT2LMHeadModel

    model: nn.Module = GPT2LMHeadModel(GPT2Config(
        vocab_size=config.model.vocab_size, n_positions=config.context, n_embd=WIDTH, n_layer=LAYERS, n_head=HEADS,
        activation_function="gelu", resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=None,
        eos_token_id=None))
    found = model.load_state_dict(initial_weights(config), strict=False)
    assert not found.unexpected_keys and all(name.endswith("bias") for name in found.missing_keys)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(not name.endswith("bias"))
    return model.train()


def initial_weights(config: RunConfig) -> dict[str, Tensor]:
    """Those of the run's step 0 under the names of `transformers`, which keeps the matrices of blocks transposed."""
    torch.manual_seed(config.seed)
    own = build_model(config).state_dict()
    named = {"transformer.wte.weight": own["embedding.tokens.weight"], "lm_head.weight": own["readout.weight"],
             "transformer.wpe.weight": own["embedding.position.table"], "transformer.ln_f.weight": own["norm.weight"]}
    for i in range(LAYERS):
        named |= {f"transformer.h.{i}.{theirs}.weight": own[f"stack.layers.{i}.{ours}.weight"].t()
                  for theirs, ours in LAYER.items()}
    return named


CONTENDERS: dict[str, Callable[[RunConfig, int], Course]] = {
    "weft": weft,
    "transformers": lambda config, every: transformers(config, every, fused=None),
    "transformers, fused AdamW": lambda config, every: transformers(config, every, fused=True)}


def main(name: str, config: str, overrides: list[str], every: int, threads: int) -> Course:
    torch.set_num_threads(threads)
    return CONTENDERS[name](api.read_run(config, overrides), every)


if __name__ == "__main__":
    print(json.dumps(main(**json.loads(sys.argv[1]))._asdict()))
