/* A causal convolution with a kernel as long as the row, in float32, forward and backward, term by term:
 * y_t = sum of kernel_{t-s} u_s over the tokens s <= t of t's document.
 *
 * The lanes of vectors are neighbouring channels, of which a thread copies those of one row into memory of its own, so
 * that tokens are read where they are, [token, channel], and next to each other in the cache. Eight sums are taken at
 * once. The gradient of u is the same convolution of dy, both reversed in time. Terms that are not wanted are left out
 * and not multiplied by zero, so that nothing passes from one document to another or back in time. Every sum is taken by
 * one thread in one order. */

#include <stdlib.h>

#include "long_convolution.h"
#include "vectors.h"

#define TILE 8

static inline long least(long a, long b) { return a < b ? a : b; }

/* A group of channels: `width` of them from `at`, LANES in memory. */
typedef struct {
    long at, width;
} Group;

static Group group_of(const LongConvolution *c, long i) {
    const Group g = {i * LANES, least(LANES, c->channels - i * LANES)};
    return g;
}

/* Tokens of a row, from the last to the first where `reversed`, with zeros in the lanes beyond the channels. */
static void gather(const LongConvolution *c, Group g, const float *x, long row, int reversed, float *to) {
    for (long t = 0; t < c->steps; t++, to += LANES) {
        const long token = reversed ? c->steps - 1 - t : t;
        memset(to, 0, sizeof(float) * LANES);
        memcpy(to, x + (row * c->steps + token) * c->channels + g.at, sizeof(float) * g.width);
    }
}

static void scatter(const LongConvolution *c, Group g, const float *y, long row, int reversed, float *to) {
    for (long t = 0; t < c->steps; t++, y += LANES) {
        const long token = reversed ? c->steps - 1 - t : t;
        memcpy(to + (row * c->steps + token) * c->channels + g.at, y, sizeof(float) * g.width);
    }
}

/* The first token that each one of a row reads; reversed, that which reads it last, counted from the row's end. */
static void reach(const LongConvolution *c, long row, int reversed, long *first) {
    const int32_t *given = c->first ? c->first + row * c->steps : 0;
    for (long t = 0, reader = -1; t < c->steps; t++) {
        if (!reversed)
            first[t] = given ? given[t] : 0;
        else {
            while (reader + 1 < c->steps && (given ? given[reader + 1] : 0) <= t) reader++;
            first[c->steps - 1 - t] = c->steps - 1 - reader;
        }
    }
}

/* y[t] = sum of kernel[t - s] x[s] over first[t] <= s <= t, in rows of LANES. */
static void convolve(long steps, const float *x, const float *kernel, const long *first, float *y) {
    for (long t = 0; t < steps; t += TILE) {
        const long tokens = least(TILE, steps - t);
        vec sums[TILE];
        long shared = t + 1; /* all of the tile read from here up to t */
        for (long i = 0; i < TILE; i++) sums[i] = all(0);
        if (tokens == TILE && first[t + TILE - 1] <= t) {
            shared = first[t + TILE - 1];
            for (long s = shared; s <= t; s++) {
                const vec one = load(x + s * LANES);
                const float *by = kernel + (t - s) * LANES;
#pragma GCC unroll 8
                for (long i = 0; i < TILE; i++) sums[i] += one * load(by + i * LANES);
            }
        }
        for (long i = 0; i < tokens; i++) {
            for (long s = first[t + i]; s < shared && s <= t + i; s++)
                sums[i] += load(x + s * LANES) * load(kernel + (t + i - s) * LANES);
            for (long s = shared > t ? shared : t + 1; s <= t + i; s++)
                if (s >= first[t + i]) sums[i] += load(x + s * LANES) * load(kernel + (t + i - s) * LANES);
            store(y + (t + i) * LANES, sums[i]);
        }
    }
}

/* sums[lag - begin] += sum of dy[t] u[t - lag] over the tokens t that reach so far back. */
static void correlate(long steps, const float *dy, const float *u, const long *first, long begin, long lags,
                      float *sums) {
    for (long lag = begin; lag < begin + lags; lag += TILE, sums += TILE * LANES) {
        const long wanted = least(TILE, begin + lags - lag);
        vec tile[TILE];
        for (long i = 0; i < TILE; i++) tile[i] = load(sums + i * LANES);
        for (long t = lag; t < steps; t++) {
            const vec one = load(dy + t * LANES);
            const float *by = u + (t - lag) * LANES;
            if (wanted == TILE && t - first[t] >= lag + TILE - 1) {
#pragma GCC unroll 8
                for (long i = 0; i < TILE; i++) tile[i] += one * load(by - i * LANES);
            } else
                for (long i = 0; i < wanted && lag + i <= t - first[t]; i++) tile[i] += one * load(by - i * LANES);
        }
        for (long i = 0; i < TILE; i++) store(sums + i * LANES, tile[i]);
    }
}

/* The memory of one thread: three rows of vectors, the sums of LAGS lags, and places. */
typedef struct {
    float *x, *y, *kernel, *sums;
    long *first;
} Memory;

/* A row of a group: y of u, or du of dy. */
static void row_of(const LongConvolution *c, Group g, long row, int reversed, Memory m) {
    gather(c, g, reversed ? c->dy : c->u, row, reversed, m.x);
    transpose(c->kernel + g.at * c->steps, c->steps, g.width, c->steps, 1, m.kernel, LANES);
    reach(c, row, reversed, m.first);
    convolve(c->steps, m.x, m.kernel, m.first, m.y);
    scatter(c, g, m.y, row, reversed, reversed ? c->du : c->y);
}

/* The gradient of LAGS lags from `begin`, over all rows. */
static void lags_of(const LongConvolution *c, Group g, long begin, Memory m) {
    const long lags = least(LAGS, c->steps - begin);
    memset(m.sums, 0, sizeof(float) * LANES * LAGS);
    for (long row = 0; row < c->batch; row++) {
        gather(c, g, c->u, row, 0, m.x);
        gather(c, g, c->dy, row, 0, m.y);
        reach(c, row, 0, m.first);
        correlate(c->steps, m.y, m.x, m.first, begin, lags, m.sums);
    }
    for (long d = 0; d < g.width; d++)
        for (long lag = 0; lag < lags; lag++) c->dkernel[(g.at + d) * c->steps + begin + lag] = m.sums[lag * LANES + d];
}

/* Pieces of work, taken one after another until none is left; without memory the other threads do them. */
static void pieces(LongConvolution *c, int backward) {
    const long groups = (c->channels + LANES - 1) / LANES, parts = (c->steps + LAGS - 1) / LAGS;
    const long rows = c->batch * groups, count = rows + (backward ? groups * parts : 0), size = c->steps * LANES;
    float *memory = aligned_alloc(64, (sizeof(float) * (3 * size + LAGS * LANES) + 63) / 64 * 64);
    long *first = malloc(sizeof(long) * c->steps);
    const Memory m = {memory, memory + size, memory + 2 * size, memory + 3 * size, first};
    for (long i; memory && first && (i = __atomic_fetch_add(&c->next, 1, __ATOMIC_RELAXED)) < count;)
        if (i < rows)
            row_of(c, group_of(c, i % groups), i / groups, backward, m);
        else
            lags_of(c, group_of(c, (i - rows) % groups), (i - rows) / groups * LAGS, m);
    free(first);
    free(memory);
}

void NAME(weft_long_convolution_forward)(LongConvolution *c) { pieces(c, 0); }

void NAME(weft_long_convolution_backward)(LongConvolution *c) { pieces(c, 1); }
