"""`make test-processors` leaves out no folder of tests, and varies one thing at a time."""

from __future__ import annotations

import subprocess
import sys

import pytest

from processors import ARITHMETIC, OTHERS, SETTINGS, TESTS, environment, possible

ELSEWHERE = {"against_transformers", "llamacpp"}
"""Folders that `make test` leaves out too."""


def test_every_folder_of_tests_is_named_once() -> None:
    folders = {path.parent.relative_to(TESTS).parts[0] for path in TESTS.rglob("*/test_*.py")}
    assert {*ARITHMETIC, *OTHERS} == folders - ELSEWHERE
    assert not set(ARITHMETIC) & set(OTHERS)


def test_a_setting_is_alone_and_on_one_thread_unless_it_says_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "AVX2")
    assert "ONEDNN_MAX_CPU_ISA" not in environment({})
    for _, setting in SETTINGS:
        found = environment(setting)
        assert {name: found[name] for name in setting} == setting
        assert found["OMP_NUM_THREADS"] == setting.get("OMP_NUM_THREADS", "1")
        assert sum(name in found for name in ("ATEN_CPU_CAPABILITY", "ONEDNN_MAX_CPU_ISA", "MKL_ENABLE_INSTRUCTIONS",
                                              "MKL_DYNAMIC")) == 1


def test_settings_reach_torch_and_what_this_processor_cannot_do_is_known() -> None:
    settings = list(possible())
    assert [setting for setting, _ in settings] == [setting for _, setting in SETTINGS]
    assert settings[0] == ({"ATEN_CPU_CAPABILITY": "default"}, True)
    told = subprocess.run([sys.executable, "-c", "import torch\nprint(torch.backends.cpu.get_cpu_capability(), "
                           "torch.get_num_threads())"], check=True, text=True, stdout=subprocess.PIPE,
                          env=environment({"ATEN_CPU_CAPABILITY": "default", "OMP_NUM_THREADS": "4",
                                           "MKL_DYNAMIC": "FALSE"})).stdout
    assert told.split() == ["DEFAULT", "4"]
