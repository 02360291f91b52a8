"""The recipe of pre-training on digits runs on scikit-learn's, and its page says what its record says."""

from __future__ import annotations

import json
import runpy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats
from sklearn.datasets import load_digits

RECIPE = Path(__file__).parents[2] / "recipes" / "digits"


@pytest.fixture(scope="module")
def modules() -> tuple[dict[str, Any], dict[str, Any]]:
    """`run.py` and `report.py`."""
    return runpy.run_path(str(RECIPE / "run.py")), runpy.run_path(str(RECIPE / "report.py"))


@pytest.fixture(scope="module")
def result(modules: tuple[dict[str, Any], dict[str, Any]], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Both studies on a third of scikit-learn's digits, with few steps; a second seed is made up."""
    run, digits = modules[0], load_digits()
    data = tmp_path_factory.mktemp("digits") / "digits.npz"
    np.savez(data, images=digits.images[:600].astype(np.uint8), labels=digits.target[:600])
    settings = run["Settings"](16, 1, 1, (0, 100), 8, 8, 4, 0.01)
    found = run["study"](data, settings)
    for values in (*found["depth"].values(), *found["transfer"].values()):
        values.append(values[0] - 1)
    return {"settings": settings._asdict(), "images": "digits", "confidence": 0.95, "torch": "2", "python": "3",
            "processor_seconds": 1, **found}


def test_every_network_and_size_has_a_figure_for_each_seed(result: dict[str, Any],
                                                           modules: tuple[dict[str, Any], dict[str, Any]]) -> None:
    assert list(result["depth"]) == list(modules[1]["LECTURE"])
    assert list(result["transfer"]) == ["0", "100"]
    for values in (*result["depth"].values(), *result["transfer"].values()):
        assert len(values) == 2 and 0 <= values[0] <= 100
    assert len({tuple(values) for values in result["depth"].values()}) > 1
    # A single layer learns digits in some dozen steps: a uniform guess is wrong in 90 %.
    assert max(result["depth"]["shallow"]) < 75


def test_page_and_pictures_show_means_and_intervals(result: dict[str, Any], tmp_path: Path,
                                                    modules: tuple[dict[str, Any], dict[str, Any]]) -> None:
    modules[1]["write"](result, tmp_path)
    page = (tmp_path / "README.md").read_text(encoding="utf-8")
    values = result["depth"]["shallow"]
    half = stats.t.ppf(0.975, 1) * np.std(values, ddof=1) / np.sqrt(2)
    assert f"| shallow | {np.mean(values):.2f} ± {half:.2f} | 1.9 |" in page
    for name in ("depth.svg", "transfer.svg"):
        picture = (tmp_path / name).read_text(encoding="utf-8")
        assert picture.startswith("<svg ") and picture.count("<circle") == 3 * len(result[name.removesuffix(".svg")])


def test_the_page_says_what_the_record_says(modules: tuple[dict[str, Any], dict[str, Any]]) -> None:
    recorded = RECIPE / "result.json"
    page = (RECIPE / "README.md").read_text(encoding="utf-8")
    if recorded.exists():
        kept = json.loads(recorded.read_text(encoding="utf-8"))
        assert kept["settings_sha256"] == modules[0]["settings_sha256"](kept["settings"], kept["images"])
        assert modules[1]["tables"](kept) in page
    else:
        assert "| network |" not in page, "a table without its record"
