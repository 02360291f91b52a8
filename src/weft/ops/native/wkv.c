/* RWKV-4's decaying mean in float32, forward and backward (weft/ops/wkv.py has the formula).
 *
 * Channels are independent: the lanes of WIDE vectors hold neighbouring ones, and a piece of work is one row of such a
 * group, over all tokens. The backward pass keeps the state before every SPAN tokens and computes those between again.
 * Every sum over tokens is taken by one thread in one order. */

#include <stdlib.h>

#include "vectors.h"
#include "wkv.h"

#define WIDE 4
#define SPAN 32
#define EMPTY -1e38f
#define LOG2_E 1.44269504f

/* Numerator, denominator and m of one vector of channels. */
typedef struct {
    vec over, under, top;
} State;

/* The channels of a piece: their first one, how many there are, and where their row begins in [batch, steps, channels]
 * and [batch, 3, channels]. */
typedef struct {
    long row, first, count, tokens, states;
} Piece;

/* LANES numbers, of which `count` exist. */
INLINE vec some(const float *p, long count) {
    if (count >= LANES) return load(p);
    float numbers[LANES] = {0};
    memcpy(numbers, p, sizeof(float) * (count > 0 ? count : 0));
    return load(numbers);
}

INLINE void put(float *p, long count, vec x) {
    if (count >= LANES) {
        store(p, x);
        return;
    }
    float numbers[LANES];
    store(numbers, x);
    memcpy(p, numbers, sizeof(float) * (count > 0 ? count : 0));
}

/* e^past and e^now, both divided by the larger: one of them is 1. */
INLINE void shares(vec past, vec now, vec *kept, vec *entering) {
    vec gap = past - now;
    ints later = (ints)(gap < 0);
    vec less = exp2_of(chosen(later, gap, -gap) * LOG2_E);
    *kept = chosen(later, less, all(1.0f));
    *entering = chosen(later, all(1.0f), less);
}

INLINE State emptied(void) { return (State){all(0.0f), all(0.0f), all(EMPTY)}; }

/* The state after a token, and the factors on the state and on the token. */
INLINE State moved(State s, vec k, vec v, vec decay, vec *kept, vec *entering) {
    vec past = s.top + decay;
    shares(past, k, kept, entering);
    return (State){*kept * s.over + *entering * v, *kept * s.under + *entering, larger(past, k)};
}

static Piece piece_at(const Wkv *c, long index) {
    const long wide = WIDE * LANES, groups = (c->channels + wide - 1) / wide;
    Piece p = {.row = index / groups, .first = index % groups * wide};
    p.count = c->channels - p.first < wide ? c->channels - p.first : wide;
    p.tokens = p.row * c->steps * c->channels + p.first;
    p.states = p.row * 3 * c->channels + p.first;
    return p;
}

static void entry(const Wkv *c, const Piece *p, State *s) {
    for (long j = 0; j < WIDE; j++) {
        const long left = p->count - j * LANES, at = p->states + j * LANES;
        s[j] = left > 0 ? (State){some(c->before + at, left), some(c->before + c->channels + at, left),
                                  some(c->before + 2 * c->channels + at, left)}
                        : emptied();
    }
}

INLINE int begins(const Wkv *c, const Piece *p, long t) { return c->starts && c->starts[p->row * c->steps + t]; }
INLINE int taken(const Wkv *c, const Piece *p, long t) { return !c->valid || c->valid[p->row * c->steps + t]; }

static void forward(const Wkv *c, long index) {
    const Piece p = piece_at(c, index);
    State s[WIDE];
    vec kept, entering;
    entry(c, &p, s);
    for (long t = 0; t < c->steps; t++)
        for (long j = 0; j < WIDE && j * LANES < p.count; j++) {
            const long left = p.count - j * LANES, at = p.tokens + t * c->channels + j * LANES;
            const vec k = some(c->k + at, left), v = some(c->v + at, left);
            if (begins(c, &p, t)) s[j] = emptied();
            shares(s[j].top, some(c->bonus + p.first + j * LANES, left) + k, &kept, &entering);
            put(c->y + at, left, (kept * s[j].over + entering * v) / (kept * s[j].under + entering));
            if (taken(c, &p, t))
                s[j] = moved(s[j], k, v, some(c->decay + p.first + j * LANES, left), &kept, &entering);
        }
    for (long j = 0; j < WIDE && j * LANES < p.count; j++) {
        const long left = p.count - j * LANES, at = p.states + j * LANES;
        put(c->after + at, left, s[j].over);
        put(c->after + c->channels + at, left, s[j].under);
        put(c->after + 2 * c->channels + at, left, s[j].top);
    }
}

