// Steps of the master's optimizers, as psnode/exchange/update/sgd.py and adam.py do them for each coordinate, with the same order
// of rounding. `once`: a product and a sum are rounded together, as on a CPU with an instruction for both.

INLINE float multiply_add(float a, float b, float c, int once) { return once ? MULTIPLY_ADD(a, b, c) : a * b + c; }

KERNEL descend_plain(float *x, float *total, float factor, float rate, float decay, int once, uint64 size) {
    EACH_VALUE(i, size) {
        x[i] = multiply_add(rate, multiply_add(decay, x[i], factor * total[i], once), x[i], once);
        total[i] = 0;
    }
}

KERNEL descend_momentum(float *x, float *velocity, float *total, float factor, float rate, float momentum, float decay, int once,
                        uint64 size) {
    EACH_VALUE(i, size) {
        const float kept = momentum * velocity[i];
        velocity[i] = kept + multiply_add(decay, x[i], factor * total[i], once);
        x[i] = multiply_add(rate, velocity[i], x[i], once);
        total[i] = 0;
    }
}

KERNEL descend_nesterov(float *x, float *velocity, float *total, float factor, float rate, float momentum, float decay, int once,
                        uint64 size) {
    EACH_VALUE(i, size) {
        const float d = multiply_add(decay, x[i], factor * total[i], once), kept = momentum * velocity[i];
        velocity[i] = kept + d;
        x[i] = multiply_add(rate, multiply_add(momentum, velocity[i], d, once), x[i], once);
        total[i] = 0;
    }
}

KERNEL descend_beside(float *x, float *velocity, float *total, int nesterov, float factor, float rate, float momentum, float decay,
                      int once, uint64 size) {
    EACH_VALUE(i, size) {
        const float d = decay * x[i];
        velocity[i] = multiply_add(momentum, velocity[i], d, once);
        const float owed = nesterov ? multiply_add(momentum, velocity[i], d, once) : velocity[i];
        x[i] = multiply_add(rate, multiply_add(factor, total[i], owed, once), x[i], once);
        total[i] = 0;
    }
}

KERNEL adam(float *x, float *mean, float *square, float *total, float factor, float decay, float shrink, float new1, float beta2,
            float new2, float root, float eps, float rate, int once, uint64 size) {
    const float old1 = new1 - 1.0f;
    const bool near = new1 < 0.5f;
    EACH_VALUE(i, size) {
        const float start = shrink * x[i], g = multiply_add(decay, start, factor * total[i], once), change = g - mean[i];
        mean[i] = multiply_add(near ? new1 : old1, change, near ? mean[i] : g, once);
        const float kept = beta2 * square[i], fresh = new2 * g;
        square[i] = multiply_add(fresh, g, kept, once);
        const float far = rate * mean[i], near_root = SQUARE_ROOT(square[i]) / root;
        x[i] = start + far / (near_root + eps);
        total[i] = 0;
    }
}
