/* The arguments of products of a few vectors with matrices, the same in every instruction set. */

#ifndef WEFT_FEW_ROWS_H
#define WEFT_FEW_ROWS_H

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

/* GNU OpenMP's entry point, as in library.c. */
typedef void (*Parallel)(void (*)(void *), void *, unsigned, unsigned);

/* One product. x [rows, in] and y [rows, out] are contiguous, in float32 or, where `narrow`, in bfloat16; `kind` is how
 * the matrix is stored. `piece`: rows of the matrix that a thread takes at a time; `next`: how many have been taken. */
typedef struct {
    int kind, narrow;
    long rows, in, out;
    const void *x;
    Map map;
    void *y;
    long piece, next;
} Product;

/* A gated feed-forward: down(f(gate x) * (up x + shift)), with the gate cut off above `limit` and up on both sides.
 * `between` [rows, hidden] holds what goes into the last product. */
typedef struct {
    int kind, narrow, activation;
    float limit, shift;
    long rows, in, hidden, out;
    const void *x;
    Map gate, up, down;
    float *between;
    void *y;
    long piece, next, done, last_piece, last_next;
} Gated;

#endif
