/* The arguments of the linear recurrence, the same in every instruction set and in Python
 * (weft/ops/native_linear_recurrence.py). `next` counts the pieces of work that threads have taken. */

#ifndef WEFT_LINEAR_RECURRENCE_H
#define WEFT_LINEAR_RECURRENCE_H

/* Tensors and facts of one call.
 *
 * q, k, v and dy are [row, token, head, feature] with features that are adjacent; rows, tokens and heads are so many
 * numbers apart. Head `h` of `heads` has its own values, decay and state and shares queries and keys with the
 * heads / groups heads of its group. `decay` holds factors, [row, token, head, kept]: kept is 1, one factor for all
 * features of a key, or `size`, or 0 and there is none; its rows, tokens and heads may be 0 numbers apart.
 *
 * y, dv and the states are contiguous, [row, token, head, value_size] and [row, head, size, value_size]. dq and dk are
 * [row, token, part, size]: each part is a sum over `share` heads of a group, and there are groups * parts of them.
 * dlog is [row, token, head, kept], the gradient of the logarithm of the decay. */
typedef struct {
    long row, token, head;
} Apart;

typedef struct {
    const float *q, *k, *v, *decay, *before, *dy, *dafter;
    Apart q_at, k_at, v_at, decay_at, dy_at;
    float *y, *after, *dq, *dk, *dv, *dlog, *dbefore;
    long rows, steps, heads, groups, size, value_size, kept, share, next;
} Recurrence;

#endif
