"""The doctor: what it reads is true, what it measures is exact, and it leaves every setting as it was."""

from __future__ import annotations

import json
import os
import platform
from dataclasses import replace
from io import StringIO

import pytest
import torch
from rich.console import Console

from weft import __version__
from weft.analysis.capabilities import Diagnosis, _cards, describe_requirements, doctor, warnings_for
from weft.analysis.gpu_speed import CardSpeed
from weft.analysis.matmul import PASSES, Product, Timing, copy_bandwidth, matmul_rate, timed, usual_products
from weft.cli.doctor import _machine
from weft.ops.forms import forced

DTYPES = (torch.float32, torch.bfloat16)


@pytest.fixture(scope="module")
def measured() -> tuple[Timing, ...]:
    """The square product of both dtypes, and the three of a small map. All usual ones would take half a minute, since a
    busy machine makes turns be repeated."""
    small = [Product(which, 32, 24, 40, str(dtype)) for dtype in DTYPES for which in PASSES]
    return timed([*(usual_products(dtype)[0] for dtype in DTYPES), *small])


@pytest.fixture(scope="module")
def found() -> Diagnosis:
    return doctor(measure=False)


def test_versions_and_machine(found: Diagnosis) -> None:
    assert found.versions["torch"] == torch.__version__
    assert found.versions["python"] == platform.python_version()
    assert found.versions["weft"] == __version__
    assert {"pydantic", "safetensors", "tokenizers", "rich"} <= set(found.versions)
    assert found.threads == torch.get_num_threads()
    assert 1 <= found.cores <= (os.cpu_count() or 1)
    assert found.capability == torch.backends.cpu.get_cpu_capability()
    assert found.devices[0].name == "cpu" and found.backends["onednn"] == torch.backends.mkldnn.is_available()
    assert found.disk_free > 0 and found.routes == () and found.copy == 0
    assert json.loads(json.dumps(found.to_json()))["versions"] == found.versions


def test_extras_and_what_they_lack() -> None:
    required, extras = describe_requirements(["torch>=2", "surely-not-installed>=1", "ruff>=0.8; extra == 'dev'",
                                              'no-such-package; extra == "serve"'])
    assert required == ["surely-not-installed", "torch"]
    by_name = {extra.name: extra for extra in extras}
    assert by_name["serve"].missing == ("no-such-package",)
    assert by_name["serve"].unlocks == "features that need no-such-package"
    assert by_name["dev"].unlocks == "the tests, the linter and the type checker"


def test_products_of_both_dtypes_are_measured_by_every_route(measured: tuple[Timing, ...]) -> None:
    """Sums of 1024 products: about sqrt(1024) roundings of 6e-8 each, relative to the largest of a million entries; in
    bfloat16 inputs and results have relative errors of up to 2^-9."""
    square = {each.product.split(" ")[2]: each for each in measured if " 1024x" in each.product}
    assert 0 < square["float32"].errors["reference"] < 1e-5
    assert 2**-12 < square["bfloat16"].errors["reference"] < 2**-6
    assert [each.product.split(" ")[0] for each in measured] == ["forward", "forward", *PASSES, *PASSES]
    assert all({"reference", each.route} <= set(each.rates) == set(each.errors) for each in measured)
    assert [len(set(usual_products(dtype))) for dtype in DTYPES] == [10, 10]


def test_rates_are_operations_a_second(measured: tuple[Timing, ...]) -> None:
    """Between a slow interpreter and a data centre: catches a wrong unit."""
    assert all(1e7 < rate < 1e15 for each in measured for rate in each.rates.values())
    assert 1e7 < matmul_rate(torch.float32) < 1e15
    assert 1e7 < copy_bandwidth(megabytes=8) < 1e13


def test_measuring_leaves_settings_and_random_numbers_alone() -> None:
    matmul = torch.backends.mkldnn.matmul  # type: ignore[attr-defined]
    before = (matmul.fp32_precision, torch.get_float32_matmul_precision(), torch.get_num_threads(),
              torch.get_default_dtype())
    random = torch.get_rng_state()
    timed(usual_products(torch.float32)[:1])
    assert torch.equal(torch.get_rng_state(), random)
    assert before == (matmul.fp32_precision, torch.get_float32_matmul_precision(), torch.get_num_threads(),
                      torch.get_default_dtype())


def test_warnings_say_what_to_do() -> None:
    def route(dtype: str, own: float, other: float) -> Timing:
        return Timing(f"forward 1024x1024x1024 {dtype}", {"reference": own, "onednn": other}, {},
                      "onednn" if other > own else "reference")

    text = "\n".join(warnings_for(["no-such-package"], None, True, 0, (route("float32", 1e11, 2e11),)))
    assert "Required packages are not installed: no-such-package. Install Weft again." in text
    assert "torch.compile cannot run on this CPU without a C++ compiler." in text
    assert " threads on 0 cores. Give --threads 0." in text
    assert "1 of 1 products are up to 2.0 times as fast, and as exact, by another route" in text
    assert "without Python's headers." in "\n".join(warnings_for([], "c++", False, 10**6, ()))
    same = (route("float32", 1e11, 1e11), route("bfloat16", 1e11, 9e10))
    assert list(warnings_for(["torch"], "c++", True, 10**6, same)) == []
    half = (route("float32", 1e11, 9e10), route("bfloat16", 5e10, 4e10))
    text = "\n".join(warnings_for([], "c++", True, 10**6, half))
    assert "bfloat16 products run at 0.50 of float32's speed here" in text


def test_operations_are_told(found: Diagnosis) -> None:
    forms = {each.name: each for each in found.operations}
    assert forms["dropout"].form == "lots" and forms["dropout"].others == ("library", "reference")
    with forced({"dropout": "reference"}):
        told = {each.name: each for each in doctor(measure=False).operations}["dropout"]
    assert (told.form, told.reason) == ("reference", "named by the user")


def test_a_gpu_is_measured_and_shown(found: Diagnosis, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    seen: list[torch.device] = []

    def speed(device: torch.device) -> CardSpeed:
        seen.append(device)
        return CardSpeed(str(device), {"bfloat16": 7.9e14, "float32": 5e13}, 3e12, 4.2e-6, 8e-6, 1.3e-6)

    monkeypatch.setattr("weft.analysis.capabilities.card_speed", speed)
    cards = tuple(_cards())
    assert seen == [torch.device("cuda", 0)] and found.cards == ()
    out = Console(width=160, record=True, file=StringIO())
    out.print(_machine(replace(found, cards=cards)))
    told = out.export_text()
    assert "790 TFLOP/s in bfloat16" in told and "3.00 TB/s; a kernel in 4.2 microseconds, 1.3 microseconds in" in told