/* The states before the tokens from `first` to `last`, from the one before `first`, and the one after `last`. */
static void states(const Wkv *c, const Piece *p, long j, long first, long last, State s, State *before, State *after) {
    const long left = p->count - j * LANES;
    const vec decay = some(c->decay + p->first + j * LANES, left);
    vec kept, entering;
    for (long t = first; t < last; t++) {
        const long at = p->tokens + t * c->channels + j * LANES;
        if (begins(c, p, t)) s = emptied();
        if (before) before[t - first] = s;
        if (taken(c, p, t)) s = moved(s, some(c->k + at, left), some(c->v + at, left), decay, &kept, &entering);
    }
    if (after) *after = s;
}

/* One vector of channels, from the last token to the first. `marks` holds the state before each span. */
static void backward_lanes(const Wkv *c, const Piece *p, long j, State first, State *marks) {
    const long left = p->count - j * LANES, spans = (c->steps + SPAN - 1) / SPAN, state = p->states + j * LANES;
    const vec decay = some(c->decay + p->first + j * LANES, left), bonus = some(c->bonus + p->first + j * LANES, left);
    State before[SPAN], s = first;
    for (long n = 0; n < spans; n++) {
        marks[n] = s;
        if (n + 1 < spans) states(c, p, j, n * SPAN, (n + 1) * SPAN, s, NULL, &s);
    }
    vec dover = some(c->dafter + state, left), dunder = some(c->dafter + c->channels + state, left);
    vec ddecay = all(0.0f), dbonus = all(0.0f), past, now, kept, entering;
    for (long n = spans - 1; n >= 0; n--) {
        const long last = (n + 1) * SPAN < c->steps ? (n + 1) * SPAN : c->steps;
        states(c, p, j, n * SPAN, last, marks[n], before, NULL);
        for (long t = last - 1; t >= n * SPAN; t--) {
            const long at = p->tokens + t * c->channels + j * LANES;
            const vec k = some(c->k + at, left), v = some(c->v + at, left);
            s = before[t - n * SPAN];
            shares(s.top, bonus + k, &past, &now);
            const vec whole = past * s.under + now, y = (past * s.over + now * v) / whole;
            const vec slope = some(c->dy + at, left) / whole, own = now * slope * (v - y);
            vec dk = own, dv = now * slope;
            if (taken(c, p, t)) {
                moved(s, k, v, decay, &kept, &entering);
                dk += entering * (dover * v + dunder);
                dv += entering * dover;
                ddecay += kept * (dover * s.over + dunder * s.under);
                dover *= kept;
                dunder *= kept;
            }
            dbonus += own;
            dover += past * slope;
            dunder -= past * slope * y;
            put(c->dk + at, left, dk);
            put(c->dv + at, left, dv);
        }
    }
    put(c->dbefore + state, left, dover);
    put(c->dbefore + c->channels + state, left, dunder);
    put(c->dbefore + 2 * c->channels + state, left, all(0.0f));
    put(c->ddecay + p->row * c->channels + p->first + j * LANES, left, ddecay);
    put(c->dbonus + p->row * c->channels + p->first + j * LANES, left, dbonus);
}

static long pieces(const Wkv *c) {
    return c->batch * ((c->channels + WIDE * LANES - 1) / (WIDE * LANES));
}

/* What one thread does: rows of groups of channels, taken one after another until none is left. */
void NAME(weft_wkv_forward)(Wkv *c) {
    for (long i; (i = __atomic_fetch_add(&c->next, 1, __ATOMIC_RELAXED)) < pieces(c);) forward(c, i);
}

void NAME(weft_wkv_backward)(Wkv *c) {
    State *marks = aligned_alloc(64, (sizeof(State) * ((c->steps + SPAN - 1) / SPAN) + 63) / 64 * 64);
    for (long i; marks && (i = __atomic_fetch_add(&c->next, 1, __ATOMIC_RELAXED)) < pieces(c);) {
        const Piece p = piece_at(c, i);
        State s[WIDE];
        entry(c, &p, s);
        for (long j = 0; j < WIDE && j * LANES < p.count; j++) backward_lanes(c, &p, j, s[j], marks);
    }
    free(marks);
}
