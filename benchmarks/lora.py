"""LoRA fine-tuning of a Llama of 125M parameters on a CPU: Weft against `peft` and `transformers`, at equal loss.

    python benchmarks/lora.py                               three rounds, some forty minutes on two cores
    python benchmarks/lora.py --layers 2 --width 64 --vocabulary 500 --steps 3 --rounds 1     a trial of seconds

The base has random weights, made by `transformers`; the adapter (rank 8 beside every map of the blocks) is made by
`peft`, and Weft reads both, so that both begin with the same numbers and their losses can be compared. In bfloat16 the
base is loaded so, as `peft`'s users do, and `peft` keeps its adapter in float32; Weft trains with `training.dtype:
bfloat16`. Both take the same batches, fused AdamW on what trains, and no clipping. Each contender runs in a process of
its own; a round runs all of them one after another, and medians are over the rounds. Results go to
``benchmarks/results/lora.json``.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

LR, BETAS, RANK = 1e-3, (0.9, 0.999), 8
CONTENDERS = [(library, dtype) for dtype in ("bfloat16", "float32") for library in ("weft", "peft")]
LOSS_BOUND = {"float32": 1e-3, "bfloat16": 3e-2}
"""Largest difference of a loss from that of the other in the same dtype."""
TARGETS = {"tokens_per_second": 1.5, "peak_bytes": 0.8}
Job = dict[str, Any]
Step = Callable[[], float]


def prepare(folder: Path, job: Job) -> None:
    """The base, the adapter, and tokens that follow one another by a rule, most of the time."""
    import peft
    import transformers

    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=job["vocabulary"], hidden_size=job["width"], intermediate_size=8 * job["width"] // 3,
        num_hidden_layers=job["layers"], num_attention_heads=job["heads"], max_position_embeddings=job["context"],
        tie_word_embeddings=False)
    model = transformers.AutoModelForCausalLM.from_config(config)
    model.save_pretrained(folder / "base")
    settings = peft.LoraConfig(r=RANK, lora_alpha=2 * RANK, target_modules="all-linear", task_type="CAUSAL_LM")
    peft.get_peft_model(model, settings).save_pretrained(folder / "adapter")
    count = job["steps"] * job["batch"] * job["context"] + 1
    tokens = (torch.rand(count).pow(4) * job["vocabulary"]).long()
    follows = torch.rand(count) < 0.5
    tokens[1:] = torch.where(follows[1:], (tokens[:-1] * 7 + 3) % job["vocabulary"], tokens[1:])
    batches = batches_of(job, tokens)
    made = [batches.batch(step) for step in range(job["steps"])]
    save_file({"tokens": tokens, **{name: torch.stack([torch.from_numpy(getattr(each, name)) for each in made])
                                    for name in ("inputs", "targets")}}, folder / "batches.safetensors")


def batches_of(job: Job, tokens: Tensor) -> Any:
    """Weft's own batches of these tokens, which both contenders take."""
    from training_weft import stream_of

    from weft.data import ShuffledBatches

    return ShuffledBatches(stream_of(tokens, job["vocabulary"]), rows=job["batch"], length=job["context"], seed=0)


def weft_step(job: Job, folder: Path, batches: dict[str, Tensor]) -> Step:
    """Weft's own trainer on the adapted model."""
    from training_weft import stream_of

    import weft
    from weft.training import parse_run
    from weft.training.trainer import Trainer

    loaded = weft.load(folder / "adapter", base=str(folder / "base"))
    run = parse_run({"model": loaded.config.dump(), "data": {"order_seed": 0}, "training": {
        "steps": job["steps"], "batch_size": job["batch"], "context": job["context"], "dtype": job["dtype"],
        "optimizer": {"kind": "adamw", "lr": LR, "beta1": BETAS[0], "beta2": BETAS[1], "weight_decay": 0.0},
        "schedule": {"kind": "constant", "warmup": 0.0}, "clip_norm": None}})
    trainer = Trainer(run, loaded.model, stream_of(batches["tokens"], job["vocabulary"]), steps=job["steps"],
                      device="cpu")
    return lambda: trainer.advance().sums.loss


