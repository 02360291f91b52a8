/* A depthwise causal convolution of a few taps in float32, forward and backward:
 * y_t = b + sum_k w_k x_{t + k dilation}, where x begins (taps - 1) dilation tokens before y.
 *
 * Channels are the lanes of vectors and tokens are read where they are, so that each number passes memory once. Every
 * sum is taken by one thread in one order. */

#include "short_convolution.h"
#include "vectors.h"

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

static void forward_piece(const Convolution *c, long row, long begin, long end) {
    const long channels = c->channels, length = c->steps + (c->taps - 1) * c->dilation;
    for (long t = begin; t < end; t++) {
        float *y = c->y + (row * c->steps + t) * channels;
        if (c->bias)
            memcpy(y, c->bias, sizeof(float) * channels);
        else
            memset(y, 0, sizeof(float) * channels);
        for (long k = 0; k < c->taps; k++)
            if (reaches(c, row, t, k))
                add_product(channels, c->x + (row * length + t + k * c->dilation) * channels, c->weight + k * channels,
                            y);
    }
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

void NAME(weft_short_convolution_backward)(Convolution *c) { pieces(c, backward_piece); }
