/* The arguments of what a step of decoding does with the few numbers of a token, the same in every instruction set and
 * in Python (weft/ops/native_token.py, weft/ops/native_query.py). Numbers are in float32 or, where `narrow`, in
 * bfloat16, and steps between rows are in numbers. */

#ifndef WEFT_TOKEN_H
#define WEFT_TOKEN_H

#include "shared.h"

/* y = scale (x - m) / sqrt(mean((x - m)^2) + eps) + bias, for `rows` rows of `width` numbers, x and y contiguous; m is the
 * row's mean where `centred`, else 0. `scale` and `bias` may be none. A piece is a row. */
typedef struct {
    Shared shared;
    int narrow, narrow_scale, narrow_bias, centred;
    long rows, width;
    const void *x, *scale, *bias;
    void *y;
    float eps;
} Norm;

/* Pairs of features turned: x [batch, heads, size], y the same and contiguous, cos and sin in float32, [batch, size] of
 * half-split pairs, the first half of sin with a minus, or [batch, size / 2] of interleaved ones. A piece is a row of the
 * batch. */
typedef struct {
    Shared shared;
    int narrow, interleaved;
    long batch, heads, size, x_batch, x_head, cos_batch, sin_batch;
    const void *x;
    const float *cos, *sin;
    void *y;
} Rotary;

/* Attention of one query for each head: q [batch, heads, size], rows `q_batch` numbers apart, y the same and contiguous, k [batch, key_heads, keys, size] and
 * v [batch, key_heads, keys, width] with features side by side, `allowed` [batch, heads, keys] of bytes, 0 where the query
 * may not attend, or none. A query that may attend to nothing gets zeros. A piece is `together` heads of one key head. */
typedef struct {
    Shared shared;
    int narrow;
    long batch, heads, key_heads, keys, size, width, together;
    long q_batch, k_batch, k_head, k_key, v_batch, v_head, v_key, a_batch, a_head, a_key;
    const void *q, *k, *v;
    const char *allowed;
    void *y;
    float scale;
} Query;

/* z = x + y, `count` numbers. A piece is PART numbers. */
#define PART 8192
typedef struct {
    Shared shared;
    int narrow;
    long count;
    const void *x, *y;
    void *z;
} Sum;

/* y = x, of four dimensions, numbers of `bytes` bytes, or from bfloat16 to float32 (`kind` WIDENED) or back (NARROWED);
 * steps in bytes, of y from its `begin`. One piece. */
enum { KEPT, WIDENED, NARROWED };
typedef struct {
    Shared shared;
    int kind;
    long bytes, sizes[4], steps[4], to[4], begin;
    const char *x;
    char *y;
} Copy;

/* Lines of `bytes` bytes, `count` in number, to the lines `at` of `to`, which has `lines`. One piece. */
typedef struct {
    Shared shared;
    long bytes, count, lines;
    const long *at;
    const char *from;
    char *to;
} Lines;

/* One token of a depthwise causal convolution, under a silu where `silu`: x [batch, taps, channels], rows `x_batch` numbers
 * and taps `x_tap` apart, weight [taps, channels], bias [channels] or none, y [batch, channels]. A piece is SLICED
 * channels of a row. */
#define SLICED 256
typedef struct {
    Shared shared;
    int narrow, silu;
    long batch, channels, taps, x_batch, x_tap;
    const void *x, *weight, *bias;
    void *y;
} Taps;

/* One token of the selective scan in Mamba's block: y = (c h + skip u) silu(gate), h = exp(dt a) before + dt b u,
 * dt = softplus(step + bias), all in float32 but gate and y where `narrow`. u and step [batch, channels], a [states,
 * channels], b and c [batch, states] with rows so many numbers apart, before and after [batch, states, channels];
 * `starts` [batch] of bytes, where the state is cleared first, or none. A piece is SLICED channels of a row. */
typedef struct {
    Shared shared;
    int narrow;
    long batch, channels, states, b_batch, c_batch, gate_batch;
    const float *u, *step, *bias, *a, *b, *c, *skip, *before;
    const void *gate;
    const char *starts;
    void *y;
    float *after;
} ScanToken;

#endif
