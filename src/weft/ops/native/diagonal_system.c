/* A diagonal state-space model's discretisation and kernel, forward and backward, a channel at a time. Numbers come and
 * go in float32. What is a difference of numbers near one, or an angle of many turns, is computed in double, so that no
 * digits are lost; the powers of a mode are multiplied in float32 from one exact power to the next.
 *
 * The gradients follow from the formulas: with z = dt a, w = (exp(z) - 1) / a and g the gradient of w,
 * da = dt dz + g conj((dt exp(z) - w) / a), where the gradient of a product of complex numbers is that of the result
 * times the conjugate of the other. Every sum is taken by one thread in one order. */

#include "diagonal_system.h"
#include "vectors.h"

#define WIDE 8      /* numbers of a vector in double */
#define LAGS 16     /* lags of a vector in float32 */
#define EXACT 1024 /* lags from one exact power to the next, a multiple of LAGS */

typedef double wide __attribute__((vector_size(8 * WIDE)));
typedef int64_t longs __attribute__((vector_size(8 * WIDE)));
typedef float half __attribute__((vector_size(4 * WIDE)));
typedef float loose_half __attribute__((vector_size(4 * WIDE), aligned(4), may_alias));
typedef float lags __attribute__((vector_size(4 * LAGS)));
typedef float loose_lags __attribute__((vector_size(4 * LAGS), aligned(4), may_alias));

typedef struct {
    wide re, im;
} Complex;

#define EACH(x) ((wide){0} + (x))
INLINE wide widened(half x) { return __builtin_convertvector(x, wide); }
INLINE half narrowed(wide x) { return __builtin_convertvector(x, half); }
INLINE wide either(longs mask, wide x, wide y) { return (wide)(((longs)x & mask) | ((longs)y & ~mask)); }
INLINE Complex times(Complex x, Complex y) {
    return (Complex){x.re * y.re - x.im * y.im, x.re * y.im + x.im * y.re};
}
INLINE Complex conjugate(Complex x) { return (Complex){x.re, -x.im}; }
INLINE Complex over(Complex x, Complex y) {
    const wide size = 1 / (y.re * y.re + y.im * y.im);
    const Complex turned = times(x, conjugate(y));
    return (Complex){turned.re * size, turned.im * size};
}

#define SHIFT 6755399441055744.0 /* 1.5 * 2^52: adding it rounds to a whole number */

/* exp(x): 0 far below, infinity far above, NaN for NaN. The Taylor polynomial of degree 12 on |x| <= log(2) / 2. */
INLINE wide exp_wide(wide x) {
    x = either((longs)(x < -708), EACH(-708), x);
    x = either((longs)(x > 709), EACH(709), x);
    const wide whole = x * 1.4426950408889634 + SHIFT;
    const wide r = (x - (whole - SHIFT) * 0.693147180369123816490) - (whole - SHIFT) * 1.90821492927058770002e-10;
    wide y = EACH(1.0 / 479001600);
    y = y * r + 1.0 / 39916800;
    y = y * r + 1.0 / 3628800;
    y = y * r + 1.0 / 362880;
    y = y * r + 1.0 / 40320;
    y = y * r + 1.0 / 5040;
    y = y * r + 1.0 / 720;
    y = y * r + 1.0 / 120;
    y = y * r + 1.0 / 24;
    y = y * r + 1.0 / 6;
    y = y * r + 0.5;
    y = y * r + 1;
    y = y * r + 1;
    return y * (wide)(((longs)whole - (longs)EACH(SHIFT) + 1023) << 52);
}

/* exp(i 2 pi x) for a number of turns below 2^50: whole quarters of a turn are taken off, and sine and cosine of the rest,
 * at most an eighth of a turn, are Taylor polynomials. */
INLINE Complex turned(wide x) {
    const wide quarters = 4 * x + SHIFT;
    const longs quarter = (longs)quarters - (longs)EACH(SHIFT);
    const wide r = (x - (quarters - SHIFT) / 4) * 6.283185307179586477, q = r * r;
    wide s = q * (1.0 / 6227020800) - 1.0 / 39916800, c = q * (-1.0 / 87178291200) + 1.0 / 479001600;
    s = s * q + 1.0 / 362880;
    c = c * q - 1.0 / 3628800;
    s = s * q - 1.0 / 5040;
    c = c * q + 1.0 / 40320;
    s = s * q + 1.0 / 120;
    c = c * q - 1.0 / 720;
    s = s * q - 1.0 / 6;
    c = c * q + 1.0 / 24;
    s = r + r * q * s;
    c = 1 - q / 2 + q * q * c;
    const longs odd = (quarter & 1) != 0, below = (quarter & 2) << 62, left = ((quarter + 1) & 2) << 62;
    return (Complex){(wide)((longs)either(odd, s, c) ^ left), (wide)((longs)either(odd, c, s) ^ below)};
}

