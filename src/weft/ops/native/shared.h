/* What every call begins with that may stand in a sequence of calls (sequence.c), the same in every instruction set and
 * in Python (weft/ops/native/sequence.py).
 *
 * Threads take the pieces of a call from `next` and add to `done` what they have finished; when `done` has reached
 * `pieces`, the results are complete. A thread that comes late finds nothing left to take, so nothing waits for one that
 * the system has not started yet. `early_done` counts the pieces of a first stage, and `failed` is set where a thread had
 * no memory for its share of it. Rows of matrices are counted for each thread's part of them (`Share`): by `at`, and by
 * `early_at` in a first stage, of as many parts as there are `threads`; `entered` counts those that have begun. */

#ifndef WEFT_SHARED_H
#define WEFT_SHARED_H

#include <sched.h>

/* The most parts that the rows of a matrix are divided into. */
#define PARTS 8

/* Whether the compiler has what tiles (AMX, tiles.h) are written with. */
#if defined(__x86_64__) && defined(__linux__) && defined(__has_include)
#if __has_include(<amxbf16intrin.h>)
#define TILES_COMPILED 1
#endif
#endif

/* What a call's function returns. */
enum { COMPUTED, NO_MEMORY, BAD_INDEX };

typedef struct {
    long next, done, pieces, early_done, failed, threads, entered, at[PARTS], early_at[PARTS];
} Shared;

/* GNU OpenMP's entry point, which PyTorch's own copy of the runtime has; calling it by address keeps to one pool of
 * threads without a second runtime in the process. */
typedef void (*Parallel)(void (*)(void *), void *, unsigned, unsigned);

/* The first of `step` pieces that this thread takes. */
static inline long taken(long *next, long step) { return __atomic_fetch_add(next, step, __ATOMIC_RELAXED); }

/* Rows of a matrix as one thread takes them: `step` at a time, in order, from a part of its own, and when that is used up
 * from the others' parts. Reading memory in one long stretch is faster than by pieces from all over a matrix: with pieces
 * of 24 KiB two threads read 36 GB/s where halves gave 65. */
typedef struct {
    long parts, part, left, count, step, *at;
} Share;

/* The part of a thread that enters a call. */
static inline Share entered(Shared *s) {
    const long parts = s->threads < 1 ? 1 : s->threads < PARTS ? s->threads : PARTS;
    return (Share){.parts = parts, .part = taken(&s->entered, 1) % parts};
}

/* The same part of `count` rows, of which `at` counts those that are taken from each part. */
static inline Share of_rows(Share s, long *at, long count, long step) {
    return (Share){s.parts, s.part, s.parts, count, step, at};
}

/* The first of the next rows, of which there are `step`, or fewer at the end of the matrix; `count` where none are left. */
static inline long next_rows(Share *s) {
    const long steps = (s->count + s->step - 1) / s->step;
    for (; s->left; s->left--, s->part = (s->part + 1) % s->parts) {
        const long row = steps * s->part / s->parts * s->step + taken(s->at + s->part, s->step);
        if (row < steps * (s->part + 1) / s->parts * s->step) return row;
    }
    return s->count;
}

static inline void finished(long *done, long count) { __atomic_fetch_add(done, count, __ATOMIC_RELEASE); }

/* Until all pieces that threads have taken are done, or `failed` says that one of them cannot be; others may need this
 * thread's processor for that. Returns whether all are done. */
static inline int complete(const long *done, long count, const long *failed) {
    for (long tries = 0; __atomic_load_n(done, __ATOMIC_ACQUIRE) < count; tries++) {
        if (__atomic_load_n(failed, __ATOMIC_RELAXED)) return 0;
        if (tries > 2000) sched_yield();
#if defined(__x86_64__)
        __builtin_ia32_pause();
#endif
    }
    return 1;
}

#endif
