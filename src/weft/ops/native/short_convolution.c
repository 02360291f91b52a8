/* A depthwise causal convolution of a few taps in float32, forward and backward:
 * y_t = b + sum_k w_k x_{t + k dilation}, where x begins (taps - 1) dilation tokens before y, or silu of it.
 *
 * Channels are the lanes of vectors and tokens are read where they are, so that each number passes memory once. Every
 * sum is taken by one thread in one order. */

#include "activations.h"
#include "short_convolution.h"

static inline long least(long a, long b) { return a < b ? a : b; }

/* Whether tap k of token t reads a token of the same document. */
INLINE int reaches(const Convolution *c, long row, long t, long k) {
    return !c->age || c->age[row * c->steps + t] >= (c->taps - 1 - k) * c->dilation;
}

/* to += x y, and to += x, for `count` numbers. */
INLINE void add_product(long count, const float *x, const float *y, float *to) {
    long d = 0;
    for (; d + LANES <= count; d += LANES) store(to + d, load(to + d) + load(x + d) * load(y + d));
    for (; d < count; d++) to[d] += x[d] * y[d];
}

INLINE void add(long count, const float *x, float *to) {
    long d = 0;
    for (; d + LANES <= count; d += LANES) store(to + d, load(to + d) + load(x + d));
    for (; d < count; d++) to[d] += x[d];
}

/* What is made of a sum: y, silu(y), or dy silu'(y). */
enum { SUM, SILU, SLOPE };

INLINE vec made(const int what, vec y, vec dy) {
    if (what == SUM) return y;
    vec falling, open = sigmoid(y, &falling);
    return what == SILU ? y * open : dy * open * (1 + y * (1 - open));
}

/* A token of a row, at `at` of the result; `what` is known to the compiler. */
INLINE void token(const Convolution *c, const int what, long row, long t, long at, float *to) {
    const long channels = c->channels, length = c->steps + (c->taps - 1) * c->dilation;
    const float *x = c->x + (row * length + t) * channels, *dy = what == SLOPE ? c->dy + at : 0;
    for (long d = 0; d < channels; d += LANES) {
        const long count = least(LANES, channels - d);
        float held[3][LANES] = {{0}}; /* the last channels, fewer than a vector */
        const int few = count < LANES;
        vec y = all(0);
        if (c->bias) y = few ? load(memcpy(held[0], c->bias + d, sizeof(float) * count)) : load(c->bias + d);
        for (long k = 0; k < c->taps; k++)
            if (reaches(c, row, t, k)) {
                const float *one = x + k * c->dilation * channels + d, *by = c->weight + k * channels + d;
                y += few ? load(memcpy(held[0], one, sizeof(float) * count)) *
                               load(memcpy(held[1], by, sizeof(float) * count))
                         : load(one) * load(by);
            }
        const vec from = what != SLOPE ? y : few ? load(memcpy(held[2], dy + d, sizeof(float) * count)) : load(dy + d);
        y = made(what, y, from);
        if (few) {
            store(held[0], y);
            memcpy(to + at + d, held[0], sizeof(float) * count);
        } else
            store(to + at + d, y);
    }
}

static void forward_piece(const Convolution *c, long row, long begin, long end) {
    for (long t = begin; t < end; t++) {
        const long at = (row * c->steps + t) * c->channels;
        if (c->silu)
            token(c, SILU, row, t, at, c->y);
        else
            token(c, SUM, row, t, at, c->y);
    }
}

/* The gradient before the silu. */
static void slope_piece(const Convolution *c, long row, long begin, long end) {
    for (long t = begin; t < end; t++) token(c, SLOPE, row, t, (row * c->steps + t) * c->channels, c->y);
}

/* The gradients of the taps from the tokens of the piece, and of those inputs whose last tap lies in it, or, for the
 * first and the last piece, that lie before and behind all of them. */
static void backward_piece(const Convolution *c, long row, long begin, long end) {
    const long channels = c->channels, reach = (c->taps - 1) * c->dilation, length = c->steps + reach;
    const long pieces = (c->steps + TOKENS - 1) / TOKENS;
    float *dweight = c->dweight + (row * pieces + begin / TOKENS) * (c->taps + 1) * channels;
    memset(dweight, 0, sizeof(float) * (c->taps + 1) * channels);
    for (long t = begin; t < end; t++) {
        const float *dy = c->dy + (row * c->steps + t) * channels;
        for (long k = 0; k < c->taps; k++)
            if (reaches(c, row, t, k))
                add_product(channels, c->x + (row * length + t + k * c->dilation) * channels, dy, dweight + k * channels);
        add(channels, dy, dweight + c->taps * channels);
    }
    for (long s = begin ? begin + reach : 0; s < end + reach; s++) {
        float *dx = c->dx + (row * length + s) * channels;
        memset(dx, 0, sizeof(float) * channels);
        for (long k = 0; k < c->taps; k++) {
            const long t = s - k * c->dilation;
            if (t >= 0 && t < c->steps && reaches(c, row, t, k))
                add_product(channels, c->dy + (row * c->steps + t) * channels, c->weight + k * channels, dx);
        }
    }
}

static void pieces(Convolution *c, void (*work)(const Convolution *, long, long, long)) {
    const long each = (c->steps + TOKENS - 1) / TOKENS, count = c->batch * each;
    for (long i; (i = __atomic_fetch_add(&c->next, 1, __ATOMIC_RELAXED)) < count;)
        work(c, i / each, i % each * TOKENS, least(c->steps, (i % each + 1) * TOKENS));
}

void NAME(weft_short_convolution_forward)(Convolution *c) { pieces(c, forward_piece); }

void NAME(weft_short_convolution_slope)(Convolution *c) { pieces(c, slope_piece); }

void NAME(weft_short_convolution_backward)(Convolution *c) { pieces(c, backward_piece); }
