/* The delta rule in float32, token by token, forward and backward.
 *
 *     u_t = a_t^T S_{t-1},   S_t = diag(d_t) S_{t-1} + b_t u_t^T + k_t v_t^T,   y_t = q_t S_t
 *
 * A head's memory stays in the cache, with the features of values as lanes; a token passes over it once, since what the
 * next one reads is summed while it is written. The backward pass keeps every memory of a span of tokens and, for the
 * other spans, the one they begin with; a span is as long as the root of the tokens, so that a thread's memory grows
 * with that root alone. Every sum is taken by one thread in one order. */

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "delta_rule.h"
#include "vectors.h"

#define BESIDE 4
#define BLOCK (BESIDE * LANES)

/* One head of one row: where its tokens lie, and the width of a memory's rows. */
typedef struct {
    const DeltaRule *call;
    long row, head, wide;
} Head;

static inline long features_at(const Head *h, long token) {
    return ((h->row * h->call->steps + token) * h->call->heads + h->head) * h->call->size;
}

static inline long values_at(const Head *h, long token) {
    return ((h->row * h->call->steps + token) * h->call->heads + h->head) * h->call->value_size;
}

static inline long memory_at(const Head *h) {
    return (h->row * h->call->heads + h->head) * h->call->size * h->call->value_size;
}

static inline const float *decay_of(const Head *h, long token) {
    const DeltaRule *c = h->call;
    return c->decay ? c->decay + h->row * c->decay_at[0] + token * c->decay_at[1] + h->head * c->decay_at[2] : NULL;
}

static inline float decay_in(const DeltaRule *c, const float *decay, long e) {
    return decay ? decay[c->decays > 1 ? e : 0] : 1.0f;
}

/* The sum of a vector's numbers. */
INLINE float total(vec x) {
#if defined(__AVX512F__)
    return _mm512_reduce_add_ps((__m512)x);
#else
    float sum = 0;
    for (long i = 0; i < LANES; i++) sum += x[i];
    return sum;
#endif
}

/* Adds the sums of four vectors to four adjacent numbers. */
INLINE void add_totals(float *to, vec a, vec b, vec c, vec d) {
#if defined(__AVX512F__)
    __m512 ab = _mm512_add_ps(_mm512_unpacklo_ps((__m512)a, (__m512)b), _mm512_unpackhi_ps((__m512)a, (__m512)b));
    __m512 cd = _mm512_add_ps(_mm512_unpacklo_ps((__m512)c, (__m512)d), _mm512_unpackhi_ps((__m512)c, (__m512)d));
    __m512 all = _mm512_add_ps(_mm512_shuffle_ps(ab, cd, 0x44), _mm512_shuffle_ps(ab, cd, 0xee));
    __m256 half = _mm256_add_ps(_mm512_castps512_ps256(all), _mm512_extractf32x8_ps(all, 1));
    __m128 sums = _mm_add_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1));
    _mm_storeu_ps(to, _mm_add_ps(_mm_loadu_ps(to), sums));
#else
    to[0] += total(a), to[1] += total(b), to[2] += total(c), to[3] += total(d);
#endif
}

/* Rows of `columns` numbers to rows of `wide`, the others zero, and back. */
static void spread(const float *x, long rows, long columns, long wide, float *y) {
    for (long r = 0; r < rows; r++) {
        memcpy(y + r * wide, x + r * columns, columns * sizeof(float));
        memset(y + r * wide + columns, 0, (wide - columns) * sizeof(float));
    }
}

static void gather(const float *x, long rows, long columns, long wide, float *y) {
    for (long r = 0; r < rows; r++) memcpy(y + r * columns, x + r * wide, columns * sizeof(float));
}

/* u = a^T S. */
static void read_memory(const Head *h, const float *a, const float *memory, float *u) {
    for (long f = 0; f < h->wide; f += BLOCK) {
        vec sums[BESIDE] = {0};
        for (long e = 0; e < h->call->size; e++)
            for (long j = 0; j < BESIDE; j++) sums[j] += a[e] * load(memory + e * h->wide + f + j * LANES);
        for (long j = 0; j < BESIDE; j++) store(u + f + j * LANES, sums[j]);
    }
}

/* The memory after a token, `to`, from the one before, `from` (they may be the same), with what the token's q and the
 * next one's a read of it. `read` is what the token's own a has read; it becomes what the next one's reads. */
