/* S_t = diag(a_t) S_{t-1} + k_t v_t^T, o_t = q_t S_t in float32, forward and backward, token by token.
 *
 * A strip of the state, 4 rows by ACROSS vectors, stays in registers while the tokens of a block pass: for each entry a
 * product by its decay, one by the key and value, and one for the result. That is about as many operations as chunks of
 * matrix products need (their scores cost C (E + F) a token), and a decay is a factor and nothing else: zero clears the
 * state, and no exponential of a sum can overflow.
 *
 * All four passes are the same sweep. With rows and lanes of the state exchanged it gives, after the outputs,
 * dq_t = S_t dy_t, and backwards in time, with G_t = a_{t+1} G_{t+1} + q_t dy_t^T, dk_t = G_t v_t and dv_t = G_t^T k_t.
 * The gradient of log a_t is the sum, over the features that it is for, of S_{t-1} a_t G_t: within a block from the sums
 * of q dq - k dk after it, and at the block's end S G itself, for which the state at the end of every block is kept while
 * one head of one row is worked on. A token's own k_t v_t^T is in dq and dk alike, and all that a strong decay leaves is
 * small beside it: so these sweeps read the state before they add to it, and it is added to dq and dk alone, afterwards.
 * Sums have one order, so any number of threads gives the same bits. */

#include <stdlib.h>

#include "linear_recurrence.h"
#include "vectors.h"

#define BLOCK 64
#define ROWS 4
enum { NONE, ONE, BY_ROW, BY_LANE };

static inline long least(long a, long b) { return a < b ? a : b; }
static inline long up(long n, long to) { return (n + to - 1) / to * to; }

/* A block of tokens of one head. Row r of the state at a token has the factors x[r] and z[r], lane l has y[l]; each row
 * of these arrays is so many numbers after the one of the token before. */
typedef struct {
    const float *x, *y, *z, *decay;
    float *out;
    long x_down, y_down, z_down, out_down, decay_down;
} Tokens;

/* For every token, in order or backwards: S = decay S + x y^T, and out += z S; `early`: out += z (decay S). A strip of
 * `wide` vectors of a state whose rows are `down` numbers apart. */
INLINE void strip(const int wide, const int how, const int early, const int first, const Tokens *t, long count,
                  long step, float *state, long down) {
    vec s[ROWS][ACROSS];
    const float *x = t->x, *y = t->y, *z = t->z, *decay = t->decay;
    float *out = t->out;
#pragma GCC unroll 8
    for (int r = 0; r < ROWS; r++)
#pragma GCC unroll 8
        for (int v = 0; v < wide; v++) s[r][v] = load(state + r * down + v * LANES);
    for (long i = 0; i < count; i++) {
        vec sums[ACROSS], row[ACROSS], kept[ACROSS];
        const float one = how == ONE ? decay[0] : 0;
#pragma GCC unroll 8
        for (int v = 0; v < wide; v++) {
            row[v] = load(y + v * LANES);
            sums[v] = first ? (vec){0} : load(out + v * LANES);
            if (how == BY_LANE) kept[v] = load(decay + v * LANES);
        }
#pragma GCC unroll 8
        for (int r = 0; r < ROWS; r++) {
            const float factor = x[r], reads = z[r], own = how == BY_ROW ? decay[r] : one;
#pragma GCC unroll 8
            for (int v = 0; v < wide; v++) {
                vec left = how == NONE ? s[r][v] : how == BY_LANE ? kept[v] * s[r][v] : own * s[r][v];
                s[r][v] = left + factor * row[v];
                sums[v] += reads * (early ? left : s[r][v]);
            }
        }
#pragma GCC unroll 8
        for (int v = 0; v < wide; v++) store(out + v * LANES, sums[v]);
        x += step * t->x_down, y += step * t->y_down, z += step * t->z_down, out += step * t->out_down;
        decay += step * t->decay_down;
    }
#pragma GCC unroll 8
    for (int r = 0; r < ROWS; r++)
#pragma GCC unroll 8
        for (int v = 0; v < wide; v++) store(state + r * down + v * LANES, s[r][v]);
}

INLINE void strips(const int wide, const int how, const int early, Tokens t, long count, long step, long rows,
                   float *state, long down) {
    strip(wide, how, early, 1, &t, count, step, state, down);
    for (long r = ROWS; r < rows; r += ROWS) {
        t.x += ROWS, t.z += ROWS;
        if (how == BY_ROW) t.decay += ROWS;
        strip(wide, how, early, 0, &t, count, step, state + r * down, down);
    }
}

