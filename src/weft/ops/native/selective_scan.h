/* The arguments of the selective scan, the same in every instruction set and in Python
 * (weft/ops/native_selective_scan.py). `next` counts the pieces of work that threads have taken. */

#ifndef WEFT_SELECTIVE_SCAN_H
#define WEFT_SELECTIVE_SCAN_H

#include <stdint.h>

/* Tokens of a chunk, and channels of a piece of work. */
#define CHUNK 32
#define SLICE 64

/* Tensors of one call, all contiguous but `gate`, whose tokens are `across` numbers apart: u, dt, y, gate, dy, du, ddt,
 * dgate [batch, steps, channels], a [states, channels], b and c [batch, steps, states], states [batch, states,
 * channels], bias and skip [channels].
 *
 * Where `gate` is given, the scan is that of Mamba: the steps are softplus(dt + bias), and y is (C h + skip u)
 * silu(gate); otherwise `bias`, `skip` and their gradients are not read.
 *
 * `starts` [batch, steps], where it is given, is 1 where the state is cleared before the token. `kept` [chunks, batch,
 * states, channels] holds the state before each chunk; the forward pass writes it where it is given. `da` is [batch,
 * states, channels], and `dbias` and `dskip` [batch, channels], to be summed over rows; `db` and `dc` are [batch, slices,
 * states, steps], to be summed over the slices of SLICE channels. */
typedef struct {
    const float *u, *dt, *a, *b, *c, *before, *bias, *skip, *gate;
    const uint8_t *starts;
    float *y, *after, *kept;
    const float *dy, *dafter;
    float *du, *ddt, *da, *db, *dc, *dbefore, *dbias, *dskip, *dgate;
    long batch, steps, channels, states, across, next;
} Scan;

#endif
