"""The page of results: what every recipe has found, in sentences that are computed from its recorded result. A recipe
without one says so, and one without a sentence of its own leads to its page."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from studies import ORDER, study_of

from weft.comparison.folder import read_result
from weft.comparison.statistics import t_test
from weft.comparison.study_result import StudyResult
from weft.comparison.verdict import mean_interval

Found = Any
"""A result.json."""


def mean(values: Iterable[float]) -> float:
    """Of at least one number."""
    return statistics.mean(list(values))


def listed(words: Iterable[str]) -> str:
    """``a, b and c``."""
    *rest, last = words
    return f"{', '.join(rest)} and {last}" if rest else last


def study(found: StudyResult) -> str:
    """The models of a study from the best, and which of them it does not tell apart."""
    best = sorted((entry for entry in found.entries if entry.bits_per_byte is not None),
                  key=lambda entry: entry.bits_per_byte or 0.0)
    said = []
    for entry in best:
        interval = mean_interval([run.bits_per_byte for run in entry.finished if run.bits_per_byte is not None],
                                 found.level)
        margin = "" if interval.high is None else f" ± {interval.high - interval.mean:.3f}"
        said.append(f"{entry.name} {interval.mean:.3f}{margin}")
    ties = [listed(each) for each in found.tied_sets if len(each) > 1]
    told = f"Not told apart: {'; '.join(ties)}." if ties else "All are told apart."
    return f"Bits per byte, from the best, mean of {found.seeds} runs: {', '.join(said)}. {told}"


def lengths(found: Found) -> str:
    def perplexity(name: str, length: str) -> float | None:
        runs = [seed["trained"].get(length, {}).get("perplexity") for seed in found["models"][name].values()]
        return None if None in runs else mean(runs)

    trained, longest = str(found["context"]), str(max(found["lengths"]))
    pairs = {name: (perplexity(name, trained), perplexity(name, longest)) for name in found["models"]}
    reach = {name: (near, far) for name, (near, far) in pairs.items() if near and far}
    by_growth = sorted(reach, key=lambda name: reach[name][1] / reach[name][0])
    least, most = (f"{name} ({reach[name][0]:.1f} to {reach[name][1]:.1f})" for name in (by_growth[0], by_growth[-1]))
    longer = str(found["longer"])
    ways = {method: mean(seed[method]["tuned"][longer]["perplexity"] for seed in found["models"]["rope"].values())
            for method in ("linear", "ntk", "yarn")}
    best = min(ways, key=lambda method: ways[method])
    plain = perplexity("rope", longer)
    return (f"Trained on {trained} tokens and read at {int(longest):,}, perplexity grows least under {least} and "
            f"most under {most}. Rotary positions stretched by {best} and trained a little further have "
            f"{ways[best]:.1f} at {int(longer):,} tokens, against {plain:.1f} as they were.")


def positions(found: Found) -> str:
    rises = {each["kind"]: each["holds"]["first_rise"] for each in found["schemes"] if each["holds"]}
    never = [kind for kind, rise in rises.items() if rise is None]
    return (f"Proximity never grows with distance under {listed(never)}; under sinusoidal positions it grows again "
            f"from distance {rises['sinusoidal']} on. A linear map reads {mean(found['probe']['causal']):.0%} of the "
            "variance of positions from untrained causal models that have none.")


def cache(found: Found) -> str:
    sizes = {name: each["8192"] / 2**20 for name, each in found["bytes"].items()}
    times = found["milliseconds"]["multi-head"]
    held = listed(f"{name} {size:.0f} MiB" for name, size in sizes.items())
    return (f"After 8,192 tokens: {held}. The next token takes {times['with']['8192']:.1f} ms with the state of "
            f"multi-head attention and {times['without']['8192']:,.0f} without it.")


def averaged(found: Found) -> str:
    stops = list(found["seeds"][0]["8"])
    first, last = ({groups: mean(seed[groups][stop] for seed in found["seeds"]) for groups in found["seeds"][0]}
                   for stop in (stops[0], stops[-1]))
    return (f"Averaging eight key and value heads to two or one takes a model from {first['8']:.2f} bits per byte to "
            f"{first['2']:.2f} or {first['1']:.2f}. {stops[-1]} steps of training on, where {found['steps']} had been "
            f"before, leave {last['2']:.2f} and {last['1']:.2f}, and the model of eight heads has {last['8']:.2f}; "
            f"mean of {len(found['seeds'])} seeds.")


def translation(found: Found) -> str:
    said = []
    for name, each in found.items():
        scores = [seed["bleu"]["score"] for seed in each["seeds"].values()]
        said.append(f"{name} {mean(scores):.2f} BLEU ({', '.join(f'{score:.2f}' for score in scores)})")
    if len(said) == 1:
        return f"{said[0]}. The other positions have no result yet, so nothing is compared."
    first, second = ({seed: each["bleu"]["score"] for seed, each in side["seeds"].items()} for side in found.values())
    gaps = [first[seed] - second[seed] for seed in first if seed in second]
    between = t_test(gaps, 0.95).interval
    apart = between.low is not None and between.high is not None and not between.low <= 0 <= between.high
    return f"{listed(said)}. They are {'' if apart else 'not '}told apart within seeds."


def blocks(found: Found) -> str:
    depth = max(run["depth"] for run in found["depths"])
    on, off = (mean(run["held_out"] for run in found["depths"] if run["depth"] == depth and run["residual"] is kind)
               for kind in (True, False))
    return (f"With {depth} blocks the held-out loss is {on:.2f} nats with residual connections and {off:.2f} without; "
            f"the frequencies of single bytes give {found['single_bytes']:.2f}.")


def memory(found: Found) -> str:
    legs, other = (found["ages"][name]["mean"] for name in ("legs", "random"))
    return (f"A state of 32 numbers loses {legs:.1%} of the variance of the last 200 inputs with HiPPO-LegS and "
            f"{other:.1%} with random matrices.")


def scans(found: Found) -> str:
    costs = {name: each[str(max(map(int, each)))]["forward"] for name, each in found["costs"].items()}
    length = max(map(int, next(iter(found["costs"].values()))))
    from_fastest = sorted(costs, key=lambda name: costs[name])
    return f"Seconds forward at {length:,} tokens: {', '.join(f'{name} {costs[name]:.3f}' for name in from_fastest)}."


def million(found: Found) -> str:
    largest = max(run["difference"] for run in found["runs"].values())
    sizes = {name: run["state"][1] / 1024 for name, run in found["runs"].items()}
    low, high = min(sizes, key=lambda name: sizes[name]), max(sizes, key=lambda name: sizes[name])
    whole = found["bytes"]["attention"]["1048576"] / 2**30
    return (f"After 1,048,576 tokens the states are as large as before the first: {sizes[low]:,.0f} KiB ({low}) to "
            f"{sizes[high]:,.0f} KiB ({high}); full attention would keep {whole:.1f} GiB. Logits differ by at most "
            f"{largest:.0e} between two ways to cut the row.")


def treebank(found: Found) -> str:
    scores = {name: each["test_perplexity"] for name, each in found.items()}
    tuned = [name for name, each in found.items() if each.get("trials")]
    rates = f"the learning rate of {listed(tuned)} alone was tuned" if tuned else "no learning rate was tuned"
    return ("Test perplexity per word, one run of each: " + ", ".join(f"{name} {scores[name]:.2f}" for name in sorted(
        scores, key=lambda name: -scores[name])) + f"; {rates}.")


def nanogpt(found: Found) -> str:
    speed = found["speed"]
    mine, theirs = (speed["rows"][name]["rounds"] for name in ("weft", speed["rival"]))
    apart = min(mine) > max(theirs) or min(theirs) > max(mine)
    said = (f"at {speed['ratio']:.2f} times the speed of {speed['rival']}" if apart else
            f"in steps whose times are not told apart from those of {speed['rival']}")
    return (f"{found['training']['random_windows']['loss']:.3f} nats per character, where nanoGPT publishes 1.88, "
            f"{said}.")


def digits(found: Found) -> str:
    errors = {name: mean(values) for name, values in found["depth"].items()}
    low, high = min(errors, key=lambda name: errors[name]), max(errors, key=lambda name: errors[name])
    spread = max(max(values) - min(values) for values in found["depth"].values())
    clear = "" if errors[high] - errors[low] > spread else (
        f" One network's errors spread over {spread:.2f} points between seeds, so no difference is clear.")
    return f"Test errors run from {errors[low]:.2f} % ({low}) to {errors[high]:.2f} % ({high}).{clear}"


def mixture(found: Found) -> str:
    def bits(weights: str, source: str) -> float:
        return mean(run["held_out"][f"bits_per_byte.{source}"] for run in found["runs"][weights])

    return (f"Four fifths of the tokens in place of a third: books go from {bits('equal', 'books'):.3f} to "
            f"{bits('books', 'books'):.3f} bits per byte, and the web from {bits('equal', 'web'):.3f} to "
            f"{bits('books', 'web'):.3f}.")


def windows(found: Found) -> str:
    last = {name: each["8192"] for name, each in found["costs"].items()}
    fast, naive = (f"{last[way]['forward'] * 1000:,.0f} ms and {last[way]['peak'] / 2**20:,.0f} MiB"
                   for way in ("fast", "naive"))
    return f"8,192 tokens, window of 256: {fast} in place of {naive} with all pairs."


def cheating(found: Found) -> str:
    seen, blind = (mean(run[key] for run in found["runs"]["off"]) for key in ("seen", "unseen"))
    honest = mean(run["unseen"] for run in found["runs"]["causal"])
    return (f"Without a causal mask a model predicts bytes that it can see at {seen:.2f} nats, and the one that it "
            f"cannot at {blind:.2f}, where the causal model has {honest:.2f}.")


def repeatability(found: Found) -> str:
    models = found["counted"]["models"].values()
    low, high = (choose(each["another_mean"] for each in models) for choose in (min, max))
    return (f"The mean of one repetition lay in the interval of another in {low:.0%} to {high:.0%} of pairs; expected "
            f"are {found['expected']['another_mean']:.0%}.")


def resumed(found: Found) -> str:
    return (f"{found['same']} of {found['runs']} runs that were killed {found['kills']} times in all ended in the same "
            "bytes as runs that nobody disturbed.")


def encoders(found: Found) -> str:
    losses = {name: mean(run[name]["masked"] for run in found["runs"]) for name in ("rotary", "learned")}
    seeds = len(found["runs"])
    return (f"After {found['steps']['hidden tokens']:,} steps an encoder predicts hidden tokens in "
            f"{losses['rotary']:.2f} nats with rotary positions and in {losses['learned']:.2f} with learned ones, "
            f"{seeds} seed{'s' * (seeds > 1)}.")


def generated_rows(found: Found) -> str:
    """By task: of each architecture the smallest state that solves it to 90 %, or else the size that is best; where
    there is one size, what becomes of longer rows."""
    said = []
    for task, settings in found["study"]["tasks"].items():
        rows = [each for each in found["rows"] if each["task"] == task]
        if not rows:
            continue
        lengths = list(rows[0]["accuracy"])
        trained, longest = str(settings.get("length", lengths[0])), lengths[-1]
        best: dict[str, Found] = {}
        for each in sorted(rows, key=lambda each: (min(mean(each["accuracy"][trained]), 0.9),
                                                   -(each["state_bytes"][trained] or 0))):
            best[each["contestant"]] = each
        names = sorted(best, key=lambda name: -mean(best[name]["accuracy"][trained]))
        near = {name: f"{mean(best[name]['accuracy'][trained]):.1%}" for name in names}
        if longest != trained:
            said.append(f"{task}, rows of {int(trained):,} and of {int(longest):,} tokens: " + ", ".join(
                f"{name} {near[name]} and {mean(best[name]['accuracy'][longest]):.1%}" for name in names))
        else:
            said.append(f"{task}: " + ", ".join(f"{name} {near[name]}" + (
                "" if best[name]["state_bytes"][trained] is None else
                f" with {best[name]['state_bytes'][trained]:,} bytes of state") for name in names))
    return "Accuracy on " + "; on ".join(said) + "."


def optimizers(found: Found) -> str:
    bits = {name: mean(each["bits_per_byte"]) for name, each in found["models"].items()}
    ranked = [f"{name} {bits[name]:.3f}" for name in sorted(bits, key=lambda name: bits[name])]
    apart = [f"{each['first']} and {each['second']}" for each in found["differences"] if not each["tied"]]
    return (f"Bits per byte: {listed(ranked)}. " + (f"Told apart are {listed(apart)}." if apart else
                                                    "None are told apart."))


def pretraining(found: Found) -> str:
    scores = {way: mean(each["scores"]) for way, each in found["tasks"]["sst2"].items()}
    return (f"SST-2: {scores['none']:.1%} without pre-training; with it {scores['all']:.1%} by all weights, "
            f"{scores['lora']:.1%} by LoRA and {scores['frozen']:.1%} by the head alone.")


def widths(found: Found) -> str:
    """The best rate of the narrowest and the widest model, by the mean of the seeds' losses."""
    said = []
    for name, by_width in found["losses"].items():
        narrow, wide = (min(by_rate, key=lambda rate: mean(by_rate[rate]))
                        for by_rate in (by_width[min(by_width, key=int)], by_width[max(by_width, key=int)]))
        factor = float(narrow) / float(wide)
        moved = "stays where it is" if factor == 1 else f"falls to 1/{factor:.0f}" if factor > 1 else "grows"
        said.append(f"{moved} in {'muP' if name == 'mup' else 'the usual parametrization'}")
    known = [int(width) for width in next(iter(found["losses"].values()))]
    return f"From width {min(known)} to {max(known)} the best rate {listed(said)}, mean of {found['seeds']} seeds."