/* The sweep of a block over a whole state of `rows` rows and `lanes` lanes, multiples of ROWS and of LANES. */
INLINE void swept(const int how, const int early, Tokens t, long count, long step, long rows, long lanes,
                  float *state) {
    long l = 0;
    for (; l + ACROSS * LANES <= lanes; l += ACROSS * LANES) {
        strips(ACROSS, how, early, t, count, step, rows, state + l, lanes);
        t.y += ACROSS * LANES, t.out += ACROSS * LANES;
        if (how == BY_LANE) t.decay += ACROSS * LANES;
    }
    for (; l < lanes; l += LANES) {
        strips(1, how, early, t, count, step, rows, state + l, lanes);
        t.y += LANES, t.out += LANES;
        if (how == BY_LANE) t.decay += LANES;
    }
}

static void sweep(int how, int early, Tokens t, long count, long step, long rows, long lanes, float *state) {
    if (step < 0) {
        t.x += (count - 1) * t.x_down, t.y += (count - 1) * t.y_down, t.z += (count - 1) * t.z_down;
        t.out += (count - 1) * t.out_down, t.decay += (count - 1) * t.decay_down;
    }
    if (how == NONE && early) swept(NONE, 1, t, count, step, rows, lanes, state);
    if (how == NONE && !early) swept(NONE, 0, t, count, step, rows, lanes, state);
    if (how == ONE && early) swept(ONE, 1, t, count, step, rows, lanes, state);
    if (how == ONE && !early) swept(ONE, 0, t, count, step, rows, lanes, state);
    if (how == BY_ROW) swept(BY_ROW, 0, t, count, step, rows, lanes, state);
    if (how == BY_LANE) swept(BY_LANE, 1, t, count, step, rows, lanes, state);
}

/* What a thread works with: a block's tensors with rows of `e` and `f` numbers, which are `size` and `value_size` and
 * zeros; two states, [e][f] and [f][e]. */
typedef struct {
    long e, f;
    float *q, *k, *v, *dy, *decay, *next, *out, *dq, *dk, *state, *turned, *ends;
} Desk;

static void lay(const float *x, long stride, long count, long size, long across, float *y) {
    for (long i = 0; i < count; i++) {
        memcpy(y + i * across, x + i * stride, sizeof(float) * size);
        memset(y + i * across + size, 0, sizeof(float) * (across - size));
    }
}

static void lay_of(const float *x, Apart at, long row, long token, long head, long count, long size, long across,
                   float *y) {
    lay(x + row * at.row + token * at.token + head * at.head, at.token, count, size, across, y);
}

/* Decays of tokens from `token` on; before the first and after the last there is one of 1. */
static void lay_decays(const Recurrence *c, long row, long head, long token, long count, long across, float *y) {
    for (long i = 0; i < count; i++) {
        if (token + i < c->steps)
            lay_of(c->decay, c->decay_at, row, token + i, head, 1, c->kept, across, y + i * across);
        else
            for (long e = 0; e < across; e++) y[i * across + e] = 1;
    }
}

/* The state [rows][lanes] of padded sizes from [size][value_size], or the other way round. */
static void begin_state(const Recurrence *c, const float *x, const Desk *d, float *state, float *turned) {
    memset(state, 0, sizeof(float) * d->e * d->f);
    for (long e = 0; e < c->size; e++) memcpy(state + e * d->f, x + e * c->value_size, sizeof(float) * c->value_size);
    if (!turned) return;
    for (long f = 0; f < d->f; f++)
        for (long e = 0; e < d->e; e++) turned[f * d->e + e] = state[e * d->f + f];
}

static long decay_width(const Recurrence *c, const Desk *d) { return c->kept > 1 ? d->e : 1; }

static void forward_head(const Recurrence *c, long row, long head, Desk *d) {
    const long group = head / (c->heads / c->groups), at = (row * c->heads + head) * c->size * c->value_size;
    const long wide = decay_width(c, d);
    const int how = c->kept == 0 ? NONE : c->kept == 1 ? ONE : BY_ROW;
    begin_state(c, c->before + at, d, d->state, NULL);
    for (long begin = 0; begin < c->steps; begin += BLOCK) {
        const long count = least(BLOCK, c->steps - begin);
        lay_of(c->q, c->q_at, row, begin, group, count, c->size, d->e, d->q);
        lay_of(c->k, c->k_at, row, begin, group, count, c->size, d->e, d->k);
        lay_of(c->v, c->v_at, row, begin, head, count, c->value_size, d->f, d->v);
        if (c->kept) lay_decays(c, row, head, begin, count, wide, d->decay);
        Tokens t = {d->k, d->v, d->q, d->decay, d->out, d->e, d->f, d->e, d->f, wide};
        sweep(how, 0, t, count, 1, d->e, d->f, d->state);
        for (long i = 0; i < count; i++)
            memcpy(c->y + ((row * c->steps + begin + i) * c->heads + head) * c->value_size, d->out + i * d->f,
                   sizeof(float) * c->value_size);
    }
    for (long e = 0; e < c->size; e++)
        memcpy(c->after + at + e * c->value_size, d->state + e * d->f, sizeof(float) * c->value_size);
}

