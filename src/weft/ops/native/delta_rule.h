/* The arguments of the delta rule, the same in every instruction set and in Python (weft/ops/native_delta_rule.py).
 * `next` counts the heads of rows that threads have taken. */

#ifndef WEFT_DELTA_RULE_H
#define WEFT_DELTA_RULE_H

/* Tensors and facts of one call.
 *
 * q, k, a, b and their gradients are contiguous [batch, token, head, size], v, y, dy and dv likewise of value_size;
 * before, after and their gradients [batch, head, size, value_size]. `decay` (NULL: 1 everywhere) has `decays` adjacent
 * numbers, 1 or size, for each [batch, token, head]; these are decay_at numbers apart. ddecay is contiguous. */
typedef struct {
    const float *q, *k, *v, *a, *b, *decay, *before;
    float *y, *after;
    const float *dy, *dafter;
    float *dq, *dk, *dv, *da, *db, *ddecay, *dbefore;
    long decay_at[3];
    long batch, steps, heads, size, value_size, decays;
    long next;
} DeltaRule;

#endif
