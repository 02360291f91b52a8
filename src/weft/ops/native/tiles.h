/* Products of bfloat16 vectors with a bfloat16 matrix by the processor's tiles (AMX).
 *
 * A tile of the matrix is 16 of its rows by 32 inputs, as they lie. Vectors are laid out by sixteen, so that a tile of
 * them is 16 pairs of inputs by 16 vectors: [inputs / 32][16 pairs][16 vectors], each number 32 bits wide. One vector
 * alone needs no other layout. A sum takes its inputs in order, by pairs, whatever else a tile holds, so a vector's
 * products have the same bits alone and among others. */

#ifndef WEFT_TILES_H
#define WEFT_TILES_H

#include "dots.h"
#include "shared.h"

#define TILED_ROWS 16   /* rows of the matrix, and vectors, of a tile */
#define TILED_INPUTS 32 /* inputs of a tile */
#define STRIP 4         /* tiles of vectors that are multiplied with a tile of the matrix at a time */

extern int weft_tiles; /* whether the process may use tiles (library.c) */

#if NARROW_DOTS && defined(TILES_COMPILED)
#define TILES 1
#endif

#ifdef TILES
#define TILED __attribute__((target("amx-tile,amx-bf16")))

/* Rows become columns, of 16 vectors of 16 numbers of 32 bits. */
INLINE void turned(__m512 *x) {
    __m512 t[16];
    for (int i = 0; i < 16; i += 2) t[i] = _mm512_unpacklo_ps(x[i], x[i + 1]), t[i + 1] = _mm512_unpackhi_ps(x[i], x[i + 1]);
    for (int i = 0; i < 16; i += 4)
        for (int j = 0; j < 2; j++) {
            const __m512d a = _mm512_castps_pd(t[i + j]), b = _mm512_castps_pd(t[i + j + 2]);
            x[i + 2 * j] = _mm512_castpd_ps(_mm512_unpacklo_pd(a, b));
            x[i + 2 * j + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(a, b));
        }
    for (int i = 0; i < 16; i += 8)
        for (int j = 0; j < 4; j++) {
            t[i + j] = _mm512_shuffle_f32x4(x[i + j], x[i + j + 4], 0x88);
            t[i + j + 4] = _mm512_shuffle_f32x4(x[i + j], x[i + j + 4], 0xdd);
        }
    for (int j = 0; j < 8; j++) {
        x[j] = _mm512_shuffle_f32x4(t[j], t[j + 8], 0x88);
        x[j + 8] = _mm512_shuffle_f32x4(t[j], t[j + 8], 0xdd);
    }
}

/* Vectors x [rows, in] in the layout of tiles. */
static void lay_out(const uint16_t *x, long rows, long in, float *y) {
    for (long r = 0; r < rows; r += TILED_ROWS)
        for (long k = 0; k < in; k += TILED_INPUTS, y += 16 * TILED_ROWS) {
            __m512 part[16];
            for (long i = 0; i < TILED_ROWS; i++)
                part[i] = r + i < rows ? _mm512_loadu_ps((const float *)(x + (r + i) * in + k)) : _mm512_setzero_ps();
            turned(part);
            for (long i = 0; i < TILED_ROWS; i++) _mm512_store_ps(y + i * TILED_ROWS, part[i]);
        }
}

/* Sizes of the tiles 0 to 7: the sums, three of vectors, and the matrix's. */
TILED static void set_tiles(long vectors) {
    struct {
        uint8_t palette, start, nothing[14];
        uint16_t bytes[16];
        uint8_t rows[16];
    } sizes = {.palette = 1};
    for (int i = 0; i < 8; i++) sizes.rows[i] = TILED_ROWS, sizes.bytes[i] = i < 7 ? 4 * vectors : 64;
    _tile_loadconfig(&sizes);
}