static void write_memory(const Head *h, long token, const float *v, const float *from, float *to, float *read,
                         float *y) {
    const DeltaRule *c = h->call;
    const long at = features_at(h, token), size = c->size;
    const float *q = c->q + at, *k = c->k + at, *b = c->b + at, *decay = decay_of(h, token);
    const float *next = token + 1 < c->steps ? c->a + features_at(h, token + 1) : c->a + at;
    for (long f = 0; f < h->wide; f += BLOCK) {
        vec out[BESIDE] = {0}, reading[BESIDE] = {0}, u[BESIDE], value[BESIDE];
        for (long j = 0; j < BESIDE; j++) u[j] = load(read + f + j * LANES), value[j] = load(v + f + j * LANES);
        for (long e = 0; e < size; e++) {
            const float *old = from + e * h->wide + f;
            float *new = to + e * h->wide + f, d = decay_in(c, decay, e);
            for (long j = 0; j < BESIDE; j++) {
                vec s = load(old + j * LANES) * d + b[e] * u[j] + k[e] * value[j];
                store(new + j * LANES, s);
                out[j] += q[e] * s, reading[j] += next[e] * s;
            }
        }
        for (long j = 0; j < BESIDE; j++) store(y + f + j * LANES, out[j]), store(read + f + j * LANES, reading[j]);
    }
}

static void run_forward(const Head *h, float *memory, float *rows) {
    const DeltaRule *c = h->call;
    float *u = rows, *v = rows + h->wide, *y = rows + 2 * h->wide;
    spread(c->before + memory_at(h), c->size, c->value_size, h->wide, memory);
    read_memory(h, c->a + features_at(h, 0), memory, u);
    for (long t = 0; t < c->steps; t++) {
        spread(c->v + values_at(h, t), 1, c->value_size, h->wide, v);
        write_memory(h, t, v, memory, memory, u, y);
        gather(y, 1, c->value_size, h->wide, c->y + values_at(h, t));
    }
    gather(memory, c->size, c->value_size, h->wide, c->after + memory_at(h));
}

/* What a thread needs in the backward pass: `span` + 1 memories, the first memory of each span, the gradient of one,
 * rows for each token of a span, and some more. */
typedef struct {
    long span, spans;
    float *states, *firsts, *slope, *reads, *rows, *sums;
} Room;

static float *reserve(long numbers) {
    void *at = NULL;
    return posix_memalign(&at, 64, numbers * sizeof(float)) ? NULL : at;
}

/* The memories of a span, states[i] before its token i, and what its tokens read. */
static void run_span(const Head *h, const Room *room, long first, long count) {
    const DeltaRule *c = h->call;
    const long memory = c->size * h->wide;
    float *v = room->rows, *y = room->rows + h->wide, *u = room->rows + 2 * h->wide;
    read_memory(h, c->a + features_at(h, first), room->states, u);
    for (long i = 0; i < count; i++) {
        spread(c->v + values_at(h, first + i), 1, c->value_size, h->wide, v);
        memcpy(room->reads + i * h->wide, u, h->wide * sizeof(float));
        write_memory(h, first + i, v, room->states + i * memory, room->states + (i + 1) * memory, u, y);
    }
}

/* The gradients that a token and what the next one has read of it give. On entry `slope` is the gradient of the memory
 * after the next token and `dread` that of what the next token has read; on return of this one's. The last token has no
 * next. */
static void run_slopes(const Head *h, long token, const float *after, const float *before, const float *u,
                       const float *v, const float *dy, float *slope, float *dread, float *dv, float *sums) {
    const DeltaRule *c = h->call;
    const long at = features_at(h, token), size = c->size;
    const int last = token + 1 == c->steps;
    const float *q = c->q + at, *k = c->k + at, *b = c->b + at;
    const float *a = last ? NULL : c->a + features_at(h, token + 1), *decay = last ? NULL : decay_of(h, token + 1);
    float *da = sums + 4 * size;
    memset(sums, 0, 5 * size * sizeof(float));
    for (long f = 0; f < h->wide; f += BLOCK) {
        vec value[BESIDE] = {0}, reading[BESIDE] = {0}, above[BESIDE], read[BESIDE], own[BESIDE], has[BESIDE];
        for (long j = 0; j < BESIDE; j++) {
            above[j] = load(dy + f + j * LANES), read[j] = load(dread + f + j * LANES);
            own[j] = load(v + f + j * LANES), has[j] = load(u + f + j * LANES);
        }
        for (long e = 0; e < size; e++) {
            const float d = decay_in(c, decay, e), next = last ? 0 : a[e];
            vec to_q = {0}, to_k = {0}, to_b = {0}, to_d = {0}, to_a = {0};
            for (long j = 0; j < BESIDE; j++) {
                const long place = e * h->wide + f + j * LANES;
                vec s = load(after + place), g = load(slope + place) * d + next * read[j] + q[e] * above[j];
                store(slope + place, g);
                to_q += s * above[j], to_a += s * read[j], to_k += g * own[j], to_b += g * has[j];
                to_d += g * load(before + place);
                value[j] += k[e] * g, reading[j] += b[e] * g;
            }
            add_totals(sums + 4 * e, to_q, to_k, to_b, to_d);
            da[e] += total(to_a);
        }
        for (long j = 0; j < BESIDE; j++) store(dv + f + j * LANES, value[j]), store(dread + f + j * LANES, reading[j]);
    }
}

