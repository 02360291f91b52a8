/* Functions of vectors that gates and steps are made with. */

#ifndef WEFT_ACTIVATIONS_H
#define WEFT_ACTIVATIONS_H

#include "vectors.h"

#define LOG2_E 1.4426950408889634f

/* sigmoid(x), and exp(-|x|), which is at most 1. */
INLINE vec sigmoid(vec x, vec *falling) {
    const vec far = larger(-x, x);
    *falling = exp2_of(far * -LOG2_E);
    return chosen((ints)(x < 0), *falling, all(1)) * inverse(*falling + 1);
}

/* log(1 + z) for z from 0 to 1: 2 artanh(s) with s = z / (2 + z) of at most 1/3, by its series up to s^13. */
INLINE vec log1p_of(vec z) {
    const vec s = z * inverse(z + 2), q = s * s;
    vec y = q * (1.0f / 13) + 1.0f / 11;
    y = y * q + 1.0f / 9;
    y = y * q + 1.0f / 7;
    y = y * q + 1.0f / 5;
    y = y * q + 1.0f / 3;
    return 2 * s + 2 * s * q * y;
}

/* x sigmoid(x). */
INLINE vec silu_of(vec x) {
    vec falling;
    return x * sigmoid(x, &falling);
}

/* log(1 + exp(x)). */
INLINE vec softplus_of(vec x) {
    vec falling = exp2_of(larger(x, -x) * -LOG2_E);
    return larger(all(0), x) + log1p_of(falling);
}

#endif
