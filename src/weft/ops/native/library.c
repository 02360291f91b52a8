/* Which instruction sets the processor has, and the work of a call on several threads. */

#include <string.h>

#include "shared.h"

#ifdef TILES_COMPILED
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

int weft_tiles; /* whether products in bfloat16 use the processor's tiles (tiles.h) */

void weft_use_tiles(int wanted) { weft_tiles = wanted; }

/* Whether there is code for tiles, the processor has them for bfloat16, and the system lets this process use them. */
static int has_tiles(void) {
#ifdef TILES_COMPILED
    unsigned a, b, c, d;
    const int has = __get_cpuid_count(7, 0, &a, &b, &c, &d) && d >> 22 & d >> 24 & 1;
    return has && !syscall(SYS_arch_prctl, 0x1023 /* ARCH_REQ_XCOMP_PERM */, 18 /* the data of tiles */);
#else
    return 0;
#endif
}

int weft_has(const char *set) {
    if (!strcmp(set, "amx")) return has_tiles();
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
