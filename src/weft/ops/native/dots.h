/* Inner products of a few vectors with rows of a matrix that is read once, as it lies: in float32, in bfloat16, and in
 * whole numbers of eight or four bits.
 *
 * A tile takes some rows of the matrix and some vectors; each of its sums is one vector register, to which the terms are
 * added in the order in which they lie. How many rows and vectors a tile has so does not change a bit of any sum. */

#ifndef WEFT_DOTS_H
#define WEFT_DOTS_H

#include "vectors.h"

#if defined(__AVX512BF16__) && defined(__AVX512VNNI__)
#define NARROW_DOTS 1 /* instructions for sums of products of bfloat16 numbers and of whole numbers */
#else
#define NARROW_DOTS 0
#endif

/* How a matrix is stored. */
enum { FLOATS, BFLOATS, EIGHT_BITS, FOUR_BITS };

#define GROUP 32   /* inputs that share a scale in four bits, in 16 bytes: byte i holds input i below and i + 16 above */
#define NEAREST 3072 /* bytes that memory is requested ahead of their use at least */
#define STEPS 256  /* additions of two products of 15 and 7 bits that 32 bits have room for */

typedef uint16_t halves __attribute__((vector_size(2 * LANES)));
typedef uint16_t loose_halves __attribute__((vector_size(2 * LANES), aligned(1), may_alias));
typedef int8_t bytes __attribute__((vector_size(2 * LANES)));
typedef int8_t loose_bytes __attribute__((vector_size(2 * LANES), aligned(1), may_alias));
typedef int16_t few_words __attribute__((vector_size(2 * LANES)));
typedef int16_t words __attribute__((vector_size(4 * LANES)));
typedef int16_t loose_words __attribute__((vector_size(4 * LANES), aligned(2), may_alias));
typedef uint8_t half_group __attribute__((vector_size(16)));
typedef uint8_t loose_half_group __attribute__((vector_size(16), aligned(1), may_alias));

INLINE vec widened(const uint16_t *p) {
    return (vec)(__builtin_convertvector(*(const loose_halves *)p, ints) << 16);
}

/* Rounded as `narrow_of` rounds a number. */
INLINE halves narrowed(vec x) {
    typedef uint32_t wholes __attribute__((vector_size(4 * LANES)));
    const wholes bits = (wholes)x, nan = (wholes)(x != x), rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
    return __builtin_convertvector((rounded & ~nan) | ((bits >> 16 | 64) & nan), halves);
}

/* The first `count` numbers at p, and zeros. */
INLINE vec load_some(const float *p, long count) {
    float held[LANES] = {0};
    memcpy(held, p, sizeof(float) * count);
    return load(held);
}

INLINE vec widened_some(const uint16_t *p, long count) {
    uint16_t held[LANES] = {0};
    memcpy(held, p, sizeof(uint16_t) * count);
    return widened(held);
}

INLINE words words_of(const int8_t *p) { return __builtin_convertvector(*(const loose_bytes *)p, words); }

INLINE words words_of_some(const int8_t *p, long count) {
    int8_t held[2 * LANES] = {0};
    memcpy(held, p, count);
    return words_of(held);
}

/* LANES whole numbers of eight bits as floats; by way of 16 bits, since GCC widens by a factor of four number by number. */
INLINE vec floats_of(const int8_t *p) {
    typedef int8_t loose_few __attribute__((vector_size(LANES), aligned(1), may_alias));
    const few_words wide = __builtin_convertvector(*(const loose_few *)p, few_words);
    return __builtin_convertvector(__builtin_convertvector(wide, ints), vec);
}

INLINE vec floats_of_some(const int8_t *p, long count) {
    int8_t held[LANES] = {0};
    memcpy(held, p, count);
    return floats_of(held);
}

/* The numbers of a group of four bits. */
INLINE void opened(const char *at, int8_t *held) {
    half_group both = *(const loose_half_group *)at;
    *(loose_half_group *)held = (both & 15) - 8;
    *(loose_half_group *)(held + 16) = (both >> 4) - 8;
}

INLINE float scale_of(uint16_t x) {
    const uint32_t bits = (uint32_t)x << 16;
    float y;
    memcpy(&y, &bits, sizeof y);
    return y;
}

