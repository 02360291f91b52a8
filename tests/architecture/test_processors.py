"""`make test-processors` leaves out no folder of tests, and its settings reach the libraries."""

from __future__ import annotations

import subprocess
import sys

import pytest

from processors import ARITHMETIC, OTHERS, SETTINGS, TESTS, environment, label, possible

ELSEWHERE = {"against_datasets", "against_lm_eval", "against_mup", "against_peft", "against_transformers",
             "against_trl", "llamacpp", "on_gpu", "on_two_machines"}
"""Folders that `make test` leaves out too."""


def test_every_folder_of_tests_is_named_once() -> None:
    folders = {path.parent.relative_to(TESTS).parts[0] for path in TESTS.rglob("*/test_*.py")}
    assert {*ARITHMETIC, *OTHERS} == folders - ELSEWHERE
    assert not set(ARITHMETIC) & set(OTHERS)


def test_a_setting_holds_nothing_of_another_and_runs_on_one_thread_unless_it_names_more(
        monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "AVX2")
    monkeypatch.setenv("MKL_DYNAMIC", "FALSE")
    names = {name for _, variables in SETTINGS for name in variables}
    for setting in ({}, *(variables for _, variables in SETTINGS)):
        variables = environment(setting)
        assert {name: variables[name] for name in names & set(variables)} == {"OMP_NUM_THREADS": "1", **setting}


def test_every_instruction_set_and_number_of_threads_is_covered() -> None:
    values = {(name, value) for _, variables in SETTINGS for name, value in variables.items()}
    assert {("ATEN_CPU_CAPABILITY", name) for name in ("default", "avx2", "avx512")} <= values
    assert {("ONEDNN_MAX_CPU_ISA", name) for name in ("AVX2", "AVX512_CORE")} <= values
    assert {("MKL_ENABLE_INSTRUCTIONS", "AVX2"), ("OMP_NUM_THREADS", "2"), ("OMP_NUM_THREADS", "4")} <= values
    assert len({label(variables) for _, variables in SETTINGS} | {label({})}) == len(SETTINGS) + 1


def test_settings_reach_torch_and_what_this_processor_cannot_do_is_known() -> None:
    settings = list(possible())
    assert [setting for setting, _ in settings] == [setting for _, setting in SETTINGS]
    assert settings[0] == (SETTINGS[0][1], True)
    told = subprocess.run([sys.executable, "-c", "import torch\nprint(torch.backends.cpu.get_cpu_capability(), "
                           "torch.get_num_threads())"], check=True, text=True, stdout=subprocess.PIPE,
                          env=environment({"ATEN_CPU_CAPABILITY": "default", "OMP_NUM_THREADS": "4",
                                           "MKL_DYNAMIC": "FALSE"})).stdout
    assert told.split() == ["DEFAULT", "4"]
