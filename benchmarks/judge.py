"""How long a verdict of `weft judge` takes for a model of ten million parameters with a context of 1,024 tokens:
``python benchmarks/judge.py`` on two idle cores."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path

from weft.judge.judgement import Verdict
from weft.judge.questions import FileLimits, Judged
from weft.judge.referee import judge_file

MODEL = '''
import torch
from torch import nn
from torch.nn import functional as F


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads, self.first, self.second = heads, nn.LayerNorm(width), nn.LayerNorm(width)
        self.read, self.write = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        rows, tokens, width = x.shape
        parts = self.read(self.first(x)).chunk(3, -1)
        parts = (each.view(rows, tokens, self.heads, -1).transpose(1, 2) for each in parts)
        mixed = F.scaled_dot_product_attention(*parts, is_causal=True)
        x = x + self.write(mixed.transpose(1, 2).reshape(rows, tokens, width))
        return x + self.down(F.gelu(self.up(self.second(x))))


class Model(nn.Module):
    vocab_size, context = 8192, 1024

    def __init__(self, width=320, layers=6, heads=5):
        super().__init__()
        self.tokens, self.places = nn.Embedding(8192, width), nn.Embedding(1024, width)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(layers)))
        self.norm = nn.LayerNorm(width)

    def forward(self, ids):
        x = self.tokens(ids) + self.places(torch.arange(ids.shape[1]))
        return self.norm(self.blocks(x)) @ self.tokens.weight.T


model = Model
'''
"""A model as people write them: 10.3 million parameters."""
OUT = Path(__file__).parent / "results" / "judge.json"


def used(verdict: Verdict, before: os.times_result, load: tuple[float, ...]) -> dict[str, object]:
    """The figures of a verdict, with the load of the machine before and after."""
    after = os.times()
    own = after.user + after.system - before.user - before.system
    return {"parameters": verdict.thing.parameters, "verdict": verdict.verdict, "seconds": round(verdict.seconds, 1),
            "laws": {law.name: law.seconds for law in verdict.laws if law.outcome != "not tried"},
            "processor_seconds_of_the_judge": round(own, 1), "load_before": load, "load_after": os.getloadavg(),
            "cores": os.cpu_count()}


def main() -> None:
    """Judge the model, and write what it took."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.py"
        path.write_text(MODEL, encoding="utf-8")
        before, load = os.times(), os.getloadavg()
        found = used(judge_file(Judged(path), limits=FileLimits(seconds=600)), before, load)
    OUT.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    print(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
