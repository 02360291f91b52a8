"""A small chat model: pre-trained on text, taught to answer (SFT), and aligned with preferences (DPO).

    python recipes/chat_model/run.py --text TEXT --talks TALKS --pairs PAIRS     # under 40 minutes on one core
    python recipes/chat_model/run.py ... --scale 0.01 --seeds 1 --out /tmp/chat  # a trial of some minutes

TEXT is running text (a file or folder), TALKS conversations, and PAIRS preference pairs, in any shape of docs/chat.md.
All three stages are run from several seeds. After each the same questions are asked, greedily, and each stage is
measured on its held-out data. The accuracy of preferences is one half before DPO, since a model does not differ from
itself. Writes result.json and README.md beside itself, or into --out.
"""

from __future__ import annotations

import argparse
import datetime
import hashlib
import json
import platform
from pathlib import Path
from typing import Any

import torch

from weft.api import ChatSettings, Conversation, load, measure
from weft.comparison.statistics import t_test
from weft.core.model import LanguageModel
from weft.decoding import GREEDY
from weft.ops.processor import processor_name
from weft.tasks import Validation
from weft.training import parse_run, print_event, train
from weft.training.files import read_plain

FOLDER = Path(__file__).parent
TEMPLATE = str(FOLDER / "template.jinja")
FILES = {"pretrained": "pretrain.yaml", "sft": "sft.yaml", "dpo": "dpo.yaml"}
QUESTIONS = ("What is the capital of France?", "Name three colours.", "Rewrite in the past tense: I walk home.",
             "Give a synonym of happy.")
MEASURES = {"pretrained": ("bits_per_byte",), "sft": ("bits_per_byte", "perplexity"),
            "dpo": ("accuracy", "margin", "chosen", "rejected")}
"""What the page shows of each stage."""

CONFIDENCE = 0.95


def stages(args: argparse.Namespace, seed: int) -> dict[str, dict[str, Any]]:
    """The configuration of each stage, whose ``start`` is the stage before."""
    found = {}
    for (name, file), text in zip(FILES.items(), (args.text, args.talks, args.pairs), strict=True):
        plain = read_plain(FOLDER / file)
        training = {**plain["training"], "steps": max(1, round(args.scale * plain["training"]["steps"]))}
        found[name] = {**plain, "training": training, "seed": seed,
                       "data": {**plain.get("data", {}), "path": text, "order_seed": seed}}
    found["sft"]["task"]["template"] = TEMPLATE
    return found


def answers(run: Path) -> list[str]:
    """What a model answers to the questions, each asked anew."""
    loaded = load(run)
    assert isinstance(loaded.model, LanguageModel) and loaded.tokenizer is not None
    settings = ChatSettings(template=TEMPLATE, sampling=GREEDY, max_new_tokens=40)
    return ["".join(Conversation(loaded.model, loaded.tokenizer, settings).say(question)) for question in QUESTIONS]


def stage_result(run: Path, validation: Validation, steps: int, parameters: int) -> dict[str, Any]:
    """What is recorded of a stage."""
    return {"steps": steps, "parameters": parameters, "measures": validation.named(), "predictions": validation.tokens,
            "unit": validation.unit, "protocol": validation.protocol, "answers": answers(run)}


def settings_sha256() -> str:
    """Of what is run."""
    files = [(FOLDER / name).read_text("utf-8") for name in (*FILES.values(), "template.jinja")]
    return hashlib.sha256(repr((files, QUESTIONS)).encode()).hexdigest()


def one_seed(args: argparse.Namespace, seed: int) -> dict[str, Any]:
    """Train and measure all stages from a seed."""
    found, before = dict[str, Any](), None
    for name, fields in stages(args, seed).items():
        run = args.runs / f"{name}-{seed}"
        result = train(parse_run(fields if before is None else {**fields, "start": str(before)}), run,
                       on_event=print_event)
        parameters = sum(parameter.numel() for parameter in result.model.parameters())
        found[name] = stage_result(run, measure(run), result.steps, parameters)
        print(f"seed {seed}, {name}: {found[name]['measures']}", flush=True)
        before = run
    return found


def interval(values: list[float]) -> str:
    """The mean and half its interval over seeds."""
    found = t_test(values, CONFIDENCE).interval
    return f"{found.mean:.3f}" + ("" if found.low is None else f" ± {found.mean - found.low:.3f}")


