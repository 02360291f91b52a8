"""Train a language model whose mask is off, beside one under a causal mask: it copies the next token, and its loss goes
to zero on any text, while it has learned nothing about the token that it does not see.

    python recipes/cheating/run.py

`TokenEncoder` accepts both masks; a decoder refuses one that lets a token see later ones. The text is the project's
licence, as bytes: 9/10 for training, the rest held out. ``result.json`` holds every number with the hash of the
configuration; the README and the pictures are made of it. Under a minute on one core.
"""

from __future__ import annotations

import hashlib
import json
import statistics
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from weft.core.model import EncoderInputs, Model, Readout, built_model, parse_model
from weft.drawing.chart import Curve, chart
from weft.pictures.attention import attention_maps, map_figure

FOLDER = Path(__file__).parent
LICENCE = FOLDER.parents[1] / "LICENSE"
STEPS, ROWS, TOKENS, EVERY, SEEDS = 500, 16, 32, 20, (0, 1, 2)
RATE = 3e-3
NAMES = {"off": "bidirectional", "causal": "causal"}
"""The two models by the name of the page, with their masks."""


def configuration(mask: str) -> dict[str, Any]:
    """A model of two blocks; the two models differ in the mask alone."""
    attention = {"kind": "attention", "n_heads": 4, "mask": mask, "position": "rope"}
    return {"kind": "encoder", "vocab_size": 256, "context": TOKENS, "d_model": 64, "norm": "layernorm",
            "blocks": [{"repeat": 2, "of": [{"kind": "pre", "layers": [attention, {"kind": "mlp", "d_ff": 128}]}]}],
            "head": {"kind": "masked_token", "tied": False}}


def configuration_sha256() -> str:
    """Of both models, the training, and the text."""
    settings = [configuration(mask) for mask in NAMES.values()] + [STEPS, ROWS, TOKENS, EVERY, list(SEEDS), RATE]
    text = hashlib.sha256(LICENCE.read_bytes()).hexdigest()
    return hashlib.sha256(json.dumps([settings, text], sort_keys=True).encode()).hexdigest()


def parts() -> tuple[Tensor, Tensor]:
    """The bytes for training and those held out."""
    text = torch.tensor(list(LICENCE.read_bytes()))
    cut = len(text) * 9 // 10
    return text[:cut], text[cut:]


def losses(model: Model, tokens: Tensor) -> Tensor:
    """The negative log-probability in nats of the token after each of rows [B,T+1], [B,T]."""
    head = model.head
    assert isinstance(head, Readout), "configured so"
    return -head.log_prob(model.vectors(EncoderInputs(tokens=tokens[:, :-1])).y, tokens[:, 1:])


def windows(text: Tensor) -> Tensor:
    """All windows of T + 1 tokens that do not overlap in their inputs."""
    return text.unfold(0, TOKENS + 1, TOKENS)


@torch.no_grad()
def measured(model: Model, text: Tensor) -> dict[str, float]:
    """The mean loss of the tokens that stand in the input, and of the last, which does not."""
    found = losses(model.eval(), windows(text))
    return {"seen": float(found[:, :-1].mean()), "unseen": float(found[:, -1].mean())}


def trained(mask: str, seed: int, steps: int = STEPS) -> tuple[Model, list[tuple[int, float]]]:
    """A model after training, and its training loss by step, of the tokens that stand in the input."""
    torch.manual_seed(seed)
    model, (text, _) = built_model(parse_model(configuration(mask))), parts()
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, weight_decay=0.0)
    curve = []
    for step in range(steps + 1):
        starts = torch.randint(len(text) - TOKENS, (ROWS, 1))
        found = losses(model.train(), text[starts + torch.arange(TOKENS + 1)])
        loss = found.mean()
        if step % EVERY == 0:
            curve.append((step, float(found[:, :-1].detach().mean())))
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    return model, curve


def ahead(model: Model, text: Tensor) -> float:
    """The greatest weight, among heads, that tokens give to the token after them, as a mean over tokens."""
    maps = attention_maps(model, text[:TOKENS].tolist())
    return max(float(head.diagonal(1).mean()) for found in maps for head in found.weights)