#define TURN 0.15915494309189533577 /* 1 / (2 pi) */

/* `count` numbers, `apart` from each other, and zeros behind them. */
INLINE wide taken(const float *x, long apart, long count) {
    if (apart == 1 && count >= WIDE) return widened(*(const loose_half *)x);
    half found = {0};
    for (long i = 0; i < count && i < WIDE; i++) found[i] = x[i * apart];
    return widened(found);
}

INLINE void put(float *to, long apart, long count, wide x) {
    const half found = narrowed(x);
    if (apart == 1 && count >= WIDE)
        *(loose_half *)to = found;
    else
        for (long i = 0; i < count && i < WIDE; i++) to[i * apart] = found[i];
}

INLINE Complex pairs(const float *x, long count) { return (Complex){taken(x, 2, count), taken(x + 1, 2, count)}; }
INLINE void put_pairs(float *to, long count, Complex x) {
    put(to, 2, count, x.re);
    put(to + 1, 2, count, x.im);
}

/* a, exp(dt a) and (exp(dt a) - 1) / a of some modes; a is -1 beyond the last. */
INLINE void held(const Hold *c, long at, long count, double dt, Complex *a, Complex *grown, Complex *w) {
    *a = (Complex){-exp_wide(taken(c->log_decay + at, 1, count)), taken(c->frequency + at, 1, count)};
    *grown = turned(dt * a->im * TURN);
    const wide size = exp_wide(dt * a->re);
    grown->re *= size;
    grown->im *= size;
    *w = over((Complex){grown->re - 1, grown->im}, *a);
}

static void hold_forward(const Hold *c, long channel) {
    const double dt = exp(c->log_dt[channel]);
    for (long m = 0; m < c->modes; m += WIDE) {
        const long at = channel * c->modes + m, count = c->modes - m;
        Complex a, grown, w;
        held(c, at, count, dt, &a, &grown, &w);
        put(c->log_radius + at, 1, count, dt * a.re);
        put(c->angle + at, 1, count, dt * a.im);
        put_pairs(c->held + 2 * at, count, times(w, pairs(c->b + 2 * at, count)));
    }
}

static void hold_backward(const Hold *c, long channel) {
    const double dt = exp(c->log_dt[channel]);
    wide ddt = {0};
    for (long m = 0; m < c->modes; m += WIDE) {
        const long at = channel * c->modes + m, count = c->modes - m;
        Complex a, grown, w;
        held(c, at, count, dt, &a, &grown, &w);
        const Complex above = pairs(c->dheld + 2 * at, count), b = pairs(c->b + 2 * at, count);
        put_pairs(c->db + 2 * at, count, times(above, conjugate(w)));
        const Complex dw = times(above, conjugate(b));
        const Complex dz = {taken(c->dlog_radius + at, 1, count), taken(c->dangle + at, 1, count)};
        const Complex by_a = times(dw, conjugate(over((Complex){dt * grown.re - w.re, dt * grown.im - w.im}, a)));
        put(c->dlog_decay + at, 1, count, (dt * dz.re + by_a.re) * a.re);
        put(c->dfrequency + at, 1, count, dt * dz.im + by_a.im);
        ddt += dz.re * a.re + dz.im * a.im + dw.re * grown.re + dw.im * grown.im;
    }
    double sum = 0;
    for (long i = 0; i < WIDE; i++) sum += ddt[i];
    c->dlog_dt[channel] = sum * dt;
}

typedef struct {
    lags re, im;
} Powers;

INLINE Powers joined(Complex low, Complex high) {
    Powers found;
    const half parts[4] = {narrowed(low.re), narrowed(high.re), narrowed(low.im), narrowed(high.im)};
    memcpy(&found.re, parts, sizeof(found.re));
    memcpy(&found.im, parts + 2, sizeof(found.im));
    return found;
}

/* exp(k (log_radius + i turns 2 pi)) for WIDE numbers k. */
INLINE Complex power(double log_radius, double turns, wide k) {
    const Complex direction = turned(k * turns);
    const wide size = exp_wide(k * log_radius);
    return (Complex){direction.re * size, direction.im * size};
}

static const wide FIRST = {0, 1, 2, 3, 4, 5, 6, 7};

