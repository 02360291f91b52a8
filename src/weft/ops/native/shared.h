/* What every call begins with that may stand in a sequence of calls (sequence.c), the same in every instruction set and
 * in Python (weft/ops/native/sequence.py).
 *
 * Threads take the pieces of a call from `next` and add to `done` what they have finished; when `done` has reached
 * `pieces`, the results are complete. A thread that comes late finds nothing left to take, so nothing waits for one that
 * the system has not started yet. `early_next` and `early_done` count the pieces of a call of two stages, and `failed` is
 * set where a thread had no memory for its share of the first one. */

#ifndef WEFT_SHARED_H
#define WEFT_SHARED_H

#include <sched.h>

/* What a call's function returns. */
enum { COMPUTED, NO_MEMORY, BAD_INDEX };

typedef struct {
    long next, done, pieces, early_next, early_done, failed;
} Shared;

/* GNU OpenMP's entry point, which PyTorch's own copy of the runtime has; calling it by address keeps to one pool of
 * threads without a second runtime in the process. */
typedef void (*Parallel)(void (*)(void *), void *, unsigned, unsigned);

/* The first of `step` pieces that this thread takes. */
static inline long taken(long *next, long step) { return __atomic_fetch_add(next, step, __ATOMIC_RELAXED); }

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
