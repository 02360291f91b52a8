/* Products of a few vectors with rows of a matrix, tile by tile: what functions of several calls share.
 *
 * Vectors in bfloat16 are multiplied with whole numbers as whole numbers of 16 bits, with one scale for each vector: the
 * sums are exact, and a vector is off by 1/65,000 of its largest number at most, where the result is rounded to 1/256. In
 * float32 the matrix's whole numbers become floats instead. */

#ifndef WEFT_PRODUCTS_H
#define WEFT_PRODUCTS_H

#include <float.h>
#include <stdlib.h>

#include "dots.h"
#include "few_rows.h"
#include "rounding.h"
#include "tiles.h"

/* Vectors as the sums take them: `at` row r is r * stride units further, and the result is to be multiplied by factor[r].
 * `tiled`: the same in the layout of tiles, or none. */
typedef struct {
    const void *at, *tiled;
    long stride;
    float *factor;
    void *memory;
} Vectors;

typedef int16_t loose_few_words __attribute__((vector_size(2 * LANES), aligned(2), may_alias));

/* Whole numbers q of at most 32,512 with x = factor q, and zeros behind them up to `padded`. A number that is not finite
 * makes the factor NaN. */
static float whole_row(const float *x, long count, int16_t *q, long padded) {
    float largest = 0, odd = 0;
    vec most = {0}, none = {0};
    long i = 0;
    for (; i + LANES <= count; i += LANES) {
        const vec one = load(x + i);
        most = larger(larger(one, -one), most);
        none += one * 0; /* NaN where a number is not finite */
    }
    for (; i < count; i++) largest = fabsf(x[i]) > largest ? fabsf(x[i]) : largest, odd += x[i] * 0;
    for (int lane = 0; lane < LANES; lane++) largest = most[lane] > largest ? most[lane] : largest, odd += none[lane];
    const int finite = odd == 0;
    const int used = finite && largest > 1e-33f;
    const float inverse = used ? 32512.0f / largest : 0, shift = 12582912.0f; /* adding it rounds to a whole number */
    for (i = 0; i + LANES <= count; i += LANES) {
        const vec rounded = (used ? load(x + i) * inverse : all(0)) + shift;
        *(loose_few_words *)(q + i) = __builtin_convertvector((ints)rounded - 0x4b400000, few_words);
    }
    for (; i < count; i++) {
        float rounded = (used ? x[i] * inverse : 0) + shift;
        int32_t bits;
        memcpy(&bits, &rounded, sizeof bits);
        q[i] = (int16_t)(bits - 0x4b400000);
    }
    memset(q + count, 0, sizeof(int16_t) * (padded - count));
    return finite ? (used ? largest / 32512.0f : 0) : NAN;
}

/* As nibble_dots reads them; `count` is a multiple of 4 groups. The lower digit of q = 256 high + low is its last eight
 * bits, with a sign. */
static void digits_of(const int16_t *q, long count, Digits *d) {
#if NARROW_DOTS
    const __m256i ones = _mm256_set1_epi16(1), half = _mm256_set1_epi16(128);
    for (; count > 0; count -= 4 * GROUP, q += 4 * GROUP, d++)
        for (int g = 0; g < 4; g++) {
            __m256i pairs = _mm256_setzero_si256();
            for (int upper = 0; upper < 2; upper++) {
                const __m256i from = _mm256_loadu_si256((const __m256i *)(q + g * GROUP + upper * 16));
                const __m256i above = _mm256_srai_epi16(_mm256_add_epi16(from, half), 8);
                _mm_storeu_si128((__m128i *)(d->high[upper] + g * 16), _mm256_cvtepi16_epi8(above));
                _mm_storeu_si128((__m128i *)(d->low[upper] + g * 16), _mm256_cvtepi16_epi8(from));
                pairs = _mm256_add_epi32(pairs, _mm256_madd_epi16(from, ones));
            }
            const __m128i fours = _mm256_cvtepi64_epi32(_mm256_add_epi64(pairs, _mm256_srli_epi64(pairs, 32)));
            _mm_storeu_si128((__m128i *)(d->less + 4 * g), _mm_mullo_epi32(fours, _mm_set1_epi32(-8)));
        }
#else
    (void)q, (void)count, (void)d; /* nibble_dots takes q itself */
#endif
}

