/* Softmax attention in float32, forward and backward, by tiles of 64 queries and up to 64 keys (Dao et al. 2022).
 *
 * Queries are the lanes of vectors: scores are kept as [key, query], so that the maximum and the sum over keys need no
 * exchange between lanes, and keys and values are read where they are. The weights of a tile are computed again in the
 * backward pass. Every sum is taken by one thread in one order, so that a call gives the same bits at any number of
 * threads. */

#include <stdlib.h>

#include "attention.h"
#include "product.h"

#define QUERIES 64
#define KEYS 64
#define HALF 32
#define LOG2_E 1.4426950408889634

static inline long least(long a, long b) { return a < b ? a : b; }
static inline long most(long a, long b) { return a > b ? a : b; }
static inline long padded(long n) { return (n + LANES - 1) / LANES * LANES; }

/* A block of queries of one head: the interval of keys of each, and bounds on all of them. */
typedef struct {
    int32_t from[QUERIES] __attribute__((aligned(64))), to[QUERIES] __attribute__((aligned(64)));
    long first, last, all_from, all_to, count;
} Block;

static void bounds(const Attention *c, long row, long begin, Block *block) {
    block->count = least(QUERIES, c->queries - begin);
    block->first = block->all_to = c->keys;
    block->last = block->all_from = -1;
    for (long i = 0; i < QUERIES; i++) {
        long at = row * c->queries + begin + i, own = c->offset + begin + i, from = most(0, own - c->back);
        long to = least(c->keys - 1, own + c->ahead);
        if (i >= block->count) {
            block->from[i] = 0, block->to[i] = -1;
            continue;
        }
        if (c->start) from = most(from, c->start[at]);
        if (c->stop) to = least(to, c->stop[at]);
        block->from[i] = (int32_t)from, block->to[i] = (int32_t)to;
        block->all_from = most(block->all_from, from), block->all_to = least(block->all_to, to);
        if (from <= to) block->first = least(block->first, from), block->last = most(block->last, to);
    }
}

/* A tile: the keys from `key`, and the queries from `left` to `right`, multiples of LANES that hold all that see one. */
typedef struct {
    long key, keys, left, right;
    int edge;
} Tile;

/* The tile that begins at `key`. It is halved where it reaches the end of what some queries see, so that less of it is
 * computed in vain. */
static Tile tile_at(const Block *block, long key) {
    Tile t = {key, least(KEYS, block->last + 1 - key), 0, padded(block->count), 0};
    if (key + t.keys - 1 > block->all_to) t.keys = least(t.keys, HALF);
    t.edge = key + t.keys - 1 > block->all_to || key < block->all_from;
    if (!t.edge) return t;
    const long step = ACROSS * LANES / 2 > LANES ? ACROSS * LANES / 2 : LANES;
    for (; t.left < t.right; t.left += step)
        for (long i = t.left; i < t.left + step && i < QUERIES; i++)
            if (block->to[i] >= key && block->from[i] < key + t.keys) goto found;
found:
    for (; t.right > t.left; t.right -= LANES)
        for (long i = t.right - LANES; i < t.right; i++)
            if (block->to[i] >= key && block->from[i] < key + t.keys) return t;
    return t;
}

/* Scores of keys that a query does not attend to become -infinity. */
static void hide(const Block *block, const Tile *t, float *scores) {
    for (long u = t->left; u < t->right; u += LANES) {
        ints from = load_ints(block->from + u), to = load_ints(block->to + u);
        for (long j = 0; j < t->keys; j++) {
            ints key = (ints){0} + (int32_t)(t->key + j);
            float *at = scores + j * QUERIES + u;
            store(at, chosen((key >= from) & (key <= to), load(at), all(-INFINITY)));
        }
    }
}

/* Adds to the scores of a tile what stands for the distance of query and key. */
static void add_bias(const float *bias, long begin, const Tile *t, float *scores) {
    for (long j = 0; j < t->keys; j++)
        for (long u = t->left; u < t->right; u += LANES) {
            float *at = scores + j * QUERIES + u;
            store(at, load(at) + load(bias + begin + u - t->key - j));
        }
}