def peft_step(job: Job, folder: Path, batches: dict[str, Tensor]) -> Step:
    """The plain loop of `peft`'s users."""
    import peft
    import transformers

    base = transformers.AutoModelForCausalLM.from_pretrained(folder / "base", dtype=getattr(torch, job["dtype"]))
    model = peft.PeftModel.from_pretrained(base, folder / "adapter", is_trainable=True).train()
    model.config.use_cache = False
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=LR, betas=BETAS, weight_decay=0.0, fused=True)
    rows = iter(zip(batches["inputs"], batches["targets"], strict=True))

    def step() -> float:
        inputs, targets = next(rows)
        loss = model(input_ids=inputs, labels=targets, shift_labels=targets).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        found: float = loss.item()
        return found

    return step


def contend(job: Job, folder: Path) -> None:
    """Run one contender, and print what it measured."""
    torch.set_num_threads(job["threads"])
    batches = load_file(folder / "batches.safetensors")
    step = {"weft": weft_step, "peft": peft_step}[job["library"]](job, folder, batches)
    losses, seconds = [step()], []
    for _ in range(1, job["steps"]):
        begun = time.perf_counter()
        losses.append(step())
        seconds.append(time.perf_counter() - begun)
    print(json.dumps({"tokens_per_second": job["batch"] * job["context"] / statistics.median(seconds), "losses": losses,
                      "peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024}))


def rounds(job: Job, folder: Path, count: int) -> dict[str, list[dict[str, Any]]]:
    """What every contender measured in each round."""
    found: dict[str, list[dict[str, Any]]] = {}
    for number in range(count):
        for library, dtype in CONTENDERS if number % 2 == 0 else CONTENDERS[::-1]:
            own = json.dumps({**job, "library": library, "dtype": dtype})
            done = subprocess.run([sys.executable, __file__, "--contend", own, str(folder)], check=True, text=True,
                                  stdout=subprocess.PIPE, env={**os.environ, "OMP_NUM_THREADS": str(job["threads"])})
            row = json.loads(done.stdout.splitlines()[-1])
            found.setdefault(f"{library} {dtype}", []).append(row)
            print(f"{library} {dtype}: {row['tokens_per_second']:.0f} tokens/s, {row['peak_bytes'] / 1e6:.0f} MB, "
                  f"losses {row['losses'][0]:.4f} to {row['losses'][-1]:.4f}", flush=True)
    return found


def compared(found: dict[str, list[dict[str, Any]]], dtype: str) -> dict[str, float]:
    """Medians of Weft's figures as multiples of the other's, and the largest difference of losses."""
    ours, theirs = found[f"weft {dtype}"], found[f"peft {dtype}"]
    ratio = {name: statistics.median(row[name] for row in ours) / statistics.median(row[name] for row in theirs)
             for name in TARGETS}
    return {**ratio, "loss": max(abs(a - b) for a, b in zip(ours[0]["losses"], theirs[0]["losses"], strict=True))}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    shape = {"layers": 12, "width": 768, "heads": 12, "vocabulary": 32000, "context": 256, "batch": 4, "steps": 8,
             "threads": os.cpu_count() or 1}
    for name, value in shape.items():
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "lora.json")
    given = vars(parser.parse_args())
    count, out = given.pop("rounds"), given.pop("out")
    with tempfile.TemporaryDirectory() as made:
        prepare(Path(made), given)
        found = rounds(given, Path(made), count)
    ratios = {dtype: compared(found, dtype) for dtype in LOSS_BOUND}
    for dtype, each in ratios.items():
        print(f"{dtype}: {each['tokens_per_second']:.2f} times the tokens/s (target {TARGETS['tokens_per_second']}), "
              f"{each['peak_bytes']:.2f} of the memory (target {TARGETS['peak_bytes']}), losses differ by up to "
              f"{each['loss']:.1e} ({'within' if each['loss'] < LOSS_BOUND[dtype] else 'BEYOND'} "
              f"{LOSS_BOUND[dtype]:g})")
    out.write_text(json.dumps({"shape": given, "ratios": ratios, "rows": found}, indent=1) + "\n")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--contend"]:
        contend(json.loads(sys.argv[2]), Path(sys.argv[3]))
    else:
        main()