/* The sums of a token to where its gradients go: four for each feature, of q, k, b and the decay, then those of a, which
 * belong to the next token. */
static void put(const Head *h, long token, const float *sums, const float *dv) {
    const DeltaRule *c = h->call;
    const long at = features_at(h, token), size = c->size;
    for (long e = 0; e < size; e++)
        c->dq[at + e] = sums[4 * e], c->dk[at + e] = sums[4 * e + 1], c->db[at + e] = sums[4 * e + 2];
    if (token + 1 < c->steps) memcpy(c->da + features_at(h, token + 1), sums + 4 * size, size * sizeof(float));
    gather(dv, 1, c->value_size, h->wide, c->dv + values_at(h, token));
    if (!c->decay) return;
    float *to = c->ddecay + at / size * c->decays;
    if (c->decays == 1) *to = 0;
    for (long e = 0; e < size; e++) {
        if (c->decays > 1)
            to[e] = sums[4 * e + 3];
        else
            *to += sums[4 * e + 3];
    }
}

/* The gradients of the memory before the first token and of its a. */
static void finish(const Head *h, const float *before, const float *dread, float *slope) {
    const DeltaRule *c = h->call;
    const float *a = c->a + features_at(h, 0), *decay = decay_of(h, 0);
    float *da = c->da + features_at(h, 0);
    for (long e = 0; e < c->size; e++) {
        vec sum = {0};
        const float d = decay_in(c, decay, e);
        for (long f = 0; f < h->wide; f += LANES) {
            vec read = load(dread + f);
            sum += load(before + e * h->wide + f) * read;
            store(slope + e * h->wide + f, load(slope + e * h->wide + f) * d + a[e] * read);
        }
        da[e] = total(sum);
    }
    gather(slope, c->size, c->value_size, h->wide, c->dbefore + memory_at(h));
}

static void run_backward(const Head *h, const Room *room) {
    const DeltaRule *c = h->call;
    const long memory = c->size * h->wide, bytes = memory * sizeof(float);
    float *dread = room->rows + 3 * h->wide, *dv = dread + h->wide, *v = dv + h->wide, *dy = v + h->wide;
    spread(c->before + memory_at(h), c->size, c->value_size, h->wide, room->firsts);
    for (long i = 0; i + 1 < room->spans; i++) {
        memcpy(room->states, room->firsts + i * memory, bytes);
        run_span(h, room, i * room->span, room->span);
        memcpy(room->firsts + (i + 1) * memory, room->states + room->span * memory, bytes);
    }
    spread(c->dafter + memory_at(h), c->size, c->value_size, h->wide, room->slope);
    memset(dread, 0, h->wide * sizeof(float));
    for (long i = room->spans - 1; i >= 0; i--) {
        const long first = i * room->span, left = c->steps - first, count = left < room->span ? left : room->span;
        memcpy(room->states, room->firsts + i * memory, bytes);
        run_span(h, room, first, count);
        for (long t = count - 1; t >= 0; t--) {
            spread(c->v + values_at(h, first + t), 1, c->value_size, h->wide, v);
            spread(c->dy + values_at(h, first + t), 1, c->value_size, h->wide, dy);
            run_slopes(h, first + t, room->states + (t + 1) * memory, room->states + t * memory,
                       room->reads + t * h->wide, v, dy, room->slope, dread, dv, room->sums);
            put(h, first + t, room->sums, dv);
        }
    }
    finish(h, room->firsts, dread, room->slope);
}

static long wide_of(const DeltaRule *c) { return (c->value_size + BLOCK - 1) / BLOCK * BLOCK; }

static int take(DeltaRule *c, Head *h) {
    const long item = __atomic_fetch_add(&c->next, 1, __ATOMIC_RELAXED);
    *h = (Head){c, item / c->heads, item % c->heads, wide_of(c)};
    return item < c->batch * c->heads;
}

void NAME(weft_delta_rule_forward)(DeltaRule *c) {
    const long wide = wide_of(c);
    float *memory = reserve((c->size + 3) * wide);
    Head h;
    if (memory)
        while (take(c, &h)) run_forward(&h, memory, memory + c->size * wide);
    free(memory);
}

void NAME(weft_delta_rule_backward)(DeltaRule *c) {
    const long wide = wide_of(c), memory = c->size * wide, root = (long)ceil(sqrt((double)c->steps));
    Room room = {.span = root < 16 ? 16 : root};
    room.spans = (c->steps + room.span - 1) / room.span;
    const long numbers = (room.span + room.spans + 2) * memory + (room.span + 7) * wide + 5 * c->size;
    Head h;
    room.states = reserve(numbers);
    if (!room.states) return;
    room.firsts = room.states + (room.span + 1) * memory;
    room.slope = room.firsts + room.spans * memory;
    room.reads = room.slope + memory;
    room.rows = room.reads + room.span * wide;
    room.sums = room.rows + 7 * wide;
    while (take(c, &h)) run_backward(&h, &room);
    free(room.states);
}