def page(found: dict[str, Any]) -> str:
    """README.md."""
    seeds, first = found["seeds"], found["seeds"][0]
    rows = []
    for name, shown in MEASURES.items():
        values = [f"{key.replace('_', ' ')} {interval([seed[name]['measures'][key] for seed in seeds])}"
                  for key in shown]
        rows.append(f"| {name} | {first[name]['steps']:,} | {', '.join(values)} | {first[name]['predictions']:,} "
                    f"{first[name]['unit']}s |")
    asked = []
    for place, question in enumerate(found["questions"]):
        asked += ["", f"**{question}**", "",
                  *(f"* {name}: {quoted(stage['answers'][place])}" for name, stage in first.items())]
    return "\n".join([
        "# A small chat model: pre-trained, taught to answer, aligned", "",
        f"A decoder of {first['pretrained']['parameters']:,} parameters is pre-trained on text, learns to answer from "
        "instructions (the loss on the answers alone), and then to prefer the better of two answers (DPO), each stage "
        "from the weights of the one before. What is done stands at the head of [run.py](run.py), the model in "
        "[pretrain.yaml](pretrain.yaml), the other stages in [sft.yaml](sft.yaml) and [dpo.yaml](dpo.yaml), "
        "and the conversation's form in [template.jinja](template.jinja), which travels with the model.", "",
        "    python recipes/chat_model/run.py --text wikitext.txt --talks alpaca.json --pairs preferences.json", "",
        f"It takes under 40 minutes on one core. The result recorded here is of wikitext-2, {found['talks']} and "
        f"{found['pairs']}.", "",
        "| stage | steps | measured on held-out data, mean of the seeds | held out |", "| --- | --- | --- | --- |",
        *rows, "", f"{len(seeds)} seeds of all three stages, intervals at {CONFIDENCE:.0%}. {verdict(seeds)} "
        "`chosen` and `rejected` are log-probabilities of whole answers, and the margin is that of DPO's rewards. "
        "In these pairs the rejected answer is often the chosen one in ruder words, which tell them apart. "
        f"Recorded on {found['date']}, torch {found['torch']}, {found['processor']}.", "",
        "## The same questions after each stage", "",
        "Greedy answers of at most 40 tokens, of the first seed. A model of this size, so briefly trained, knows "
        "neither facts nor grammar: what the stages change is the form.", *asked, "",
        "## A larger one", "",
        "A larger model is `pretrain.yaml` with other sizes. On several GPUs the stages run one by one, each from the "
        "one before:", "", "```text",
        "torchrun --nproc-per-node 8 -m weft train recipes/chat_model/pretrain.yaml \\",
        "    data.path=TEXT model.d_model=1024 model.blocks.0.repeat=24 model.context=2048 training.steps=100000 \\",
        "    --out runs/pretrained",
        "torchrun --nproc-per-node 8 -m weft train recipes/chat_model/sft.yaml \\",
        "    start=runs/pretrained data.path=TALKS --out runs/sft",
        "torchrun --nproc-per-node 8 -m weft train recipes/chat_model/dpo.yaml \\",
        "    start=runs/sft data.path=PAIRS --out runs/dpo",
        "```", ""])


def quoted(answer: str) -> str:
    """An answer as code on one line, since it may hold what Markdown would read as marks."""
    line = " ".join(answer.replace("`", "'").split())
    return f"`{line}`" if line else "(nothing)"


def verdict(seeds: list[dict[str, Any]]) -> str:
    """What the accuracy of preferences says."""
    over = t_test([seed["dpo"]["measures"]["accuracy"] for seed in seeds], CONFIDENCE).interval
    if over.low is None or over.high is None:
        return "One seed has no interval."
    if over.low > 0.5:
        return "DPO prefers the better answer of held-out pairs more often than the one half of the model before it."
    if over.high < 0.5:
        return "DPO prefers the worse answer of held-out pairs more often than the one half of the model before it."
    return "The accuracy of preferences on held-out pairs is not told apart from the one half of the model before it."


def main() -> None:
    """Run, and write what was found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("text", "talks", "pairs"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--out", type=Path, default=FOLDER)
    parser.add_argument("--runs", type=Path, default=Path("runs/chat_model"))
    parser.add_argument("--scale", type=float, default=1.0, help="of the steps of each stage")
    parser.add_argument("--seeds", type=int, default=3)
    args = parser.parse_args()
    if args.scale != 1.0 and args.out == FOLDER:
        parser.error("a trial needs a folder of its own: --out FOLDER")
    result = {"settings_sha256": settings_sha256(), "date": datetime.date.today().isoformat(), "scale": args.scale,
              "torch": torch.__version__, "python": platform.python_version(), "processor": processor_name(),
              "talks": Path(args.talks).name, "pairs": Path(args.pairs).name, "questions": QUESTIONS,
              "seeds": [one_seed(args, seed) for seed in range(args.seeds)]}
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / "result.json").write_text(json.dumps(result, indent=1, ensure_ascii=False) + "\n", "utf-8")
    (args.out / "README.md").write_text(page(result), "utf-8")


if __name__ == "__main__":
    main()
