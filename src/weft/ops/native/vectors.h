/* Vectors of float32 in the registers of one instruction set, in the vector extensions of GCC and Clang.
 *
 * Each source is compiled once for every set, with that set's flags; SET is its name, and NAME(f) is f_SET. */

#ifndef WEFT_VECTORS_H
#define WEFT_VECTORS_H

#include <math.h>
#include <stdint.h>
#include <string.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#define JOIN(name, set) name##_##set
#define JOINED(name, set) JOIN(name, set)
#define NAME(name) JOINED(name, SET)
#define INLINE static inline __attribute__((always_inline))

#if defined(__AVX512F__)
#define LANES 16
#elif defined(__AVX2__)
#define LANES 8
#else
#define LANES 4
#endif

/* Vectors side by side in a tile of a product. With its 6 rows a tile takes 24 of 32 registers, or 12 of 16. */
#if defined(__AVX512F__) || defined(__aarch64__)
#define ACROSS 4
#else
#define ACROSS 2
#endif

typedef float vec __attribute__((vector_size(4 * LANES)));
typedef float loose __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
typedef int32_t ints __attribute__((vector_size(4 * LANES)));
typedef int32_t loose_ints __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
typedef float four __attribute__((vector_size(16)));
typedef float loose_four __attribute__((vector_size(16), aligned(4), may_alias));

/* Four numbers of two vectors, by their places; the second vector's are 4 to 7. */
#if defined(__clang__)
#define MIXED(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define MIXED(a, b, ...) __builtin_shuffle(a, b, (places){__VA_ARGS__})
#endif
typedef int32_t places __attribute__((vector_size(16)));

INLINE vec load(const float *p) { return *(const loose *)p; }
INLINE ints load_ints(const int32_t *p) { return *(const loose_ints *)p; }
INLINE void store(float *p, vec x) { *(loose *)p = x; }
INLINE vec all(float x) { return (vec){0} + x; }

/* x where the bits of `mask` are set, y elsewhere. */
INLINE vec chosen(ints mask, vec x, vec y) { return (vec)(((ints)x & mask) | ((ints)y & ~mask)); }

/* The larger of a and b, and b where either is NaN. */
INLINE vec larger(vec a, vec b) {
#if defined(__AVX512F__)
    return (vec)_mm512_max_ps((__m512)a, (__m512)b);
#elif defined(__AVX2__)
    return (vec)_mm256_max_ps((__m256)a, (__m256)b);
#elif defined(__x86_64__)
    return (vec)_mm_max_ps((__m128)a, (__m128)b);
#else
    return chosen((ints)(a > b), a, b);
#endif
}

/* 1 / x, to a unit or two in the last place, for x between 2^-126 and 2^126. */
INLINE vec inverse(vec x) {
#if defined(__AVX512F__)
    vec y = (vec)_mm512_rcp14_ps((__m512)x);
    return y + y * (1 - x * y);
#else
    return 1 / x;
#endif
}

/* 2^x for x of at most 127; 0 below -126, and NaN for NaN. The relative error is at most 2e-7: a polynomial of degree 5
 * with the smallest largest error for the fraction in [-1/2, 1/2], and the exponent's bits for the whole number. */
INLINE vec exp2_of(vec x) {
    x = larger(all(-127.0f), x);
    const vec shift = all(12582912.0f); /* 1.5 * 2^23: adding it rounds to a whole number */
    vec whole = x + shift;
    ints power = ((ints)whole - (ints)shift + 127) << 23;
    vec rest = x - (whole - shift);
    vec y = rest * 0.00132647238f + 0.00967151299f;
    y = y * rest + 0.0555073358f;
    y = y * rest + 0.240222424f;
    y = y * rest + 0.693147004f;
    y = y * rest + 1.0f;
    return y * (vec)power;
}

/* y[c][r] = factor * x[r][c] for `rows` rows of x, which are `stride` numbers apart, and `columns` columns. Rows of y
 * are `across` numbers apart; rows of x from `rows` to `across` count as zeros. `across` is a multiple of 4. */
INLINE void transpose(const float *x, long stride, long rows, long columns, float factor, float *y, long across) {
    long r = 0;
    for (; r + 4 <= rows; r += 4) {
        const float *at = x + r * stride;
        long c = 0;
        for (; c + 4 <= columns; c += 4) {
            four p = *(const loose_four *)(at + c) * factor, q = *(const loose_four *)(at + stride + c) * factor;
            four s = *(const loose_four *)(at + 2 * stride + c) * factor;
            four t = *(const loose_four *)(at + 3 * stride + c) * factor;
            four pq = MIXED(p, q, 0, 4, 1, 5), st = MIXED(s, t, 0, 4, 1, 5);
            four pq_high = MIXED(p, q, 2, 6, 3, 7);
            four st_high = MIXED(s, t, 2, 6, 3, 7);
            float *to = y + c * across + r;
            *(loose_four *)to = MIXED(pq, st, 0, 1, 4, 5);
            *(loose_four *)(to + across) = MIXED(pq, st, 2, 3, 6, 7);
            *(loose_four *)(to + 2 * across) = MIXED(pq_high, st_high, 0, 1, 4, 5);
            *(loose_four *)(to + 3 * across) = MIXED(pq_high, st_high, 2, 3, 6, 7);
        }
        for (; c < columns; c++)
            for (long i = 0; i < 4; i++) y[c * across + r + i] = at[i * stride + c] * factor;
    }
    for (; r < across; r++)
        for (long c = 0; c < columns; c++) y[c * across + r] = r < rows ? x[r * stride + c] * factor : 0;
}

#endif
