/* The arguments of a diagonal state-space model's discretisation and of its kernel, the same in every instruction set
 * and in Python (weft/ops/native_diagonal_system.py). `next` counts the channels that threads have taken. */

#ifndef WEFT_DIAGONAL_SYSTEM_H
#define WEFT_DIAGONAL_SYSTEM_H

/* A zero-order hold of exp(log_dt) for a = -exp(log_decay) + i frequency. All contiguous: log_dt [channels], log_decay,
 * frequency, log_radius and angle [channels, modes], b and held [channels, modes, 2]; held is B of the discrete system.
 * Gradients have the shapes of what they belong to. */
typedef struct {
    const float *log_dt, *log_decay, *frequency, *b;
    float *log_radius, *angle, *held;
    const float *dlog_radius, *dangle, *dheld;
    float *dlog_dt, *dlog_decay, *dfrequency, *db;
    long channels, modes, next;
} Hold;

/* kernel_l = 2 Re(sum over modes of c b exp(l (log_radius + i angle))) for l < steps. All contiguous: log_radius and
 * angle [channels, modes], b and c [channels, modes, 2], kernel [channels, steps]. */
typedef struct {
    const float *log_radius, *angle, *b, *c;
    float *kernel;
    const float *dkernel;
    float *dlog_radius, *dangle, *db, *dc;
    long channels, modes, steps, next;
} ModesKernel;

#endif
