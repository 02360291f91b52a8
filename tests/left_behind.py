"""What a file of tests leaves behind, which the files after it in the same process would find.

Compared is what a test can change for others: the registries of parts, masks and operations, the laws, the environment,
the current directory, what Python and torch are set to, handlers of signals, limits, logging, and processes that still
run. Warnings' filters are not: pytest takes them back after each test. Reading it all takes about a millisecond.
"""

from __future__ import annotations

import gc
import logging
import multiprocessing
import os
import resource
import signal
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

SET_BY_LIBRARIES = ("PYTEST_CURRENT_TEST", "CUBLAS_WORKSPACE_CONFIG", "TORCH", "_TORCH", "TRITON_", "CUDA_", "KINETO_",
                    "KMP_", "TF_", "GRPC_")
"""How variables begin that pytest, and libraries at their first use, set by themselves, to the same value whichever
file comes first; `weft.training.compute` sets that of cuBLAS, which is read once in a process."""

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGALRM)
LIMITS = {"RLIMIT_FSIZE": resource.RLIMIT_FSIZE, "RLIMIT_AS": resource.RLIMIT_AS}
UNTOUCHED = (logging.NOTSET, False, True, [])
"""Level, switches and handlers of a logger that nobody has set; it may appear at any time."""


def surroundings() -> dict[str, Mapping[str, Any]]:
    """Everything compared, by what it is called in an error: names and values."""
    return {**_registries(), "environment variable": {name: value for name, value in os.environ.items()
                                                      if not name.startswith(SET_BY_LIBRARIES)},
            "setting of Python": _python(), "setting of torch": _torch(), "logger": _logging(),
            "process": {str(child.pid): child.name for child in multiprocessing.active_children()}}


def left_behind(before: Mapping[str, Mapping[str, Any]], after: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """What differs, one line each. Laws are all Weft's own, and may have been imported in between."""
    return [line for kind, values in after.items() if kind in before or kind != "law"
            for line in _differences(kind, before.get(kind, {}), values)]


def _differences(kind: str, before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[str]:
    for name in sorted({*before, *after}):
        if name not in after:
            yield f"the {kind} {name} is gone"
        elif name not in before:
            yield f"the {kind} {name} is new: {after[name]}"
        elif before[name] != after[name]:
            yield f"the {kind} {name} was {before[name]} and is {after[name]}"


def _registries() -> dict[str, Mapping[str, Any]]:
    """Entries that do not come from Weft's own modules, which may be imported at any time; and what is forced."""
    found: dict[str, Mapping[str, Any]] = {"file loaded as a plugin": {
        name: "a module" for name in sys.modules if name.startswith("weft_plugin_")}}
    if registry := sys.modules.get("weft.core.registry"):
        found["part"] = {f"{group}.{kind}": part.__module__ for group, kinds in registry.REGISTRY._parts.items()
                         for kind, part in kinds.items() if not part.__module__.startswith("weft.")}
    if masks := sys.modules.get("weft.masks.expression"):
        found["mask"] = {kind: mask.__module__ for kind, mask in masks.MASKS.items()
                         if not mask.__module__.startswith("weft.")}
    if forms := sys.modules.get("weft.ops.forms"):
        operations = forms.OPERATIONS._known
        found["operation"] = {name: each.file for name, each in operations.items() if not _own(each.file)}
        found["form"] = {f"{name}.{form.name}": form.file for name, each in list(operations.items())
                         for form in each.forms() if not _own(form.file)}
        found["forced or observed operation"] = {name: "in use" for name, each in list(operations.items())
                                                 if each.forced is not None or each._seen is not None}
    if run := sys.modules.get("weft.laws.run"):
        found["law"] = {name: law.__module__ for name, law in run.LAWS.items()}
    return found


def _own(file: str) -> bool:
    """Whether a file is of the package that is tested, wherever that lies."""
    return Path(file).is_relative_to(Path(str(sys.modules["weft"].__file__)).parent)


def _python() -> dict[str, Any]:
    handlers = {f"handler of {number.name}": signal.getsignal(number) for number in SIGNALS}
    limits = {name: resource.getrlimit(number) for name, number in LIMITS.items()}
    # The compiler's libraries add a folder of their own packages.
    paths = [path for path in sys.path if "site-packages" not in path]
    return {"the current directory": os.getcwd(), "the search for cycles": (gc.isenabled(), gc.get_threshold()),
            "sys.argv": list(sys.argv), "sys.path": paths, **handlers, **limits}


def _torch() -> dict[str, Any]:
    return {"the default dtype": torch.get_default_dtype(), "the default device": torch.get_default_device(),
            "the number of threads": torch.get_num_threads(), "gradients": torch.is_grad_enabled(),
            "inference mode": torch.is_inference_mode_enabled(), "anomaly mode": torch.is_anomaly_enabled(),
            "deterministic algorithms": (torch.are_deterministic_algorithms_enabled(),
                                         torch.is_deterministic_algorithms_warn_only_enabled()),
            "products in float32": torch.get_float32_matmul_precision(), "oneDNN": torch.backends.mkldnn.enabled,
            "a process group": torch.distributed.is_available() and torch.distributed.is_initialized()}


def _logging() -> dict[str, Any]:
    """Levels, switches and handlers of Weft's loggers; of the root, to which libraries add handlers, its levels."""
    known = {name: each for name, each in logging.root.manager.loggerDict.items()
             if name.split(".")[0] == "weft" and isinstance(each, logging.Logger)}
    found = {name: (each.level, each.disabled, each.propagate, list(each.handlers)) for name, each in known.items()}
    return {"root": (logging.root.level, logging.root.manager.disable),
            **{name: values for name, values in found.items() if values != UNTOUCHED}}
