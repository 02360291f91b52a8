/* bfloat16 and float32, number by number and row by row. */

#ifndef WEFT_ROUNDING_H
#define WEFT_ROUNDING_H

#include <stdint.h>
#include <string.h>

static inline float wide_of(uint16_t x) {
    uint32_t bits = (uint32_t)x << 16;
    float y;
    memcpy(&y, &bits, sizeof y);
    return y;
}

/* Rounded to the nearest, ties to even; NaN stays NaN. */
static inline uint16_t narrow_of(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    if (x != x) return (uint16_t)(bits >> 16 | 64);
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

/* Number i of a row in float32 or, where `narrow`, in bfloat16. */
static inline float number(int narrow, const void *x, long i) {
    return narrow ? wide_of(((const uint16_t *)x)[i]) : ((const float *)x)[i];
}

static inline void set_number(int narrow, void *y, long i, float x) {
    if (narrow)
        ((uint16_t *)y)[i] = narrow_of(x);
    else
        ((float *)y)[i] = x;
}

static void widen_row(const uint16_t *x, long count, float *y) {
    for (long i = 0; i < count; i++) y[i] = wide_of(x[i]);
}

static void narrow_row(const float *x, long count, uint16_t *y) {
    for (long i = 0; i < count; i++) y[i] = narrow_of(x[i]);
}

/* A row in float32: x itself, or copied to y where it is in bfloat16. */
static inline const float *wide_row(int narrow, const void *x, long count, float *y) {
    if (!narrow) return x;
    widen_row(x, count, y);
    return y;
}

#endif
