/* What stands between the products of a step of decoding: norms, rotations, sums and copies of a few numbers.
 *
 * Each takes less than a microsecond, which is less than PyTorch takes to start an operation. */

#include "token.h"

#include "rounding.h"
#include "vectors.h"

/* A long row is taken through `held` in parts of so many numbers. */
#define HELD 1024

/* The sum of x - middle, or of its squares. */
static float summed(int narrow, const void *x, long width, float middle, const int squared) {
    float held[HELD];
    vec sums = {0};
    float rest = 0;
    for (long begin = 0; begin < width; begin += HELD) {
        const long count = width - begin < HELD ? width - begin : HELD;
        const float *row = wide_row(narrow, (const char *)x + begin * (narrow ? 2 : 4), count, held);
        long i = 0;
        for (; i + LANES <= count; i += LANES) {
            const vec off = load(row + i) - middle;
            sums += squared ? off * off : off;
        }
        for (; i < count; i++) rest += squared ? (row[i] - middle) * (row[i] - middle) : row[i] - middle;
    }
    for (int i = 0; i < LANES; i++) rest += sums[i];
    return rest;
}

int NAME(weft_norm_call)(Norm *c) {
    const long size = c->narrow ? 2 : 4, width = c->width;
    for (long row; (row = taken(&c->shared.next, 1)) < c->rows;) {
        const char *x = (const char *)c->x + row * width * size;
        char *y = (char *)c->y + row * width * size;
        const float middle = c->centred ? summed(c->narrow, x, width, 0, 0) / width : 0;
        const float r = 1 / sqrtf(summed(c->narrow, x, width, middle, 1) / width + c->eps);
        float held[HELD], scales[HELD], biases[HELD], result[HELD];
        for (long begin = 0; begin < width; begin += HELD) {
            const long count = width - begin < HELD ? width - begin : HELD;
            const float *wide = wide_row(c->narrow, x + begin * size, count, held);
            for (long i = 0; i < count; i++) result[i] = (wide[i] - middle) * r;
            if (c->scale) {
                const char *scale = (const char *)c->scale + begin * (c->narrow_scale ? 2 : 4);
                const float *by = wide_row(c->narrow_scale, scale, count, scales);
                for (long i = 0; i < count; i++) result[i] *= by[i];
            }
            if (c->bias) {
                const char *bias = (const char *)c->bias + begin * (c->narrow_bias ? 2 : 4);
                const float *with = wide_row(c->narrow_bias, bias, count, biases);
                for (long i = 0; i < count; i++) result[i] += with[i];
            }
            if (c->narrow)
                narrow_row(result, count, (uint16_t *)(y + begin * size));
            else
                memcpy(y + begin * size, result, sizeof(float) * count);
        }
        finished(&c->shared.done, 1);
    }
    return COMPUTED;
}

/* One head; `narrow` and `interleaved` are known to the compiler. */
INLINE void turn(const int narrow, const int interleaved, long size, const void *x, const float *cos, const float *sin,
                 void *y) {
    const long half = size / 2;
    for (long i = 0; i < half; i++) {
        const long one = interleaved ? 2 * i : i, two = interleaved ? 2 * i + 1 : half + i;
        const float a = number(narrow, x, one), b = number(narrow, x, two);
        set_number(narrow, y, one, interleaved ? a * cos[i] - b * sin[i] : a * cos[i] + b * sin[i]);
        set_number(narrow, y, two, interleaved ? b * cos[i] + a * sin[i] : b * cos[half + i] + a * sin[half + i]);
    }
}

int NAME(weft_rotary_call)(Rotary *c) {
    const long size = c->narrow ? 2 : 4;
    for (long row; (row = taken(&c->shared.next, 1)) < c->batch;) {
        const float *cos = c->cos + row * c->cos_batch, *sin = c->sin + row * c->sin_batch;
        for (long head = 0; head < c->heads; head++) {
            const char *x = (const char *)c->x + (row * c->x_batch + head * c->x_head) * size;
            char *y = (char *)c->y + (row * c->heads + head) * c->size * size;
            if (c->narrow && c->interleaved)
                turn(1, 1, c->size, x, cos, sin, y);
            else if (c->narrow)
                turn(1, 0, c->size, x, cos, sin, y);
            else
                turn(0, c->interleaved, c->size, x, cos, sin, y);
        }
        finished(&c->shared.done, 1);
    }
    return COMPUTED;
}

int NAME(weft_sum_call)(Sum *c) {
    for (long piece; (piece = taken(&c->shared.next, 1)) < c->shared.pieces;) {
        const long end = (piece + 1) * PART < c->count ? (piece + 1) * PART : c->count;
        if (c->narrow)
            for (long i = piece * PART; i < end; i++) set_number(1, c->z, i, number(1, c->x, i) + number(1, c->y, i));
        else
            for (long i = piece * PART; i < end; i++) set_number(0, c->z, i, number(0, c->x, i) + number(0, c->y, i));
        finished(&c->shared.done, 1);
    }
    return COMPUTED;
}

int NAME(weft_copy_call)(Copy *c) {
    if (taken(&c->shared.next, 1)) return COMPUTED;
    const long *n = c->sizes, *s = c->steps, *to = c->to, width = c->kind == WIDENED ? 4 : c->kind == NARROWED ? 2 : c->bytes;
    const int whole = s[3] == c->bytes && to[3] == width;
    for (long i = 0; i < n[0]; i++)
        for (long j = 0; j < n[1]; j++)
            for (long k = 0; k < n[2]; k++) {
                const char *x = c->x + i * s[0] + j * s[1] + k * s[2];
                char *y = c->y + c->begin + i * to[0] + j * to[1] + k * to[2];
                for (long l = 0; l < (whole ? 1 : n[3]); l++, x += s[3], y += to[3])
                    if (c->kind == KEPT)
                        memcpy(y, x, whole ? n[3] * c->bytes : c->bytes);
                    else if (c->kind == WIDENED)
                        widen_row((const uint16_t *)x, whole ? n[3] : 1, (float *)y);
                    else
                        narrow_row((const float *)x, whole ? n[3] : 1, (uint16_t *)y);
            }
    finished(&c->shared.done, 1);
    return COMPUTED;
}

int NAME(weft_lines_call)(Lines *c) {
    if (taken(&c->shared.next, 1)) return COMPUTED;
    for (long i = 0; i < c->count; i++) {
        if (c->at[i] < 0 || c->at[i] >= c->lines) return BAD_INDEX;
        memcpy(c->to + c->at[i] * c->bytes, c->from + i * c->bytes, c->bytes);
    }
    finished(&c->shared.done, 1);
    return COMPUTED;
}
