"""What a step frees stays with the process until the run ends, unless a variable of the environment decides it."""

from __future__ import annotations

import platform
import resource
from pathlib import Path

import pytest

from fresh import Fresh, fresh
from training.kept_runs import a_run, a_trainer, kept

pytestmark = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the setting is one of GNU's C library")
PAGES = (64 << 20) // resource.getpagesize()
"""Of a tensor of 64 MB, more than the C library keeps by itself."""


def test_a_trainer_keeps_what_is_freed(tmp_path: Path) -> None:
    before, after = map(int, fresh(a_trainer, tmp_path, folder=tmp_path).stdout.split())
    assert before > 4 * PAGES and after < PAGES // 10


def test_the_end_of_a_run_returns_it(tmp_path: Path) -> None:
    fetched, grown = map(int, fresh(a_run, tmp_path, folder=tmp_path).stdout.split())
    assert fetched > 4 * PAGES and grown < PAGES // 2


@pytest.mark.parametrize("variable", ["MALLOC_TRIM_THRESHOLD_", "GLIBC_TUNABLES"])
def test_a_users_own_setting_stands(variable: str, tmp_path: Path) -> None:
    ended = Fresh(kept, folder=tmp_path, environment={variable: "131072"}).end()
    assert int(ended.stdout) > 4 * PAGES, ended
