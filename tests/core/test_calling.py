"""Modules that are called straight do all that torch's own call does."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.modules import module as torch_module
from torch.nn.utils import parametrize

from weft.core.base_model import parse_model
from weft.core.compiling import Direct, calls_forward_alone
from weft.core.model import LanguageModel


class Straight(Direct):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor([2.0, 3.0]))

    def forward(self, x: Tensor, shift: float = 0.0) -> Tensor:
        return x * self.weight + shift


class Plain(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor([2.0, 3.0]))

    def forward(self, x: Tensor, shift: float = 0.0) -> Tensor:
        return x * self.weight + shift


X = torch.tensor([1.0, -4.0])
KINDS: list[type[nn.Module]] = [Straight, Plain]


def functions(call: Callable[[], object]) -> Counter[str]:
    """Names of the Python functions that a call comes to."""
    found: Counter[str] = Counter()

    def count(frame: FrameType, event: str, _argument: object) -> None:
        if event == "call":
            found[frame.f_code.co_name] += 1

    sys.setprofile(count)
    try:
        call()
    finally:
        sys.setprofile(None)
    return found


def test_a_call_goes_to_forward_at_once() -> None:
    module = Straight()
    found = functions(lambda: module(X, shift=1.0))
    assert found["forward"] == 1 and found["_call_impl"] == found["_wrapped_call_impl"] == 0
    assert torch.equal(module(X, shift=1.0), torch.tensor([3.0, -11.0]))


def test_torch_asks_for_nothing_else_before_it_calls_forward() -> None:
    """What `Direct` reads is all that torch's own call reads: a version that asks for more is met here."""
    code = nn.Module._call_impl.__code__
    asked = {name for name in (*code.co_names, *nn.Module._wrapped_call_impl.__code__.co_names)
             if name.endswith(("_hooks", "_impl", "_state"))}
    read = {*Direct.__call__.__code__.co_names, "_call_impl"}
    later = {name for name in asked - read if not name.startswith(("_global", "_forward", "_backward", "_get"))}
    assert asked >= {"_forward_hooks", "_backward_hooks", "_global_forward_hooks", "_compiled_call_impl"}
    assert not later and "_slow_forward" in code.co_names


def seen_by(register: Callable[[Callable[..., None]], Any]) -> list[str]:
    """Which of the two kinds of module a hook is called with, forward and backward."""
    names: list[str] = []
    handle = register(lambda module, *_: names.append(type(module).__name__))
    try:
        for kind in KINDS:
            module = kind()
            module(X.clone().requires_grad_()).sum().backward()
    finally:
        handle.remove()
    return names


GLOBAL = [torch_module.register_module_forward_hook, torch_module.register_module_forward_pre_hook,
          torch_module.register_module_full_backward_hook, torch_module.register_module_full_backward_pre_hook]


@pytest.mark.parametrize("register", GLOBAL, ids=lambda each: each.__name__)
def test_global_hooks_are_called(register: Any) -> None:
    assert seen_by(register) == ["Straight", "Plain"]


OWN = ["register_forward_hook", "register_forward_pre_hook", "register_full_backward_hook",
       "register_full_backward_pre_hook"]


@pytest.mark.parametrize("name", OWN)
def test_hooks_of_its_own_are_called_and_then_gone(name: str) -> None:
    module, count = Straight(), Counter[str]()
    handle = getattr(module, name)(lambda *_: count.update(["hook"]))
    module(X.clone().requires_grad_()).sum().backward()
    assert count["hook"] == 1
    handle.remove()
    module(X.clone().requires_grad_()).sum().backward()
    assert count["hook"] == 1


def test_a_hook_changes_arguments_and_results() -> None:
    module = Straight()
    module.register_forward_pre_hook(lambda _, args, kwargs: (args, {**kwargs, "shift": 10.0}), with_kwargs=True)
    module.register_forward_hook(lambda _, args, result: -result)
    assert torch.equal(module(X), torch.tensor([-12.0, 2.0]))


def test_a_compiled_form_is_called() -> None:
    module, graphs = Straight(), list[int]()

    def backend(graph: torch.fx.GraphModule, _inputs: Any) -> Any:
        graphs.append(len(graph.graph.nodes))
        return graph.forward

    module.compile(backend=backend)
    assert torch.equal(module(X), Plain()(X)) and len(graphs) == 1


