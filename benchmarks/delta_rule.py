"""Time of the delta rule's forms, forward and with gradients, in one run by turns.

    python benchmarks/delta_rule.py [--steps 2048] [--rounds 5]

Prints microseconds for a token of one head, the median over rounds, by form, for decays of none, by head, and by
feature, and for several sizes of heads.
"""

from __future__ import annotations

import argparse
import statistics
import time

import torch

from weft.ops.delta_rule import DELTA_RULE, DeltaRuleCall

FORMS = ("native", "operator", "reference")


def call(steps: int, size: int, decays: int | None, gradients: bool) -> DeltaRuleCall:
    """Two rows of eight heads, as of a network."""
    shape = (2, steps, 8, size)
    a = torch.nn.functional.normalize(torch.randn(shape), dim=-1)
    beta = torch.rand(2, steps, 8, 1)
    decay = None if decays is None else -torch.rand(2, steps, 8, decays) / 10
    tensors = (torch.randn(shape), beta * a, torch.randn(shape), a, -beta * a, decay, torch.zeros(2, 8, size, size))
    return DeltaRuleCall(*(None if x is None else x.requires_grad_(gradients) for x in tensors))


def seconds(form: str, given: DeltaRuleCall, gradients: bool) -> float:
    """Of one call, with its gradients where they are asked for."""
    begin = time.perf_counter()
    with torch.set_grad_enabled(gradients):
        y, after = DELTA_RULE(given, form)
        if gradients:
            torch.autograd.grad(y.sum() + after.sum(), [x for x in given if x is not None])
    return time.perf_counter() - begin


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=2048)
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    print(f"{torch.get_num_threads()} threads, {given.steps} tokens; microseconds for a token of one head")
    for size in (32, 64, 128, 256):
        for decays in (None, 1, size):
            for gradients in (False, True):
                example = call(given.steps, size, decays, gradients)
                times: dict[str, list[float]] = {form: [] for form in FORMS}
                for turn in range(given.rounds + 1):
                    for form in FORMS:
                        taken = seconds(form, example, gradients)
                        times[form] += [taken] if turn else []
                line = "  ".join(f"{form} {statistics.median(each) * 1e6 / (16 * given.steps):8.3f}"
                                 for form, each in times.items())
                print(f"size {size:3}  decays {decays or 0:3}  {'gradients' if gradients else 'forward':9}  {line}",
                      flush=True)


if __name__ == "__main__":
    main()