/* Adds the slopes of a tile to those of distances. */
static void add_slopes(const float *slopes, long begin, const Tile *t, float *dbias) {
    for (long j = 0; j < t->keys; j++)
        for (long u = t->left; u < t->right; u += LANES) {
            float *to = dbias + begin + u - t->key - j;
            store(to, load(to) + load(slopes + j * QUERIES + u));
        }
}

/* The bias of distance 0 for a row and a head, and where its slope goes; NULL where there is none. */
static const float *bias_of(const Attention *c, long row, long head) {
    return c->bias ? c->bias + row * c->bias_at.row + head * c->bias_at.head + c->ahead + c->offset : NULL;
}

static float *slope_of(const Attention *c, long row, long head) {
    return c->dbias ? c->dbias + (row * c->heads + head) * c->lengths + BEYOND + c->ahead + c->offset : NULL;
}

static inline const float *at(const float *x, Strides s, long row, long token, long head) {
    return x + row * s.row + token * s.token + head * s.head;
}

/* Of a block of queries, from the scores of a tile: the weights relative to the largest score so far, in place, with the
 * sums of weights and the outputs rescaled to it. */
static void weigh(const Tile *t, float *scores, float *top, float *sums, float *y, long value_size) {
    for (long u = t->left; u < t->right; u += LANES) {
        vec before = load(top + u), high = before;
        for (long j = 0; j < t->keys; j++) high = larger(high, load(scores + j * QUERIES + u));
        vec base = larger(high, all(-1e30f)); /* so that -infinity less the largest is not NaN */
        vec shrink = exp2_of(before - base), sum = load(sums + u) * shrink;
        for (long j = 0; j < t->keys; j++) {
            vec weight = exp2_of(load(scores + j * QUERIES + u) - base);
            store(scores + j * QUERIES + u, weight);
            sum += weight;
        }
        store(top + u, high), store(sums + u, sum);
        for (long f = 0; f < value_size; f++) store(y + f * QUERIES + u, load(y + f * QUERIES + u) * shrink);
    }
}

static void forward_block(const Attention *c, long row, long head, long begin, float *memory) {
    const long size = c->size, value_size = c->value_size, group = head / (c->heads / c->groups);
    float *q = memory, *scores = q + size * QUERIES, *y = scores + KEYS * QUERIES, *scaled = y + value_size * QUERIES;
    float top[QUERIES] __attribute__((aligned(64))), sums[QUERIES] __attribute__((aligned(64)));
    Block block;
    const float *bias = bias_of(c, row, head);
    bounds(c, row, begin, &block);
    transpose(at(c->q, c->q_at, row, begin, head), c->q_at.token, block.count, size, (float)(c->scale * LOG2_E), q,
              QUERIES);
    memset(y, 0, sizeof(float) * value_size * QUERIES);
    for (long i = 0; i < QUERIES; i++) top[i] = -INFINITY, sums[i] = 0;
    for (long key = block.first; key <= block.last;) {
        Tile t = tile_at(&block, key);
        Matrix k = {at(c->k, c->k_at, row, key, group), c->k_at.token, 1};
        Matrix v = {at(c->v, c->v_at, row, key, group), 1, c->v_at.token};
        set_product(t.keys, t.right - t.left, size, k, q + t.left, QUERIES, scores + t.left, QUERIES);
        if (bias) add_bias(bias, begin, &t, scores);
        if (t.edge) hide(&block, &t, scores);
        weigh(&t, scores, top, sums, y, value_size);
        add_product(value_size, t.right - t.left, t.keys, v, scores + t.left, QUERIES, y + t.left, QUERIES);
        key += t.keys;
    }
    float *logs = c->logs + (row * c->heads + head) * c->queries + begin;
    for (long i = 0; c->sinks && i < QUERIES; i++) {
        float sink = c->sinks[head], high = sink > top[i] ? sink : top[i], total = exp2f(sink - high);
        if (sums[i] == 0) continue;
        const float shrink = exp2f(top[i] - high);
        total += sums[i] * shrink;
        for (long f = 0; f < value_size; f++) y[f * QUERIES + i] *= shrink;
        top[i] = high, sums[i] = total;
    }
    for (long i = 0; i < block.count; i++) logs[i] = sums[i] == 0 ? INFINITY : top[i] + log2f(sums[i]);
    for (long i = 0; i < QUERIES; i++) sums[i] = sums[i] == 0 ? 0 : 1 / sums[i];
    for (long f = 0; f < value_size; f++)
        for (long u = 0; u < QUERIES; u += LANES) store(y + f * QUERIES + u, load(y + f * QUERIES + u) * load(sums + u));
    transpose(y, QUERIES, value_size, QUERIES, 1, scaled, padded(value_size));
    for (long i = 0; i < block.count; i++)
        memcpy(c->y + ((row * c->queries + begin + i) * c->heads + head) * value_size, scaled + i * padded(value_size),
               sizeof(float) * value_size);
}