def test_the_compiler_traces_through_it_with_its_hooks() -> None:
    module, graphs = nn.Sequential(Straight(), Straight()), list[int]()

    def backend(graph: torch.fx.GraphModule, _inputs: Any) -> Any:
        graphs.append(len(graph.graph.nodes))
        return graph.forward

    compiled = torch.compile(module, backend=backend, fullgraph=True)
    assert torch.equal(compiled(X), module(X)) and torch.equal(compiled(2 * X), module(2 * X))
    assert len(graphs) == 1
    module[0].register_forward_hook(lambda _, args, result: -result)  # what is compiled already does not look again
    hooked = torch.compile(nn.Sequential(module), backend=backend, fullgraph=True)
    assert torch.equal(hooked(X), module(X)) and not torch.equal(hooked(X), compiled(X))


def test_tracers_see_the_modules() -> None:
    nested = nn.Sequential(Straight(), nn.Sequential(Straight()))
    graph = torch.fx.Tracer().trace(nested)
    assert [node.op for node in graph.nodes].count("call_function") == 4

    class Leaves(torch.fx.Tracer):
        def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
            return isinstance(m, Straight)

    assert [node.target for node in Leaves().trace(nested).nodes if node.op == "call_module"] == ["0", "1.0"]
    exported = torch.export.export(nested, (X,))
    assert torch.equal(exported.module()(X), nested(X))
    stacks = [node.meta["nn_module_stack"] for node in exported.graph.nodes if node.op == "call_function"]
    assert {path for stack in stacks for path, _ in stack.values()} >= {"0", "1.0"}


def test_torch_jit_traces_the_modules() -> None:
    with pytest.warns(DeprecationWarning):
        traced = torch.jit.trace(nn.Sequential(Straight()), (X,))
    assert torch.equal(traced(X), Straight()(X)) and len(list(traced.named_children())) == 1


@contextmanager
def replaced(module: nn.Module, forward: Callable[..., Tensor]) -> Iterator[None]:
    module.forward = forward  # type: ignore[method-assign]
    try:
        yield
    finally:
        del module.forward


def test_a_forward_of_its_own_is_called() -> None:
    module = Straight()
    with replaced(module, lambda x: x + 1):
        assert torch.equal(module(X), X + 1)
    assert torch.equal(module(X), Plain()(X))


def test_other_parameters_are_those_that_are_given() -> None:
    module, weight = Straight(), torch.tensor([5.0, 7.0])
    assert torch.equal(torch.func.functional_call(module, {"weight": weight}, (X,)), X * weight)
    gradient = torch.func.grad(lambda w: torch.func.functional_call(module, {"weight": w}, (X,)).sum())(weight)
    assert torch.equal(gradient, X)


def test_a_parametrisation_is_worked_out() -> None:
    class Double(nn.Module):
        def forward(self, weight: Tensor) -> Tensor:
            return 2 * weight

    module = Straight()
    parametrize.register_parametrization(module, "weight", Double())
    assert torch.equal(module(X), 2 * Plain()(X))


@pytest.mark.parametrize("hook", ["register_forward_hook", "register_forward_pre_hook", "register_full_backward_hook",
                                  "register_full_backward_pre_hook"])
def test_a_module_that_calls_more_than_its_forward_says_so(hook: str) -> None:
    table = nn.Embedding(3, 2)
    assert calls_forward_alone(table)
    handle = getattr(table, hook)(lambda *_: None)
    assert not calls_forward_alone(table)
    handle.remove()
    assert calls_forward_alone(table)
    table.forward = lambda numbers: numbers  # type: ignore[method-assign]
    assert not calls_forward_alone(table)


def test_a_module_says_so_of_hooks_of_all_modules_and_of_a_compiled_form() -> None:
    table = nn.Embedding(3, 2)
    handle = torch_module.register_module_forward_hook(lambda *_: None)
    try:
        assert not calls_forward_alone(table)
    finally:
        handle.remove()
    table.compile(backend="eager")
    assert not calls_forward_alone(table)


def test_the_table_of_a_decoder_is_called_where_something_is_hooked_to_it() -> None:
    block = {"kind": "pre", "layers": [{"kind": "mlp", "d_ff": 3}]}
    model = parse_model({"kind": "decoder", "vocab_size": 5, "d_model": 4, "blocks": [block]}).build().eval()
    tokens, calls = torch.tensor([[1, 3]]), list[int]()
    assert isinstance(model, LanguageModel)
    with torch.inference_mode():
        plain = model.hidden(tokens).y
        table = model.get_submodule("embedding.tokens")
        handle = table.register_forward_hook(lambda _module, _given, y: calls.append(1) or 2 * y)
        doubled = model.hidden(tokens).y
        handle.remove()
        assert calls == [1] and not torch.equal(doubled, plain) and torch.equal(model.hidden(tokens).y, plain)
        table.max_norm = 1e-3  # type: ignore[assignment]  # PyTorch's lookup writes the rows that it shortens
        model.hidden(tokens)
    assert table.get_parameter("weight")[[1, 3]].norm(dim=-1).max() < 1.01e-3
