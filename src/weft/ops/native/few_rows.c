/* Products of a few vectors with a matrix, and a whole gated feed-forward, in one call each.
 *
 * A step of decoding multiplies every matrix of a model by one vector for each row of the batch, so its time is that of
 * reading the matrices. They are read as they lie, once; vectors are brought into the form that the matrix is multiplied
 * with by each thread for itself (products.h). */

#include "few_rows.h"

#include "products.h"

#define SMALL (1 << 16) /* bytes of a matrix below which other threads are not called */

enum { IDENTITY, RELU, SQUARED_RELU, GELU, GELU_TANH, QUICK_GELU, SILU, SIGMOID };

static int one_product(Product *p) {
    Vectors v;
    float *held = numbers(p->rows * p->piece);
    const int ready = vectors_of(&v, p->kind, p->narrow, p->narrow, p->x, p->rows, p->in) && held;
    Share share = of_rows(entered(&p->shared), p->shared.at, p->out, p->piece);
    for (long o; ready && (o = next_rows(&share)) < p->out;) {
        const long end = p->out - o < p->piece ? p->out : o + p->piece;
        products(p->kind, p->narrow, &p->map, &v, p->rows, p->in, p->out, o, end, held, p->piece);
        put(p->narrow, held, p->piece, p->rows, end - o, p->y, p->out, o);
        finished(&p->shared.done, end - o);
    }
    free(held), free(v.memory);
    return ready ? COMPUTED : NO_MEMORY;
}

INLINE vec sigmoid(vec x) { return 1 / (1 + exp2_of(-larger(all(-126), x * 1.44269504f))); }

INLINE vec active(const int activation, vec x) {
    if (activation == RELU || activation == SQUARED_RELU) {
        vec y = larger(all(0), x);
        return activation == RELU ? y : y * y;
    }
    if (activation == SILU) return x * sigmoid(x);
    if (activation == SIGMOID) return sigmoid(x);
    if (activation == QUICK_GELU) return x * sigmoid(1.702f * x);
    if (activation == GELU_TANH) return x * sigmoid(1.59576912f * x * (1 + 0.044715f * x * x));
    return x;
}

/* f(gate) * (up + shift), of `count` numbers, a multiple of LANES, into `gate`. */
static void combine(const Gated *c, float *gate, const float *up, long count) {
    for (long i = 0; i < count; i += LANES) {
        vec x = -larger(all(-c->limit), -load(gate + i)), y = -larger(all(-c->limit), -load(up + i));
        y = larger(all(-c->limit), y) + c->shift;
        if (c->activation == GELU)
            for (int j = 0; j < LANES; j++) x[j] = 0.5f * x[j] * (1 + erff(x[j] * 0.707106781f));
        else
            x = active(c->activation, x);
        store(gate + i, x * y);
    }
}

static void first_products(Gated *c, const Vectors *v, float *held, Share share) {
    float *up = held + c->rows * c->piece;
    share = of_rows(share, c->shared.early_at, c->hidden, c->piece);
    for (long o; (o = next_rows(&share)) < c->hidden;) {
        const long end = c->hidden - o < c->piece ? c->hidden : o + c->piece;
        products(c->kind, c->narrow, &c->gate, v, c->rows, c->in, c->hidden, o, end, held, c->piece);
        products(c->kind, c->narrow, &c->up, v, c->rows, c->in, c->hidden, o, end, up, c->piece);
        combine(c, held, up, c->rows * c->piece);
        put(0, held, c->piece, c->rows, end - o, c->between, c->hidden, o);
        finished(&c->shared.early_done, end - o);
    }
}

static int gated(Gated *c) {
    const long piece = c->piece > c->last_piece ? c->piece : c->last_piece;
    float *held = numbers(2 * c->rows * piece);
    Vectors v;
    Share share = entered(&c->shared);
    int ready = vectors_of(&v, c->kind, c->narrow, c->narrow, c->x, c->rows, c->in) && held;
    if (ready) {
        memset(held, 0, 2 * sizeof(float) * c->rows * piece); /* what lies behind a last, shorter piece is computed with */
        first_products(c, &v, held, share);
        free(v.memory), v.memory = 0;
        ready = complete(&c->shared.early_done, c->hidden, &c->shared.failed) &&
                vectors_of(&v, c->kind, c->narrow, 0, c->between, c->rows, c->hidden);
    }
    if (!ready) __atomic_store_n(&c->shared.failed, 1, __ATOMIC_RELAXED);
    share = of_rows(share, c->shared.at, c->out, c->last_piece);
    for (long o; ready && (o = next_rows(&share)) < c->out;) {
        const long end = c->out - o < c->last_piece ? c->out : o + c->last_piece;
        products(c->kind, c->narrow, &c->down, &v, c->rows, c->hidden, c->out, o, end, held, c->last_piece);
        put(c->narrow, held, c->last_piece, c->rows, end - o, c->y, c->out, o);
        finished(&c->shared.done, end - o);
    }
    free(held), free(v.memory);
    return ready ? COMPUTED : NO_MEMORY;
}

