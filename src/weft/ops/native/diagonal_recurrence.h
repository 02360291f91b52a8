/* The arguments of a diagonal recurrence, the same in every instruction set and in Python
 * (weft/ops/native_diagonal_recurrence.py). `next` counts the pieces of work that threads have taken. */

#ifndef WEFT_DIAGONAL_RECURRENCE_H
#define WEFT_DIAGONAL_RECURRENCE_H

/* h_t = exp(logs_t) h_{t-1} + x_t, from h_{-1} = before. `logs`, `x`, `h`, `dh`, `dx` and `dlogs` are contiguous
 * [batch, step, feature], `before` and `dbefore` [batch, feature]. `dh` holds the gradients of all h. */
typedef struct {
    const float *logs, *x, *before;
    float *h;
    const float *dh;
    float *dx, *dlogs, *dbefore;
    long batch, steps, width, next;
} Diagonal;

#endif