/* Vectors of whole numbers. */
static int whole_vectors(Vectors *v, int kind, int narrow, const void *x, long rows, long in) {
    const long padded = rounded_up(in, 4 * GROUP), digits = NARROW_DOTS && kind == FOUR_BITS ? padded / 128 : 0;
    const long factors = rounded_up(sizeof(float) * (rows + (narrow ? in : 0)), 64);
    const long numbers = rounded_up(sizeof(int16_t) * padded * (digits ? 1 : rows), 64);
    char *memory = v->memory = aligned_alloc(64, factors + numbers + rounded_up(sizeof(Digits) * digits * rows, 64));
    if (!memory) return 0;
    v->factor = (float *)memory;
    float *wide = v->factor + rows;
    int16_t *q = (int16_t *)(memory + factors);
    Digits *d = (Digits *)(memory + factors + numbers);
    for (long r = 0; r < rows; r++) {
        const float *row = narrow ? wide : (const float *)x + r * in;
        if (narrow) widen_row((const uint16_t *)x + r * in, in, wide);
        v->factor[r] = whole_row(row, in, q + (digits ? 0 : r * padded), padded);
        if (digits) digits_of(q, padded, d + r * digits);
    }
    v->at = digits ? (const void *)d : q;
    v->stride = digits ? digits : padded;
    return 1;
}

/* Whether a call in bfloat16 multiplies a matrix of a kind by tiles. */
INLINE int by_tiles(int kind, int whole, long in) {
#ifdef TILES
    return weft_tiles && whole && kind == BFLOATS && in % TILED_INPUTS == 0;
#else
    return 0;
#endif
}

/* The vectors x [rows, in], in bfloat16 where `narrow`, for a matrix of a kind; of a call in bfloat16 if `whole`. 0 if
 * there is no memory for them. */
static int vectors_of(Vectors *v, int kind, int whole, int narrow, const void *x, long rows, long in) {
    *v = (Vectors){.at = x, .stride = in};
    if (whole && (kind == EIGHT_BITS || kind == FOUR_BITS)) return whole_vectors(v, kind, narrow, x, rows, in);
    const int wanted = kind == BFLOATS && NARROW_DOTS, tiled = by_tiles(kind, whole, in);
    const long copied = wanted == narrow ? 0 : rounded_up((wanted ? 2 : 4) * rows * in, 64);
    const long laid = tiled && rows > 1 ? 2 * rounded_up(rows, 16) * in : 0;
    if (copied + laid) {
        v->memory = aligned_alloc(64, copied + laid);
        if (!v->memory) return 0;
    }
    if (copied) {
        v->at = v->memory;
        if (wanted)
            narrow_row(x, rows * in, v->memory);
        else
            widen_row(x, rows * in, v->memory);
    }
    v->tiled = tiled ? v->at : 0;
#ifdef TILES
    if (laid) lay_out(v->at, rows, in, (float *)(v->tiled = (char *)v->memory + copied));
#endif
    return 1;
}

/* One tile, for rows `o` and following of the matrix and vectors `r` and following. */
INLINE void tile(const int outs, const int rows, int kind, const Map *m, const Vectors *v, long o, long r, long in,
                 float *sums) {
    const char *w = m->values + o * m->stride;
    const long groups = (in + GROUP - 1) / GROUP, at = r * v->stride;
    if (kind == FLOATS)
        float_dots(outs, rows, FLOATS, w, m->stride, (const float *)v->at + at, v->stride, in, sums);
    else if (kind == EIGHT_BITS && !v->factor)
        float_dots(outs, rows, EIGHT_BITS, w, m->stride, (const float *)v->at + at, v->stride, in, sums);
    else if (kind == FOUR_BITS && !v->factor)
        nibble_float_dots(outs, rows, w, m->stride, (const uint16_t *)m->scale + o * groups, groups,
                          (const float *)v->at + at, v->stride, in, sums);
    else if (kind == BFLOATS && NARROW_DOTS)
        bfloat_dots(outs, rows, w, m->stride, (const uint16_t *)v->at + at, v->stride, in, sums);
    else if (kind == BFLOATS)
        float_dots(outs, rows, BFLOATS, w, m->stride, (const float *)v->at + at, v->stride, in, sums);
    else if (kind == EIGHT_BITS)
        byte_dots(outs, rows, w, m->stride, (const int16_t *)v->at + at, v->stride, in, sums);
    else if (NARROW_DOTS)
        nibble_dots(outs, rows, w, m->stride, (const uint16_t *)m->scale + o * groups, groups, (const Digits *)v->at + at,
                    v->stride, in, sums);
    else
        nibble_dots(outs, rows, w, m->stride, (const uint16_t *)m->scale + o * groups, groups, (const int16_t *)v->at + at,
                    v->stride, in, sums);
}

/* Vectors of a tile: 8, 4, 2 or 1, with 2, 4, 8 and 8 rows of the matrix. */
INLINE int wide(long rows) { return rows >= 8 ? 8 : rows >= 4 ? 4 : rows >= 2 ? 2 : 1; }
INLINE int tall(int rows) { return rows == 8 ? 2 : rows == 4 ? 4 : 8; }

