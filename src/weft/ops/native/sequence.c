/* Several calls one after another, each shared among all threads: what a step of decoding is made of, without the time
 * that it takes to call functions from Python and to call threads together for each of them. */

#include "shared.h"

typedef struct {
    int (*work)(void *);
    Shared *call;
} Call;

typedef struct {
    const Call *calls;
    long count;
    long failed;
} Sequence;

static void work_off(Sequence *s) {
    for (long i = 0; i < s->count; i++) {
        Shared *call = s->calls[i].call;
        const long status = s->calls[i].work(call);
        if (status != COMPUTED) {
            __atomic_store_n(&s->failed, status, __ATOMIC_RELAXED);
            return;
        }
        if (!complete(&call->done, call->pieces, &s->failed)) return;
    }
}

/* Returns COMPUTED, or why some call could not be computed. */
int weft_sequence(Parallel parallel, unsigned threads, const Call *calls, long count) {
    Sequence s = {calls, count, 0};
    for (long i = 0; i < count; i++) {
        Shared *call = calls[i].call;
        *call = (Shared){.pieces = call->pieces, .threads = threads};
    }
    if (parallel && threads > 1)
        parallel((void (*)(void *))work_off, &s, threads, 0);
    else
        work_off(&s);
    return s.failed;
}

/* A sequence of one call. */
int weft_alone(Parallel parallel, int (*work)(void *), unsigned threads, Shared *call) {
    const Call one = {work, call};
    return weft_sequence(parallel, threads, &one, 1);
}
