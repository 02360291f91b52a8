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

enum { FLOATS, BFLOATS, EIGHT_BITS, FOUR_BITS };

#define AHEAD 2048 /* bytes of a row's stream that are requested from memory before they are read */
#define GROUP 32   /* inputs that share a scale in four bits, in 16 bytes: byte i holds input i below and i + 16 above */
#define STEPS 256  /* additions of two products of 15 and 7 bits that 32 bits have room for */

typedef uint16_t halves __attribute__((vector_size(2 * LANES)));
typedef uint16_t loose_halves __attribute__((vector_size(2 * LANES), aligned(1), may_alias));
typedef int8_t bytes __attribute__((vector_size(2 * LANES)));
typedef int8_t loose_bytes __attribute__((vector_size(2 * LANES), aligned(1), may_alias));
typedef int16_t words __attribute__((vector_size(4 * LANES)));
typedef int16_t loose_words __attribute__((vector_size(4 * LANES), aligned(2), may_alias));
typedef uint8_t half_group __attribute__((vector_size(16)));
typedef uint8_t loose_half_group __attribute__((vector_size(16), aligned(1), may_alias));

INLINE vec widened(const uint16_t *p) {
    return (vec)(__builtin_convertvector(*(const loose_halves *)p, ints) << 16);
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

INLINE float sum_of(vec x) {
    float held[LANES];
    store(held, x);
    for (int width = LANES / 2; width; width /= 2)
        for (int i = 0; i < width; i++) held[i] += held[i + width];
    return held[0];
}

INLINE void request(const char *p) { __builtin_prefetch(p + AHEAD); }

#define EACH(i, count) _Pragma("GCC unroll 8") for (int i = 0; i < (count); i++)

/* sums[o][v] = w_o . x_v for `outs` rows of the matrix and `rows` vectors, both known to the compiler: at most 8, and
 * their product at most 16. */
INLINE void float_dots(const int outs, const int rows, const int narrow, const char *w, long stride, const float *x,
                       long x_stride, long in, float sums[8][8]) {
    vec total[8][8];
    EACH(o, outs) EACH(r, rows) total[o][r] = (vec){0};
    const long size = narrow ? 2 : 4;
    long k = 0;
    for (; k + LANES <= in; k += LANES) {
        vec row[8];
        EACH(o, outs) {
            const char *at = w + o * stride + k * size;
            row[o] = narrow ? widened((const uint16_t *)at) : load((const float *)at);
            request(at);
        }
        EACH(r, rows) {
            vec one = load(x + r * x_stride + k);
            EACH(o, outs) total[o][r] += row[o] * one;
        }
    }
    if (k < in)
        EACH(o, outs) {
            const char *at = w + o * stride + k * size;
            vec row = narrow ? widened_some((const uint16_t *)at, in - k) : load_some((const float *)at, in - k);
            EACH(r, rows) total[o][r] += row * load_some(x + r * x_stride + k, in - k);
        }
    EACH(o, outs) EACH(r, rows) sums[o][r] = sum_of(total[o][r]);
}

/* The same with vectors in bfloat16, by the processor's own sums of two products. */
INLINE void bfloat_dots(const int outs, const int rows, const char *w, long stride, const uint16_t *x, long x_stride,
                        long in, float sums[8][8]) {
#if NARROW_DOTS
    __m512 total[8][8];
    EACH(o, outs) EACH(r, rows) total[o][r] = _mm512_setzero_ps();
    long k = 0;
    for (; k + 32 <= in; k += 32) {
        __m512i row[8];
        EACH(o, outs) {
            row[o] = _mm512_loadu_si512(w + o * stride + 2 * k);
            request(w + o * stride + 2 * k);
        }
        EACH(r, rows) {
            __m512i one = _mm512_loadu_si512(x + r * x_stride + k);
            EACH(o, outs) total[o][r] = _mm512_dpbf16_ps(total[o][r], (__m512bh)row[o], (__m512bh)one);
        }
    }
    if (k < in) {
        const __mmask32 some = (1u << (in - k)) - 1;
        EACH(r, rows) {
            __m512i one = _mm512_maskz_loadu_epi16(some, x + r * x_stride + k);
            EACH(o, outs) {
                __m512i row = _mm512_maskz_loadu_epi16(some, w + o * stride + 2 * k);
                total[o][r] = _mm512_dpbf16_ps(total[o][r], (__m512bh)row, (__m512bh)one);
            }
        }
    }
    EACH(o, outs) EACH(r, rows) sums[o][r] = sum_of((vec)total[o][r]);
#else
    (void)outs, (void)rows, (void)w, (void)stride, (void)x, (void)x_stride, (void)in, (void)sums;
#endif
}

/* The same for a matrix of eight bits and vectors of whole numbers of 16 bits, which are followed by zeros up to a
 * multiple of GROUP. */
INLINE void byte_dots(const int outs, const int rows, const char *w, long stride, const int16_t *x, long x_stride,
                      long in, float sums[8][8]) {
    vec total[8][8];
    EACH(o, outs) EACH(r, rows) total[o][r] = (vec){0};
    for (long begin = 0; begin < in; begin += STEPS * 2 * LANES) {
        const long end = in - begin < STEPS * 2 * LANES ? in : begin + STEPS * 2 * LANES;
        ints exact[8][8];
        EACH(o, outs) EACH(r, rows) exact[o][r] = (ints){0};
        for (long k = begin; k < end; k += 2 * LANES) {
            words row[8];
            EACH(o, outs) {
                const char *at = w + o * stride + k;
                row[o] = end - k < 2 * LANES ? words_of_some((const int8_t *)at, end - k) : words_of((const int8_t *)at);
                if (!(k & 32)) request(at);
            }
            EACH(r, rows) {
                words one = *(const loose_words *)(x + r * x_stride + k);
                EACH(o, outs) exact[o][r] = add_pairs(exact[o][r], row[o], one);
            }
        }
        EACH(o, outs) EACH(r, rows) total[o][r] += __builtin_convertvector(exact[o][r], vec);
    }
    EACH(o, outs) EACH(r, rows) sums[o][r] = sum_of(total[o][r]);
}

/* Vectors for a matrix of four bits, by four groups of GROUP inputs: whole numbers q of 16 bits as 256 high + low, both
 * with a sign, in the order of the matrix's lower and upper halves of bytes; and in each lane -8 times the sum of the q
 * that the lane meets, since the halves hold the matrix's numbers plus 8. */
typedef struct {
    int8_t low[2][64], high[2][64];
    int32_t less[16];
} Digits;

/* The same for a matrix of four bits, each group of GROUP inputs with a scale in bfloat16. */
INLINE void nibble_dots(const int outs, const int rows, const char *w, long stride, const uint16_t *scale,
                        long scale_stride, const void *x, long x_stride, long in, float sums[8][8]) {
    const long groups = (in + GROUP - 1) / GROUP;
    vec total[8][8];
    EACH(o, outs) EACH(r, rows) total[o][r] = (vec){0};
#if NARROW_DOTS
    const __m512i fours = _mm512_set_epi32(3, 3, 3, 3, 2, 2, 2, 2, 1, 1, 1, 1, 0, 0, 0, 0), mask = _mm512_set1_epi8(15);
    const Digits *digits = x;
    for (long g = 0; g < groups; g += 4) {
        const long count = groups - g < 4 ? groups - g : 4;
        const __mmask16 some = (1u << 4 * count) - 1;
        EACH(o, outs) {
            __m512i both = _mm512_maskz_loadu_epi32(some, w + o * stride + g * 16);
            request(w + o * stride + g * 16);
            __m512i low = _mm512_and_si512(both, mask);
            __m512i high = _mm512_and_si512(_mm512_srli_epi16(both, 4), mask);
            __m128i held = _mm_maskz_loadu_epi16((1u << count) - 1, scale + o * scale_stride + g);
            __m512i wide = _mm512_castsi128_si512(_mm_slli_epi32(_mm_cvtepu16_epi32(held), 16));
            __m512 factor = _mm512_castsi512_ps(_mm512_permutexvar_epi32(fours, wide));
            EACH(r, rows) {
                const Digits *d = digits + r * x_stride + g / 4;
                __m512i large = _mm512_dpbusd_epi32(_mm512_setzero_si512(), low, _mm512_loadu_si512(d->high[0]));
                large = _mm512_dpbusd_epi32(large, high, _mm512_loadu_si512(d->high[1]));
                __m512i small = _mm512_dpbusd_epi32(_mm512_loadu_si512(d->less), low, _mm512_loadu_si512(d->low[0]));
                small = _mm512_dpbusd_epi32(small, high, _mm512_loadu_si512(d->low[1]));
                __m512 sum = _mm512_cvtepi32_ps(_mm512_add_epi32(small, _mm512_slli_epi32(large, 8)));
                total[o][r] = (vec)_mm512_fmadd_ps(sum, factor, (__m512)total[o][r]);
            }
        }
    }
#else
    for (long g = 0; g < groups; g++)
        EACH(o, outs) {
            const uint32_t bits = (uint32_t)scale[o * scale_stride + g] << 16;
            float factor;
            int8_t held[GROUP];
            memcpy(&factor, &bits, sizeof factor);
            half_group both = *(const loose_half_group *)(w + o * stride + g * 16);
            *(loose_half_group *)held = (both & 15) - 8;
            *(loose_half_group *)(held + 16) = (both >> 4) - 8;
            EACH(r, rows) {
                const int16_t *one = (const int16_t *)x + r * x_stride + g * GROUP;
                ints exact = {0};
                EACH(part, GROUP / (2 * LANES))
                    exact = add_pairs(exact, words_of(held + part * 2 * LANES),
                                      *(const loose_words *)(one + part * 2 * LANES));
                total[o][r] += __builtin_convertvector(exact, vec) * factor;
            }
        }
#endif
    EACH(o, outs) EACH(r, rows) sums[o][r] = sum_of(total[o][r]);
}

#endif
