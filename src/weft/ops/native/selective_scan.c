/* The selective scan in float32, forward and backward: h_t = exp(dt_t A) h_{t-1} + dt_t B_t u_t, y_t = C_t h_t for every
 * channel (Gu & Dao 2023, algorithm 2).
 *
 * The lanes of vectors are neighbouring channels, so that h, its decay and its gradient need no exchange between lanes;
 * one state after another is carried through the tokens of a chunk, whose inputs and outputs stay in the cache. Channels
 * beyond the last count as zeros with steps of 0. Every sum is taken by one thread in one order. */

#include <stdlib.h>

#include "selective_scan.h"
#include "vectors.h"

#define LOG2_E 1.4426950408889634f

/* A chunk of a slice: rows of SLICE numbers for each token. */
typedef float Rows[CHUNK][SLICE] __attribute__((aligned(64)));

/* The memory of one thread. `h`, `a` and their gradients follow, SLICE numbers for each state. */
typedef struct {
    Rows dt, x, y, u, dy, ddt, dx;
    vec decays[CHUNK], entering[CHUNK], after[CHUNK], db[CHUNK], dc[CHUNK];
    float cleared[CHUNK];
} Chunk;

/* A piece of work: `width` channels from `first` of row `row`, of which vectors cover `across`. */
typedef struct {
    long row, first, width, across;
} Piece;

static Piece piece_of(const Scan *s, long i) {
    const long slices = (s->channels + SLICE - 1) / SLICE;
    Piece p = {i / slices, i % slices * SLICE, 0, 0};
    p.width = s->channels - p.first < SLICE ? s->channels - p.first : SLICE;
    p.across = (p.width + LANES - 1) / LANES * LANES;
    return p;
}

/* `count` rows of a slice, `stride` numbers apart, with zeros behind them up to SLICE. */
INLINE void gather(const float *x, long count, long stride, const Piece *p, float *to) {
    for (long i = 0; i < count; i++) {
        memcpy(to + i * SLICE, x + i * stride, sizeof(float) * p->width);
        memset(to + i * SLICE + p->width, 0, sizeof(float) * (p->across - p->width));
    }
}

INLINE void scatter(const float *x, long count, long stride, const Piece *p, float *to) {
    for (long i = 0; i < count; i++) memcpy(to + i * stride, x + i * SLICE, sizeof(float) * p->width);
}

/* Rows of a by state, in units of log 2 where `factor` is LOG2_E. */
static void rates(const Scan *s, const Piece *p, float factor, float *a) {
    gather(s->a + p->first, s->states, s->channels, p, a);
    for (long n = 0; n < s->states; n++)
        for (long d = 0; d < p->across; d++) a[n * SLICE + d] *= factor;
}

/* Steps and inputs of the tokens from `begin`, and where the state is cleared. */
static void read_chunk(const Scan *s, const Piece *p, long begin, long count, Chunk *k) {
    const long at = (p->row * s->steps + begin) * s->channels + p->first;
    gather(s->dt + at, count, s->channels, p, k->dt[0]);
    gather(s->u + at, count, s->channels, p, k->u[0]);
    for (long t = 0; t < count; t++) {
        for (long d = 0; d < p->across; d += LANES) store(k->x[t] + d, load(k->dt[t] + d) * load(k->u[t] + d));
        k->cleared[t] = s->starts && s->starts[p->row * s->steps + begin + t] ? 0.0f : 1.0f;
    }
}

static void forward_piece(const Scan *s, Piece p, Chunk *k, float *h, float *a) {
    const long states = s->states, steps = s->steps, size = states * s->channels;
    rates(s, &p, LOG2_E, a);
    gather(s->before + p.row * size + p.first, states, s->channels, &p, h);
    for (long begin = 0; begin < steps; begin += CHUNK) {
        const long count = steps - begin < CHUNK ? steps - begin : CHUNK;
        const float *b = s->b + (p.row * steps + begin) * states, *c = s->c + (p.row * steps + begin) * states;
        if (s->kept)
            scatter(h, states, s->channels, &p, s->kept + (begin / CHUNK * s->batch + p.row) * size + p.first);
        read_chunk(s, &p, begin, count, k);
        memset(k->y, 0, sizeof(Rows));
        for (long n = 0; n < states; n++)
            for (long d = 0; d < p.across; d += LANES) {
                vec state = load(h + n * SLICE + d), rate = load(a + n * SLICE + d);
                for (long t = 0; t < count; t++) {
                    vec decay = exp2_of(load(k->dt[t] + d) * rate) * k->cleared[t];
                    state = decay * state + load(k->x[t] + d) * b[t * states + n];
                    store(k->y[t] + d, load(k->y[t] + d) + state * c[t * states + n]);
                }
                store(h + n * SLICE + d, state);
            }
        scatter(k->y[0], count, s->channels, &p, s->y + (p.row * steps + begin) * s->channels + p.first);
    }
    scatter(h, states, s->channels, &p, s->after + p.row * size + p.first);
}

/* The sum of a vector's lanes in four parts. */
INLINE four quarter(vec x) {
    four parts[LANES / 4], sum;
    memcpy(parts, &x, sizeof x);
    sum = parts[0];
    for (int i = 1; i < LANES / 4; i++) sum += parts[i];
    return sum;
}

