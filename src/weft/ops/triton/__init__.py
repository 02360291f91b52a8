"""Scans for NVIDIA GPUs in Triton's language, and attention by PyTorch's kernel in it, forward and backward: forms of
the operations that stand.

`kernels` holds the sources for Triton's compiler: it has no ``__init__.py``, since nothing but `library.kernels` may
load them, and that only where `triton` is installed. Beside it lies, for each operation, the file that calls them. A
form asks `library.why_not` and gives the answer as its reason. With ``TRITON_INTERPRET=1`` in the environment Triton
runs the sources on a processor, step by step: so the tests hold these forms to their references where there is no GPU.
"""
