"""The README and the pictures of the study, from result.json."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from weft.comparison.statistics import t_test
from weft.drawing.chart import Curve, chart
from weft.drawing.figure import Figure

CONFIDENCE = 0.95
RUN = "    python recipes/norms_and_residuals/run.py"
OPTIONS = {"scale": ("scale", 1.0), "seeds": ("seeds", 3), "tokens": ("tokens", 32), "width": ("d-model", 48),
           "depths": ("depths", [2, 8, 24]), "text": ("text", None)}
"""Of each size the option that gives it, and the recorded one."""
Runs = Sequence[Mapping[str, Any]]


def values(runs: Runs, measure: str, **chosen: Any) -> list[float]:
    """A measure of the runs with these settings, by seed."""
    return [run[measure] for run in runs if all(run[key] == value for key, value in chosen.items())]


def mean(runs: Runs, measure: str, **chosen: Any) -> float:
    """Its mean over seeds."""
    return t_test(values(runs, measure, **chosen), CONFIDENCE).interval.mean


def cell(found: Sequence[float]) -> str:
    """Mean and half width of the interval over seeds."""
    interval = t_test(found, CONFIDENCE).interval
    return f"{interval.mean:.3f}" + ("" if interval.high is None else f" ± {interval.high - interval.mean:.3f}")


def settings(runs: Runs, *names: str) -> list[tuple[Any, ...]]:
    """The settings of runs, each once, in order."""
    return list(dict.fromkeys(tuple(run[name] for name in names) for run in runs))


def page(found: Mapping[str, Any]) -> str:
    """The README: what the numbers say."""
    seeds = len({run["seed"] for run in found["norms"]})
    size, given = found["size"], options(found["size"])
    text = "the project's licence" if size["text"] is None else f"`{Path(size['text']).name}`"
    return "\n".join([
        "# Norms, residual connections and scaled scores", "",
        "What do layer normalisation, residual connections and the root of d_k do for a Transformer? Small decoders of "
        f"pre-norm blocks, trained on {text} as bytes in rows of {size['tokens']}, differ in one of the three. Losses "
        f"are in nats on held-out bytes, means of {seeds} seeds with {CONFIDENCE:.0%} intervals over them.", "",
        *(["This is another size than the recorded one, in which was found what the sentences below the tables "
           "conclude.", ""] if given else []),
        *_norms(found["norms"]), *_depths(found["depths"], found["single_bytes"]), *_keys(found["keys"]),
        "## Repeat it", "", f"{RUN}{given}", "",
        f"repeats it{'' if given else ' in about three minutes of one core'}, and writes this page. `--text FILE`, "
        "`--tokens`, `--d-model`, `--depths`, `--seeds` and `--scale` (of all numbers of steps) change its size; such "
        "a run is written to the folder of `--out`, and takes the place of the recorded one with `--record` alone.",
        ""])


def options(size: Mapping[str, Any]) -> str:
    """The options that give a size; empty for the recorded one."""
    chosen = {name: list(size[key]) if key == "depths" else size[key] for key, (name, _) in OPTIONS.items()}
    return "".join(f" --{name} {' '.join(map(str, value)) if isinstance(value, list) else value}"
                   for (name, value), (_, own) in zip(chosen.items(), OPTIONS.values(), strict=True) if value != own)


def _norms(runs: Runs) -> Iterator[str]:
    yield from ("## Batch and layer normalisation", "",
                "| norm | rows of a batch | lengths | held out, in evaluation | training, its own statistics | leak |",
                "| --- | ---: | --- | ---: | ---: | ---: |")
    for norm, rows, lengths in settings(runs, "norm", "rows", "lengths"):
        own = {"norm": norm, "rows": rows, "lengths": lengths}
        yield (f"| {norm} | {rows} | {lengths} | {cell(values(runs, 'held_out', **own))} | "
               f"{cell(values(runs, 'training', **own))} | {mean(runs, 'leak', **own):.2f} |")
    least, most = (pick({rows for _, rows in settings(runs, "norm", "rows")}) for pick in (min, max))
    leaks = values(runs, "leak", norm="batchnorm")
    gaps = {(rows, lengths): mean(runs, "held_out", norm="batchnorm", rows=rows, lengths=lengths)
            - mean(runs, "held_out", norm="layernorm", rows=rows, lengths=lengths)
            for rows in (least, most) for lengths in ("equal", "unequal")}
    yield from ("", "A batch has as many tokens as its rows have, so with layer normalisation too a smaller batch "
                "learns less in as many steps. Batch normalisation costs, beside layer normalisation at the same "
                "batch, " + "; ".join(f"{gap:+.2f} nats with {rows} row{'s' if rows > 1 else ''} of {lengths} lengths"
                                      for (rows, lengths), gap in gaps.items()) + ". "
                "The leak is how far a token's vector moves in training mode when only later tokens and other rows "
                "change, relative to the largest entry: 0 for layer normalisation, "
                f"{min(leaks):.2f} to {max(leaks):.2f} for batch normalisation, whose statistics contain them. So in "
                "training such a decoder is not causal (its trait is `batch_statistics`), and evaluation, with running "
                "statistics, is another function.", "",
                "![Held-out loss by batch](norms.svg)", "")


def _depths(runs: Runs, single_bytes: float) -> Iterator[str]:
    yield from ("## Residual connections", "", "| blocks | residual connections | held out | gradient norm, first "
                "block | last block |", "| ---: | --- | ---: | ---: | ---: |")
    for depth, residual in sorted(settings(runs, "depth", "residual"), key=lambda each: (each[0], not each[1])):
        own = values(runs, "gradients", depth=depth, residual=residual)
        yield (f"| {depth} | {'on' if residual else 'off'} | "
               f"{cell(values(runs, 'held_out', depth=depth, residual=residual))} | "
               f"{t_test([each[0] for each in own], CONFIDENCE).interval.mean:.3g} | "
               f"{t_test([each[-1] for each in own], CONFIDENCE).interval.mean:.3g} |")
    deepest = max(depth for depth, in settings(runs, "depth"))
    on, off = (mean(runs, "held_out", depth=deepest, residual=residual) for residual in (True, False))
    first, last = (t_test([each[place] for each in values(runs, "gradients", depth=deepest, residual=False)],
                          CONFIDENCE).interval.mean for place in (0, -1))
    yield from ("", f"With {deepest} blocks the loss is {on:.2f} with residual connections and {off:.2f} without; the "
                f"frequencies of single bytes give {single_bytes:.2f}. The gradients are those of the parameters of "
                "each block before training. A norm stands before each layer, so without residual connections they do "
                f"not vanish here ({first:.2g} in the first block, {last:.2g} in the last): that the deep model does "
                "not learn is not a matter of their size. With residual connections the first block has the largest "
                "gradients, since every later one adds to its output.", "",
                "![Gradient norm by block](gradients.svg)", "", "![Held-out loss by depth](depths.svg)", "")


def _keys(runs: Runs) -> Iterator[str]:
    yield from ("## Scores divided by the root of d_k", "", "| d_k | scores | entropy of weights | 1 - sum of squares "
                "| held out |", "| ---: | --- | ---: | ---: | ---: |")
    for d_key, scaled in sorted(settings(runs, "d_key", "scaled"), key=lambda each: (each[0], not each[1])):
        own = {"d_key": d_key, "scaled": scaled}
        trained = [run["held_out"] for run in runs if (run["d_key"], run["scaled"]) == (d_key, scaled)
                   and "held_out" in run]
        yield (f"| {d_key} | {'scaled' if scaled else 'unscaled'} | {cell(values(runs, 'entropy', **own))} | "
               f"{cell(values(runs, 'slope', **own))} | {cell(trained) if trained else '-'} |")
    least, most = (pick(d_key for d_key, in settings(runs, "d_key")) for pick in (min, max))
    falls = [mean(runs, "entropy", d_key=d_key, scaled=False) for d_key in (least, most)]
    stays = [mean(runs, "entropy", d_key=d_key, scaled=True) for d_key in (least, most)]
    yield from ("", "Entropy is that of the weights over 64 keys, relative to equal weights, of queries and keys whose "
                "features are independent, normal and of variance 1. Their product has variance d_k: unscaled, the "
                f"entropy falls from {falls[0]:.2f} at d_k {least} to {falls[1]:.2f} at {most}; scaled it stays "
                f"({stays[0]:.2f} and {stays[1]:.2f}). 1 minus the sum of the squared weights is the trace of the "
                "softmax's Jacobian, by which gradients pass to the scores: 0 where one key has all the weight. The "
                "last column is the loss of a trained model; there the projections, which start smaller, can learn the "
                "scale themselves.", "",
                "![Entropy by size of keys](entropy.svg)", "")


def pictures(found: Mapping[str, Any]) -> list[Figure]:
    """The pictures."""
    norms, depths, keys = found["norms"], found["depths"], found["keys"]
    by_batch = [Curve(f"{norm[:5]}, {lengths}", [(float(rows), mean(norms, "held_out", norm=norm, rows=rows,
                                                                    lengths=lengths))
                                                 for rows, in settings(norms, "rows")], style, dots=True)
                for style, (norm, lengths) in enumerate(settings(norms, "norm", "lengths"))]
    deepest = max(depth for depth, in settings(depths, "depth"))
    words = {True: "residual", False: "none"}
    gradients = [Curve(words[on], [(float(place + 1), t_test(each, CONFIDENCE).interval.mean) for place, each in
                                   enumerate(zip(*values(depths, "gradients", depth=deepest, residual=on),
                                                 strict=True))], style, dots=True)
                 for style, on in enumerate(words)]
    by_depth = [Curve(words[on], [(float(depth), mean(depths, "held_out", depth=depth, residual=on))
                                  for depth, in settings(depths, "depth")], style, dots=True)
                for style, on in enumerate(words)]
    entropy = [Curve("scaled" if on else "unscaled", [(float(d_key), mean(keys, "entropy", d_key=d_key, scaled=on))
                                                      for d_key, in settings(keys, "d_key")], style, dots=True)
               for style, on in enumerate((True, False))]
    return [
        chart("norms", "Held-out loss by batch", "Batch and layer normalisation over rows of a batch.", by_batch,
              "rows of a batch", "nats per token", lengths=True, width=520, letters=18),
        chart("gradients", f"Gradient norm by block, of {deepest}", "Before training, with and without residual "
              "connections.", gradients, "block", "norm of the gradient", scale="logarithmic", width=520),
        chart("depths", "Held-out loss by depth", "With and without residual connections.", by_depth, "blocks",
              "nats per token", width=520),
        chart("entropy", "Entropy of attention weights by size of keys", "Scaled and unscaled scores.", entropy, "d_k",
              "relative entropy", lengths=True, width=520, include=(0, 1))]