/* sum + a[2i] b[2i] + a[2i+1] b[2i+1]. */
INLINE ints add_pairs(ints sum, words a, words b) {
#if NARROW_DOTS
    return (ints)_mm512_dpwssd_epi32((__m512i)sum, (__m512i)a, (__m512i)b);
#elif defined(__AVX512F__)
    return sum + (ints)_mm512_madd_epi16((__m512i)a, (__m512i)b);
#elif defined(__AVX2__)
    return sum + (ints)_mm256_madd_epi16((__m256i)a, (__m256i)b);
#elif defined(__x86_64__)
    return sum + (ints)_mm_madd_epi16((__m128i)a, (__m128i)b);
#else
    ints p = (ints)a, q = (ints)b;
    return sum + ((p << 16) >> 16) * ((q << 16) >> 16) + (p >> 16) * (q >> 16);
#endif
}

INLINE long rounded_up(long count, long unit) { return (count + unit - 1) / unit * unit; }

#define EACH(i, count) _Pragma("GCC unroll 16") for (int i = 0; i < (count); i++)

/* The sums of the numbers in each of `count` vectors, known to the compiler. */
INLINE void sums_of(const int count, const vec *x, float *sums) {
#if defined(__AVX2__)
    __m128 quarter[16];
    EACH(i, count) {
#if defined(__AVX512F__)
        __m512d both = _mm512_castps_pd((__m512)x[i]);
        __m256 half = _mm256_add_ps(_mm256_castpd_ps(_mm512_castpd512_pd256(both)),
                                    _mm256_castpd_ps(_mm512_extractf64x4_pd(both, 1)));
#else
        __m256 half = (__m256)x[i];
#endif
        quarter[i] = _mm_add_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1));
    }
    for (int i = 0; i + 4 <= count; i += 4)
        _mm_storeu_ps(sums + i, _mm_hadd_ps(_mm_hadd_ps(quarter[i], quarter[i + 1]),
                                            _mm_hadd_ps(quarter[i + 2], quarter[i + 3])));
    for (int i = count & ~3; i < count; i++) {
        __m128 pair = _mm_hadd_ps(quarter[i], quarter[i]);
        sums[i] = _mm_cvtss_f32(_mm_hadd_ps(pair, pair));
    }
#else
    EACH(i, count) sums[i] = (x[i][0] + x[i][1]) + (x[i][2] + x[i][3]);
#endif
}

/* How far ahead of what a tile reads memory is requested: the same place in the next tile, or, where tiles are so small
 * that memory takes longer than one of them, some tiles further; of long rows, a few lines of the same row. */
INLINE long ahead(int outs, long stride) {
    const long tile = outs * stride;
    return tile > 1 << 15 ? 1 << 9 : tile ? (NEAREST + tile - 1) / tile * tile : 0;
}
INLINE void request(const char *p) { __builtin_prefetch(p); }

/* sums[o * rows + v] = w_o . x_v for `outs` rows of the matrix and `rows` vectors, both known to the compiler, at most 8 of
 * either and 16 sums. */
INLINE void float_dots(const int outs, const int rows, const int kind, const char *w, long stride, const float *x,
                       long x_stride, long in, float *sums) {
    vec total[16];
    EACH(i, outs * rows) total[i] = (vec){0};
    const long size = kind == FLOATS ? 4 : kind == BFLOATS ? 2 : 1, next = ahead(outs, stride);
    long k = 0;
    for (; k + LANES <= in; k += LANES) {
        vec row[8];
        EACH(o, outs) {
            const char *at = w + o * stride + k * size;
            row[o] = kind == FLOATS    ? load((const float *)at)
                     : kind == BFLOATS ? widened((const uint16_t *)at)
                                       : floats_of((const int8_t *)at);
            if (kind != FLOATS || rows > 1) request(at + next); /* the processor keeps up with one vector by itself */
        }
        EACH(r, rows) {
            vec one = load(x + r * x_stride + k);
            EACH(o, outs) total[o * rows + r] += row[o] * one;
        }
    }
    if (k < in)
        EACH(o, outs) {
            const char *at = w + o * stride + k * size;
            vec row = kind == FLOATS    ? load_some((const float *)at, in - k)
                      : kind == BFLOATS ? widened_some((const uint16_t *)at, in - k)
                                        : floats_of_some((const int8_t *)at, in - k);
            EACH(r, rows) total[o * rows + r] += row * load_some(x + r * x_stride + k, in - k);
        }
    sums_of(outs * rows, total, sums);
}

#if NARROW_DOTS
INLINE vec bfloat_pairs(vec sum, __m512i a, __m512i b) {
    return (vec)_mm512_dpbf16_ps((__m512)sum, (__m512bh)a, (__m512bh)b);
}
#endif