def alignment(found: Found) -> str:
    def measured(stage: str, name: str) -> float:
        return mean(seed[stage]["measures"][name] for seed in found["seeds"])

    return (f"{measured('pretrained', 'bits_per_byte'):.3f} bits per byte after pre-training, a perplexity of "
            f"{measured('sft', 'perplexity'):.0f} on held-out answers after learning to answer, and the better answer "
            f"of held-out pairs preferred in {measured('dpo', 'accuracy'):.0%} after DPO; mean of "
            f"{len(found['seeds'])} seeds.")


SENTENCES: Mapping[str, Callable[[Found], str]] = MappingProxyType({
    "lengths": lengths, "positions_pictured": positions, "key_value_bytes": cache,
    "grouped_queries": averaged, "multi30k": translation,
    "norms_and_residuals": blocks, "hippo": memory, "scan_costs": scans, "million_tokens": million,
    "penn_treebank": treebank, "nanogpt_cpu": nanogpt, "digits": digits, "mixture": mixture, "windows": windows,
    "cheating": cheating, "encoder_positions": encoders, "optimizers": optimizers, "pretraining": pretraining,
    "repeatability": repeatability, "resume": resumed, "selective": generated_rows, "recall": generated_rows,
    "pathfinder": generated_rows, "width_transfer": widths, "chat_model": alignment})