/* to[t] = the sum of the lanes of x[t], for `count` tokens. */
INLINE void sum_lanes(const vec *x, long count, float *to) {
    for (long t = 0; t < count; t += 4) {
        four p = quarter(x[t]), q = quarter(x[t + 1]), r = quarter(x[t + 2]), s = quarter(x[t + 3]);
        four pq = MIXED(p, q, 0, 4, 1, 5) + MIXED(p, q, 2, 6, 3, 7);
        four rs = MIXED(r, s, 0, 4, 1, 5) + MIXED(r, s, 2, 6, 3, 7);
        four sums = MIXED(pq, rs, 0, 1, 4, 5) + MIXED(pq, rs, 2, 3, 6, 7);
        memcpy(to + t, &sums, sizeof(float) * (count - t < 4 ? count - t : 4));
    }
}

/* What one state of the channels from `d` does in a chunk: the states again, then all gradients from the last token to
 * the first. `dh` is the gradient of the state after the chunk, and becomes that of the state before it. */
INLINE void backward_state(Chunk *k, long d, long count, const float *b, const float *c, long stride, vec rate, vec h,
                           float *dh, float *da) {
    for (long t = 0; t < count; t++) {
        vec decay = exp2_of(load(k->dt[t] + d) * rate * LOG2_E) * k->cleared[t];
        k->decays[t] = decay, k->entering[t] = h;
        h = decay * h + load(k->x[t] + d) * b[t * stride];
        k->after[t] = h;
    }
    vec slope = load(dh), own = load(da);
    for (long t = count - 1; t >= 0; t--) {
        vec above = load(k->dy[t] + d);
        slope += above * c[t * stride];
        k->dc[t] += above * k->after[t];
        k->db[t] += slope * load(k->x[t] + d);
        store(k->dx[t] + d, load(k->dx[t] + d) + slope * b[t * stride]);
        slope *= k->decays[t];
        vec through = slope * k->entering[t];
        store(k->ddt[t] + d, load(k->ddt[t] + d) + through * rate);
        own += through * load(k->dt[t] + d);
    }
    store(dh, slope), store(da, own);
}

static void backward_chunk(const Scan *s, const Piece *p, long begin, long count, Chunk *k, const float *h,
                           const float *a, float *dh, float *da) {
    const long states = s->states, steps = s->steps, slices = (s->channels + SLICE - 1) / SLICE;
    const float *b = s->b + (p->row * steps + begin) * states, *c = s->c + (p->row * steps + begin) * states;
    const long at = (p->row * steps + begin) * s->channels + p->first;
    read_chunk(s, p, begin, count, k);
    gather(s->dy + at, count, s->channels, p, k->dy[0]);
    memset(k->ddt, 0, sizeof(Rows)), memset(k->dx, 0, sizeof(Rows));
    for (long n = 0; n < states; n++) {
        const long place = ((p->row * slices + p->first / SLICE) * states + n) * steps + begin;
        memset(k->db, 0, sizeof k->db), memset(k->dc, 0, sizeof k->dc);
        for (long d = 0; d < p->across; d += LANES)
            backward_state(k, d, count, b + n, c + n, states, load(a + n * SLICE + d), load(h + n * SLICE + d),
                           dh + n * SLICE + d, da + n * SLICE + d);
        sum_lanes(k->db, count, s->db + place), sum_lanes(k->dc, count, s->dc + place);
    }
    for (long t = 0; t < count; t++)
        for (long d = 0; d < p->across; d += LANES) {
            vec dx = load(k->dx[t] + d);
            store(k->ddt[t] + d, load(k->ddt[t] + d) + dx * load(k->u[t] + d));
            store(k->dx[t] + d, dx * load(k->dt[t] + d));
        }
    scatter(k->ddt[0], count, s->channels, p, s->ddt + at);
    scatter(k->dx[0], count, s->channels, p, s->du + at);
}

static void backward_piece(const Scan *s, Piece p, Chunk *k, float *h, float *a) {
    const long states = s->states, size = states * s->channels, chunks = (s->steps + CHUNK - 1) / CHUNK;
    float *dh = a + states * SLICE, *da = dh + states * SLICE;
    rates(s, &p, 1, a);
    gather(s->dafter + p.row * size + p.first, states, s->channels, &p, dh);
    memset(da, 0, sizeof(float) * states * SLICE);
    for (long i = chunks - 1; i >= 0; i--) {
        const long begin = i * CHUNK, left = s->steps - begin;
        gather(s->kept + (i * s->batch + p.row) * size + p.first, states, s->channels, &p, h);
        backward_chunk(s, &p, begin, left < CHUNK ? left : CHUNK, k, h, a, dh, da);
    }
    scatter(dh, states, s->channels, &p, s->dbefore + p.row * size + p.first);
    scatter(da, states, s->channels, &p, s->da + p.row * size + p.first);
}

/* Pieces of work, taken one after another until none is left; without memory the other threads do them. */
static void pieces(Scan *s, void (*work)(const Scan *, Piece, Chunk *, float *, float *)) {
    const long own = (sizeof(Chunk) + 63) / 64 * 64, count = s->batch * ((s->channels + SLICE - 1) / SLICE);
    char *memory = aligned_alloc(64, own + 4 * sizeof(float) * SLICE * s->states);
    float *h = (float *)(memory + own);
    for (long i; memory && (i = __atomic_fetch_add(&s->next, 1, __ATOMIC_RELAXED)) < count;)
        work(s, piece_of(s, i), (Chunk *)memory, h, h + SLICE * s->states);
    free(memory);
}

void NAME(weft_selective_scan_forward)(Scan *s) { pieces(s, forward_piece); }

void NAME(weft_selective_scan_backward)(Scan *s) { pieces(s, backward_piece); }
