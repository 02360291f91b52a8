"""Slow, obvious NumPy references, one idea per file, written from the papers' equations.

The fast parts are tested against them: values directly, gradients by `finite_difference`. They import nothing but
NumPy, `math` and each other. Layouts: weights as in `torch.nn.Linear`, W[out, in] and y = x W^T + b; one sequence
x[T, D] without a batch dimension unless stated; positions and time steps count from 0.
"""