"""What a recipe has found, from its result."""
NEEDS: Mapping[str, tuple[str, ...]] = MappingProxyType({
    "rows longer than those of training": ("lengths",),
    "small states, long texts": ("million_tokens", "key_value_bytes"),
    "long rows, little time": ("scan_costs", "windows"),
    "the best predictions from few tokens": ("six_ages", "wikitext2/equal_seconds"),
    "the best predictions from enough tokens": ("penn_treebank",),
    "positions in linear attention": ("performer/rope",),
    "depth": ("norms_and_residuals",)})
"""What a model is needed for, and the results that speak to it."""


def finding(root: Path, place: str) -> str:
    """What stands recorded at ``recipes/PLACE/result.json``, in sentences."""
    folder = root / "recipes" / place
    found = json.loads((folder / "result.json").read_text(encoding="utf-8"))
    if "tied_sets" in found:
        return study(read_result(folder))
    sentence = SENTENCES.get(place)
    try:
        return "A result is recorded; its page has it." if sentence is None else sentence(found)
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise ValueError(f"recipes/{place}/result.json: docs/results.py computes a sentence from it and finds no "
                         f"{error}. Correct `{sentence.__name__}` there.") from error


def findings(root: Path, recipe: str) -> list[str]:
    """What a recipe has found; of one with several studies each under its name."""
    places = sorted(path.parent.relative_to(root / "recipes").as_posix()
                    for path in (root / "recipes" / recipe).rglob("result.json"))
    return [(f"*{place.partition('/')[2].replace('_', ' ')}:* " if "/" in place else "") + finding(root, place)
            for place in places]


