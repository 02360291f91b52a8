"""Triton's interpreter in two fifths of its time, for the files of tests that import this module.

It prepares Triton's language for every call of a function inside a kernel again, though the kernel's call has done so,
and after every sum and product of integers it looks for an overflow, which no GPU does unless it is asked to.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from weft.ops.triton import library

if library.interpreted():
    from triton.runtime import interpreter

    _call, _launch, _prepared = interpreter.InterpretedFunction.__call__, interpreter.GridExecutor.__call__, set[int]()

    def _quickly(self: Any, *args: Any, **names: Any) -> Any:
        module = id(self.fn.__globals__)
        if module in _prepared:
            return self.rewrite()(*args, **names)
        _prepared.add(module)
        return _call(self, *args, **names)

    def _freshly(self: Any, *args: Any, **names: Any) -> Any:
        _prepared.clear()  # a launch takes back what it has prepared
        return _launch(self, *args, **names)

    interpreter.InterpretedFunction.__call__ = _quickly
    interpreter.GridExecutor.__call__ = _freshly
    interpreter.interpreter_builder.options = replace(interpreter.interpreter_builder.options, sanitize_overflow=False)
