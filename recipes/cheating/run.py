"""Train a language model whose mask is off, beside one under a causal mask: it copies the next token, and its loss goes
to zero on any text, while it has learned nothing about the token that it does not see.

    python recipes/cheating/run.py
    python recipes/cheating/run.py --text book.txt --tokens 256 --d-model 256 --steps 5000 --out larger

`TokenEncoder` accepts both masks; a decoder refuses one that lets a token see later ones. The text is the project's
licence, as bytes, or another: 9/10 for training, the rest held out. ``result.json`` holds every number with the hash of
the configuration; the README and the pictures are made of it. Under a minute on one core. A run of another size goes
into the folder of `--out`; with `--record` it takes the place of the recorded one.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import statistics
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from weft.core.model import EncoderInputs, Model, Readout, built_model, parse_model
from weft.drawing.chart import Curve, chart
from weft.pictures.attention import attention_maps, map_figure

FOLDER = Path(__file__).parent
LICENCE = FOLDER.parents[1] / "LICENSE"
RATE = 3e-3
POINTS = 25
"""Of the training loss that are kept, besides the first."""
NAMES = {"off": "bidirectional", "causal": "causal"}
"""The two models by the name of the page, with their masks."""


class Size(NamedTuple):
    """Of a run; the defaults are the recorded one's.

    Attributes:
        text: what is read; None: the project's licence.
        tokens: bytes of a row.
        width: features of a token, a multiple of 8.
    """

    steps: int = 500
    rows: int = 16
    tokens: int = 32
    width: int = 64
    seeds: int = 3
    text: str | None = None

    @property
    def every(self) -> int:
        """Steps between two points of the training loss, the last of which is that of the last step."""
        return next(each for each in range(max(1, self.steps // POINTS), 0, -1) if self.steps % each == 0)

    def options(self) -> str:
        """As they are given to the command."""
        names = {"width": "d-model"}
        return "".join(f" --{names.get(name, name)} {value}" for name, value in self._asdict().items()
                       if value != Size._field_defaults[name])


RECORDED = Size()


def configuration(mask: str, size: Size = RECORDED) -> dict[str, Any]:
    """A model of two blocks; the two models differ in the mask alone."""
    attention = {"kind": "attention", "n_heads": 4, "mask": mask, "position": "rope"}
    return {"kind": "encoder", "vocab_size": 256, "context": size.tokens, "d_model": size.width,
            "norm": "layernorm", "embedding": {"std": 0.02}, "blocks": [{"repeat": 2, "of": [
                {"kind": "pre", "layers": [attention, {"kind": "mlp", "d_ff": 2 * size.width}]}]}],
            "head": {"kind": "masked_token", "tied": False}}


def configuration_sha256(size: Size = RECORDED) -> str:
    """Of both models, the training, and the text."""
    settings: list[Any] = [configuration(mask, size) for mask in NAMES.values()]
    settings += [size.steps, size.rows, size.tokens, size.every, list(range(size.seeds)), RATE]
    text = hashlib.sha256(bytes_of(size)).hexdigest()
    return hashlib.sha256(json.dumps([settings, text], sort_keys=True).encode()).hexdigest()


def bytes_of(size: Size) -> bytes:
    """The text."""
    return (LICENCE if size.text is None else Path(size.text)).read_bytes()


def parts(size: Size = RECORDED) -> tuple[Tensor, Tensor]:
    """The bytes for training and those held out."""
    text = torch.frombuffer(bytearray(bytes_of(size)), dtype=torch.uint8).long()
    cut = len(text) * 9 // 10
    return text[:cut], text[cut:]


def losses(model: Model, tokens: Tensor) -> Tensor:
    """The negative log-probability in nats of the token after each of rows [B,T+1], [B,T]."""
    head = model.head
    assert isinstance(head, Readout), "configured so"
    return -head.log_prob(model.vectors(EncoderInputs(tokens=tokens[:, :-1])).y, tokens[:, 1:])


def windows(text: Tensor, tokens: int) -> Tensor:
    """All windows of T + 1 tokens that do not overlap in their inputs."""
    return text.unfold(0, tokens + 1, tokens)


@torch.no_grad()
def measured(model: Model, text: Tensor) -> dict[str, float]:
    """The mean loss of the tokens that stand in the input, and of the last, which does not."""
    found = losses(model.eval(), windows(text, model.config.context))
    return {"seen": float(found[:, :-1].mean()), "unseen": float(found[:, -1].mean())}


def trained(mask: str, seed: int, size: Size = RECORDED) -> tuple[Model, list[tuple[int, float]]]:
    """A model after training, and its training loss by step, of the tokens that stand in the input."""
    torch.manual_seed(seed)
    model, (text, _) = built_model(parse_model(configuration(mask, size))), parts(size)
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, weight_decay=0.0)
    curve = []
    for step in range(size.steps + 1):
        starts = torch.randint(len(text) - size.tokens, (size.rows, 1))
        found = losses(model.train(), text[starts + torch.arange(size.tokens + 1)])
        loss = found.mean()
        if step % size.every == 0:
            curve.append((step, float(found[:, :-1].detach().mean())))
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    return model, curve


def ahead(model: Model, text: Tensor) -> float:
    """The greatest weight, among heads, that tokens give to the token after them, as a mean over tokens."""
    maps = attention_maps(model, text[:model.config.context].tolist())
    return max(float(head.diagonal(1).mean()) for found in maps for head in found.weights)


def record(size: Size = RECORDED) -> tuple[dict[str, Any], Model]:
    """Every number, and the first model whose mask is off."""
    _, held_out = parts(size)
    runs: dict[str, list[dict[str, Any]]] = {name: [] for name in NAMES}
    cheat = None
    for name, mask in NAMES.items():
        for seed in range(size.seeds):
            model, curve = trained(mask, seed, size)
            cheat = model if cheat is None else cheat
            runs[name].append({"seed": seed, "curve": curve, "ahead": ahead(model, held_out),
                               **measured(model, held_out)})
    assert cheat is not None, "there are seeds"
    return {"size": size._asdict(), "configuration_sha256": configuration_sha256(size), "torch": torch.__version__,
            "runs": runs}, cheat


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
    honest = statistics.mean(run["curve"][-1][1] for run in found["runs"]["causal"])
    reads = "it reads the answer" if zero < honest / 2 else "it has not learned to read the answer"
    than = "worse" if blind > told else "better"
    size = Size(**found["size"])
    text = "the project's licence" if size.text is None else f"`{Path(size.text).name}`"
    return "\n".join([
        "# The model that cheats", "",
        f"Two models of two blocks, trained for {size.steps:,} steps on {text} as bytes, in rows of {size.tokens}; "
        "they differ in the mask alone. Losses are in nats, means of "
        f"{size.seeds} seed{'' if size.seeds == 1 else 's'} with their range; the "
        "training loss is that of tokens that stand in the input.", "",
        "| mask | training loss at the end | held out: tokens that stand in the input | the last, which does not | "
        "weight on the next token |", "| --- | --- | --- | --- | --- |", *rows, "",
        f"With its mask off the model's training loss goes to {zero:.3f}: {reads}. On text that was held "
        f"out it predicts the tokens that it can see at {off:.3f} nats, where the causal one needs {causal:.2f}. It "
        f"gives up to {most:.0%} of a head's weight to the token ahead. "
        f"The last token of a row is not in the input, and there it is {than} than the causal model: "
        f"{blind:.2f} nats against {told:.2f}. So it cannot write: in generation the next token is never in the "
        "input.", "",
        "![Training loss](training.svg)", "", "![Attention of the model whose mask is off](attention.svg)", "",
        "The second picture is a layer of the model whose mask is off: rows are queries, columns keys.", "",
        f"    python recipes/cheating/run.py{size.options()}", "",
        f"repeats it{' in less than a minute' if size == RECORDED else ''}. `--text FILE`, `--tokens`, `--d-model`, "
        "`--rows`, `--steps` and `--seeds` change its size; such a run is written to the folder of `--out`, and takes "
        "the place of the recorded one with `--record` alone. A decoder refuses such a mask when it is built.", ""])


def _spread(values: list[float]) -> str:
    return f"{statistics.mean(values):.3f} ({min(values):.3f} to {max(values):.3f})"


def write(folder: Path, size: Size) -> None:
    """Train, measure, and write the result, the page and its pictures."""
    found, cheat = record(size)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "result.json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    (folder / "README.md").write_text(page(found), encoding="utf-8")
    curves = [Curve(name, [(float(step), loss) for step, loss in found["runs"][name][0]["curve"]], index)
              for index, name in enumerate(NAMES)]
    training = chart("training", "Training loss of the tokens that stand in the input",
                     "The loss of both models by step.", curves, "step", "nats per token", width=520, include=(0,))
    maps = attention_maps(cheat, parts(size)[1][:size.tokens].tolist())
    best = max(maps, key=lambda each: float(each.weights.diagonal(1, 1, 2).mean(-1).max()))
    for figure in (training, map_figure(best, "attention")):
        (folder / f"{figure.name}.svg").write_text(figure.alone(), encoding="utf-8")


def main() -> None:
    """Run it at the size that is asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--text", help="a file, read as bytes")
    parser.add_argument("--tokens", type=int, default=RECORDED.tokens, help="bytes of a row")
    parser.add_argument("--d-model", type=int, default=RECORDED.width, help="features of a token, a multiple of 8")
    for name in ("rows", "steps", "seeds"):
        parser.add_argument(f"--{name}", type=int, default=getattr(RECORDED, name))
    parser.add_argument("--out", type=Path, help="write to this folder")
    parser.add_argument("--record", action="store_true", help="replace the recorded result")
    given = parser.parse_args()
    size = Size(given.steps, given.rows, given.tokens, given.d_model, given.seeds, given.text)
    if given.out is None and size != RECORDED and not given.record:
        parser.error("another size than the recorded one: give --out FOLDER, or --record to replace the record")
    if min(size[:5]) < 1 or size.width % 8:
        parser.error("sizes are at least 1, and --d-model is a multiple of 8")
    if len(parts(size)[1]) <= size.tokens:
        parser.error(f"the held-out tenth of the text has no row of {size.tokens} bytes and one more")
    write(FOLDER if given.out is None else given.out, size)


if __name__ == "__main__":
    main()
