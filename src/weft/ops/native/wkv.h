/* The arguments of RWKV-4's decaying mean, the same in every instruction set and in Python (weft/ops/native_wkv.py).
 * `next` counts the pieces of work that threads have taken. */

#ifndef WEFT_WKV_H
#define WEFT_WKV_H

#include <stdint.h>

/* Tensors of one call, all contiguous: k, v, y and their gradients [batch, steps, channels]; decay and bonus [channels],
 * whose gradients are [batch, channels]; before, after and their gradients [batch, 3, channels] with numerator,
 * denominator and m, which has no gradient; starts and valid [batch, steps], or NULL. */
typedef struct {
    const float *k, *v, *decay, *bonus, *before;
    const uint8_t *starts, *valid;
    float *y, *after;
    const float *dy, *dafter;
    float *dk, *dv, *ddecay, *dbonus, *dbefore;
    long batch, steps, channels;
    long next;
} Wkv;

#endif
