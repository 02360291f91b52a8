/* The arguments of products of a few vectors with matrices, the same in every instruction set. */

#ifndef WEFT_FEW_ROWS_H
#define WEFT_FEW_ROWS_H

#include "shared.h"

/* A matrix [out, in] and what is done with its products.
 *
 * `values`: rows of float32 or bfloat16 numbers, of whole numbers of eight bits, or of four bits (two inputs in a byte, as
 * dots.h lays them); `stride` bytes from one row to the next. `scale`: of eight bits one float32 number for each row, of
 * four bits one bfloat16 number for each row and group. `bias`: in the dtype of the vectors, or none. */
typedef struct {
    const char *values;
    long stride;
    const void *scale, *bias;
} Map;

/* One product. x [rows, in] and y [rows, out] are contiguous, in float32 or, where `narrow`, in bfloat16; `kind` is how
 * the matrix is stored. `piece`: rows of the matrix that a thread takes at a time; pieces are counted by such rows. */
typedef struct {
    Shared shared;
    int kind, narrow;
    long rows, in, out;
    const void *x;
    Map map;
    void *y;
    long piece;
} Product;

/* A gated feed-forward: down(f(gate x) * (up x + shift)), with the gate cut off above `limit` and up on both sides.
 * `between` [rows, hidden] holds what goes into the last product. The first stage is counted by rows of `gate`, the
 * second by those of `down`. */
typedef struct {
    Shared shared;
    int kind, narrow, activation;
    float limit, shift;
    long rows, in, hidden, out;
    const void *x;
    Map gate, up, down;
    float *between;
    void *y;
    long piece, last_piece;
} Gated;

/* A matrix of four bits in float32 or, where `narrow`, in bfloat16: y [out, in] contiguous. A piece is OPENED rows. */
#define OPENED 16
typedef struct {
    Shared shared;
    int narrow;
    long out, in;
    Map map;
    void *y;
} Open;

#endif
