// Buckets of BUCKET_ROWS rows, each packed with the bits that its largest code needs. Before these widths (a byte each) are
// NUMBERS numbers of the array and COLUMNS numbers per bucket. The offset of a bucket's codes follows from the sum of the widths
// before it.

#define BUCKETS(rows) (((rows) + (BUCKET_ROWS - 1)) / BUCKET_ROWS)
#define WIDTHS(side, rows) ((byte *)((side) + (NUMBERS + COLUMNS * BUCKETS(rows))))
#define BUCKET_BYTES (64 * BUCKET_ROWS)

// The L2 norm of a finite bucket. The sums of squares of its rows are added one after another.
INLINE double bucket_norm(const float *x) {
    double sum = 0;
    ROLLED for (uint32 part = 0; part < BUCKET_ROWS; part++) {
        F32 v[16];
        EACH(k) v[k] = LOAD_F32(x, 512 * part + 32 * k);
        sum += square_sum(v);
    }
    if (sum >= 0x1p-120 && sum <= 0x1p120) return sqrt(sum);
    return careful_norm(x, BUCKET_ROWS, 1);
}

// The number of coordinates in the bucket of a row; the array has `size` coordinates.
INLINE uint32 size_of_bucket(uint32 size, uint32 row) {
    const uint32 left = size - 512 * BUCKET_ROWS * (row / BUCKET_ROWS);
    return left < 512 * BUCKET_ROWS ? left : 512 * BUCKET_ROWS;
}

// `some` with the ones of all codes of a row added.
INLINE U32 with_ones(U32 some, const U32 (&codes)[16]) {
    EACH(k) some = some | codes[k];
    return some;
}

INLINE uint32 width_of(U32 some) {
    for (int by = 16; by; by /= 2) some = some | SHUFFLE_XOR(some, by);
    const uint32 all = OF_LANE(some, 0);
    uint32 bits = 0;
    while (all >> bits) bits++;
    return bits;
}

// Write the offsets of the codes of each bucket of `size` rows, and the end of the last bucket. The first bucket begins with row
// number `first`.
KERNEL place_buckets(const uint32 *side, uint32 *starts, uint32 first, uint32 rows, uint32 size) {
    const uint32 count = size / BUCKET_ROWS;
    ROWS(at, 1) {
        const byte *widths = WIDTHS(side, rows) + first / BUCKET_ROWS;
        uint32 end = 0;
        for (uint32 from = 0; from < count; from += 32) {
            const U32 here = BUCKET_BYTES * GET_8(widths, from, count);
            PUT_U32(starts, from, count, starts_of(here, end));
        }
        STORE_WORD(starts, count, end);
    }
}