__attribute__((noinline)) static void tile_of(int outs, int rows, int kind, const Map *m, const Vectors *v, long o, long r,
                                              long in, float *sums) {
    if (rows == 8)
        tile(2, 8, kind, m, v, o, r, in, sums);
    else if (rows == 4)
        tile(4, 4, kind, m, v, o, r, in, sums);
    else if (rows == 2)
        tile(8, 2, kind, m, v, o, r, in, sums);
    else if (outs == 8)
        tile(8, 1, kind, m, v, o, r, in, sums);
    else
        tile(1, 1, kind, m, v, o, r, in, sums);
}

/* Sums [rows, end - begin] of products with rows `begin` to `end` of a matrix, times their scales, plus the bias. */
static void finish(int kind, int narrow, const Map *m, const Vectors *v, long rows, long begin, long end, float *y,
                   long across) {
    for (long r = 0; r < rows && (v->factor || kind == EIGHT_BITS); r++) {
        float *row = y + r * across;
        const float factor = v->factor ? v->factor[r] : 1, *scale = (const float *)m->scale + begin;
        for (long i = 0; i < end - begin; i++) row[i] *= kind == EIGHT_BITS ? scale[i] * factor : factor;
    }
    for (long r = 0; r < rows && m->bias; r++) {
        float *row = y + r * across;
        for (long i = 0; i < end - begin; i++)
            row[i] += narrow ? wide_of(((const uint16_t *)m->bias)[begin + i]) : ((const float *)m->bias)[begin + i];
    }
}

/* Products of one vector with rows `begin` to `end` of a matrix of at least 8, without a call between tiles: the processor
 * reads the next tile while it adds up the sums of the last. */
INLINE void tiles_of_one(const int kind, const Map *m, const Vectors *v, long in, long out, long begin, long end, float *y) {
    long o = begin;
    for (; o + 8 <= end; o += 8) tile(8, 1, kind, m, v, o, 0, in, y + o - begin);
    if (o < end) {
        float sums[8];
        const long first = o + 8 <= out ? o : out - 8;
        tile(8, 1, kind, m, v, first, 0, in, sums);
        for (; o < end; o++) y[o - begin] = sums[o - first];
    }
}

__attribute__((noinline)) static void products_of_one(int kind, const Map *m, const Vectors *v, long in, long out,
                                                      long begin, long end, float *y) {
    if (kind == FLOATS)
        tiles_of_one(FLOATS, m, v, in, out, begin, end, y);
    else if (kind == BFLOATS)
        tiles_of_one(BFLOATS, m, v, in, out, begin, end, y);
    else if (kind == EIGHT_BITS)
        tiles_of_one(EIGHT_BITS, m, v, in, out, begin, end, y);
    else
        tiles_of_one(FOUR_BITS, m, v, in, out, begin, end, y);
}

/* Products of all vectors with rows `begin` to `end` of a matrix of `out` rows, scaled and with the bias: [rows, end -
 * begin], rows `across` numbers apart. A tile at the end of the matrix takes rows again that another one has taken. */
static void products(int kind, int narrow, const Map *m, const Vectors *v, long rows, long in, long out, long begin,
                     long end, float *y, long across) {
    float sums[16];
#ifdef TILES
    if (v->tiled && out >= TILED_ROWS) {
        tiled_products(m->values, m->stride, v->tiled, rows, in, out, begin, end, y, across);
        finish(kind, narrow, m, v, rows, begin, end, y, across);
        return;
    }
#endif
    if (rows == 1 && out >= 8) {
        products_of_one(kind, m, v, in, out, begin, end, y);
        finish(kind, narrow, m, v, rows, begin, end, y, across);
        return;
    }
    for (long r = 0, count; r < rows; r += count) {
        count = out < 8 ? 1 : wide(rows - r);
        const long height = out < 8 ? 1 : tall(count);
        for (long o = begin; o < end; o += height) {
            const long first = o + height <= out ? o : out - height, stop = first + height < end ? first + height : end;
            tile_of(height, count, kind, m, v, first, r, in, sums);
            for (long j = 0; j < count; j++) {
                float *to = y + (r + j) * across - begin;
                for (long i = o; i < stop; i++) to[i] = sums[(i - first) * count + j];
            }
        }
    }
    finish(kind, narrow, m, v, rows, begin, end, y, across);
}

/* Rows of a result, in its dtype. */
static void put(int narrow, const float *from, long across, long rows, long count, void *y, long stride, long begin) {
    for (long r = 0; r < rows; r++)
        if (narrow)
            narrow_row(from + r * across, count, (uint16_t *)y + r * stride + begin);
        else
            memcpy((float *)y + r * stride + begin, from + r * across, sizeof(float) * count);
}

static float *numbers(long count) { return aligned_alloc(64, rounded_up(sizeof(float) * count, 64)); }

#endif
