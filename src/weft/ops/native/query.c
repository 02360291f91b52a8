/* Attention of one query for each head over the keys that are stored: what a step of decoding does with its cache.
 *
 * Query heads that share a key head are taken together, so that its keys and values are read once for them. Only keys
 * between the first and the last that a query may attend to are read. Scores, weights and sums are in float32. */

#include "products.h"
#include "token.h"

#define WIDE 4 /* vectors of a tile of sums of values */

/* sums[h][v] += weights of heads times values, over the keys. `heads` and `vectors` are known to the compiler. */
INLINE void mix(const int heads, const int vectors, const int narrow, const float *weights, long across, long keys,
                const char *values, long step, float *y, long width) {
    vec sums[4][WIDE];
    EACH(h, heads) EACH(v, vectors) sums[h][v] = (vec){0};
    for (long s = 0; s < keys; s++, values += step) {
        vec row[WIDE];
        EACH(v, vectors)
            row[v] = narrow ? widened((const uint16_t *)values + v * LANES) : load((const float *)values + v * LANES);
        EACH(h, heads) {
            const float weight = weights[h * across + s];
            EACH(v, vectors) sums[h][v] += weight * row[v];
        }
    }
    EACH(h, heads) EACH(v, vectors) store(y + h * width + v * LANES, sums[h][v]);
}

/* The last features, fewer than a vector. */
static void mix_rest(int heads, int narrow, const float *weights, long across, long keys, const char *values, long step,
                     float *y, long width, long count) {
    for (int h = 0; h < heads; h++)
        for (long f = 0; f < count; f++) {
            float sum = 0;
            for (long s = 0; s < keys; s++) {
                const char *row = values + s * step;
                sum += weights[h * across + s] * (narrow ? wide_of(((const uint16_t *)row)[f]) : ((const float *)row)[f]);
            }
            y[h * width + f] = sum;
        }
}

INLINE void mix_heads(const int heads, const int narrow, const float *weights, long across, long keys,
                      const char *values, long step, float *y, long width) {
    const long size = narrow ? 2 : 4;
    long f = 0;
    for (; f + WIDE * LANES <= width; f += WIDE * LANES)
        mix(heads, WIDE, narrow, weights, across, keys, values + f * size, step, y + f, width);
    for (; f + LANES <= width; f += LANES)
        mix(heads, 1, narrow, weights, across, keys, values + f * size, step, y + f, width);
    mix_rest(heads, narrow, weights, across, keys, values + f * size, step, y + f, width, width - f);
}

/* Weights from scores, and one over their sum; keys that are not allowed get none. */
static float weigh(float *scores, long keys, float scale, const char *allowed, long step) {
    float most = -INFINITY, sum = 0;
    int any = 0;
    for (long s = 0; s < keys; s++) {
        const int seen = !allowed || allowed[s * step];
        scores[s] = seen ? scores[s] * scale : -INFINITY;
        any |= seen;
        most = scores[s] > most ? scores[s] : most;
        if (scores[s] != scores[s]) most = NAN; /* stays, for comparisons with it are false */
    }
    if (!any) {
        memset(scores, 0, sizeof(float) * keys);
        return 0;
    }
    vec sums = {0};
    long s = 0;
    for (; s + LANES <= keys; s += LANES) {
        vec weight = exp2_of((load(scores + s) - most) * 1.44269504f);
        store(scores + s, weight);
        sums += weight;
    }
    for (; s < keys; s++) sum += scores[s] = exp2_of(all((scores[s] - most) * 1.44269504f))[0];
    for (int i = 0; i < LANES; i++) sum += sums[i];
    return 1 / sum;
}

/* Heads `first` to `first + count` of a row, which share a key head. */
static int heads_of(const Query *c, long row, long first, long count, float *scores, float *y) {
    const long size = c->narrow ? 2 : 4, key_head = first / (c->heads / c->key_heads);
    const char *k = (const char *)c->k + (row * c->k_batch + key_head * c->k_head) * size;
    const char *v = (const char *)c->v + (row * c->v_batch + key_head * c->v_head) * size;
    const char *allowed = c->allowed ? c->allowed + row * c->a_batch + first * c->a_head : 0;
    const char *q = (const char *)c->q + (row * c->q_batch + first * c->size) * size;
    long begin = c->keys, end = 0;
    for (long h = 0; h < (allowed && c->a_head ? count : 1); h++) {
        long one = 0, last = c->keys;
        const char *own = allowed + h * c->a_head;
        while (allowed && one < last && !own[one * c->a_key]) one++;
        while (allowed && last > one && !own[(last - 1) * c->a_key]) last--;
        begin = one < begin ? one : begin, end = last > end ? last : end;
    }
    const long keys = end > begin ? end - begin : 0;
    memset(y, 0, sizeof(float) * count * c->width);
    if (keys) {
        Vectors vectors;
        const int kind = c->narrow ? BFLOATS : FLOATS;
        if (!vectors_of(&vectors, kind, 0, c->narrow, q, count, c->size)) return NO_MEMORY;
        Map map = {k + begin * c->k_key * size, c->k_key * size, 0, 0};
        products(kind, c->narrow, &map, &vectors, count, c->size, keys, 0, keys, scores, c->keys);
        free(vectors.memory);
        float inverses[4];
        for (long h = 0; h < count; h += 4) {
            const int heads = count - h < 4 ? count - h : 4;
            for (int i = 0; i < heads; i++)
                inverses[i] = weigh(scores + (h + i) * c->keys, keys, c->scale,
                                    allowed ? allowed + (h + i) * c->a_head + begin * c->a_key : 0, c->a_key);
            const char *values = v + begin * c->v_key * size;
            float *to = y + h * c->width;
            if (heads == 4)
                c->narrow ? mix_heads(4, 1, scores + h * c->keys, c->keys, keys, values, c->v_key * size, to, c->width)
                          : mix_heads(4, 0, scores + h * c->keys, c->keys, keys, values, c->v_key * size, to, c->width);
            else
                for (int i = 0; i < heads; i++)
                    c->narrow ? mix_heads(1, 1, scores + (h + i) * c->keys, c->keys, keys, values, c->v_key * size,
                                          to + i * c->width, c->width)
                              : mix_heads(1, 0, scores + (h + i) * c->keys, c->keys, keys, values, c->v_key * size,
                                          to + i * c->width, c->width);
            for (int i = 0; i < heads; i++)
                for (long f = 0; f < c->width; f++) to[i * c->width + f] *= inverses[i];
        }
    }
    put(c->narrow, y, c->width, count, c->width, (char *)c->y + (row * c->heads + first) * c->width * size, c->width, 0);
    return COMPUTED;
}

int NAME(weft_query_call)(Query *c) {
    float *scores = numbers(c->together * (c->keys + c->width));
    const long pieces = c->heads / c->together;
    int status = scores ? COMPUTED : NO_MEMORY;
    for (long piece; status == COMPUTED && (piece = taken(&c->shared.next, 1)) < c->batch * pieces;) {
        status = heads_of(c, piece / pieces, piece % pieces * c->together, c->together, scores,
                          scores + c->together * c->keys);
        if (status == COMPUTED) finished(&c->shared.done, 1);
    }
    free(scores);
    return status;
}
