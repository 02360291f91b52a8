/* Products of small matrices whose second factor lies in a cache: c = a b, or c += a b.
 *
 * A tile of c, 6 rows by ACROSS vectors, stays in registers while the sum runs. Numbers of a are spread over a vector, so
 * they may lie at any distance, and a transposed a costs the same; rows of b are read as vectors. */

#ifndef WEFT_PRODUCT_H
#define WEFT_PRODUCT_H

#include "vectors.h"

#define TALL 6
enum { SET_TO, ADD_TO };

/* A matrix: entry (i, j) is at[i * down + j * along]. */
typedef struct {
    const float *at;
    long down, along;
} Matrix;

/* One tile of `rows` rows (at most TALL) and `wide` vectors, both known to the compiler. */
INLINE void tile(const int rows, const int wide, long inner, const float *a, long down, long along, const float *b,
                 long b_down, float *c, long c_down, const int how) {
    vec sums[TALL][ACROSS];
#pragma GCC unroll 8
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 8
        for (int v = 0; v < wide; v++) sums[r][v] = (vec){0};
    for (long k = 0; k < inner; k++, a += along, b += b_down) {
        vec row[ACROSS];
#pragma GCC unroll 8
        for (int v = 0; v < wide; v++) row[v] = load(b + v * LANES);
#pragma GCC unroll 8
        for (int r = 0; r < rows; r++) {
            float x = a[r * down];
#pragma GCC unroll 8
            for (int v = 0; v < wide; v++) sums[r][v] += x * row[v];
        }
    }
#pragma GCC unroll 8
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 8
        for (int v = 0; v < wide; v++) {
            float *p = c + r * c_down + v * LANES;
            store(p, how == ADD_TO ? load(p) + sums[r][v] : sums[r][v]);
        }
}

/* A column of tiles. */
INLINE void tiles(const int wide, long rows, long inner, const float *a, long down, long along, const float *b,
                  long b_down, float *c, long c_down, const int how) {
    long r = 0;
    for (; r + TALL <= rows; r += TALL)
        tile(TALL, wide, inner, a + r * down, down, along, b, b_down, c + r * c_down, c_down, how);
    if (rows - r >= 4) {
        tile(4, wide, inner, a + r * down, down, along, b, b_down, c + r * c_down, c_down, how);
        r += 4;
    }
    if (rows - r >= 2) {
        tile(2, wide, inner, a + r * down, down, along, b, b_down, c + r * c_down, c_down, how);
        r += 2;
    }
    if (rows - r >= 1) tile(1, wide, inner, a + r * down, down, along, b, b_down, c + r * c_down, c_down, how);
}

INLINE void product(long rows, long columns, long inner, const float *a, long down, long along, const float *b,
                    long b_down, float *c, long c_down, const int how) {
    long done = 0;
    for (; done + ACROSS * LANES <= columns; done += ACROSS * LANES)
        tiles(ACROSS, rows, inner, a, down, along, b + done, b_down, c + done, c_down, how);
    for (; done < columns; done += LANES)
        tiles(1, rows, inner, a, down, along, b + done, b_down, c + done, c_down, how);
}

/* c = a b, or c += a b, for `rows` rows and `columns` columns of c, a multiple of LANES, and sums of `inner` terms. */
__attribute__((noinline)) static void set_product(long rows, long columns, long inner, Matrix a, const float *b,
                                                  long b_down, float *c, long c_down) {
    if (a.along == 1)
        product(rows, columns, inner, a.at, a.down, 1, b, b_down, c, c_down, SET_TO);
    else
        product(rows, columns, inner, a.at, a.down, a.along, b, b_down, c, c_down, SET_TO);
}

__attribute__((noinline)) static void add_product(long rows, long columns, long inner, Matrix a, const float *b,
                                                  long b_down, float *c, long c_down) {
    if (a.down == 1)
        product(rows, columns, inner, a.at, 1, a.along, b, b_down, c, c_down, ADD_TO);
    else
        product(rows, columns, inner, a.at, a.down, a.along, b, b_down, c, c_down, ADD_TO);
}

#endif
