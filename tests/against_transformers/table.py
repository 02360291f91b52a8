"""Write docs/families_table.md and the numbers behind it: `make table`."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

from against_transformers.tiny import Case, all_cases, alone, build, encoder_cases, given, image_cases, saved
from interop.huggingface.tiny_folders import stored_dropped, write_case
from weft import api
from weft.core.heads import outputs
from weft.core.span import WHOLE
from weft.families.family import families

DOCS = Path(__file__).parents[2] / "docs"
RECORD, PAGE = DOCS / "families_table.json", DOCS / "families_table.md"
TEXT = "many hands make light work, and too many cooks spoil the broth"
COLUMNS = ("family", "class", "models", "read", "write", "tokenizer", "largest difference")


def measured(case: Case, place: Path) -> dict[str, Any]:
    """One tiny model, read, written and read again: the largest differences from transformers, and its tokens."""
    saved(case, place / "theirs")
    write_tokenizer(place / "theirs")
    prompts = given(case)
    found = api.score(place / "theirs", prompts, logits=True).logits
    assert found is not None
    read = max(float((own - alone(place / "theirs", row)).abs().max()) for row, own in zip(prompts, found, strict=True))
    api.convert(place / "theirs", place / "ours", to="weft")
    done = api.convert(place / "ours", place / "back", to="hf")
    assert done.foreign is not None, "transformers is installed"
    return {"case": case.name, "read": read, "write": done.foreign,
            "tokenizer": all(same_tokens(place / name) for name in ("theirs", "back"))}


def measured_images(case: Case, place: Path) -> dict[str, Any]:
    """One tiny model of images, read, written and read again; it has no tokens that could differ."""
    model = saved(case, place / "theirs")
    own: Any = api.load(place / "theirs").model
    pixels = torch.randn(3, *own.input.settings.size, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        found, theirs = outputs(own.head, own.vectors(own.images(pixels)).y, WHOLE), model(pixels)
    wanted = theirs.last_hidden_state if own.head is None else theirs.logits
    api.convert(place / "theirs", place / "ours", to="weft")
    done = api.convert(place / "ours", place / "back", to="hf")
    assert done.foreign is not None, "transformers is installed"
    return {"case": case.name, "read": float((found - wanted).abs().max()), "write": done.foreign, "tokenizer": True}


def measured_dropped(name: str, case: Mapping[str, Any], place: Path) -> dict[str, Any]:
    """One tiny model of a family that transformers has dropped, against the stored numbers of a version that had it."""
    write_case(place / "theirs", case)
    write_tokenizer(place / "theirs")
    api.convert(place / "theirs", place / "ours", to="weft")
    api.convert(place / "ours", place / "back", to="hf")
    wanted, differences = torch.tensor(case["logits"]), []
    for folder in ("theirs", "back"):
        found = api.score(place / folder, [case["row"]], logits=True).logits
        assert found is not None
        differences.append(float((found[0].log_softmax(-1)[-len(wanted):] - wanted).abs().max()))
    return {"case": f"transfo-xl-{name}", "read": differences[0], "write": differences[1],
            "tokenizer": all(same_tokens(place / each) for each in ("theirs", "back"))}


def dropped() -> list[dict[str, Any]]:
    """Every case of Transformer-XL."""
    found = []
    for name, case in stored_dropped().items():
        with tempfile.TemporaryDirectory() as place:
            found.append(measured_dropped(name, case, Path(place)))
    return found


def write_tokenizer(folder: Path) -> None:
    """A small tokenizer.json."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.train_from_iterator([TEXT], trainers.BpeTrainer(vocab_size=50, show_progress=False))
    tokenizer.save(str(folder / "tokenizer.json"))


def same_tokens(folder: Path) -> bool:
    """Whether Weft gives the ids of the tokenizer that was put beside the weights."""
    tokenizer = api.load(folder).tokenizer
    library = Tokenizer.from_file(str(folder.parent / "theirs" / "tokenizer.json"))
    return tokenizer is not None and list(tokenizer.encode(TEXT)) == library.encode(TEXT).ids


def measure() -> dict[str, Any]:
    """Every case of every family."""
    found: dict[str, list[dict[str, Any]]] = {}
    for case in (*all_cases(), *encoder_cases()):
        with tempfile.TemporaryDirectory() as place:
            found.setdefault(build(case).config.model_type, []).append(measured(case, Path(place)))
    for case in image_cases():
        with tempfile.TemporaryDirectory() as place:
            found.setdefault(build(case).config.model_type, []).append(measured_images(case, Path(place)))
    found["transfo-xl"] = dropped()
    return {"transformers": transformers.__version__, "families": dict(sorted(found.items()))}


def page(record: Mapping[str, Any]) -> str:
    """The table in Markdown."""
    lines = ["| " + " | ".join(COLUMNS) + " |", "|" + " --- |" * len(COLUMNS)]
    lines += ["| " + " | ".join(_row(name, record["families"])) + " |" for name in families()]
    return (f"# Families, measured\n\nLargest difference between logits of Weft and of transformers "
            f"{record['transformers']}, float32, over tiny random models: prompts of five lengths in one batch, each "
            "against that prompt alone in transformers (read), and the folder that Weft writes, opened by the native "
            "class (write); of transfo-xl, which it has dropped, both against stored logits of transformers "
            "4.37.2, in segments with memory. Written by `make table`; the numbers of every case are in "
            "families_table.json.\n\n"
            + "\n".join(lines) + "\n")


def _row(name: str, found: Mapping[str, list[dict[str, Any]]]) -> tuple[str, ...]:
    family = families()[name]
    if family.native is None:
        return name, "none", str(len(family.sizes)), "no format", "no format", "-", "-"
    cases = found[family.native.model_type]
    read, write = (max(each[way] for each in cases) for way in ("read", "write"))
    kept = "carried" if all(each["tokenizer"] for each in cases) else "differs"
    return (name, family.native.architecture, str(len(family.sizes)), f"{read:.1e}", f"{write:.1e}", kept,
            f"{max(read, write):.1e} ({len(cases)} cases)")


def main() -> None:
    """Measure, record, write the page."""
    record = measure()
    RECORD.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    PAGE.write_text(page(record), encoding="utf-8")


if __name__ == "__main__":
    main()
