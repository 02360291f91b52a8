/* The arguments of attention, the same in every instruction set and in Python (weft/ops/native_attention.py). `next` counts
 * the pieces of work that threads have taken. */

#ifndef WEFT_ATTENTION_H
#define WEFT_ATTENTION_H

#include <stdint.h>

#define BEYOND 128

/* Distances between numbers of a tensor [batch, token, head, feature], whose features are adjacent. */
typedef struct {
    long row, token, head;
} Strides;

/* Tensors and facts of one call.
 *
 * Query i's own key is offset + i; it attends to the keys from its own - back to its own + ahead, and, where `start`
 * and `stop` are given ([batch, queries]), to none before start[i] and none after stop[i]. Outputs and gradients are contiguous
 * [batch, token, head, feature]; `logs` holds for each [batch, head, query] the binary logarithm of the sum of 2 to the
 * power of its scores, and infinity for a query that attends to nothing.
 *
 * `bias`, where it is given, holds for each [batch, head] what is added to scores in units of log 2, by distance: the
 * number for query i and key j is bias[i - j + ahead], and it can be read and written BEYOND numbers further on either
 * side. `dbias` is laid out likewise and holds zeros; rows and heads are bias_at.row and bias_at.head numbers apart in
 * `bias`, and in `dbias` as in a contiguous tensor of `lengths` numbers for each.
 *
 * `sinks`, where it is given, holds for each head the score in units of log 2 of one more key, which has no value. */
typedef struct {
    const float *q, *k, *v;
    Strides q_at, k_at, v_at;
    float *y, *logs;
    const float *dy;
    float *dq, *dk, *dv;
    const int32_t *start, *stop;
    const float *bias;
    float *dbias;
    Strides bias_at;
    const float *sinks;
    long batch, queries, keys, heads, groups, size, value_size, offset, back, ahead, lengths;
    double scale;
    long next;
} Attention;

#endif