/* Of a block of queries and one head, for the backward pass; `across` numbers lie between rows of features. */
typedef struct {
    float *q, *q_rows, *y, *dy, *dy_rows, *weights, *slopes, *dq, *dq_rows, *dk, *dv;
    float logs[QUERIES] __attribute__((aligned(64))), means[QUERIES] __attribute__((aligned(64)));
} Work;

static void rows_of(const float *x, long stride, long count, long size, float factor, float *y) {
    const long across = padded(size);
    memset(y, 0, sizeof(float) * QUERIES * across);
    for (long i = 0; i < count; i++)
        for (long e = 0; e < size; e++) y[i * across + e] = x[i * stride + e] * factor;
}

static void prepare(const Attention *c, long row, long head, long begin, const Block *block, Work *w) {
    const long size = c->size, value_size = c->value_size, stride = c->heads * value_size;
    const float *q = at(c->q, c->q_at, row, begin, head);
    const long place = (row * c->queries + begin) * stride + head * value_size;
    const float *dy = c->dy + place, *y = c->y + place;
    const float *logs = c->logs + (row * c->heads + head) * c->queries + begin;
    transpose(q, c->q_at.token, block->count, size, (float)(c->scale * LOG2_E), w->q, QUERIES);
    transpose(dy, stride, block->count, value_size, 1, w->dy, QUERIES);
    rows_of(q, c->q_at.token, block->count, size, (float)c->scale, w->q_rows);
    rows_of(dy, stride, block->count, value_size, 1, w->dy_rows);
    transpose(y, stride, block->count, value_size, 1, w->y, QUERIES);
    /* Summed as the products of a tile are, so that the slope of a weight that stands alone is exactly 0. */
    for (long u = 0; u < QUERIES; u += LANES) {
        vec mean = {0};
        for (long f = 0; f < value_size; f++) mean += load(w->y + f * QUERIES + u) * load(w->dy + f * QUERIES + u);
        store(w->means + u, mean);
    }
    for (long i = 0; i < QUERIES; i++) w->logs[i] = i < block->count ? logs[i] : INFINITY;
    memset(w->dq, 0, sizeof(float) * size * QUERIES);
}

/* Gradients of a product go to `total`, rows of `size` numbers, by way of `part` where they are no whole vectors. */
static void add_rows(long rows, long size, long inner, Matrix a, const float *b, float *total, long down, float *part) {
    const long across = padded(size);
    if (across == size) {
        add_product(rows, size, inner, a, b, across, total, down);
        return;
    }
    memset(part, 0, sizeof(float) * rows * across);
    add_product(rows, across, inner, a, b, across, part, across);
    for (long i = 0; i < rows; i++)
        for (long e = 0; e < size; e++) total[i * down + e] += part[i * across + e];
}

