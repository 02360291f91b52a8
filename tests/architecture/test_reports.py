"""What the processes of the tests send of each test to the one that shows it."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

TESTS = Path(__file__).parents[1]


def test_a_worker_sends_calls_and_what_did_not_pass_or_took_long(request: pytest.FixtureRequest,
                                                                 monkeypatch: pytest.MonkeyPatch) -> None:
    for_all: Any = request.config.pluginmanager.get_plugin(str(TESTS / "conftest.py"))
    reports = [SimpleNamespace(when=when, passed=passed, duration=duration) for when, passed, duration in (
        ("setup", True, 0.0), ("setup", True, 1.0), ("setup", False, 0.0), ("call", True, 0.0), ("call", False, 0.0),
        ("teardown", True, 0.0), ("teardown", False, 0.0))]
    monkeypatch.setattr(for_all, "runtestprotocol", lambda item, log, nextitem: reports)
    sent: list[Any] = []
    hooks = SimpleNamespace(pytest_runtest_logreport=lambda report: sent.append(report))
    worker = SimpleNamespace(config=SimpleNamespace(workerinput={}), ihook=hooks)
    assert for_all.pytest_runtest_protocol(worker, None) is True
    assert sent == [*reports[1:5], reports[6]]
    alone = SimpleNamespace(config=SimpleNamespace(), ihook=hooks)
    assert for_all.pytest_runtest_protocol(alone, None) is None and len(sent) == 5