#if NARROW_DOTS
/* Sums of whole vectors of 32 numbers, with requests for the next tile if it `asks`; returns how many numbers were taken. */
INLINE long bfloat_sums(const int outs, const int rows, const int asks, const char *w, long stride, const uint16_t *x,
                        long x_stride, long in, vec *total) {
    const long next = ahead(outs, stride);
    long k = 0;
    for (; k + 32 <= in; k += 32) {
        __m512i row[8];
        EACH(o, outs) {
            row[o] = _mm512_loadu_si512(w + o * stride + 2 * k);
            if (asks) request(w + o * stride + 2 * k + next);
        }
        EACH(r, rows) {
            __m512i one = _mm512_loadu_si512(x + r * x_stride + k);
            EACH(o, outs) total[o * rows + r] = bfloat_pairs(total[o * rows + r], row[o], one);
        }
    }
    return k;
}
#endif

/* The same with vectors in bfloat16, by the processor's own sums of two products. */
INLINE void bfloat_dots(const int outs, const int rows, const char *w, long stride, const uint16_t *x, long x_stride,
                        long in, float *sums) {
#if NARROW_DOTS
    vec total[16];
    EACH(i, outs * rows) total[i] = (vec){0};
    /* The processor keeps up with one vector by itself where rows of the matrix lie side by side. */
    const long k = rows == 1 && stride == 2 * in ? bfloat_sums(outs, rows, 0, w, stride, x, x_stride, in, total)
                                                 : bfloat_sums(outs, rows, 1, w, stride, x, x_stride, in, total);
    if (k < in) {
        const __mmask32 some = (1u << (in - k)) - 1;
        EACH(r, rows) {
            __m512i one = _mm512_maskz_loadu_epi16(some, x + r * x_stride + k);
            EACH(o, outs) {
                __m512i row = _mm512_maskz_loadu_epi16(some, w + o * stride + 2 * k);
                total[o * rows + r] = bfloat_pairs(total[o * rows + r], row, one);
            }
        }
    }
    sums_of(outs * rows, total, sums);
#else
    (void)outs, (void)rows, (void)w, (void)stride, (void)x, (void)x_stride, (void)in, (void)sums;
#endif
}

/* The same for a matrix of eight bits and vectors of whole numbers of 16 bits, which are followed by zeros up to a
 * multiple of GROUP. */
INLINE void byte_dots(const int outs, const int rows, const char *w, long stride, const int16_t *x, long x_stride,
                      long in, float *sums) {
    vec total[16];
    EACH(i, outs * rows) total[i] = (vec){0};
    const long next = ahead(outs, stride);
    for (long begin = 0; begin < in; begin += STEPS * 2 * LANES) {
        const long end = in - begin < STEPS * 2 * LANES ? in : begin + STEPS * 2 * LANES;
        ints exact[16];
        EACH(i, outs * rows) exact[i] = (ints){0};
        for (long k = begin; k < end; k += 2 * LANES) {
            words row[8];
            EACH(o, outs) {
                const char *at = w + o * stride + k;
                row[o] = end - k < 2 * LANES ? words_of_some((const int8_t *)at, end - k) : words_of((const int8_t *)at);
                if (!(k & 32)) request(at + next);
            }
            EACH(r, rows) {
                words one = *(const loose_words *)(x + r * x_stride + k);
                EACH(o, outs) exact[o * rows + r] = add_pairs(exact[o * rows + r], row[o], one);
            }
        }
        EACH(i, outs * rows) total[i] += __builtin_convertvector(exact[i], vec);
    }
    sums_of(outs * rows, total, sums);
}

/* The same for a matrix of four bits and vectors of floats. */
INLINE void nibble_float_dots(const int outs, const int rows, const char *w, long stride, const uint16_t *scale,
                              long scale_stride, const float *x, long x_stride, long in, float *sums) {
    vec total[16];
    EACH(i, outs * rows) total[i] = (vec){0};
    for (long k = 0; k < in; k += GROUP)
        EACH(o, outs) {
            const float factor = scale_of(scale[o * scale_stride + k / GROUP]);
            int8_t held[GROUP];
            opened(w + o * stride + k / 2, held);
            for (long part = 0; part < GROUP && k + part < in; part += LANES) {
                const vec row = factor * floats_of(held + part);
                const float *at = x + k + part;
                const long left = in - k - part;
                EACH(r, rows) {
                    const float *one = at + r * x_stride;
                    total[o * rows + r] += row * (left < LANES ? load_some(one, left) : load(one));
                }
            }
        }
    sums_of(outs * rows, total, sums);
}

