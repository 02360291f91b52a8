/* The arguments of a causal convolution with a kernel as long as the row, the same in every instruction set and in
 * Python (weft/ops/native_long_convolution.py). `next` counts the pieces of work that threads have taken. */

#ifndef WEFT_LONG_CONVOLUTION_H
#define WEFT_LONG_CONVOLUTION_H

#include <stdint.h>

/* Lags whose gradients are one piece of work. */
#define LAGS 64

/* y_t = sum of kernel_{t-s} u_s over first_t <= s <= t. All contiguous: u, y, dy and du [batch, steps, channels], kernel
 * and dkernel [channels, steps]. `first` [batch, steps] does not decrease along a row, and t + 1 stands for no token;
 * without it all begin at 0. */
typedef struct {
    const float *u, *kernel;
    const int32_t *first;
    float *y;
    const float *dy;
    float *du, *dkernel;
    long batch, steps, channels, next;
} LongConvolution;

#endif
