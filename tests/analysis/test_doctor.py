"""The doctor: what it reads is true, what it measures is exact, and it leaves every setting as it was."""

from __future__ import annotations

import json
import os
import platform

import pytest
import torch

from weft import __version__
from weft.analysis import doctor
from weft.analysis.doctor import Diagnosis, describe_requirements, warnings_for
from weft.analysis.matmul import Route, copy_bandwidth, fp32_precision, matmul_rate, routes


@pytest.fixture(scope="module")
def measured() -> tuple[Route, ...]:
    return routes()


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
    assert json.loads(json.dumps(found.plain()))["versions"] == found.versions


def test_extras_and_what_they_lack() -> None:
    required, extras = describe_requirements(["torch>=2", "surely-not-installed>=1", "ruff>=0.8; extra == 'dev'",
                                              'no-such-package; extra == "serve"'])
    assert required == ["surely-not-installed", "torch"]
    by_name = {extra.name: extra for extra in extras}
    assert by_name["serve"].missing == ("no-such-package",)
    assert by_name["serve"].unlocks == "what needs no-such-package"
    assert by_name["dev"].unlocks == "the tests, the linter and the type checker"


def test_float32_routes_are_as_exact_as_float32(measured: tuple[Route, ...]) -> None:
    """Sums of 1024 products: about sqrt(1024) roundings of 6e-8 each, relative to the largest of a million entries."""
    assert measured[0].name == "float32, PyTorch's default" and 0 < measured[0].error < 1e-5


def test_bfloat16_rounds_to_eight_bits(measured: tuple[Route, ...]) -> None:
    """Inputs and results have relative errors of up to 2^-9."""
    assert measured[-1].name == "bfloat16" and 2**-12 < measured[-1].error < 2**-6


def test_rates_are_operations_a_second(measured: tuple[Route, ...]) -> None:
    """Between a slow interpreter and a data centre: catches a wrong unit."""
    assert all(1e7 < rate < 1e15 for rate in [*(route.rate for route in measured), matmul_rate(torch.float32)])
    assert 1e7 < copy_bandwidth(megabytes=8) < 1e13


def test_settings_are_restored() -> None:
    matmul = torch.backends.mkldnn.matmul  # type: ignore[attr-defined]
    before = matmul.fp32_precision
    with pytest.raises(ZeroDivisionError), fp32_precision("bf16"):
        assert matmul.fp32_precision == "bf16"
        _ = 1 / 0
    assert matmul.fp32_precision == before


def test_measuring_leaves_settings_and_random_numbers_alone() -> None:
    matmul = torch.backends.mkldnn.matmul  # type: ignore[attr-defined]
    before = (matmul.fp32_precision, torch.get_float32_matmul_precision(), torch.get_num_threads(),
              torch.get_default_dtype())
    random = torch.get_rng_state()
    routes()
    assert torch.equal(torch.get_rng_state(), random)
    assert before == (matmul.fp32_precision, torch.get_float32_matmul_precision(), torch.get_num_threads(),
                      torch.get_default_dtype())


def test_warnings_say_what_to_do() -> None:
    slow, fast = Route("float32, PyTorch's default", 1e11, 3e-7), Route("float32, oneDNN", 2e11, 1e-6)
    rough = Route("float32, oneDNN", 2e11, 3e-3)
    text = "\n".join(warnings_for(["no-such-package"], None, True, 0, (slow, fast)))
    assert "Not installed: no-such-package. Install Weft again." in text
    assert "torch.compile on this CPU lacks a C++ compiler:" in text
    assert "share 0 cores: use --threads" in text
    assert "2.0 times as fast as the default here, and keeps float32's accuracy" in text
    assert "rounds to bfloat16" in "\n".join(warnings_for([], "c++", True, 10**6, (slow, rough)))
    assert "lacks Python's headers:" in "\n".join(warnings_for([], "c++", False, 10**6, ()))
    assert list(warnings_for(["torch"], "c++", True, 10**6, (slow, slow))) == []
    half = Route("bfloat16", 5e10, 4e-3)
    assert "bfloat16 products reach 0.50 of float32's speed here" in "\n".join(
        warnings_for([], "c++", True, 10**6, (slow, half)))
