"""Angular frequencies of rotary embeddings and their extensions to longer contexts.

Each function gives theta[d/2] in radians per token, d the number of rotated features (not d_head when only a part is
rotated). YaRN and LongRoPE also give the factor that multiplies cos *and* sin, so scores grow by its square.
All compared with transformers' ROPE_INIT_FUNCTIONS (stored numbers); `ntk_aware`, which transformers lacks, by hand.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


def base_frequencies(d: int, base: float = 10000.0) -> Array:
    """theta_i = base^(-2i/d), i = 0 .. d/2 - 1; Su et al. 2021, eq. 15."""
    return np.array([base ** (-2.0 * i / d) for i in range(d // 2)])


def linear(d: int, base: float, factor: float) -> Array:
    """theta_i / s, position interpolation; Chen et al. 2023, section 2.3."""
    return base_frequencies(d, base) / factor


def ntk_aware(d: int, base: float, factor: float) -> Array:
    """The base becomes base s^(d/(d-2)), so that the slowest pair is interpolated by s.

    Peng et al. 2023 (YaRN), section 3.1.
    """
    return base_frequencies(d, base * factor ** (d / (d - 2)))


def dynamic_ntk(d: int, base: float, factor: float, original: int, length: int) -> Array:
    """The base becomes base (s L / L0 - (s - 1))^(d/(d-2)) for L = max(length, L0), L0 the trained length.

    Peng et al. 2023 (YaRN), section 3.3, with transformers' factor s; length is the highest position + 1.
    """
    length = max(length, original)
    return base_frequencies(d, base * (factor * length / original - (factor - 1)) ** (d / (d - 2)))


def yarn(
    d: int,
    base: float,
    factor: float,
    original: int,
    *,
    beta_fast: float = 32.0,
    beta_slow: float = 1.0,
    truncate: bool = True,
    attention_factor: float | None = None,
    mscale: float | None = None,
    mscale_all_dim: float | None = None,
    ramp: str = "dimension",
) -> tuple[Array, float]:
    """theta_i' = (1 - g) theta_i / s + g theta_i with g from 1 (fast pairs) to 0 (slow), and 0.1 ln(s) + 1.

    Peng et al. 2023 (YaRN), sections 3.2 and 3.4; s the factor, L0 = original the trained length. Released code lets g
    fall linearly in the pair's *index* between the pairs that make beta_fast and beta_slow turns within L0
    (ramp="dimension"); the paper's gamma makes g linear in the number of turns r = L0 theta_i / 2 pi
    (ramp="rotations", truncate then has no meaning). DeepSeek's ratio of mscale replaces the factor if both are set.
    """
    theta = base_frequencies(d, base)
    keep = (
        _yarn_by_dimension(d, base, original, beta_fast, beta_slow, truncate)
        if ramp == "dimension"
        else [_clamp((original * f / (2 * math.pi) - beta_slow) / (beta_fast - beta_slow)) for f in theta]
    )
    scaled = np.array([(1 - g) * f / factor + g * f for g, f in zip(keep, theta, strict=True)])
    if attention_factor is None:
        if mscale and mscale_all_dim:
            attention_factor = _temperature(factor, mscale) / _temperature(factor, mscale_all_dim)
        else:
            attention_factor = _temperature(factor, 1.0)
    return scaled, attention_factor


def _yarn_by_dimension(
    d: int, base: float, original: int, beta_fast: float, beta_slow: float, truncate: bool
) -> list[float]:
    def index_with_turns(turns: float) -> float:
        return d * math.log(original / (turns * 2 * math.pi)) / (2 * math.log(base))

    low, high = index_with_turns(beta_fast), index_with_turns(beta_slow)
    if truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, d - 1)
    if low == high:
        high += 0.001
    return [1.0 - _clamp((i - low) / (high - low)) for i in range(d // 2)]


def _clamp(x: float) -> float:
    return min(max(x, 0.0), 1.0)


def _temperature(factor: float, mscale: float) -> float:
    return 1.0 if factor <= 1.0 else 0.1 * mscale * math.log(factor) + 1.0


def llama3(
    d: int, base: float, factor: float, original: int, low_freq_factor: float = 1.0, high_freq_factor: float = 4.0
) -> Array:
    """Wavelengths above L0/low are divided by s, below L0/high left alone, blended in 1/wavelength between.

    Llama 3.1's released model code; cos and sin are unscaled.
    """
    out = []
    for f in base_frequencies(d, base):
        wavelength = 2 * math.pi / f
        if wavelength < original / high_freq_factor:
            out.append(f)
        elif wavelength > original / low_freq_factor:
            out.append(f / factor)
        else:
            blend = (original / wavelength - low_freq_factor) / (high_freq_factor - low_freq_factor)
            out.append((1 - blend) * f / factor + blend * f)
    return np.array(out)


def longrope(
    d: int,
    base: float,
    short_factor: Sequence[float],
    long_factor: Sequence[float],
    original: int,
    extended: int,
    length: int,
    attention_factor: float | None = None,
) -> tuple[Array, float]:
    """theta_i / lambda_i, lambda the long list when length > original, else the short one; Ding et al. 2024, section 3.

    length is the highest position + 1 of this row; the attention factor is sqrt(1 + ln s / ln L0) with
    s = extended / original, 1 when s <= 1, and does not depend on length.
    """
    factors = long_factor if length > original else short_factor
    theta = np.array([f / lam for f, lam in zip(base_frequencies(d, base), factors, strict=True)])
    scale = extended / original
    if attention_factor is None:
        attention_factor = math.sqrt(1.0 + math.log(scale) / math.log(original)) if scale > 1.0 else 1.0
    return theta, attention_factor
