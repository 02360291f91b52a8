/* Which instruction sets the processor has, and the work of a call on several threads. */

#include <string.h>

#include "shared.h"

int weft_has(const char *set) {
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (!strcmp(set, "avx512_bf16"))
        return weft_has("avx512") && __builtin_cpu_supports("avx512bf16") && __builtin_cpu_supports("avx512vnni");
    if (!strcmp(set, "avx512"))
        return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
               __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") &&
               __builtin_cpu_supports("avx512vl");
    if (!strcmp(set, "avx2"))
        return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi2");
#endif
    return !strcmp(set, "baseline");
}

void weft_run(void (*work)(void *), void *call, Parallel parallel, unsigned threads) {
    if (parallel && threads > 1)
        parallel(work, call, threads, 0);
    else
        work(call);
}