/* Lines of memory that are read soon: those of the next inputs but one, and of the next rows. */
INLINE void request_tile(const char *w, long stride) {
    for (int i = 0; i < TILED_ROWS; i++) {
        __builtin_prefetch(w + i * stride + 128);
        __builtin_prefetch(w + (TILED_ROWS + i) * stride, 0, 2);
    }
}

/* Sums [count][16 rows of the matrix][vectors] of `count` tiles of vectors, known to the compiler; a vector's pairs are
 * `step` bytes apart, and tiles `across`. */
TILED INLINE void strip(const int count, const char *w, long stride, const char *x, const long step, long across, long in,
                        float *sums) {
    _tile_zero(0);
    if (count > 1) _tile_zero(1);
    if (count > 2) _tile_zero(2);
    if (count > 3) _tile_zero(3);
    for (long k = 0; k < in; k += TILED_INPUTS, w += 2 * TILED_INPUTS, x += 16 * step) {
        request_tile(w, stride);
        _tile_loadd(7, w, stride);
        _tile_loadd(4, x, step);
        _tile_dpbf16ps(0, 7, 4);
        if (count > 1) {
            _tile_loadd(5, x + across, step);
            _tile_dpbf16ps(1, 7, 5);
        }
        if (count > 2) {
            _tile_loadd(6, x + 2 * across, step);
            _tile_dpbf16ps(2, 7, 6);
        }
        if (count > 3) {
            _tile_loadd(4, x + 3 * across, step);
            _tile_dpbf16ps(3, 7, 4);
        }
    }
    _tile_stored(0, sums, step);
    if (count > 1) _tile_stored(1, sums + 256, step);
    if (count > 2) _tile_stored(2, sums + 512, step);
    if (count > 3) _tile_stored(3, sums + 768, step);
}

TILED static void strip_of(long count, const char *w, long stride, const char *x, long in, float *sums) {
    const long across = 32 * in;
    if (count == 1)
        strip(1, w, stride, x, 64, across, in, sums);
    else if (count == 2)
        strip(2, w, stride, x, 64, across, in, sums);
    else if (count == 3)
        strip(3, w, stride, x, 64, across, in, sums);
    else
        strip(4, w, stride, x, 64, across, in, sums);
}

/* Sums [rows, end - begin] of vectors in the layout of tiles, or of one as it lies, with rows `begin` to `end` of a matrix
 * of at least 16 rows. A tile at the end of the matrix takes rows again that another one has taken. */
TILED static void tiled_products(const char *w, long stride, const char *x, long rows, long in, long out, long begin,
                                 long end, float *y, long across) {
    float sums[STRIP * 256] __attribute__((aligned(64)));
    set_tiles(rows == 1 ? 1 : TILED_ROWS);
    for (long r = 0; r < rows; r += STRIP * TILED_ROWS)
        for (long o = begin; o < end; o += TILED_ROWS) {
            const long first = o + TILED_ROWS <= out ? o : out - TILED_ROWS;
            const long count = end - o < TILED_ROWS ? end - o : TILED_ROWS, left = rows - r;
            if (rows == 1) {
                strip(1, w + first * stride, stride, x, 4, 0, in, sums);
                memcpy(y + o - begin, sums + o - first, sizeof(float) * count);
                continue;
            }
            const long tiles = left < STRIP * TILED_ROWS ? (left + TILED_ROWS - 1) / TILED_ROWS : STRIP;
            strip_of(tiles, w + first * stride, stride, x + 2 * r * in, in, sums);
            for (long i = 0; i < tiles; i++) {
                __m512 *of_tile = (__m512 *)sums + i * 16;
                turned(of_tile);
                for (long j = 0; j < TILED_ROWS && i * TILED_ROWS + j < left; j++)
                    memcpy(y + (r + i * TILED_ROWS + j) * across + o - begin, (float *)(of_tile + j) + o - first,
                           sizeof(float) * count);
            }
        }
    _tile_release();
}
#endif

#endif
