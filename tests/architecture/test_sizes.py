"""Files and functions stay small, parts have few fields, and what is public says what it is."""

from __future__ import annotations

import ast
import importlib
import inspect
import pkgutil
from collections.abc import Iterator
from pathlib import Path

import pytest

import weft
from architecture.sources import parsed, walked
from weft.core.part_config import PartConfig
from weft.core.registry import REGISTRY

REPOSITORY = Path(__file__).parents[2]
FILE_LINES, FUNCTION_LINES, WANTED_LINES, FIELDS = 400, 80, 40, 10

MANY_FIELDS: dict[str, str] = {
    "encoder.image_encoder": "its images, patches and blocks, and the head and rewrites of every model",
    "encoder.encoder": "its blocks and what stands before and behind them, and the head and rewrites of every model",
    "model.decoder": "its blocks and what stands before and behind them, and the head and rewrites of every model",
    "mixer.attention": "each is a stage of its own: four sizes, position, norm, mask, scale, cap, clip, dropout",
    "mixer.latent_attention": "two latents and three parts of a head, each a size of its own; the rest as attention",
    "mixer.gated_attention": "attention's",
    "mixer.global_attention": "attention's, and which tokens are global",
    "mixer.zero_memory_attention": "attention's",
    "mixer.unprojected_attention": "attention's, and what is not projected",
    "optimizer.muon": "two optimisers: four fields that each has, five of its own, and AdamW's three",
    "model.encoder_decoder": "the decoder's nine, and the two that say its source side",
}
"""Parts with more than ten fields, each with the reason."""

LONG_FUNCTIONS: dict[str, str] = {
    "src/weft/interop/convert.py:convert": "half of it says what its nine arguments mean",
    "src/weft/api/models.py:convert": "half of it says what its eleven arguments mean and what it raises",
    "src/weft/api/training.py:compare": "half of it says what its eleven arguments mean and what it raises",
    "src/weft/api/judging.py:verdict_against": "half of it says what its eleven arguments mean and what it raises",
    "src/weft/api/benchmarking.py:benchmark": "half of it says what its eleven arguments mean and what it raises",
    "src/weft/cli/generate.py:generate": "half of it is the options of the command",
    "src/weft/cli/compare.py:compare": "half of it is the options of the command",
    "src/weft/interop/verify.py:foreign_logits": "half of it says what becomes of a library that cannot read or run it",
    "src/weft/interop/huggingface/bundled/modeling_weft.py:forward":
        "half of it says what the twelve arguments of an encoder-decoder mean",
    "src/weft/cli/convert.py:convert": "half of it is the options of the command",
    "src/weft/cli/extend.py:extend": "half of it is the options of the command",
    "src/weft/cli/rate.py:rate": "half of it is the options of the command",
    "src/weft/cli/score.py:score": "half of it is the options of the command",
    "src/weft/cli/evaluate.py:evaluate": "half of it is the options of the command",
    "src/weft/cli/judge.py:judge": "half of it is the options of the command",
    "src/weft/cli/plan.py:plan": "half of it is the options of the command",
    "src/weft/cli/train.py:train": "half of it is the options of the command",
    "src/weft/cli/serve.py:serve": "half of it is the options of the command",
    "src/weft/server/serve_model.py:serve": "half of it says what its arguments mean and what it raises",
    "src/weft/server/running.py:run": "a class of uvicorn, which is imported when a server runs, stands in it",
    "src/weft/server/running.py:_connection": "a class of uvicorn, which is imported when a server runs, stands in it",
    "src/weft/core/tree.py:map_together": "each of its branches is one kind of field",
    "src/weft/extending/extend.py:extend": "half of it says what its arguments mean and what it raises",
    "src/weft/decoding/generate.py:stream": "half of it says what its eleven arguments mean",
    "src/weft/training/run_training.py:train": "half of it says what its arguments mean and what it raises",
    "src/weft/ops/operator.py:differentiable": "a third of it says what its arguments mean",
    "src/weft/ops/triton/kernels/delta_rule.py:solve": "one program, whose inverse serves all that tokens read",
    "src/weft/ops/triton/kernels/delta_rule_slopes.py:solve_backward": "a third of it is where its tensors begin",
    "src/weft/ops/triton/kernels/linear_recurrence.py:backward": "one program, whose scores serve all gradients",
    "src/weft/ops/triton/kernels/wkv.py:backward": "one program, which keeps its states in registers",
    "src/weft/ops/triton/kernels/selective_scan.py:backward": "one program, which keeps its states in registers",
    "src/weft/ops/triton/kernels/query_attention.py:partial": "one program, whose arguments take eleven of its lines",
    "tests/oracles/attention.py:multi_head_attention": "a signature of 20 lines, so that each stage can be left out",
    "tests/oracles/finite_difference.py:gradient_errors": "a docstring that says what its errors are relative to",
}
"""Functions of more than 40 lines, as ``path:name``, each with the reason; none may have more than 80."""


