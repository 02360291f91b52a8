"""The line that ends a command in a terminal: what to do next with what it has made."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeAlias

from weft.cli.text import console

Given: TypeAlias = Mapping[str, Any]
"""The arguments and options that a command was called with, by name."""


def say_next(command: str, given: Given) -> None:
    """Print a command's closing line on standard error, if that is a terminal and no JSON was asked for."""
    line = CLOSING.get(command)
    if line is not None and not given.get("json") and sys.stderr.isatty():
        # Not typer.secho: a terminal's stream writes escape sequences visibly, whoever prints them, but a console's.
        console(err=True).print(f"next: {line(given)}", style="dim", soft_wrap=True)


def _list(given: Given) -> str:
    return ("weft list attention describes one part" if given["kind"] is None else
            "a configuration names a part as its kind; weft config show transformer shows one")


def _plan(given: Given) -> str:
    target = _word(given["target"])
    return (f"weft eval {target} measures it" if _is_folder(target) else
            f"weft check {target} runs the laws on it, weft train {target} trains it")


def _check(given: Given) -> str:
    target = _word(given["target"])
    return (f"weft eval {target} measures it" if _is_folder(target) else f"weft train {target} trains it")


def _train(given: Given) -> str:
    config = given["config"]
    folder = _word(given["out"] or (config if _is_folder(config) else "runs/latest"))
    return f"weft eval {folder} measures it, weft generate {folder} --prompt TEXT writes with it"


def _compare(given: Given) -> str:
    folder = given["report"] or given["out"]
    return (f"open {_word(folder / 'report.html')} in a browser; weft compare --report {_word(folder)} writes it again "
            "from its runs")


def _evaluate(given: Given) -> str:
    model = _word(given["checkpoint"])
    return f"weft eval {model} --by-document lists documents, weft generate {model} --prompt TEXT writes with the model"


def _rate(given: Given) -> str:
    file = _word(given["file"])
    return (f"weft rate {file} --method bradley-terry gives ratings that do not depend on the order of the games"
            if given["method"] == "elo" else f"weft rate {file} --method elo gives late games more weight")


def _generate(given: Given) -> str:
    return f"weft score {_word(given['checkpoint'])} --text TEXT shows how probable each token of a text is"


def _translate(given: Given) -> str:
    return f"weft eval {_word(given['checkpoint'])} --bleu compares its translations with the targets of the run"


def _chat(given: Given) -> str:
    return f"weft generate {_word(given['checkpoint'])} --messages FILE answers a conversation without a terminal"


def _score(given: Given) -> str:
    return f"weft eval {_word(given['checkpoint'])} --data FILE measures the model on a whole text"


def _extend(given: Given) -> str:
    folder = _word(given["out"])
    return f"weft eval {folder} measures it, weft generate {folder} --prompt TEXT writes with it"


def _draw(given: Given) -> str:
    return f"open {_word(given['out'])} in a browser; weft plan {_word(given['target'])} counts what is drawn"


def _convert(given: Given) -> str:
    out, to = _word(given["out"]), given["to"]
    if to in ("adapter", "peft"):
        return f"weft convert {out} FOLDER --to hf --base MODEL merges it into its model"
    if to == "gguf":
        return f"llama-cli -m {out} runs it"
    if str(out).endswith((".arpa", ".arpa.gz")):
        return f"weft convert {out} FOLDER --to weft reads it again"
    return f"weft generate {out} --prompt TEXT writes with it"


def _show(given: Given) -> str:
    return f"weft config show {_word(given['config'])} > my.yaml, change it, and weft train my.yaml trains it"


def _schema(given: Given) -> str:
    return "an editor that knows JSON Schema completes and checks configurations by this file"


def _prepare(given: Given) -> str:
    folder = _word(given["out"])
    return f"weft data inspect {folder} shows what it holds, weft train transformer data.path={folder} trains on it"


def _inspect(given: Given) -> str:
    return f"weft data sample {_word(given['folder'])} shows the first windows that training reads"


def _sample(given: Given) -> str:
    return f"weft train transformer data.path={_word(given['folder'])} trains on it"


def _mixture(given: Given) -> str:
    return "a run reads sources that its data.sources names; weft plan CONFIG shows what it reads of each"


def _doctor(given: Given) -> str:
    return "weft plan transformer shows what a model costs here"


CLOSING: Mapping[str, Callable[[Given], str]] = MappingProxyType({
    "list_parts": _list, "doctor": _doctor, "plan": _plan, "check": _check, "train": _train, "compare": _compare,
    "evaluate": _evaluate, "rate": _rate, "generate": _generate, "translate": _translate, "chat": _chat,
    "score": _score, "extend": _extend, "draw": _draw, "convert": _convert, "show": _show, "schema": _schema,
    "prepare_data": _prepare, "inspect_data": _inspect, "sample_data": _sample, "mixture": _mixture})
"""The closing line of each command, by the name of its function."""


def _is_folder(target: object) -> bool:
    return Path(str(target)).is_dir()


def _word(value: object) -> str:
    """A path or name as a shell takes it."""
    return shlex.quote(str(value))
