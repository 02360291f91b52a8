"""Requests drawn from ``/openapi.json``, sound and broken: never a 5xx, and no answer but those that are described.

``WEFT_SERVE_CASES`` sets how many are drawn for each endpoint; ``make test-serve`` draws 10,000 in all.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from server.fake_engine import model
from server.test_bodies import PLAIN
from server.test_process import Process
from weft.checkpoints import save_checkpoint
from weft.server.app import ENDPOINTS
from weft.tokenizers import ByteTokenizer, Conventions

CASES = int(os.environ.get("WEFT_SERVE_CASES", "25"))


@pytest.fixture(scope="module")
def document(tmp_path_factory: pytest.TempPathFactory) -> Iterator[schemathesis.BaseSchema]:
    """The document of a server that runs."""
    folder = tmp_path_factory.mktemp("fuzzed") / "tiny"
    save_checkpoint(folder, model(), ByteTokenizer().with_conventions(Conventions(chat_templates={"default": PLAIN})))
    server = Process(folder, "--context", "24")
    yield schemathesis.openapi.from_url(f"http://127.0.0.1:{server.port}/openapi.json")
    server.process.send(signal.SIGTERM)
    ended = server.process.end(30)
    assert ended.returncode == 0 and "Traceback" not in ended.stderr, ended.stderr


@pytest.mark.parametrize("path", [each.path for each in ENDPOINTS if each.body is not None or "{" in each.path])
def test_every_answer_is_one_that_is_described(document: schemathesis.BaseSchema, path: str) -> None:
    operation = document[path]["POST" if "{" not in path else "GET"]

    @given(st.one_of(operation.as_strategy(generation_mode=mode) for mode in schemathesis.GenerationMode))
    @settings(max_examples=CASES, deadline=None, suppress_health_check=list(HealthCheck), database=None,
              derandomize=True, phases=[Phase.generate])
    def ask(case: schemathesis.Case) -> None:
        case.validate_response(case.call(), checks=[not_a_server_error, content_type_conformance,
                                                    status_code_conformance, response_schema_conformance])

    ask()
