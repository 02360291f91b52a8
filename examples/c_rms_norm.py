"""A form from outside Weft: root-mean-square normalisation in C, with its gradient.

    weft train transformer --plugin examples/c_rms_norm.py
    weft plan transformer --plugin examples/c_rms_norm.py --kernels rms_norm=c

The file holds C code, which the system's compiler makes a library of when the plugin is loaded, two operators that call
it, their shapes and their gradient, and the form, which says where it can serve. Weft holds it to the naive form
(``weft.ops.form_check``), counts it, shows it in ``weft plan`` and ``weft doctor``, and takes it in training, decoding
and compiled graphs.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from weft.core.errors import UnsupportedError
from weft.ops.forms import Form
from weft.ops.norms import RMS_NORM, RMSNormCall
from weft.ops.operator import again, differentiate, operator

SOURCE = """
#include <math.h>

#define FORMS(real, root, name)                                                                                  \\
void forward_##name(const real *x, const real *scale, double eps, long rows, long size, real *y, real *r) {      \\
    for (long i = 0; i < rows; i++, x += size, y += size) {                                                      \\
        real sum = 0;                                                                                            \\
        for (long j = 0; j < size; j++) sum += x[j] * x[j];                                                      \\
        r[i] = 1 / root(sum / size + (real)eps);                                                                 \\
        for (long j = 0; j < size; j++) y[j] = x[j] * r[i] * (scale ? scale[j] : 1);                             \\
    }                                                                                                            \\
}                                                                                                                \\
void backward_##name(const real *dy, const real *x, const real *scale, const real *r, long rows, long size,      \\
                     real *dx, real *dscale) {                                                                   \\
    for (long i = 0; i < rows; i++, x += size, dy += size, dx += size) {                                         \\
        real along = 0;                                                                                          \\
        for (long j = 0; j < size; j++) {                                                                        \\
            real n = x[j] * r[i];                                                                                \\
            along += dy[j] * (scale ? scale[j] : 1) * n;                                                         \\
            if (scale) dscale[j] += dy[j] * n;                                                                   \\
        }                                                                                                        \\
        along /= size;                                                                                           \\
        for (long j = 0; j < size; j++)                                                                          \\
            dx[j] = (dy[j] * (scale ? scale[j] : 1) - x[j] * r[i] * along) * r[i];                               \\
    }                                                                                                            \\
}

FORMS(float, sqrtf, float32)
FORMS(double, sqrt, float64)
"""
COMPILERS = ("cc", "gcc", "clang")


def compiled(source: str) -> ctypes.CDLL:
    """The library that the system's C compiler makes of ``source``.

    Raises:
        UnsupportedError: there is no compiler, or it fails.
    """
    names = [os.environ["CC"]] if os.environ.get("CC") else list(COMPILERS)
    compiler = next((path for path in map(shutil.which, names) if path), None)
    if compiler is None:
        raise UnsupportedError(f"the plugin's C code needs a C compiler, and none of {', '.join(names)} is here.",
                               where=__file__, remedy="Install one, name one in the variable CC, or leave the plugin "
                               "out: the other forms need none.")
    with tempfile.TemporaryDirectory() as folder:
        code, library = Path(folder) / "form.c", Path(folder) / "form.so"
        code.write_text(source, encoding="utf-8")
        done = subprocess.run([compiler, "-O3", "-shared", "-fPIC", "-o", str(library), str(code), "-lm"],
                              capture_output=True, text=True, check=False)
        if done.returncode:
            raise UnsupportedError(f"the C compiler {compiler} fails: {done.stderr.strip()}", where=__file__,
                                   remedy="Correct the code, or name another compiler in the variable CC.")
        return ctypes.CDLL(str(library))


LIBRARY = compiled(SOURCE)


def call(name: str, dtype: torch.dtype, *arguments: Tensor | float | int | None) -> None:
    """The C function for numbers of ``dtype``; tensors are given by their addresses."""
    function = getattr(LIBRARY, f"{name}_{str(dtype).removeprefix('torch.')}")
    function.restype = None
    function(*[ctypes.c_void_p(None if x is None else x.data_ptr()) if x is None or isinstance(x, Tensor)
              else ctypes.c_double(x) if isinstance(x, float) else ctypes.c_long(x) for x in arguments])


def forward(x: Tensor, scale: Tensor | None, eps: float) -> tuple[Tensor, Tensor]:
    """y, and for the backward pass 1 / sqrt(mean(x^2) + eps) of every vector."""
    x, scale = x.contiguous(), None if scale is None else scale.contiguous()
    y, r = torch.empty_like(x), x.new_empty(x.shape[:-1])
    call("forward", x.dtype, x, scale, eps, r.numel(), x.shape[-1], y, r)
    return y, r


def forward_shapes(x: Tensor, scale: Tensor | None, eps: float) -> tuple[Tensor, Tensor]:
    return x.new_empty(x.shape), x.new_empty(x.shape[:-1])


def backward(dy: Tensor, x: Tensor, scale: Tensor | None, r: Tensor) -> tuple[Tensor, Tensor]:
    """The gradients of x and of the scale; of no scale, an empty one."""
    dy, x, scale = dy.contiguous(), x.contiguous(), None if scale is None else scale.contiguous()
    dx = torch.empty_like(x)
    dscale = x.new_empty(0) if scale is None else torch.zeros_like(scale)
    call("backward", x.dtype, dy, x, scale, r, r.numel(), x.shape[-1], dx, None if scale is None else dscale)
    return dx, dscale


def backward_shapes(dy: Tensor, x: Tensor, scale: Tensor | None, r: Tensor) -> tuple[Tensor, Tensor]:
    return x.new_empty(x.shape), x.new_empty(0 if scale is None else scale.shape)


def save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(*inputs[:2], output[1])
    ctx.eps = inputs[2]


def gradient(ctx: Any, dy: Tensor | None, dr: Tensor | None) -> tuple[Tensor | None, ...]:
    x, scale, r = ctx.saved_tensors
    if dy is None:
        return None, None, None
    if torch.is_grad_enabled():  # second derivatives are wanted: the naive form has them
        naive = RMS_NORM.form("reference").run
        return *again(lambda x, scale: naive(RMSNormCall(x, scale, ctx.eps)), [x, scale], dy), None
    dx, dscale = own_backward(dy, x, scale, r)
    return dx, None if scale is None else dscale, None


own_forward = operator("c_rms_norm::forward", forward, forward_shapes)
own_backward = operator("c_rms_norm::backward", backward, backward_shapes)
differentiate("c_rms_norm::forward", gradient, save)


def run(call: RMSNormCall) -> Tensor:
    """The form."""
    y: Tensor = own_forward(*call)[0]
    return y


def serves(call: RMSNormCall) -> str | None:
    """Why a call cannot be served."""
    if call.scale is not None and call.scale.dtype != call.x.dtype:
        return "its scale is of another dtype"
    return None


# Weft counts products and transforms, and element-wise work as nothing; 0 says so of operators that it does not know.
RMS_NORM.add(Form("c", run, "a loop in C, compiled on this machine", devices=frozenset({"cpu"}),
                  dtypes=frozenset({torch.float32, torch.float64}), transformed=False, serves=serves,
                  flops={f"c_rms_norm.{name}": lambda *_: 0 for name in ("forward", "backward")},
                  known_as=("native",)))
