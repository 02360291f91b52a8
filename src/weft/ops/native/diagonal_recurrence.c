/* A recurrence of features that do not mix: forward and backward, a group of features of one row at a time. */

#include "diagonal_recurrence.h"
#include "vectors.h"

#define GROUP 4 /* vectors of features that one thread takes through all steps: their sums are independent of each other */
#define LOG2_E 1.44269504088896341f

INLINE vec exp_of(vec x) { return exp2_of(x * LOG2_E); }

/* The first `count` numbers, the rest 0. */
INLINE vec load_some(const float *p, long count) {
    if (count >= LANES) return load(p);
    vec x = (vec){0};
    memcpy(&x, p, sizeof(float) * (count > 0 ? count : 0));
    return x;
}

INLINE void store_some(float *p, vec x, long count) {
    if (count >= LANES)
        store(p, x);
    else if (count > 0)
        memcpy(p, &x, sizeof(float) * count);
}

/* `count` features from `first` on, at most GROUP * LANES; `whole` says that it is that many, and is known to the
 * compiler. */
INLINE void forward_group(const Diagonal *c, long row, long first, long count, const int whole) {
    vec h[GROUP];
    for (int v = 0; v < GROUP; v++) h[v] = load_some(c->before + row * c->width + first + v * LANES, count - v * LANES);
    for (long t = 0; t < c->steps; t++) {
        const long at = (row * c->steps + t) * c->width + first;
#pragma GCC unroll 4
        for (int v = 0; v < GROUP; v++) {
            const long left = whole ? LANES : count - v * LANES, here = at + v * LANES;
            h[v] = exp_of(load_some(c->logs + here, left)) * h[v] + load_some(c->x + here, left);
            store_some(c->h + here, h[v], left);
        }
    }
}

INLINE void backward_group(const Diagonal *c, long row, long first, long count, const int whole) {
    vec carried[GROUP];
    for (int v = 0; v < GROUP; v++) carried[v] = (vec){0};
    for (long t = c->steps - 1; t >= 0; t--) {
        const long at = (row * c->steps + t) * c->width + first;
        const float *earlier = t ? c->h + at - c->width : c->before + row * c->width + first;
#pragma GCC unroll 4
        for (int v = 0; v < GROUP; v++) {
            const long left = whole ? LANES : count - v * LANES, here = at + v * LANES;
            vec slope = load_some(c->dh + here, left) + carried[v];
            store_some(c->dx + here, slope, left);
            carried[v] = exp_of(load_some(c->logs + here, left)) * slope;
            store_some(c->dlogs + here, carried[v] * load_some(earlier + v * LANES, left), left);
        }
    }
    for (int v = 0; v < GROUP; v++)
        store_some(c->dbefore + row * c->width + first + v * LANES, carried[v], count - v * LANES);
}

/* What one thread does: groups of features, taken one after another until none is left. */
#define TAKE_GROUPS(work)                                                                                     \
    const long size = GROUP * LANES, groups = (c->width + size - 1) / size, count = c->batch * groups;        \
    for (long i; (i = __atomic_fetch_add(&c->next, 1, __ATOMIC_RELAXED)) < count;) {                          \
        const long first = i % groups * size, left = c->width - first;                                        \
        if (left >= size)                                                                                     \
            work(c, i / groups, first, size, 1);                                                              \
        else                                                                                                  \
            work(c, i / groups, first, left, 0);                                                              \
    }

void NAME(weft_diagonal_forward)(Diagonal *c) { TAKE_GROUPS(forward_group) }

void NAME(weft_diagonal_backward)(Diagonal *c) { TAKE_GROUPS(backward_group) }