/* Vectors for a matrix of four bits, by four groups of GROUP inputs: whole numbers q of 16 bits as 256 high + low, both
 * with a sign, in the order of the matrix's lower and upper halves of bytes; and in each lane -8 times the sum of the q
 * that the lane meets, since the halves hold the matrix's numbers plus 8. */
typedef struct {
    int8_t low[2][64], high[2][64];
    int32_t less[16];
} Digits;

#if NARROW_DOTS
/* At most four groups of a row: the numbers of each byte's lower and upper half, plus 8, and the scales of their lanes. */
INLINE void opened_four(const char *w, const uint16_t *scale, long count, __m512i *low, __m512i *high, __m512 *factor) {
    const __m512i fours = _mm512_set_epi32(3, 3, 3, 3, 2, 2, 2, 2, 1, 1, 1, 1, 0, 0, 0, 0), mask = _mm512_set1_epi8(15);
    const __m512i both = _mm512_maskz_loadu_epi32((__mmask16)((1u << 4 * count) - 1), w);
    *low = _mm512_and_si512(both, mask), *high = _mm512_and_si512(_mm512_srli_epi16(both, 4), mask);
    const __m128i held = _mm_maskz_loadu_epi16((__mmask8)((1u << count) - 1), scale);
    const __m512i wide = _mm512_castsi128_si512(_mm_slli_epi32(_mm_cvtepu16_epi32(held), 16));
    *factor = _mm512_castsi512_ps(_mm512_permutexvar_epi32(fours, wide));
}

INLINE vec add_digits(vec total, const Digits *d, __m512i low, __m512i high, __m512 factor) {
    __m512i large = _mm512_dpbusd_epi32(_mm512_setzero_si512(), low, _mm512_loadu_si512(d->high[0]));
    large = _mm512_dpbusd_epi32(large, high, _mm512_loadu_si512(d->high[1]));
    __m512i small = _mm512_dpbusd_epi32(_mm512_loadu_si512(d->less), low, _mm512_loadu_si512(d->low[0]));
    small = _mm512_dpbusd_epi32(small, high, _mm512_loadu_si512(d->low[1]));
    const __m512 sum = _mm512_cvtepi32_ps(_mm512_add_epi32(small, _mm512_slli_epi32(large, 8)));
    return (vec)_mm512_fmadd_ps(sum, factor, (__m512)total);
}
#endif

/* The same for a matrix of four bits, each group of GROUP inputs with a scale in bfloat16. */
INLINE void nibble_dots(const int outs, const int rows, const char *w, long stride, const uint16_t *scale,
                        long scale_stride, const void *x, long x_stride, long in, float *sums) {
    const long groups = (in + GROUP - 1) / GROUP;
    vec total[16];
    EACH(i, outs * rows) total[i] = (vec){0};
#if NARROW_DOTS
    const Digits *digits = x;
    const long next = ahead(outs, stride);
    for (long g = 0; g < groups; g += 4) {
        const long count = groups - g < 4 ? groups - g : 4;
        __m512i low[8], high[8];
        __m512 factor[8];
        if (rows > 2) { /* few rows of the matrix: they stay in registers, and digits are read once for all of them */
            EACH(o, outs)
                opened_four(w + o * stride + g * 16, scale + o * scale_stride + g, count, &low[o], &high[o], &factor[o]);
            EACH(r, rows)
                EACH(o, outs) total[o * rows + r] = add_digits(total[o * rows + r], digits + r * x_stride + g / 4, low[o],
                                                               high[o], factor[o]);
        } else
            EACH(o, outs) {
                opened_four(w + o * stride + g * 16, scale + o * scale_stride + g, count, low, high, factor);
                EACH(r, rows) total[o * rows + r] = add_digits(total[o * rows + r], digits + r * x_stride + g / 4, *low,
                                                               *high, *factor);
            }
        EACH(o, outs) request(w + o * stride + g * 16 + next);
    }
#else
    for (long g = 0; g < groups; g++)
        EACH(o, outs) {
            const float factor = scale_of(scale[o * scale_stride + g]);
            int8_t held[GROUP];
            opened(w + o * stride + g * 16, held);
            EACH(r, rows) {
                const int16_t *one = (const int16_t *)x + r * x_stride + g * GROUP;
                ints exact = {0};
                EACH(part, GROUP / (2 * LANES))
                    exact = add_pairs(exact, words_of(held + part * 2 * LANES),
                                      *(const loose_words *)(one + part * 2 * LANES));
                total[o * rows + r] += __builtin_convertvector(exact, vec) * factor;
            }
        }
#endif
    sums_of(outs * rows, total, sums);
}

#endif