/* v_t dy_t of a block's tokens. */
static void meet(const Desk *d, long count, float *met) {
    for (long i = 0; i < count; i++) {
        vec total = {0};
        for (long f = 0; f < d->f; f += LANES) total += load(d->v + i * d->f + f) * load(d->dy + i * d->f + f);
        met[i] = 0;
        for (long l = 0; l < LANES; l++) met[i] += total[l];
    }
}

/* Adds rows of `size` numbers, x + met y, to those of a part, or sets them. */
static void give(const float *x, const float *met, const float *y, long across, long count, long size, float *to,
                 long stride, int adds) {
    for (long i = 0; i < count; i++)
        for (long e = 0; e < size; e++)
            to[i * stride + e] = x[i * across + e] + met[i] * y[i * across + e] + (adds ? to[i * stride + e] : 0);
}

/* The gradients of the decays of a block, from dq and dk without a token's own part: `passing` [e] is the sum over values
 * of S G at its end. A rounding would be carried from token to token, hence the doubles. */
static void give_decays(const Recurrence *c, const Desk *d, const float *dq, long dq_down, const float *passing,
                        long count, float *to, long stride) {
    double sum[BLOCK] = {0};
    for (long first = 0; first < c->size; first += LANES) {
        double total[LANES];
        for (long e = 0; e < LANES; e++) total[e] = passing[first + e];
        for (long i = count - 1; i >= 0; i--) {
            const float *q = d->q + i * d->e + first, *slope_q = dq + i * dq_down + first;
            const float *k = d->k + i * d->e + first, *slope_k = d->dk + i * d->e + first;
            for (long e = 0; e < LANES; e++)
                total[e] += (double)q[e] * slope_q[e] - (double)k[e] * slope_k[e];
            if (c->kept > 1)
                for (long e = first; e < least(c->size, first + LANES); e++) to[i * stride + e] = total[e - first];
            else
                for (long e = 0; e < LANES; e++) sum[i] += total[e];
        }
    }
    for (long i = 0; c->kept == 1 && i < count; i++) to[i * stride] = sum[i];
}