def files() -> list[Path]:
    return sorted([*(REPOSITORY / "src").rglob("*.py"), *(REPOSITORY / "tests").rglob("*.py")])


def functions(tree: ast.Module) -> Iterator[tuple[str, int]]:
    for node in walked(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.name, (node.end_lineno or node.lineno) - node.lineno + 1


def test_no_file_has_more_than_400_lines() -> None:
    long = {str(path.relative_to(REPOSITORY)): lines for path in files()
            if (lines := len(path.read_text(encoding="utf-8").splitlines())) > FILE_LINES}
    assert long == {}


def test_functions_are_short_and_exceptions_are_listed() -> None:
    found = {f"{path.relative_to(REPOSITORY)}:{name}": lines for path in files()
             for name, lines in functions(parsed(path)) if lines > WANTED_LINES}
    assert {name: lines for name, lines in found.items() if lines > FUNCTION_LINES} == {}
    assert set(found) == set(LONG_FUNCTIONS), "list a long function with its reason, or take a short one off the list"


def test_long_functions_would_be_found() -> None:
    tree = ast.parse("def f():\n" + "    x = 1\n" * 90)
    assert list(functions(tree)) == [("f", 91)]


@pytest.mark.parametrize("part", [pytest.param(part, id=f"{part.group}.{part.kind}") for part in REGISTRY.parts()])
def test_a_part_has_few_fields_a_source_and_a_docstring(part: type[PartConfig]) -> None:
    assert (len(part.model_fields) > FIELDS) == (f"{part.group}.{part.kind}" in MANY_FIELDS)
    assert part.about.source.strip()
    assert (part.__doc__ or "").strip()
    assert "__doc__" in vars(part)
    assert part.examples()


def modules() -> list[str]:
    return ["weft", *(info.name for info in pkgutil.walk_packages(weft.__path__, "weft."))]


def undocumented(tree: ast.Module, module: object) -> Iterator[str]:
    """Public classes and functions without a docstring; a method may inherit that of the method it overrides."""
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and not node.name.startswith("_"):
            if not ast.get_docstring(node):
                yield node.name
            if isinstance(node, ast.ClassDef):
                owner = getattr(module, node.name)
                yield from (f"{node.name}.{item.name}" for item in node.body
                            if isinstance(item, ast.FunctionDef | ast.AsyncFunctionDef)
                            and not item.name.startswith("_") and not inspect.getdoc(getattr(owner, item.name)))


def test_everything_public_says_what_it_is() -> None:
    silent = []
    for name in modules():
        module = importlib.import_module(name)
        tree = parsed(Path(str(module.__file__)))
        silent += [name] if tree.body and not ast.get_docstring(tree) else []
        silent += [f"{name}: {each}" for each in undocumented(tree, module)]
    assert silent == []


def test_what_says_nothing_would_be_found() -> None:
    source = "class A:\n    def b(self):\n        pass\n\ndef c():\n    pass\n\ndef _d():\n    pass\n"
    module = type(ast)("made_up")
    vars(module).update({"A": type("A", (), {"b": lambda self: None}), "c": lambda: None})
    assert list(undocumented(ast.parse(source), module)) == ["A", "A.b", "c"]
