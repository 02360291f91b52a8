"""Pre-training against none on images of digits, and transfer of a Vision Transformer against its pre-training.

    python recipes/digits/run.py --images t10k-images-idx3-ubyte.gz            the table and both pictures
    python recipes/digits/run.py --images digits.npz --widths 48 --epochs 4    a smaller one, on smaller images

*Depth.* Five networks of sigmoids learn to name the digit (Bengio et al. 2006): a deep one whose layers are trained one
after another as restricted Boltzmann machines (deep belief network), as autoencoders, or each with classes of its own
(supervised greedy), the same without pre-training, and a shallow one with a single layer. All see the same number of
batches: what the first three spend on pre-training, the last two spend on learning. The weights are those after the
last batch, chosen by no held-out image; the error is that on images that are held out.

*Transfer.* A Vision Transformer learns to name the digits 0 to 4 from some number of images, and then 5 to 9 from a few
images of these; the accuracy is that on all others of 5 to 9. From 0 images it starts at random.

Seed s decides which images are held out, the initial weights and the order; intervals are Student's over the seeds.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import platform
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

import weft
from weft.data.images import Images, read_images
from weft.training import parse_run, train

HERE = Path(__file__).parent
RESULT = HERE / "result.json"
METHODS = {"deep belief network": "boltzmann", "deep autoencoder": "autoencoder", "supervised greedy": "supervised",
           "deep, not pre-trained": None, "shallow": None}
CONFIDENCE, BATCH, HELD_OUT, LAYERS, FEW = 0.95, 50, 0.1, 3, 100


class Settings(NamedTuple):
    """What is run: units of a layer, epochs of each layer's pre-training and twice as many of learning, seeds, sizes of
    the pre-training of the transformer, its steps, its width and its patches; the learning rate of the networks."""

    widths: int
    epochs: int
    seeds: int
    sizes: tuple[int, ...]
    steps: int
    d_model: int
    patch: int
    lr: float


def net(images: Images, widths: Sequence[int], **fields: Any) -> dict[str, Any]:
    """The configuration of a network of sigmoids."""
    return {"kind": "dense", "image": image(images), "widths": list(widths), **fields}


def image(images: Images) -> dict[str, Any]:
    """The images of a model."""
    channels, height, width = images.size
    return {"channels": channels, "height": height, "width": width}


def trained(run: Mapping[str, Any], folder: Path, *, data: Path, seed: int, steps: int, lr: float) -> float:
    """Train a run and return its last validation: an accuracy, or a loss."""
    held = {} if "validation_path" in run.get("data", {}) else {"validation": HELD_OUT}
    whole = {**run, "seed": seed, "report": {"eval_every": steps, "eval_batches": None, "log_every": steps},
             "data": {"path": str(data), "split_seed": seed, "order_seed": seed, **held, **run.get("data", {})},
             "training": {"steps": steps, "batch_size": BATCH, "schedule": "constant",
                          "optimizer": {"lr": lr, "weight_decay": 0.0}, "compute": {"matmul": "default"}}}
    found = train(parse_run(whole), folder).validation
    return found.named()[found.criterion]


def depth(name: str, data: Path, images: Images, settings: Settings, seed: int, place: Path) -> float:
    """The test error, in percent, of one of the five networks."""
    method, epoch = METHODS[name], math.ceil(len(images) * (1 - HELD_OUT) / BATCH)
    layer, learning = settings.epochs * epoch, 2 * settings.epochs * epoch
    widths = [settings.widths] * (1 if name == "shallow" else LAYERS)
    if method is None:
        run = {"task": "classify_images", "model": net(images, widths, head="pooled")}
        steps = LAYERS * layer + learning
        return 100 * (1 - trained(run, place / "run", data=data, seed=seed, steps=steps, lr=settings.lr))
    head = {"head": "layer_classes"} if method == "supervised" else {"back": {}}
    task = {"kind": "pretrain_layers", "method": method, "batches_per_layer": layer}
    trained({"task": task, "model": net(images, widths, **head)}, place / "before", data=data, seed=seed,
            steps=LAYERS * layer, lr=settings.lr)
    run = {"start": str(place / "before"), "task": "classify_images", "model": {"head": "pooled"}}
    return 100 * (1 - trained(run, place / "run", data=data, seed=seed, steps=learning, lr=settings.lr))


def transfer(count: int, images: Images, settings: Settings, seed: int, place: Path) -> float:
    """The accuracy, in percent, on digits 5 to 9 after pre-training on ``count`` images of 0 to 4."""
    low, few, rest = split(images, seed, place)
    attention = {"kind": "attention", "n_heads": 4, "mask": "bidirectional"}
    block = {"kind": "pre", "layers": [attention, {"kind": "mlp", "d_ff": 2 * settings.d_model}]}
    model = {"kind": "image_encoder", "image": image(images), "patch": [settings.patch] * 2, "norm": "layernorm",
             "d_model": settings.d_model, "blocks": [{"repeat": 3, "of": [block]}], "head": "pooled"}
    after: dict[str, Any] = {"task": "classify_images", "model": model,
                             "data": {"validation_path": str(rest), "validation": None}}
    if count:
        before = {"task": {"kind": "classify_images", "images": count}, "model": model}
        trained(before, place / "before", data=low, seed=seed, steps=settings.steps, lr=1e-3)
        after |= {"start": str(place / "before"), "model": {"head": "pooled"}}
    return 100 * trained(after, place / "run", data=few, seed=seed, steps=settings.steps // 2, lr=1e-3)


def split(images: Images, seed: int, place: Path) -> tuple[Path, Path, Path]:
    """Files of the digits 0 to 4, of `FEW` images of 5 to 9, and of all others of these."""
    high = images.labels.astype(int) >= 5
    places = np.random.default_rng(seed).permutation(np.flatnonzero(high))
    parts = {"low": np.flatnonzero(~high), "few": places[:FEW], "rest": places[FEW:]}
    paths = []
    for name, chosen in parts.items():
        paths.append(place / f"{name}.npz")
        np.savez(paths[-1], images=images.pixels[chosen], labels=images.labels[chosen].astype(int))
    return paths[0], paths[1], paths[2]


def study(data: Path, settings: Settings) -> dict[str, Any]:
    """All figures of both studies, by seed."""
    images = read_images(data)
    found: dict[str, Any] = {"depth": {name: [] for name in METHODS}, "transfer": {str(n): [] for n in settings.sizes}}
    for seed in range(settings.seeds):
        for name in METHODS:
            with tempfile.TemporaryDirectory() as place:
                found["depth"][name].append(depth(name, data, images, settings, seed, Path(place)))
            print(f"seed {seed}, {name}: {found['depth'][name][-1]:.2f} % wrong", flush=True)
        for count in settings.sizes:
            with tempfile.TemporaryDirectory() as place:
                found["transfer"][str(count)].append(transfer(count, images, settings, seed, Path(place)))
            print(f"seed {seed}, {count} images before: {found['transfer'][str(count)][-1]:.2f} % right", flush=True)
    return found


def settings_sha256(settings: Mapping[str, Any], images: str) -> str:
    """A hash of what was run."""
    return hashlib.sha256(json.dumps([settings, images], sort_keys=True).encode()).hexdigest()


def main() -> None:
    """Run both studies, and write result, page and pictures."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--images", type=Path, required=True)
    options.add_argument("--widths", type=int, default=256)
    options.add_argument("--epochs", type=int, default=5)
    options.add_argument("--seeds", type=int, default=5)
    options.add_argument("--sizes", type=int, nargs="+", default=[0, 200, 1000, 4000])
    options.add_argument("--steps", type=int, default=600)
    options.add_argument("--d-model", type=int, default=48)
    options.add_argument("--patch", type=int, default=7)
    options.add_argument("--lr", type=float, default=1e-3)
    options.add_argument("--out", type=Path, default=HERE)
    given = options.parse_args()
    chosen = Settings(given.widths, given.epochs, given.seeds, tuple(given.sizes), given.steps, given.d_model,
                      given.patch, given.lr)
    begun, images = time.process_time(), read_images(given.images)
    result = {"settings": chosen._asdict(), "images": images.describe().removeprefix(str(given.images.parent) + "/"),
              "confidence": CONFIDENCE, **study(given.images, chosen), "weft": weft.__version__,
              "torch": torch.__version__, "python": platform.python_version()}
    result["settings_sha256"] = settings_sha256(result["settings"], result["images"])
    result["processor_seconds"] = round(time.process_time() - begun)
    given.out.mkdir(parents=True, exist_ok=True)
    (given.out / RESULT.name).write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    import report  # beside this file

    report.write(result, given.out)


if __name__ == "__main__":
    main()
