// Coordinates of the greatest ranks. A warp processes a block of 8 rows, and lists the coordinates that reach a limit in the
// block's scratch. When all blocks are counted, each list is copied to its place, with the values.

#define SELECT_ROWS 8
#define SELECT_BYTES (2 * 512 * SELECT_ROWS)

// List the coordinates of row number `part` of a block whose ranks reach `limit`. `found`: the number of coordinates listed
// before.
INLINE void list_ranks(const U32 (&ranks)[16], uint32 limit, uint32 part, byte *room, uint32 &found) {
    EACH(k) {
        const MASK kept = GE(ranks[k], SPREAD_U32(limit));
        const uint32 word = BALLOT(kept);
        if (word) SCATTER_16(kept, room, ONES_BELOW(word) + found, LANE + (512 * part + 32 * k));
        found += ONES(word);
    }
}

// Copy the lists of `blocks` blocks to ascending indices, and their values. `ends`: the number of coordinates up to the end of
// each block.
KERNEL collect(const float *x, const byte *rooms, const uint32 *counts, const uint32 *ends, uint32 *indices, float *values,
               uint32 blocks) {
    ROWS(at, blocks) {
        const uint32 count = counts[at], start = ends[at] - count;
        const byte *room = rooms + SELECT_BYTES * (uint64)at;
        ROLLED for (uint32 first = 0; first < count; first += 32) {
            const MASK there = LT(LANE + first, SPREAD_U32(count));
            const U32 place = GET_16(room, first, count) + 512 * SELECT_ROWS * at;
            PUT_U32(indices + start, first, count, place);
            SCATTER_F32(there, values + start, LANE + first, GATHER_F32(there, x, place));
        }
    }
}

// Write the sum of the squares of each of `count` rows.
KERNEL square_rows(const float *x, double *sums, uint32 count) {
    ROWS(row, count) {
        F32 v[16];
        EACH(k) v[k] = LOAD_F32(x, 512 * (uint64)row + 32 * k);
        STORE_F64(sums, row, square_sum(v));
    }
}

// Replace the first of these sums by the L2 norm of all rows.
KERNEL norm_of_rows(const float *x, double *sums, uint32 count) {
    ROWS(at, 1) { norm_of_all(x, sums, count); }
}
