"""Triton's interpreter in a third of its time, for the files of tests that import this module.

It prepares Triton's language for every call of a function inside a kernel again, though the kernel's call has done so,
and after every sum and product of integers it looks for an overflow, which no GPU does unless it is asked to. For every
result it makes its shape anew, and a table of NumPy's types: here equal shapes are one, and so is the table.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from math import prod
from typing import Any

from weft.ops.triton import library

if library.interpreted():
    from triton import language
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

    _typed, _types = interpreter._get_np_dtype, dict[str, Any]()

    def _known(of: Any) -> Any:
        element = of.element_ty if isinstance(of, language.block_type) else of
        if isinstance(element, language.pointer_type):
            return _typed(element)
        if element.name not in _types:
            _types[element.name] = _typed(element)
        return _types[element.name]

    @cache
    def _shape(shape: tuple[int, ...]) -> tuple[Any, Any]:
        return (language.constexpr(prod(shape)),
                language.tuple([language.constexpr(size) for size in shape]))

    def _made(self: Any, handle: Any, type: Any) -> None:
        self.handle, self.type, self.dtype = handle, type, type.scalar
        self.numel, self.shape = _shape(type.shape if type.is_block() else ())

    _block, _blocks = language.block_type.__init__, dict[tuple[Any, ...], tuple[Any, ...]]()

    def _blocked(self: Any, element: Any, shape: Any) -> None:
        key = (str(element), *[getattr(size, "value", size) for size in shape])
        if key not in _blocks:
            _block(self, element, shape)
            _blocks[key] = self.shape, self.numel, self.name
        self.element_ty = element
        self.shape, self.numel, self.name = _blocks[key]

    interpreter._get_np_dtype, language.tensor.__init__, language.block_type.__init__ = _known, _made, _blocked
    interpreter.InterpretedFunction.__call__ = _quickly
    interpreter.GridExecutor.__call__ = _freshly
    interpreter.interpreter_builder.options = replace(interpreter.interpreter_builder.options, sanitize_overflow=False)