/* The powers `from` to `from` + LAGS - 1 of a mode. */
INLINE Powers powers(double log_radius, double turns, long from) {
    return joined(power(log_radius, turns, FIRST + (double)from), power(log_radius, turns, FIRST + (double)(from + WIDE)));
}

/* x times y + i z. */
INLINE Powers scaled(Powers x, float y, float z) { return (Powers){x.re * y - x.im * z, x.re * z + x.im * y}; }

/* The first `count` numbers, and zeros behind them. */
INLINE lags some(const float *x, long count) {
    if (count >= LAGS) return *(const loose_lags *)x;
    lags found = {0};
    memcpy(&found, x, sizeof(float) * count);
    return found;
}

INLINE float sum_of(lags x) {
    float sum = 0;
    for (long i = 0; i < LAGS; i++) sum += x[i];
    return sum;
}

/* A mode: its rates, its power of LAGS, and the product of b and c. */
typedef struct {
    double log_radius, turns;
    float step_re, step_im, q_re, q_im;
} Mode;

INLINE Mode mode_of(const ModesKernel *k, long at) {
    const float *b = k->b + 2 * at, *c = k->c + 2 * at;
    const double radius = k->log_radius[at], turns = k->angle[at] * TURN;
    const Complex step = power(radius, turns, EACH(LAGS));
    return (Mode){radius, turns, step.re[0], step.im[0], c[0] * b[0] - c[1] * b[1], c[0] * b[1] + c[1] * b[0]};
}

static void kernel_forward(const ModesKernel *k, long channel) {
    float *to = k->kernel + channel * k->steps;
    memset(to, 0, sizeof(float) * k->steps);
    for (long m = 0; m < k->modes; m++) {
        const Mode mode = mode_of(k, channel * k->modes + m);
        Powers z;
        for (long l = 0; l < k->steps; l += LAGS) {
            if (l % EXACT == 0) z = scaled(powers(mode.log_radius, mode.turns, l), 2 * mode.q_re, 2 * mode.q_im);
            const lags sum = some(to + l, k->steps - l) + z.re;
            memcpy(to + l, &sum, sizeof(float) * (k->steps - l < LAGS ? k->steps - l : LAGS));
            z = scaled(z, mode.step_re, mode.step_im);
        }
    }
}

/* Of one mode, from the sums of g_l A^l and of l g_l A^l. */
static void mode_backward(const ModesKernel *k, long channel, long at) {
    const float *g = k->dkernel + channel * k->steps, *b = k->b + 2 * at, *c = k->c + 2 * at;
    const Mode mode = mode_of(k, at);
    const lags order = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    Powers z, sums = {{0}, {0}}, slopes = {{0}, {0}};
    for (long l = 0; l < k->steps; l += LAGS) {
        if (l % EXACT == 0) z = powers(mode.log_radius, mode.turns, l);
        const lags one = some(g + l, k->steps - l), by_lag = one * (order + (float)l);
        sums.re += one * z.re;
        sums.im += one * z.im;
        slopes.re += by_lag * z.re;
        slopes.im += by_lag * z.im;
        z = scaled(z, mode.step_re, mode.step_im);
    }
    const float re = 2 * sum_of(sums.re), im = -2 * sum_of(sums.im); /* the gradient of the product */
    const float slope_re = 2 * sum_of(slopes.re), slope_im = 2 * sum_of(slopes.im);
    k->dlog_radius[at] = mode.q_re * slope_re - mode.q_im * slope_im;
    k->dangle[at] = -(mode.q_re * slope_im + mode.q_im * slope_re);
    k->dc[2 * at] = re * b[0] + im * b[1];
    k->dc[2 * at + 1] = im * b[0] - re * b[1];
    k->db[2 * at] = re * c[0] + im * c[1];
    k->db[2 * at + 1] = im * c[0] - re * c[1];
}

static void kernel_backward(const ModesKernel *k, long channel) {
    for (long m = 0; m < k->modes; m++) mode_backward(k, channel, channel * k->modes + m);
}

/* Channels, taken one after another until none is left. */
#define TAKE(call, work) \
    for (long i; (i = __atomic_fetch_add(&(call)->next, 1, __ATOMIC_RELAXED)) < (call)->channels;) work(call, i)

void NAME(weft_hold_forward)(Hold *c) { TAKE(c, hold_forward); }

void NAME(weft_hold_backward)(Hold *c) { TAKE(c, hold_backward); }

void NAME(weft_modes_kernel_forward)(ModesKernel *k) { TAKE(k, kernel_forward); }

void NAME(weft_modes_kernel_backward)(ModesKernel *k) { TAKE(k, kernel_backward); }
