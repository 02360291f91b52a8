"""Records as plain data and back; JSON without infinities and NaN, wherever Weft writes it."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import pytest

from training.tiny_runs import tiny_run
from weft.comparison.results import CurvePoint, LengthPoint
from weft.core.strict_json import Record, build, digest, dumps, number
from weft.tasks import Validation
from weft.training import train
from weft.training.loop import ProgressSums
from weft.training.sinks import scalars_of


@dataclass(frozen=True)
class Inner(Record):
    """Written as one string."""

    number: int

    def to_json(self) -> dict[str, Any]:
        return {"as": f"<{self.number}>"}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Inner:
        return cls(int(data["as"].strip("<>")))


@dataclass(frozen=True)
class Outer(Record):
    """A field of each kind."""

    place: Path | None
    inner: tuple[Inner, ...]
    named: Mapping[str, float]
    count: float = 1


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
        assert build(type(point), strictly(dumps(point))) == point


def test_a_record_is_made_again_from_its_json_and_records_in_it_in_their_own_form() -> None:
    record = Outer(Path("a") / "b", (Inner(1), Inner(2)), {"x": math.inf})
    written = dumps(record)
    assert list(json.loads(written).items()) == [
        ("place", str(Path("a") / "b")), ("inner", [{"as": "<1>"}, {"as": "<2>"}]), ("named", {"x": "Infinity"}),
        ("count", 1)]
    again = Outer.from_json(strictly(written))
    assert again == record and dumps(again) == written
    assert Outer.from_json({"place": None, "inner": [], "named": {}}) == Outer(None, (), {})


def test_a_field_that_a_record_does_not_have_is_an_error_that_names_it() -> None:
    with pytest.raises(ValueError, match="unknown fields of Outer: colour"):
        Outer.from_json({"colour": 1})


def test_sums_that_are_not_finite_are_numbers_again_when_a_run_is_resumed() -> None:
    assert build(ProgressSums, strictly(dumps(ProgressSums(2.0, math.inf, 3)))) == ProgressSums(2.0, math.inf, 3)


def test_a_digest_is_that_of_the_files_that_hold_it() -> None:
    """Computed by Python's hashlib from the text ``{"a": {"\\u00e9": "x y"}, "b": [1, 2.5, null, true]}``."""
    plain = {"b": [1, 2.5, None, True], "a": {"é": "x y"}}
    assert digest(plain) == "1591d0f8f6f1a0492219b58df43dedfaa07133ce5c83784c488b99efc718fa3b"
