/* One token of what Mamba's block does between its products: a short convolution, and the selective scan with its
 * softplus, skip and gate. Lanes of vectors are neighbouring channels; the last ones pass through a vector of their own. */

#include "activations.h"
#include "rounding.h"
#include "token.h"

static inline long least(long a, long b) { return a < b ? a : b; }

/* `count` numbers in float32, and zeros up to a vector. */
INLINE vec some(int narrow, const void *x, long at, long count) {
    float held[LANES] = {0};
    if (!narrow) {
        if (count == LANES) return load((const float *)x + at);
        memcpy(held, (const float *)x + at, sizeof(float) * count);
    } else
        for (long i = 0; i < count; i++) held[i] = wide_of(((const uint16_t *)x)[at + i]);
    return load(held);
}

INLINE void put_some(int narrow, vec y, long count, void *to, long at) {
    float held[LANES];
    if (!narrow && count == LANES) {
        store((float *)to + at, y);
        return;
    }
    store(held, y);
    if (narrow)
        narrow_row(held, count, (uint16_t *)to + at);
    else
        memcpy((float *)to + at, held, sizeof(float) * count);
}

/* `piece` of a call: its row, and its channels from `begin` to `end`. */
INLINE void place(long piece, long channels, long *row, long *begin, long *end) {
    const long slices = (channels + SLICED - 1) / SLICED;
    *row = piece / slices, *begin = piece % slices * SLICED, *end = least(channels, *begin + SLICED);
}

int NAME(weft_taps_call)(Taps *c) {
    for (long piece, row, begin, end; (piece = taken(&c->shared.next, 1)) < c->shared.pieces;) {
        place(piece, c->channels, &row, &begin, &end);
        for (long d = begin; d < end; d += LANES) {
            const long count = least(LANES, end - d);
            vec y = c->bias ? some(c->narrow, c->bias, d, count) : all(0);
            for (long k = 0; k < c->taps; k++)
                y += some(c->narrow, c->x, row * c->x_batch + k * c->x_tap + d, count) *
                     some(c->narrow, c->weight, k * c->channels + d, count);
            put_some(c->narrow, c->silu ? silu_of(y) : y, count, c->y, row * c->channels + d);
        }
        finished(&c->shared.done, 1);
    }
    return COMPUTED;
}

int NAME(weft_scan_token_call)(ScanToken *c) {
    const long channels = c->channels;
    for (long piece, row, begin, end; (piece = taken(&c->shared.next, 1)) < c->shared.pieces;) {
        place(piece, channels, &row, &begin, &end);
        const float kept = c->starts && c->starts[row] ? 0 : 1, *b = c->b + row * c->b_batch, *e = c->c + row * c->c_batch;
        for (long d = begin; d < end; d += LANES) {
            const long count = least(LANES, end - d), at = row * channels + d;
            const vec dt = softplus_of(some(0, c->step, at, count) + some(0, c->bias, d, count));
            const vec u = some(0, c->u, at, count), x = dt * u;
            vec y = some(0, c->skip, d, count) * u;
            for (long n = 0; n < c->states; n++) {
                const long of = (row * c->states + n) * channels + d;
                const vec decay = exp2_of(dt * some(0, c->a, n * channels + d, count) * LOG2_E) * kept;
                /* A state that is cleared may hold anything. */
                const vec before = kept ? some(0, c->before, of, count) : all(0), h = decay * before + x * b[n];
                put_some(0, h, count, c->after, of);
                y += h * e[n];
            }
            const vec gate = some(c->narrow, c->gate, row * c->gate_batch + d, count);
            put_some(c->narrow, y * silu_of(gate), count, c->y, at);
        }
        finished(&c->shared.done, 1);
    }
    return COMPUTED;
}