def record() -> tuple[dict[str, Any], Model]:
    """Every number, and the first model whose mask is off."""
    _, held_out = parts()
    runs: dict[str, list[dict[str, Any]]] = {name: [] for name in NAMES}
    cheat = None
    for name, mask in NAMES.items():
        for seed in SEEDS:
            model, curve = trained(mask, seed)
            cheat = model if cheat is None else cheat
            runs[name].append({"seed": seed, "curve": curve, "ahead": ahead(model, held_out),
                               **measured(model, held_out)})
    assert cheat is not None, "there are seeds"
    return {"configuration_sha256": configuration_sha256(), "torch": torch.__version__, "runs": runs}, cheat


def page(found: dict[str, Any]) -> str:
    """The README: what the numbers say."""
    rows = []
    for name in NAMES:
        runs = found["runs"][name]
        cells = [_spread([run["curve"][-1][1] for run in runs]),
                 *(_spread([run[key] for run in runs]) for key in ("seen", "unseen", "ahead"))]
        rows.append(f"| {name} | {' | '.join(cells)} |")
    off, causal = (statistics.mean(run["seen"] for run in found["runs"][name]) for name in NAMES)
    blind = statistics.mean(run["unseen"] for run in found["runs"]["off"])
    zero = statistics.mean(run["curve"][-1][1] for run in found["runs"]["off"])
    most = max(run["ahead"] for run in found["runs"]["off"])
    told = statistics.mean(run["unseen"] for run in found["runs"]["causal"])
    return "\n".join([
        "# The model that cheats", "",
        f"Two models of two blocks, trained for {STEPS} steps on the project's licence as bytes, in rows of {TOKENS}; "
        f"they differ in the mask alone. Losses are in nats, means of {len(SEEDS)} seeds with their range; the "
        "training loss is that of tokens that stand in the input.", "",
        "| mask | training loss at the end | held out: tokens that stand in the input | the last, which does not | "
        "weight on the next token |", "| --- | --- | --- | --- | --- |", *rows, "",
        f"With its mask off the model's training loss goes to {zero:.3f}: it reads the answer. On text that was held "
        f"out it predicts the tokens that it can see at {off:.3f} nats, where the causal one needs {causal:.2f}. It "
        f"gives up to {most:.0%} of a head's weight to the token ahead. "
        f"The last token of a row is not in the input, and there it is worse than the causal model: {blind:.2f} nats "
        f"against {told:.2f}. So it cannot write: in generation the next token is never in the input.", "",
        "![Training loss](training.svg)", "", "![Attention of the model whose mask is off](attention.svg)", "",
        "The second picture is a layer of the model whose mask is off: rows are queries, columns keys.", "",
        "    python recipes/cheating/run.py", "",
        "repeats it in less than a minute. A decoder refuses such a mask when it is built.", ""])


def _spread(values: list[float]) -> str:
    return f"{statistics.mean(values):.3f} ({min(values):.3f} to {max(values):.3f})"


def main(folder: Path = FOLDER) -> None:
    """Train, measure, and write the result, the page and its pictures."""
    found, cheat = record()
    (folder / "result.json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    (folder / "README.md").write_text(page(found), encoding="utf-8")
    curves = [Curve(name, [(float(step), loss) for step, loss in found["runs"][name][0]["curve"]], index)
              for index, name in enumerate(NAMES)]
    training = chart("training", "Training loss of the tokens that stand in the input",
                     "The loss of both models by step.", curves, "step", "nats per token", width=520, include=(0,))
    maps = attention_maps(cheat, parts()[1][:TOKENS].tolist())
    best = max(maps, key=lambda each: float(each.weights.diagonal(1, 1, 2).mean(-1).max()))
    for figure in (training, map_figure(best, "attention")):
        (folder / f"{figure.name}.svg").write_text(figure.alone(), encoding="utf-8")


if __name__ == "__main__":
    main()
