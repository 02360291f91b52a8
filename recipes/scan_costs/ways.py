"""The mixing of tokens by one layer in four ways: a state-space model by recurrence, by a convolution term by term and
by Fourier transforms, which compute the same function, and causal softmax attention of the same width.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType

import torch
from torch import Tensor

from weft.core.clock import Keys
from weft.core.span import WHOLE
from weft.masks import Causal
from weft.masks.visible import MaskFacts, visible
from weft.ops.attention import ATTENTION, AttentionCall
from weft.ops.dense_ssm import DenseSystem, discretise_dense
from weft.ops.forms import REFERENCE
from weft.ops.hippo import hippo_legs
from weft.ops.linear_ssm import linear_ssm
from weft.ops.ssm_chunk import Inputs

CHANNELS, STATE, HEADS = 32, 16, 2


def system() -> DenseSystem:
    """HiPPO-LegS in every channel, in steps from 0.001 to 0.1."""
    a, b, _ = (each.float() for each in hippo_legs(STATE))
    c = torch.randn(CHANNELS, STATE, generator=torch.Generator().manual_seed(0)) / math.sqrt(STATE)
    return discretise_dense(a.repeat(CHANNELS, 1, 1), b.repeat(CHANNELS, 1), c, torch.logspace(-3, -1, CHANNELS),
                            "bilinear")


def state_space(x: Tensor, form: str) -> Tensor:
    """[B,T,H] in one form of the operation ``linear_ssm``."""
    return linear_ssm(Inputs(x, None, True, None, None), system(), form)[0]


def attention(x: Tensor) -> Tensor:
    """[B,T,H] of causal attention whose queries, keys and values are the input, in the form that Weft chooses."""
    heads: Tensor = x.unflatten(-1, (HEADS, -1))
    span = WHOLE.resolve(None, x)
    seen = visible(MaskFacts.of(Causal(), HEADS), Keys.of(span.ticks), span)
    return ATTENTION(AttentionCall(heads, heads, heads, 1 / math.sqrt(heads.shape[-1]), seen)).flatten(2)


WAYS: Mapping[str, Callable[[Tensor], Tensor]] = MappingProxyType({
    "recurrence": partial(state_space, form=REFERENCE), "naive convolution": partial(state_space, form="convolution"),
    "FFT": partial(state_space, form="fft"), "attention": attention})