def conditions(root: Path, recipe: str) -> str:
    """When and on what a recipe's result was recorded, as far as it says so."""
    said = []
    for path in sorted((root / "recipes" / recipe).rglob("result.json")):
        found = json.loads(path.read_text(encoding="utf-8"))
        inner = next((each for each in found.values() if isinstance(each, dict) and "date" in each), {})
        said += [str(value)[:10] if name != "torch" else f"torch {value}" for each in (found, inner)
                 for name, value in each.items() if name in ("date", "finished", "torch")]
        machine = found.get("machine")
        said += [f"torch {machine['torch']}"] if isinstance(machine, dict) and "torch" in machine else []
    return ", ".join(dict.fromkeys(said))


def results_page(root: Path, topics: Mapping[str, Iterable[str]], titles: Mapping[str, str]) -> str:
    """The page: by topic, every recipe with what it found."""
    lines = ["# Results", "", "What the recipes have found. Every sentence is computed from the recorded result of its "
             "recipe while this page is built, so none can be out of date; each recipe's page says how it was measured "
             "and gives the command that repeats it.", ""]
    for topic, recipes in topics.items():
        lines += [f"## {topic}", ""]
        for recipe in recipes:
            found = findings(root, recipe)
            when = conditions(root, recipe)
            lines += [f"**[{titles[recipe]}](studies/{recipe}.md)**" + (f" ({when})" if when else ""), ""]
            lines += [line for each in found or ["No result is recorded yet."] for line in (each, "")]
    return "\n".join(lines)


def choosing(root: Path) -> str:
    """The table of what a model is needed for and what was found, for the page on choosing."""
    lines = ["| you need | what was found | recipe |", "| --- | --- | --- |"]
    for need, places in NEEDS.items():
        for place in places:
            recipe = place.partition("/")[0]
            lines.append(f"| {need} | {finding(root, place)} | {{doc}}`{recipe} </_generated/studies/{recipe}>` |")
            need = ""
    return "\n".join(lines) + "\n"


def write_results(root: Path, folder: Path) -> None:
    """Write the page of results, and the table for the page on choosing, into ``folder``."""
    titles = {name: study_of(root, name).title for names in ORDER.values() for name in names}
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "results.md").write_text(results_page(root, ORDER, titles), encoding="utf-8")
    (folder / "choosing.txt").write_text(choosing(root), encoding="utf-8")
