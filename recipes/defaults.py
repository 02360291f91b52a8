"""What recorded results owe to defaults and presets, which a configuration as it is written does not say.

    python recipes/defaults.py             fields and recipes that are new join the record
    python recipes/defaults.py FIELD ...   a default or a preset that has changed is recorded anew

A recipe's record has a hash of its settings as written, which stays the same where a default changes that they leave
out. So ``defaults.json`` keeps the value of every field that some recipe leaves to its default, and what each study
takes from a preset. A test compares them with what stands in the code: where one has changed, run the recipes that it
names again, or write the old value into their settings, and then record it anew. A field that the record does not have
was not there when the recipes were run.
"""

from __future__ import annotations

import json
import runpy
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel

from weft.api.configs import own_presets, read_config
from weft.comparison.study import read_study
from weft.core.model import parse_model
from weft.disk.atomic import write_file
from weft.training import parse_run
from weft.training.overrides import run_overrides

HERE, EXAMPLES = Path(__file__).parent, Path(__file__).parents[1] / "examples"
RECORD = HERE / "defaults.json"
SHARED = ("data", "tokenizer")
"""Sections of a run that a study states for all its models."""

Plain = dict[str, Any]
Record = dict[str, Any]
"""The value of each field that is left out, and of each study what its models take from presets."""


def documents() -> Iterator[tuple[str, Plain]]:
    """Every YAML file of the recipes, and the study that `make run` runs, by name."""
    for path in sorted([*HERE.glob("*/*.yaml"), EXAMPLES / "six_ages.yaml"]):
        folder = f"{path.parent.name}/" if path.parent != EXAMPLES else ""
        yield f"{folder}{path.stem}", yaml.safe_load(path.read_text(encoding="utf-8"))


def configurations() -> Iterator[tuple[str, BaseModel]]:
    """Every configuration of a recipe, completed, by the recipe's name."""
    rows = script("rows/run.py")
    for name, found in documents():
        if "models" in found:
            study = read_study(study=found)
            yield name, study
            for model in of_models(found).values():
                yield name, parse_run(model)
        elif "contestants" in found:
            for task in found["tasks"]:
                for contestant, size in ((each, size) for each in found["contestants"] for size in found["sizes"][:1]):
                    yield name, rows["run_of"](found, task, contestant, size, 0.01, 0)
        elif "mixers" in found:
            for mixer in found["mixers"].values():
                block = {"kind": "pre", "norm": "rmsnorm", "layers": [mixer, found["feedforward"]]}
                yield name, parse_model({**found["model"], "blocks": [{"repeat": found["blocks"], "of": [block]}]})
        elif "kind" in found.get("model", {}):
            yield name, parse_run({"tokenizer": "bytes", **{key: value for key, value in found.items()
                                                            if key not in SHARED}})
    for name, model in in_scripts():
        yield name, parse_model(model["model"]) if "training" not in model else parse_run(model)


def in_scripts() -> Iterator[tuple[str, Plain]]:
    """Configurations that scripts hold."""
    cheating, blocks, mixture, width, resume, lengths = (script(f"{name}.py") for name in (
        "cheating/run", "norms_and_residuals/run", "mixture/run", "width_transfer/run", "resume/kill", "lengths/run"))
    yield from (("cheating", {"model": cheating["configuration"](mask)}) for mask in cheating["NAMES"].values())
    yield "norms_and_residuals", {"model": blocks["configuration"]()}
    yield "mixture", {**mixture["configuration"](HERE, mixture["WEIGHTS"]["equal"], 0, 1), "data": {}}
    yield from (("width_transfer", width["configuration"](width["BASE"], name, 0.01, 0, 1)) for name in width["NAMES"])
    yield from (("resume", {"model": model, "training": {"steps": 1, **training}})
                for model, training in resume["RUNS"].values())
    yield from (("lengths", run_overrides(read_config(lengths["MODEL"]), changes))
                for changes in lengths["SCHEMES"].values())


def script(name: str) -> Plain:
    """What a recipe's script defines; it may import the page beside it."""
    path = HERE / name
    sys.path.insert(0, str(path.parent))
    try:
        return runpy.run_path(str(path))
    finally:
        sys.path.pop(0)
        sys.modules.pop("page", None)


def of_models(study: Mapping[str, Any]) -> dict[str, Plain]:
    """The models of a study as they are written: their configurations or presets with changes, and what all share."""
    found = {}
    for name, spec in study["models"].items():
        config, overrides = (spec, []) if isinstance(spec, str) else (spec["config"], spec.get("overrides", []))
        config = read_config(config)
        plain = run_overrides({"model": config} if "kind" in config else config, overrides)
        own = {key: value for key, value in plain.items() if key not in SHARED}
        training = {key: value for key, value in own.get("training", {}).items() if key != "seconds"}
        found[name] = {**own, "tokenizer": study.get("tokenizer", "bytes"),
                       "training": {**training, **study.get("training", {})}}
    return found


def from_presets() -> dict[str, dict[str, Plain]]:
    """Of every study those of its models that are presets, as they are written with the study's changes."""
    found = {}
    for name, study in documents():
        models = {each for each, spec in study.get("models", {}).items()
                  if str(spec if isinstance(spec, str) else spec["config"]) in own_presets()}
        if models:
            found[name] = {each: plain for each, plain in of_models(study).items() if each in models}
    return found


def left_out(config: BaseModel) -> Iterator[tuple[str, Any]]:
    """The fields of a configuration and of all in it that it leaves to their defaults, with these in plain data."""
    part = type(config)
    label = f"{getattr(part, 'group', '')} {getattr(part, 'kind', '')}".strip() or part.__name__
    for name in part.model_fields:
        value = getattr(config, name)
        if name not in config.model_fields_set:
            yield f"{label}.{name}", config.model_dump(mode="json", include={name}).get(name)
        inner = value if isinstance(value, list | tuple) else value.values() if isinstance(value, Mapping) else [value]
        for each in inner:
            if isinstance(each, BaseModel):
                yield from left_out(each)


def current() -> tuple[Record, dict[str, set[str]]]:
    """What recipes owe to defaults and presets as they are now, and the recipes that leave each field out."""
    fields: dict[str, Any] = {}
    recipes: dict[str, set[str]] = {}
    for recipe, config in configurations():
        for name, value in left_out(config):
            fields[name] = value
            recipes.setdefault(name, set()).add(recipe)
    return {"fields": dict(sorted(fields.items())), "presets": from_presets()}, recipes


def changed(record: Record, now: Record, recipes: Mapping[str, set[str]]) -> list[str]:
    """What of the record is no longer so, or not in it, in words."""
    said = [f"{name} is not recorded yet" for name in now["fields"].keys() - record["fields"].keys()]
    said += [f"{name} was {record['fields'][name]!r} and is {value!r}: {', '.join(sorted(recipes[name]))}"
             for name, value in now["fields"].items() if name in record["fields"] and record["fields"][name] != value]
    return said + [f"{study} has other presets than it was run with" for study, models in now["presets"].items()
                   if record["presets"].get(study) != models]


def main() -> None:
    """Record what is new, and of what has changed what is named."""
    now, _ = current()
    before = json.loads(RECORD.read_text(encoding="utf-8")) if RECORD.exists() else {"fields": {}, "presets": {}}
    kept = {part: {name: value if name in sys.argv[1:] else before[part].get(name, value)
                   for name, value in now[part].items()} for part in now}
    write_file(RECORD, json.dumps(kept, indent=1) + "\n")


if __name__ == "__main__":
    main()