static void backward_head(const Recurrence *c, long row, long head, long part, long parts, int adds, Desk *d) {
    const long group = head / (c->heads / c->groups), at = (row * c->heads + head) * c->size * c->value_size;
    const long wide = decay_width(c, d), blocks = (c->steps + BLOCK - 1) / BLOCK, area = d->e * d->f;
    const int by_row = c->kept == 0 ? NONE : c->kept == 1 ? ONE : BY_ROW, by_lane = by_row == BY_ROW ? BY_LANE : by_row;
    float met[BLOCK];
    begin_state(c, c->before + at, d, d->state, d->turned);
    for (long n = 0; n < blocks; n++) { /* dq, from the states again, [f][e] */
        const long begin = n * BLOCK, count = least(BLOCK, c->steps - begin);
        lay_of(c->k, c->k_at, row, begin, group, count, c->size, d->e, d->k);
        lay_of(c->v, c->v_at, row, begin, head, count, c->value_size, d->f, d->v);
        lay_of(c->dy, c->dy_at, row, begin, head, count, c->value_size, d->f, d->dy);
        if (c->kept) lay_decays(c, row, head, begin, count, wide, d->decay);
        float *dq = c->kept ? d->dq + begin * d->e : d->dq;
        Tokens t = {d->v, d->k, d->dy, d->decay, dq, d->f, d->e, d->f, d->e, wide};
        sweep(by_lane, 1, t, count, 1, d->f, d->e, d->turned);
        meet(d, count, met);
        give(dq, met, d->k, d->e, count, c->size,
             c->dq + ((row * c->steps + begin) * c->groups * parts + part) * c->size, c->groups * parts * c->size, adds);
        if (c->kept) memcpy(d->ends + n * area, d->turned, sizeof(float) * area);
    }
    begin_state(c, c->dafter + at, d, d->state, d->turned);
    for (long n = blocks - 1; n >= 0; n--) { /* dk and dv, backwards, from G as [f][e] and as [e][f] */
        const long begin = n * BLOCK, count = least(BLOCK, c->steps - begin);
        lay_of(c->q, c->q_at, row, begin, group, count, c->size, d->e, d->q);
        lay_of(c->k, c->k_at, row, begin, group, count, c->size, d->e, d->k);
        lay_of(c->v, c->v_at, row, begin, head, count, c->value_size, d->f, d->v);
        lay_of(c->dy, c->dy_at, row, begin, head, count, c->value_size, d->f, d->dy);
        float passing[d->e] __attribute__((aligned(64)));
        if (c->kept) {
            lay_decays(c, row, head, begin + 1, count, wide, d->next);
            memset(passing, 0, sizeof(passing));
            for (long f = 0; f < c->value_size; f++) /* G at the block's end, decayed by the token after it */
                for (long e = 0; e < c->size; e++) {
                    const float decay = d->next[(count - 1) * wide + (wide > 1 ? e : 0)];
                    passing[e] += d->ends[n * area + f * d->e + e] * (decay * d->turned[f * d->e + e]);
                }
        }
        Tokens to_k = {d->dy, d->q, d->v, d->next, d->out, d->f, d->e, d->f, d->e, wide};
        to_k.out = d->dk;
        sweep(by_lane, 1, to_k, count, -1, d->f, d->e, d->turned);
        meet(d, count, met);
        give(d->dk, met, d->q, d->e, count, c->size,
             c->dk + ((row * c->steps + begin) * c->groups * parts + part) * c->size, c->groups * parts * c->size, adds);
        Tokens to_v = {d->q, d->dy, d->k, d->next, d->out, d->e, d->f, d->e, d->f, wide};
        sweep(by_row, 0, to_v, count, -1, d->e, d->f, d->state);
        for (long i = 0; i < count; i++)
            memcpy(c->dv + ((row * c->steps + begin + i) * c->heads + head) * c->value_size, d->out + i * d->f,
                   sizeof(float) * c->value_size);
        if (c->kept)
            give_decays(c, d, d->dq + begin * d->e, d->e, passing, count,
                        c->dlog + ((row * c->steps + begin) * c->heads + head) * c->kept, c->heads * c->kept);
    }
    if (c->kept) lay_decays(c, row, head, 0, 1, wide, d->decay);
    for (long e = 0; e < c->size; e++)
        for (long f = 0; f < c->value_size; f++)
            c->dbefore[at + e * c->value_size + f] =
                d->state[e * d->f + f] * (c->kept ? d->decay[wide > 1 ? e : 0] : 1);
}

/* Memory of one thread for forward or backward passes; NULL if there is none, and then other threads do its work. */
static float *desk(const Recurrence *c, int backward, Desk *d) {
    d->e = up(c->size, LANES), d->f = up(c->value_size, LANES);
    const long keys = BLOCK * d->e, values = BLOCK * d->f, area = d->e * d->f;
    const long blocks = (c->steps + BLOCK - 1) / BLOCK, ends = backward && c->kept ? blocks * area : 0;
    const long dq = backward ? (c->kept ? blocks * keys : keys) : 0;
    float *memory = aligned_alloc(64, sizeof(float) * up(5 * keys + 3 * values + 2 * area + ends + dq, 16));
    if (!memory) return NULL;
    d->q = memory, d->k = d->q + keys, d->decay = d->k + keys, d->next = d->decay + keys, d->dk = d->next + keys;
    d->v = d->dk + keys, d->dy = d->v + values, d->out = d->dy + values;
    d->state = d->out + values, d->turned = d->state + area, d->ends = d->turned + area, d->dq = d->ends + ends;
    return memory;
}

/* What one thread does: heads of rows, taken one after another until none is left. */
void NAME(weft_linear_recurrence_forward)(Recurrence *c) {
    Desk d;
    float *memory = desk(c, 0, &d);
    for (long i; memory && (i = __atomic_fetch_add(&c->next, 1, __ATOMIC_RELAXED)) < c->rows * c->heads;)
        forward_head(c, i / c->heads, i % c->heads, &d);
    free(memory);
}

/* What one thread does: parts of the heads of a group, whose gradients of queries and keys are summed. */
void NAME(weft_linear_recurrence_backward)(Recurrence *c) {
    Desk d;
    float *memory = desk(c, 1, &d);
    const long shared = c->heads / c->groups, parts = (shared + c->share - 1) / c->share, all = c->groups * parts;
    for (long i; memory && (i = __atomic_fetch_add(&c->next, 1, __ATOMIC_RELAXED)) < c->rows * all;) {
        const long part = i % all, first = part / parts * shared + part % parts * c->share;
        const long end = least(first + c->share, (part / parts + 1) * shared);
        for (long head = first; head < end; head++)
            backward_head(c, i / all, head, part, parts, head > first, &d);
    }
    free(memory);
}
