/* The arguments of a depthwise causal convolution of a few taps, the same in every instruction set and in Python
 * (weft/ops/native_short_convolution.py). `next` counts the pieces of work that threads have taken. */

#ifndef WEFT_SHORT_CONVOLUTION_H
#define WEFT_SHORT_CONVOLUTION_H

#include <stdint.h>

/* Tokens of a piece of work. */
#define TOKENS 64

/* Tensors of one call, all contiguous: x and dx [batch, (taps - 1) dilation + steps, channels], weight [taps, channels],
 * bias [channels] or none, y and dy [batch, steps, channels].
 *
 * `age` [batch, steps], where it is given, is the number of tokens of the same document before each token, before which
 * no tap reaches. `dweight` is [batch, pieces, taps + 1, channels], to be summed over batch and pieces of TOKENS; its
 * last row is the bias's. Where `silu`, y is silu of the sums; the slope's y is what dy is before it. */
typedef struct {
    const float *x, *weight, *bias;
    const int32_t *age;
    float *y;
    const float *dy;
    float *dx, *dweight;
    long batch, steps, channels, taps, dilation, silu, next;
} Convolution;

#endif
