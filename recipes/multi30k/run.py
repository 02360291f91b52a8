"""Train and test the models of this recipe: ``python recipes/multi30k/run.py DATA [sinusoidal rope] [--seeds 3]``.

DATA is the folder of Multi30k's files (``train.en.gz``, ``train.de.gz``, ``val.*`` and ``test_2016_flickr.*``). Each
model is trained from each seed into ``runs/multi30k`` (a run that was interrupted goes on, one that ``result.json`` has
is not repeated); the checkpoint that was best on the validation pairs translates the test sentences by beam search.
BLEU, its interval and signature are kept in ``result.json`` beside this file, from which the table of the README is
made, and a cross-attention map in ``map.svg``.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from datetime import date
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
import yaml

from weft import api
from weft.api.translating import source_row
from weft.comparison.statistics import t_test
from weft.core.model import LanguageModel, parameter_count
from weft.disk.atomic import write_file
from weft.drawing.markup import Markup, tag
from weft.ops.processor import processor_name
from weft.pictures.attention import attention_maps
from weft.training import print_event

HERE, ROOT = Path(__file__).parent, Path(__file__).parents[2]
RESULT, README, MAP = HERE / "result.json", HERE / "README.md", HERE / "map.svg"
BEGIN, END = "<!-- table -->\n", "<!-- /table -->\n"
MODELS = ("sinusoidal", "rope")
SEARCH = api.Search(beams=5, length_penalty=0.6)
SHOWN = "A little girl is climbing into a wooden playhouse."
"""The sentence of the map, from the test set."""

CONFIDENCE = 0.95
CELL, MARGIN = 24, 120


def run(name: str, seed: int, runs: Path, given: argparse.Namespace) -> dict[str, Any]:
    """Train one model from one seed, or go on, and test it."""
    torch.set_num_threads(given.threads)
    out = runs / f"{name}-{seed}"
    found = api.train(HERE / f"{name}.yaml", [f"seed={seed}", f"data.order_seed={seed}", *given.overrides], out=out,
                      resume=(out / "run.json").exists(), device=given.device, on_event=print_event)
    best = api.load(found.best, device=given.device)
    tested = api.measure_bleu(best, part="test", search=SEARCH)
    held = api.measure(best, part="test")
    return {"bleu": tested.bleu.to_json(), "perplexity": held.measures["perplexity"], "seconds": found.seconds,
            "parameters": parameter_count(found.model), "folder": str(found.best)}


def where(device: str) -> str:
    """What computes."""
    return torch.cuda.get_device_name(device) if torch.device(device).type == "cuda" else processor_name()


def attention_map(folder: str) -> Markup:
    """How much each token of a translation attends to each of its source, in the last block, the mean over heads."""
    loaded = api.load(folder)
    model, tokenizer = loaded.model, loaded.tokenizer
    assert isinstance(model, LanguageModel) and tokenizer is not None, "a run of this recipe"
    row = source_row(loaded, SHOWN)
    target = [*row.tokens, *api.translate(loaded, SHOWN, SEARCH).beams.rows[0][0].tokens]
    *_, last = (found for found in attention_maps(model, target[:-1], row.source) if found.cross)
    weights = last.weights.mean(0)
    sides = [[tokenizer.decode([token]) or "end" for token in ids] for ids in (target[1:], row.source or ())]
    return drawn(weights.tolist(), *sides)


def drawn(weights: Sequence[Sequence[float]], rows: Sequence[str], columns: Sequence[str]) -> Markup:
    """A grid of grey squares, the target's tokens from top to bottom, the source's from left to right."""
    size = [MARGIN + CELL * len(names) for names in (columns, rows)]
    cells = [tag("rect", {"x": MARGIN + CELL * column, "y": MARGIN + CELL * row, "width": CELL, "height": CELL,
                          "fill": f"rgb({(shade := round(255 * (1 - value)))},{shade},{shade})"})
             for row, line in enumerate(weights) for column, value in enumerate(line)]
    left = [tag("text", {"x": MARGIN - 6, "y": MARGIN + CELL * (place + 0.7), "text-anchor": "end"}, name)
            for place, name in enumerate(rows)]
    turned = [(MARGIN + CELL * (place + 0.7), name) for place, name in enumerate(columns)]
    top = [tag("text", {"transform": f"translate({x:.1f} {MARGIN - 6}) rotate(-60)"}, name) for x, name in turned]
    return tag("svg", {"xmlns": "http://www.w3.org/2000/svg", "viewBox": f"0 0 {size[0] + CELL} {size[1] + CELL}",
                       "font-family": "sans-serif", "font-size": 13}, *cells, *left, *top)


def table(results: Mapping[str, Mapping[str, Any]]) -> str:
    """The figures as Markdown: the mean over seeds, and each run's score, since so few have no useful interval."""
    lines = ["| positions | parameters | seeds | BLEU on test 2016, mean (runs) | perplexity | minutes of training |",
             "| --- | ---: | ---: | ---: | ---: | ---: |"]
    for name in MODELS:
        if seeds := list(results.get(name, {}).get("seeds", {}).values()):
            scores = [each["bleu"]["score"] for each in seeds]
            spread = f" ({', '.join(f'{each:.2f}' for each in scores)})" if len(scores) > 1 else ""
            lines.append(f"| [{name}]({name}.yaml) | {seeds[0]['parameters']:,} | {len(seeds)} | "
                         f"{statistics.mean(scores):.2f}{spread} | "
                         f"{statistics.mean(each['perplexity'] for each in seeds):.2f} | "
                         f"{statistics.mean(each['seconds'] for each in seeds) / 60:.0f} |")
    return "\n".join([*lines, "", said(results)]) + "\n"


