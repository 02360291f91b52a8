/* The selective scan in float32, forward and backward: h_t = exp(dt_t A) h_{t-1} + dt_t B_t u_t, y_t = C_t h_t for every
 * channel (Gu & Dao 2023, algorithm 2), by itself or with the softplus, the skip and the gate of Mamba's block.
 *
 * The lanes of vectors are neighbouring channels, so that h, its decay and its gradient need no exchange between lanes;
 * a few states at once are carried through the tokens of a chunk, whose inputs and outputs stay in the cache. Channels
 * beyond the last count as zeros with steps of 0. Every sum is taken by one thread in one order. */

#include <stdlib.h>

#include "activations.h"
#include "selective_scan.h"

/* States that are carried side by side: their chains of products overlap, and inputs are read once for all. */
#define ABREAST 4

/* A chunk of a slice: rows of SLICE numbers for each token. */
typedef float Rows[CHUNK][SLICE] __attribute__((aligned(64)));

/* Numbers of one vector for every token of a chunk. */
typedef vec Column[CHUNK + 4];

/* The memory of one thread. `h`, `a` and their gradients follow, SLICE numbers for each state. `raised` is sigmoid(dt +
 * bias), the slope of the softplus, and `open` sigmoid(gate); `dout` is the gradient of the gated output. */