/* A whole group of four bits as numbers in float32 or, where `narrow`, rounded. */
INLINE void open_group(const int narrow, const char *at, float factor, void *y, long to) {
    int8_t held[GROUP];
    opened(at, held);
    EACH(part, GROUP / LANES) {
        const vec wide = factor * floats_of(held + part * LANES);
        if (narrow)
            *(loose_halves *)((uint16_t *)y + to + part * LANES) = narrowed(wide);
        else
            store((float *)y + to + part * LANES, wide);
    }
}

/* Row `o` of a matrix of four bits. */
INLINE void open_row(const int narrow, const Open *c, long o) {
    const long groups = (c->in + GROUP - 1) / GROUP, whole = c->in / GROUP;
    const uint16_t *scale = (const uint16_t *)c->map.scale + o * groups;
    const char *at = c->map.values + o * c->map.stride;
    void *y = c->y;
    long to = o * c->in;
    for (long g = 0; g < whole; g++, to += GROUP) open_group(narrow, at + g * 16, scale_of(scale[g]), y, to);
    if (whole < groups) {
        int8_t held[GROUP];
        opened(at + whole * 16, held);
        for (long i = 0; i < c->in - whole * GROUP; i++)
            set_number(narrow, y, to + i, scale_of(scale[whole]) * held[i]);
    }
}

int NAME(weft_open_call)(Open *c) {
    for (long piece; (piece = taken(&c->shared.next, 1)) < c->shared.pieces;) {
        const long end = (piece + 1) * OPENED < c->out ? (piece + 1) * OPENED : c->out;
        for (long o = piece * OPENED; o < end; o++)
            if (c->narrow)
                open_row(1, c, o);
            else
                open_row(0, c, o);
        finished(&c->shared.done, 1);
    }
    return COMPUTED;
}

/* As calls of a sequence. */
int NAME(weft_product_call)(Product *p) { return one_product(p); }

int NAME(weft_gated_call)(Gated *c) { return gated(c); }

static void one_product_alone(Product *p) { one_product(p); }

static void gated_alone(Gated *c) { gated(c); }

static void together(void (*work)(void *), void *call, Parallel parallel, unsigned threads, long bytes) {
    if (parallel && threads > 1 && bytes >= SMALL)
        parallel(work, call, threads, 0);
    else
        work(call);
}

/* Rows of a matrix that a thread takes at a time: some eight pieces for each thread. */
static long piece_of(long out, unsigned threads) {
    long piece = rounded_up(out / (8 * threads) + 1, 16);
    return piece < 128 ? piece : 128;
}

/* y = x W^T + b; returns whether it was computed, which takes memory. */
int NAME(weft_few_rows)(Parallel parallel, unsigned threads, int kind, int narrow, long rows, long in, long out,
                        const void *x, const void *values, long stride, const void *scale, const void *bias, void *y) {
    Product p = {{.pieces = out, .threads = threads}, kind, narrow, rows, in, out, x, {values, stride, scale, bias}, y,
                 piece_of(out, threads)};
    together((void (*)(void *))one_product_alone, &p, parallel, threads, out * stride);
    return p.shared.done >= out;
}

/* A gated feed-forward; returns whether it was computed. */
int NAME(weft_gated)(Parallel parallel, unsigned threads, int kind, int narrow, int activation, float limit, float shift,
                     long rows, long in, long hidden, long out, const void *x, const void *gate, long gate_stride,
                     const void *gate_scale, const void *gate_bias, const void *up, long up_stride, const void *up_scale,
                     const void *up_bias, const void *down, long down_stride, const void *down_scale,
                     const void *down_bias, float *between, void *y) {
    Gated c = {{.pieces = out, .threads = threads}, kind, narrow, activation, limit, shift, rows, in, hidden, out, x,
               {gate, gate_stride, gate_scale, gate_bias}, {up, up_stride, up_scale, up_bias},
               {down, down_stride, down_scale, down_bias}, between, y,
               piece_of(hidden, threads), piece_of(out, threads)};
    together((void (*)(void *))gated_alone, &c, parallel, threads, hidden * gate_stride);
    return c.shared.done >= out;
}