def said(results: Mapping[str, Mapping[str, Any]]) -> str:
    """What the figures tell of the two kinds of positions, in words."""
    runs = {name: list(results.get(name, {}).get("seeds", {}).values()) for name in MODELS}
    if not all(runs.values()):
        missing = next(name for name in MODELS if not runs[name])
        return f"The model `{missing}` has not been trained yet, so nothing is compared."
    if max(map(len, runs.values())) == 1:
        bleu = {name: each["bleu"] for name, (each,) in runs.items()}
        best, other = sorted(MODELS, key=lambda name: -bleu[name]["score"])
        apart = bleu[best]["low"] > bleu[other]["high"]
        intervals = " and ".join(f"{bleu[name]['low']:.1f} to {bleu[name]['high']:.1f}" for name in (best, other))
        return (f"`{best}` is ahead by {bleu[best]['score'] - bleu[other]['score']:.2f} BLEU. The intervals over "
                f"sentences, {intervals}, {'do not overlap' if apart else 'overlap'}, and one seed each says nothing "
                "about others.")
    seeds = sorted(set(results["rope"]["seeds"]) & set(results["sinusoidal"]["seeds"]))
    sides = [[results[name]["seeds"][seed]["bleu"]["score"] for seed in seeds] for name in ("rope", "sinusoidal")]
    found = t_test([a - b for a, b in zip(*sides, strict=True)], CONFIDENCE).interval
    if found.low is None or found.high is None:
        return "The two have one seed in common, which says nothing about others."
    verdict = ("so the two are not told apart" if found.low <= 0 <= found.high else
               f"so `{'rope' if found.mean > 0 else 'sinusoidal'}` is better")
    return (f"`rope` less `sinusoidal`, within {len(seeds)} seeds: {found.mean:+.2f} BLEU, with an interval at "
            f"{CONFIDENCE:.0%} from {found.low:+.2f} to {found.high:+.2f}, {verdict}.")


def with_table(page: str, results: Mapping[str, Mapping[str, Any]]) -> str:
    """The page with the table of these results."""
    before, _, rest = page.partition(BEGIN)
    return f"{before}{BEGIN}{table(results)}{END}{rest.partition(END)[2]}"


def kept(results: dict[str, Any], name: str, seed: int, found: Mapping[str, Any], given: argparse.Namespace) -> None:
    """Put a result beside the others, and write all of them and the page's table."""
    made = {"threads": given.threads, "jobs": given.jobs, "date": date.today().isoformat(),
            "processor": where(given.device), "torch": torch.__version__}
    shown = {**{key: value for key, value in found.items() if key != "folder"}, **made}
    before = results[name]["seeds"] if recorded(results, name) else {}
    results[name] = {"config": configuration(name), "seeds": {**before, str(seed): shown}}
    write_file(RESULT, json.dumps(results, indent=1, sort_keys=True) + "\n")
    write_file(README, with_table(README.read_text(encoding="utf-8"), results))


def configuration(name: str) -> dict[str, Any]:
    """What a model's file says."""
    said: dict[str, Any] = yaml.safe_load((HERE / f"{name}.yaml").read_text(encoding="utf-8"))
    return said


def recorded(results: Mapping[str, Any], name: str) -> list[str]:
    """The seeds from which a model was trained as its file says now."""
    found = results.get(name, {})
    return list(found["seeds"]) if found.get("config") == configuration(name) else []


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("data", type=Path, help="the folder of the files")
    options.add_argument("models", nargs="*", default=MODELS, help=f"of {', '.join(MODELS)}")
    options.add_argument("--seeds", type=int, default=3)
    options.add_argument("--runs", type=Path, default=ROOT / "runs/multi30k")
    options.add_argument("--threads", type=int, default=torch.get_num_threads())
    options.add_argument("--device", default="cpu")
    options.add_argument("--jobs", type=int, default=1, help="runs at a time, each in a process of its own")
    options.add_argument("--set", dest="overrides", action="append", default=[], metavar="KEY=VALUE",
                         help="a change of the configuration, for a trial; its results are printed and not kept")
    options.add_argument("--again", action="store_true", help="repeat also the runs that result.json has")
    options.add_argument("--draw", action="store_true", help="write the page's table of what is recorded anew")
    given = options.parse_args()
    runs = given.runs.resolve()
    os.chdir(given.data)  # the configurations name the files alone
    results: dict[str, Any] = json.loads(RESULT.read_text(encoding="utf-8")) if RESULT.exists() else {}
    if given.draw:
        write_file(README, with_table(README.read_text(encoding="utf-8"), results))
        return
    known = {} if given.again or given.overrides else {name: recorded(results, name) for name in given.models}
    wanted = [(name, seed) for seed in range(given.seeds) for name in given.models
              if str(seed) not in known.get(name, ())]
    with ProcessPoolExecutor(given.jobs, mp_context=get_context("spawn")) as pool:
        started = [pool.submit(run, name, seed, runs, given) for name, seed in wanted]
        for (name, seed), each in zip(wanted, started, strict=True):
            found = each.result()
            print(f"{name}, seed {seed}: BLEU {found['bleu']['score']:.2f}", flush=True)
            if not given.overrides:
                kept(results, name, seed, found, given)
                write_file(MAP, f"{attention_map(found['folder'])}\n")


if __name__ == "__main__":
    main()