static void backward_tile(const Attention *c, long row, long head, long begin, const Block *block, Work *w, Tile t) {
    const long group = head / (c->heads / c->groups), size = c->size, value_size = c->value_size, width = t.right - t.left;
    const long place = (row * c->keys + t.key) * c->groups + group;
    const float *k = at(c->k, c->k_at, row, t.key, group);
    Matrix keys = {k, c->k_at.token, 1}, turned = {k, 1, c->k_at.token};
    Matrix values = {at(c->v, c->v_at, row, t.key, group), c->v_at.token, 1};
    Matrix weights = {w->weights + t.left, QUERIES, 1}, slopes = {w->slopes + t.left, QUERIES, 1};
    set_product(t.keys, width, size, keys, w->q + t.left, QUERIES, w->weights + t.left, QUERIES);
    const float *bias = bias_of(c, row, head);
    float *dbias = slope_of(c, row, head);
    if (bias) add_bias(bias, begin, &t, w->weights);
    if (t.edge) hide(block, &t, w->weights);
    set_product(t.keys, width, value_size, values, w->dy + t.left, QUERIES, w->slopes + t.left, QUERIES);
    for (long u = t.left; u < t.right; u += LANES) {
        vec logs = load(w->logs + u), means = load(w->means + u);
        for (long j = 0; j < t.keys; j++) {
            float *x = w->weights + j * QUERIES + u, *dx = w->slopes + j * QUERIES + u;
            vec weight = exp2_of(load(x) - logs);
            store(x, weight), store(dx, weight * (load(dx) - means));
        }
    }
    if (dbias) add_slopes(w->slopes, begin, &t, dbias);
    add_rows(t.keys, value_size, width, weights, w->dy_rows + t.left * padded(value_size), c->dv + place * value_size,
             c->groups * value_size, w->dv);
    add_rows(t.keys, size, width, slopes, w->q_rows + t.left * padded(size), c->dk + place * size, c->groups * size,
             w->dk);
    add_product(size, width, t.keys, turned, w->slopes + t.left, QUERIES, w->dq + t.left, QUERIES);
}

/* All gradients that go through one key/value head of one row: of its keys and values, and of its query heads. */
static void backward_group(const Attention *c, long row, long group, Work *w) {
    const long size = c->size, shared = c->heads / c->groups;
    Block block;
    for (long head = group * shared; head < (group + 1) * shared; head++)
        for (long begin = 0; begin < c->queries; begin += QUERIES) {
            bounds(c, row, begin, &block);
            prepare(c, row, head, begin, &block, w);
            for (long key = block.first; key <= block.last;) {
                Tile t = tile_at(&block, key);
                backward_tile(c, row, head, begin, &block, w, t);
                key += t.keys;
            }
            transpose(w->dq, QUERIES, size, QUERIES, (float)c->scale, w->dq_rows, padded(size));
            for (long i = 0; i < block.count; i++)
                memcpy(c->dq + ((row * c->queries + begin + i) * c->heads + head) * size, w->dq_rows + i * padded(size),
                       sizeof(float) * size);
        }
}

/* Memory of one thread; NULL if there is none, and then the other threads do its work. */
static float *reserved(long numbers) { return aligned_alloc(64, (sizeof(float) * numbers + 63) / 64 * 64); }

/* What one thread does: blocks of queries, taken one after another until none is left. */
void NAME(weft_attention_forward)(Attention *c) {
    float *memory = reserved(QUERIES * (c->size + KEYS + c->value_size + padded(c->value_size)));
    const long blocks = (c->queries + QUERIES - 1) / QUERIES, count = c->batch * c->heads * blocks;
    for (long i; memory && (i = __atomic_fetch_add(&c->next, 1, __ATOMIC_RELAXED)) < count;)
        forward_block(c, i / blocks / c->heads, i / blocks % c->heads, i % blocks * QUERIES, memory);
    free(memory);
}

/* What one thread does: key/value heads, taken one after another until none is left. */
void NAME(weft_attention_backward)(Attention *c) {
    const long size = QUERIES * padded(c->size), value_size = QUERIES * padded(c->value_size);
    float *memory = reserved(5 * size + 4 * value_size + 2 * KEYS * QUERIES);
    const long count = c->batch * c->groups;
    float *values = memory + 5 * size, *tiles = values + 4 * value_size;
    Work w = {.q = memory, .q_rows = memory + size, .dq = memory + 2 * size, .dq_rows = memory + 3 * size,
              .dk = memory + 4 * size, .y = values, .dy = values + value_size, .dy_rows = values + 2 * value_size,
              .dv = values + 3 * value_size, .weights = tiles, .slopes = tiles + KEYS * QUERIES};
    for (long i; memory && (i = __atomic_fetch_add(&c->next, 1, __ATOMIC_RELAXED)) < count;)
        backward_group(c, i / c->groups, i % c->groups, &w);
    free(memory);
}
