"""RWKV-4 in training and in decoding: Weft by each form of its recurrence, and the class of `transformers`.

    python benchmarks/rwkv.py [--rounds 5] [--threads 2]      # on an idle machine; about five minutes
    python benchmarks/rwkv.py --layers 1 --width 64 --context 64 --rounds 1      # to try it

A model of 11 million parameters (8 layers, d_model 256, feed-forward 1024, vocabulary 8192) is trained on rows of 512
random tokens, four at a time, in float32: forward, cross-entropy, backward, no optimiser, since that is the same for
all. All have the same weights, written by `transformers` and read by Weft, and the losses must agree. Contenders take
turns; ratios are medians over the turns. Decoding is one row, 64 tokens after as many, greedily.
Last is the operation alone, forward and backward, by the tokens of a row, with which its time must grow.
What is wanted stands in `WANTED`. Writes ``results/rwkv.json``.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor
from torch.nn import functional as F

import weft
from weft.decoding import generate
from weft.ops.forms import forced
from weft.ops.native.library import describe
from weft.ops.processor import processor_name
from weft.ops.wkv import wkv

RESULTS = Path(__file__).parent / "results" / "rwkv.json"
FORMS = ("native", "operator", "reference")
WANTED = {"native": 5.0, "operator": 5.0}
"""Times the tokens per second of `transformers`' loop in training."""
BATCH, VOCABULARY, PROMPT, STEPS = 4, 8192, 64, 64
LENGTHS = (1024, 4096, 16384, 65536)


def models(options: argparse.Namespace, folder: Path) -> tuple[Any, Any]:
    """The same weights in `transformers` and in Weft."""
    config = transformers.RwkvConfig(vocab_size=VOCABULARY, hidden_size=options.width, num_hidden_layers=options.layers,
                                     context_length=options.context, rescale_every=0)
    theirs = transformers.RwkvForCausalLM(config)
    theirs.save_pretrained(folder)
    return theirs.train(), weft.load(folder).model.train()


def trained(logits: Callable[[Tensor], Tensor], model: Any, tokens: Tensor) -> tuple[float, float]:
    """Seconds of a forward and a backward pass, and the loss."""
    model.zero_grad(set_to_none=True)
    begun = time.perf_counter()
    loss = F.cross_entropy(logits(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
    loss.backward()
    return time.perf_counter() - begun, float(loss.detach())


def decoded_theirs(model: Any, tokens: Tensor) -> float:
    """Seconds for each new token, greedily, the prompt included, in a plain loop: it is faster than its `generate`."""
    begun = time.perf_counter()
    out = model(tokens, use_cache=True)
    for _ in range(STEPS - 1):
        out = model(out.logits[:, -1:].argmax(-1), state=out.state, use_cache=True)
    return (time.perf_counter() - begun) / STEPS


def decoded(model: Any, tokens: Tensor) -> float:
    """The same by Weft."""
    begun = time.perf_counter()
    generate(model, [tokens[0].tolist()], max_new_tokens=STEPS)
    return (time.perf_counter() - begun) / STEPS


def training(theirs: Any, own: Any, rounds: int, context: int) -> dict[str, Any]:
    """Tokens per second of every contender, in turns, and how many times that of `transformers`."""
    tokens = torch.randint(VOCABULARY, (BATCH, context + 1))
    taken: dict[str, list[float]] = {name: [] for name in ("transformers", *FORMS)}
    for turn in range(rounds + 1):
        losses = []
        for name, seconds in taken.items():
            if name == "transformers":
                spent, loss = trained(lambda x: theirs(x, use_cache=False).logits, theirs, tokens)
            else:
                with forced({"wkv": name}):
                    spent, loss = trained(lambda x: own(x).y, own, tokens)
            losses.append(loss)
            seconds += [spent] if turn else []  # the first turn compiles and reserves memory
        assert max(losses) - min(losses) < 1e-3, losses
    return {name: {"tokens_per_second": BATCH * context / statistics.median(seconds), "times": statistics.median(
        slow / fast for slow, fast in zip(taken["transformers"], seconds, strict=True))}
        for name, seconds in taken.items()}


def decoding(theirs: Any, own: Any, rounds: int) -> dict[str, Any]:
    """Milliseconds for a token, in turns."""
    tokens = torch.randint(VOCABULARY, (1, PROMPT))
    taken: dict[str, list[float]] = {"transformers": [], "weft": []}
    with torch.no_grad():
        for _ in range(rounds):
            taken["transformers"].append(decoded_theirs(theirs.eval(), tokens))
            taken["weft"].append(decoded(own.eval(), tokens))
    return {name: {"milliseconds": 1000 * statistics.median(seconds), "times": statistics.median(
        slow / fast for slow, fast in zip(taken["transformers"], seconds, strict=True))}
        for name, seconds in taken.items()}


def growing(form: str, rounds: int, width: int) -> dict[str, float]:
    """Seconds of the operation alone, forward and backward, by tokens."""
    found = {}
    for steps in LENGTHS:
        k, v = (torch.randn(1, steps, width, requires_grad=True) for _ in range(2))
        decay, bonus = -torch.rand(width), torch.randn(width)
        taken = []
        for _ in range(rounds):
            begun = time.perf_counter()
            with forced({"wkv": form}):
                wkv(k, v, decay, bonus)[0].sum().backward()
            taken.append(time.perf_counter() - begun)
        found[str(steps)] = min(taken)
    return found


def main() -> None:
    """Run all, print, write."""
    parser = argparse.ArgumentParser()
    for name, default in (("rounds", 5), ("threads", 2), ("layers", 8), ("width", 256), ("context", 512)):
        parser.add_argument(f"--{name}", type=int, default=default)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as place:
        theirs, own = models(options, Path(place))
        record = {
            "processor": processor_name(), "native": describe().split(",")[0], "threads": options.threads,
            "torch": torch.__version__, "transformers": transformers.__version__,
            "date": datetime.date.today().isoformat(), "load": os.getloadavg()[0],
            "parameters": sum(each.numel() for each in own.parameters()), "wanted": WANTED,
            "training": training(theirs, own, options.rounds, options.context),
            "decoding": decoding(theirs, own, options.rounds),
            "operation": {form: growing(form, options.rounds, options.width) for form in ("native", "operator")}}
    print(json.dumps(record, indent=1))
    if (options.layers, options.width, options.context) == (8, 256, 512):
        RESULTS.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