typedef struct {
    Rows dt, x, y, u, dy, ddt, dx, raised, gate, open, dout;
    Column decays[ABREAST], entering[ABREAST], db[ABREAST], dc[ABREAST];
    float kept[CHUNK], bias[SLICE], skip[SLICE], dbias[SLICE], dskip[SLICE];
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
INLINE void rates(const Scan *s, const Piece *p, float factor, float *a) {
    gather(s->a + p->first, s->states, s->channels, p, a);
    for (long n = 0; n < s->states; n++)
        for (long d = 0; d < p->across; d++) a[n * SLICE + d] *= factor;
}

/* softplus(dt + bias) in place of dt, where there is a gate. The channels beyond the last keep steps of 0. */
INLINE void soften(const Piece *p, long count, Chunk *k) {
    for (long t = 0; t < count; t++) {
        for (long d = 0; d < p->across; d += LANES) {
            vec falling, raw = load(k->dt[t] + d) + load(k->bias + d);
            store(k->raised[t] + d, sigmoid(raw, &falling));
            store(k->dt[t] + d, larger(all(0), raw) + log1p_of(falling));
        }
        memset(k->dt[t] + p->width, 0, sizeof(float) * (p->across - p->width));
    }
}

/* Steps and inputs of the tokens from `begin`, and where the state is cleared. */
INLINE void read_chunk(const Scan *s, const Piece *p, long begin, long count, Chunk *k) {
    const long token = p->row * s->steps + begin, at = token * s->channels + p->first;
    gather(s->dt + at, count, s->channels, p, k->dt[0]);
    gather(s->u + at, count, s->channels, p, k->u[0]);
    if (s->gate) {
        gather(s->gate + token * s->across + p->first, count, s->across, p, k->gate[0]);
        soften(p, count, k);
    }
    for (long t = 0; t < count; t++) {
        for (long d = 0; d < p->across; d += LANES) store(k->x[t] + d, load(k->dt[t] + d) * load(k->u[t] + d));
        k->kept[t] = s->starts && s->starts[token + t] ? 0.0f : 1.0f;
    }
    memset(k->y, 0, sizeof(Rows));
}

/* What the states from n of the channels from d add to y in a chunk. `h` and `rate` are those of the first of them, `b`
 * and `c` its entries for the chunk's first token. */
INLINE void forward_states(Chunk *k, long d, long count, const float *b, const float *c, long stride, const float *a,
                           float *h, const int abreast, const int clears) {
    vec state[ABREAST], rate[ABREAST];
    for (int j = 0; j < abreast; j++) state[j] = load(h + j * SLICE), rate[j] = load(a + j * SLICE);
    for (long t = 0; t < count; t++) {
        const vec dt = load(k->dt[t] + d), x = load(k->x[t] + d);
        vec y = load(k->y[t] + d);
        for (int j = 0; j < abreast; j++) {
            vec decay = exp2_of(dt * rate[j]);
            if (clears) decay *= k->kept[t];
            state[j] = decay * state[j] + x * b[t * stride + j];
            y += state[j] * c[t * stride + j];
        }
        store(k->y[t] + d, y);
    }
    for (int j = 0; j < abreast; j++) store(h + j * SLICE, state[j]);
}

/* (y + skip u) silu(gate) in place of y. */
INLINE void leave(const Piece *p, long count, Chunk *k) {
    for (long t = 0; t < count; t++)
        for (long d = 0; d < p->across; d += LANES) {
            vec falling, gate = load(k->gate[t] + d), y = load(k->y[t] + d) + load(k->skip + d) * load(k->u[t] + d);
            store(k->y[t] + d, y * (gate * sigmoid(gate, &falling)));
        }
}

/* What belongs to the channels of a piece. */
INLINE void begin_piece(const Scan *s, const Piece *p, float factor, Chunk *k, float *a) {
    rates(s, p, factor, a);
    if (!s->gate) return;
    gather(s->bias + p->first, 1, 0, p, k->bias);
    gather(s->skip + p->first, 1, 0, p, k->skip);
    memset(k->dbias, 0, sizeof k->dbias), memset(k->dskip, 0, sizeof k->dskip);
}

INLINE void forward_of(const Scan *s, const Piece p, Chunk *k, float *h, float *a) {
    const long states = s->states, steps = s->steps, size = states * s->channels;
    begin_piece(s, &p, LOG2_E, k, a);
    gather(s->before + p.row * size + p.first, states, s->channels, &p, h);
    for (long begin = 0; begin < steps; begin += CHUNK) {
        const long count = steps - begin < CHUNK ? steps - begin : CHUNK;
        const float *b = s->b + (p.row * steps + begin) * states, *c = s->c + (p.row * steps + begin) * states;
        if (s->kept)
            scatter(h, states, s->channels, &p, s->kept + (begin / CHUNK * s->batch + p.row) * size + p.first);
        read_chunk(s, &p, begin, count, k);
        for (long d = 0; d < p.across; d += LANES) {
            long n = 0;
            for (; n + ABREAST <= states && !s->starts; n += ABREAST)
                forward_states(k, d, count, b + n, c + n, states, a + n * SLICE + d, h + n * SLICE + d, ABREAST, 0);
            for (; n < states; n++)
                forward_states(k, d, count, b + n, c + n, states, a + n * SLICE + d, h + n * SLICE + d, 1, 1);
        }
        if (s->gate) leave(&p, count, k);
        scatter(k->y[0], count, s->channels, &p, s->y + (p.row * steps + begin) * s->channels + p.first);
    }
    scatter(h, states, s->channels, &p, s->after + p.row * size + p.first);
}

static void forward_piece(const Scan *s, Piece p, Chunk *k, float *h, float *a) {
    const Piece whole = {p.row, p.first, SLICE, SLICE}; /* of a size that the compiler knows */
    if (p.width == SLICE)
        forward_of(s, whole, k, h, a);
    else
        forward_of(s, p, k, h, a);
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

/* What the states from n of the channels from d do in a chunk: the states again, then all gradients from the last token
 * to the first. `dh` is the gradient of the states after the chunk, and becomes that of the states before it. */
INLINE void backward_states(Chunk *k, long d, long count, const float *b, const float *c, long stride, const float *a,
                            const float *h, float *dh, float *da, const int abreast, const int clears) {
    vec state[ABREAST], rate[ABREAST], own[ABREAST];
    for (int j = 0; j < abreast; j++) state[j] = load(h + j * SLICE), rate[j] = load(a + j * SLICE) * LOG2_E;
    for (long t = 0; t < count; t++) {
        const vec dt = load(k->dt[t] + d), x = load(k->x[t] + d);
        vec y = load(k->y[t] + d);
        for (int j = 0; j < abreast; j++) {
            vec decay = exp2_of(dt * rate[j]);
            if (clears) decay *= k->kept[t];
            k->decays[j][t] = decay, k->entering[j][t] = state[j];
            state[j] = decay * state[j] + x * b[t * stride + j];
            y += state[j] * c[t * stride + j];
        }
        store(k->y[t] + d, y);
    }
    for (int j = 0; j < abreast; j++) {
        k->entering[j][count] = state[j];
        state[j] = load(dh + j * SLICE), rate[j] = load(a + j * SLICE), own[j] = load(da + j * SLICE);
    }
    for (long t = count - 1; t >= 0; t--) {
        const vec dt = load(k->dt[t] + d), x = load(k->x[t] + d), above = load(k->dy[t] + d);
        vec dx = load(k->dx[t] + d), ddt = load(k->ddt[t] + d);
        for (int j = 0; j < abreast; j++) {
            vec slope = state[j] + above * c[t * stride + j];
            k->dc[j][t] += above * k->entering[j][t + 1];
            k->db[j][t] += slope * x;
            dx += slope * b[t * stride + j];
            state[j] = slope * k->decays[j][t];
            vec through = state[j] * k->entering[j][t];
            ddt += through * rate[j];
            own[j] += through * dt;
        }
        store(k->dx[t] + d, dx), store(k->ddt[t] + d, ddt);
    }
    for (int j = 0; j < abreast; j++) store(dh + j * SLICE, state[j]), store(da + j * SLICE, own[j]);
}

/* The gradient of C h from that of the gated output. */
INLINE void enter(const Piece *p, long count, Chunk *k) {
    for (long t = 0; t < count; t++)
        for (long d = 0; d < p->across; d += LANES) {
            vec falling, gate = load(k->gate[t] + d), open = sigmoid(gate, &falling);
            store(k->open[t] + d, open), store(k->dout[t] + d, load(k->dy[t] + d));
            store(k->dy[t] + d, load(k->dy[t] + d) * (gate * open));
        }
}

/* The gradients of the gate, in its place, of the steps before the softplus, of the bias and of the skip; what the skip
 * adds to that of u, which is `dx` by now. */
INLINE void leave_backward(const Piece *p, long count, Chunk *k) {
    for (long d = 0; d < p->across; d += LANES) {
        const vec skip = load(k->skip + d);
        vec dskip = load(k->dskip + d), dbias = load(k->dbias + d);
        for (long t = 0; t < count; t++) {
            const vec gate = load(k->gate[t] + d), u = load(k->u[t] + d), dy = load(k->dy[t] + d);
            const vec open = load(k->open[t] + d);
            vec ddt = load(k->ddt[t] + d) * load(k->raised[t] + d);
            vec y = load(k->y[t] + d) + skip * u;
            store(k->gate[t] + d, load(k->dout[t] + d) * y * (open + gate * (open - open * open)));
            store(k->dx[t] + d, load(k->dx[t] + d) + skip * dy);
            store(k->ddt[t] + d, ddt);
            dskip += dy * u, dbias += ddt;
        }
        store(k->dskip + d, dskip), store(k->dbias + d, dbias);
    }
}

/* The gradients of b and c from the states from n. */
INLINE void sum_states(const Scan *s, const Piece *p, long begin, long count, long n, int abreast, const Chunk *k) {
    const long slices = (s->channels + SLICE - 1) / SLICE;
    for (int j = 0; j < abreast; j++) {
        const long place = ((p->row * slices + p->first / SLICE) * s->states + n + j) * s->steps + begin;
        sum_lanes(k->db[j], count, s->db + place), sum_lanes(k->dc[j], count, s->dc + place);
    }
}

INLINE void backward_chunk(const Scan *s, const Piece *p, long begin, long count, Chunk *k, const float *h,
                           const float *a, float *dh, float *da) {
    const long states = s->states, token = p->row * s->steps + begin, at = token * s->channels + p->first;
    const float *b = s->b + token * states, *c = s->c + token * states;
    read_chunk(s, p, begin, count, k);
    gather(s->dy + at, count, s->channels, p, k->dy[0]);
    if (s->gate) enter(p, count, k);
    memset(k->ddt, 0, sizeof(Rows)), memset(k->dx, 0, sizeof(Rows));
    for (long n = 0; n < states;) {
        const int abreast = n + ABREAST <= states && !s->starts ? ABREAST : 1;
        memset(k->db, 0, sizeof(Column) * abreast), memset(k->dc, 0, sizeof(Column) * abreast);
        for (long d = 0; d < p->across; d += LANES) {
            const long i = n * SLICE + d;
            if (abreast == ABREAST)
                backward_states(k, d, count, b + n, c + n, states, a + i, h + i, dh + i, da + i, ABREAST, 0);
            else
                backward_states(k, d, count, b + n, c + n, states, a + i, h + i, dh + i, da + i, 1, 1);
        }
        sum_states(s, p, begin, count, n, abreast, k);
        n += abreast;
    }
    for (long t = 0; t < count; t++)
        for (long d = 0; d < p->across; d += LANES) {
            vec dx = load(k->dx[t] + d);
            store(k->ddt[t] + d, load(k->ddt[t] + d) + dx * load(k->u[t] + d));
            store(k->dx[t] + d, dx * load(k->dt[t] + d));
        }
    if (s->gate) {
        leave_backward(p, count, k);
        scatter(k->gate[0], count, s->channels, p, s->dgate + at);
    }
    scatter(k->ddt[0], count, s->channels, p, s->ddt + at);
    scatter(k->dx[0], count, s->channels, p, s->du + at);
}

INLINE void backward_of(const Scan *s, const Piece p, Chunk *k, float *h, float *a) {
    const long states = s->states, size = states * s->channels, chunks = (s->steps + CHUNK - 1) / CHUNK;
    float *dh = a + states * SLICE, *da = dh + states * SLICE;
    begin_piece(s, &p, 1, k, a);
    gather(s->dafter + p.row * size + p.first, states, s->channels, &p, dh);
    memset(da, 0, sizeof(float) * states * SLICE);
    for (long i = chunks - 1; i >= 0; i--) {
        const long begin = i * CHUNK, left = s->steps - begin;
        gather(s->kept + (i * s->batch + p.row) * size + p.first, states, s->channels, &p, h);
        backward_chunk(s, &p, begin, left < CHUNK ? left : CHUNK, k, h, a, dh, da);
    }
    scatter(dh, states, s->channels, &p, s->dbefore + p.row * size + p.first);
    scatter(da, states, s->channels, &p, s->da + p.row * size + p.first);
    if (s->gate) {
        scatter(k->dbias, 1, 0, &p, s->dbias + p.row * s->channels + p.first);
        scatter(k->dskip, 1, 0, &p, s->dskip + p.row * s->channels + p.first);
    }
}

static void backward_piece(const Scan *s, Piece p, Chunk *k, float *h, float *a) {
    const Piece whole = {p.row, p.first, SLICE, SLICE}; /* of a size that the compiler knows */
    if (p.width == SLICE)
        backward_of(s, whole, k, h, a);
    else
        backward_of(s, p, k, h, a);
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
