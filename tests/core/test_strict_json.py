"""JSON without infinities and NaN, wherever Weft writes it."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path
from typing import Any, NoReturn

from training.tiny_runs import tiny_run
from weft.comparison.results import CurvePoint, LengthPoint
from weft.core.strict_json import dumps, number
from weft.disk.plain_data import build
from weft.tasks import Validation
from weft.training import train
from weft.training.sinks import scalars_of


def strictly(text: str) -> Any:
    """What a reader makes of it that knows the standard only."""

    def refuse(constant: str) -> NoReturn:
        raise ValueError(f"{constant} is not JSON")

    return json.loads(text, parse_constant=refuse)


def test_what_is_not_finite_is_written_as_a_string_and_read_back() -> None:
    data = {"a": [1.5, math.inf], "b": {"c": (-math.inf, math.nan)}, 3: Path("x") / "y", "d": None, "e": True}
    found = strictly(dumps(data))
    assert found == {"a": [1.5, "Infinity"], "b": {"c": ["-Infinity", "NaN"]}, "3": str(Path("x") / "y"), "d": None,
                     "e": True}
    assert [number(found["a"][1]), number(found["b"]["c"][0]), number(1.5)] == [math.inf, -math.inf, 1.5]
    assert math.isnan(number(found["b"]["c"][1]))


def test_a_model_that_cannot_say_what_comes_leaves_files_that_are_json(tmp_path: Path) -> None:
    """Without smoothing, what was never seen costs infinitely many bits."""
    run = tiny_run(tmp_path, {"kind": "ngram", "order": 4, "smoothing": "maximum_likelihood"})
    result = train(run, tmp_path / "run")
    assert result.validation.bits_per_byte == math.inf
    assert result.best == result.checkpoint
    told = [strictly(line) for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    (validated,) = (record for record in told if record["event"] == "validated")
    assert validated["validation"]["bits_per_byte"] == "Infinity"
    assert scalars_of(validated)["validation/bits_per_byte"] == math.inf
    facts = strictly((result.checkpoint / "config.json").read_text())["facts"]
    assert Validation.from_json(facts["validation"]) == result.validation
    again = train(run, tmp_path / "run", resume=True)
    assert again.validation == result.validation
    strictly((tmp_path / "run/run.json").read_text())


def test_results_of_a_study_survive() -> None:
    for point in (CurvePoint(1, 2, 3.0, 4.0, math.inf, -math.inf), LengthPoint(8, math.inf, None, True)):
        assert build(type(point), strictly(dumps(dataclasses.asdict(point)))) == point
