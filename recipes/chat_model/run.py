"""A small chat model: pre-trained on text, taught to answer (SFT), and aligned with preferences (DPO).

    python recipes/chat_model/run.py --text TEXT --talks TALKS --pairs PAIRS     # under 40 minutes on one core
    python recipes/chat_model/run.py ... --scale 0.01                            # a trial of some minutes

TEXT is running text (a file or folder), TALKS conversations, and PAIRS preference pairs, in any shape of docs/chat.md.
The three stages have 18, 9 and 5 minutes of training. After each the same questions are asked, greedily, and each stage
is measured on its held-out data; the accuracy of preferences is also that of the models before DPO (one half, since a
model does not differ from itself). Writes result.json and the figures of README.md.
"""

from __future__ import annotations

import argparse
import datetime
import hashlib
import json
import re
from pathlib import Path
from typing import Any

from weft.api import ChatSettings, Conversation, load, measure
from weft.core.model import LanguageModel
from weft.decoding import GREEDY
from weft.tasks import Validation
from weft.training import parse_run, train
from weft.training.files import read_plain

FOLDER = Path(__file__).parent
TEMPLATE = str(FOLDER / "template.jinja")
QUESTIONS = ("What is the capital of France?", "Name three colours.", "Rewrite in the past tense: I walk home.",
             "Give a synonym of happy.")
SHOWN = ("loss", "bits_per_byte", "perplexity", "accuracy", "margin", "chosen", "rejected")
FIGURES = re.compile(r"(?<=<!-- figures -->\n).*?(?=<!-- end of figures -->)", re.DOTALL)


def stages(text: str, talks: str, pairs: str, scale: float) -> dict[str, dict[str, Any]]:
    """The configuration of each stage, whose ``start`` is the stage before."""
    base = read_plain(FOLDER / "pretrain.yaml")
    base["training"]["seconds"] *= scale
    rate = {"schedule": {"warmup": 0.1}, "batch_size": 16}
    return {
        "pretrained": {**base, "data": {"path": text}},
        "sft": {"task": {"kind": "answers", "template": TEMPLATE}, "data": {"path": talks, "packing": "documents"},
                "training": {**rate, "seconds": 540 * scale, "optimizer": {"lr": 1e-3}},
                "report": {"eval_batches": 10}},
        "dpo": {"task": {"kind": "preferences", "beta": 0.1}, "data": {"path": pairs},
                "training": {**rate, "batch_size": 8, "seconds": 300 * scale, "optimizer": {"lr": 5e-5}},
                "report": {"eval_batches": 10}}}


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
    files = [(FOLDER / name).read_text("utf-8") for name in ("pretrain.yaml", "template.jinja")]
    text = repr((files, stages("", "", "", 1.0), QUESTIONS)).replace(str(FOLDER), "")
    return hashlib.sha256(text.encode()).hexdigest()


def record(args: argparse.Namespace) -> dict[str, Any]:
    """Train and measure all stages."""
    found, before = dict[str, Any](), None
    for name, fields in stages(args.text, args.talks, args.pairs, args.scale).items():
        run = args.out / name
        result = train(parse_run(fields if before is None else {**fields, "start": str(before)}), run)
        parameters = sum(parameter.numel() for parameter in result.model.parameters())
        found[name] = stage_result(run, measure(run), result.steps, parameters)
        print(f"{name}: {found[name]['measures']}", flush=True)
        before = run
    return {"settings_sha256": settings_sha256(), "date": datetime.date.today().isoformat(), "scale": args.scale,
            "questions": QUESTIONS, "stages": found}


def page(result: dict[str, Any]) -> str:
    """The figures of README.md."""
    lines = ["| stage | steps | measured on held-out data |", "| --- | --- | --- |"]
    for name, stage in result["stages"].items():
        measures = stage["measures"]
        shown = ", ".join(f"{key} {measures[key]:.3f}" + (
            f" ± {measures[f'{key}_standard_error']:.3f}" if f"{key}_standard_error" in measures else "")
            for key in SHOWN if key in measures)
        lines.append(f"| {name} | {stage['steps']:,} | {shown} ({stage['predictions']:,} {stage['unit']}s) |")
    for place, question in enumerate(result["questions"]):
        lines += ["", f"**{question}**", ""]
        lines += [f"* {name}: {' '.join(stage['answers'][place].split()) or '(nothing)'}"
                  for name, stage in result["stages"].items()]
    return "\n".join([*lines, "", f"± one standard error over held-out pairs; recorded on {result['date']}.", ""])


def main() -> None:
    """Run, and write what was found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("text", "talks", "pairs"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--out", type=Path, default=Path("runs/chat_model"))
    parser.add_argument("--scale", type=float, default=1.0, help="of the seconds of each stage")
    args = parser.parse_args()
    result = record(args)
    if args.scale != 1.0:
        print(page(result))
        return
    (FOLDER / "result.json").write_text(json.dumps(result, indent=1, ensure_ascii=False) + "\n", "utf-8")
    readme = FOLDER / "README.md"
    readme.write_text(FIGURES.sub(lambda _: page(result), readme.read_text("utf-8")), "utf-8")


if __name__ == "__main__":
    main()
