// Blocks of 40 rows with codes 0, 1, 2: five codes to a byte, or two bytes for each code other than 1
// (psnode.codecs.kernels.tbq). A warp processes a block, and writes both forms to the block's scratch. When all lengths are
// known, the shorter form is copied to its place after the blocks before it.

#define BLOCK_ROWS 40
#define DENSE_BYTES 4096
#define ROOM_BYTES (2 * DENSE_BYTES)
#define DENSE 0xFFFFu

INLINE U32 length_of(U32 sent) { return SELECT(LT(sent, SPREAD_U32(DENSE_BYTES / 2)), 2 * sent + 2, SPREAD_U32(DENSE_BYTES + 2)); }

// Append row number `part` of a block to its scratch, in both forms. `sent`: the number of codes other than 1 so far.
INLINE void append_row(const U32 (&codes)[16], uint32 part, byte *room, uint32 &sent) {
    const uint32 powers[5] = {1, 3, 9, 27, 81}, power = powers[part / 8];
    byte *bytes = room + 512 * (part % 8);
    EACH(k) {
        STORE_8(bytes, 32 * k, part < 8 ? codes[k] : LOAD_8(bytes, 32 * k) + codes[k] * power);
        const MASK listed = NE(codes[k], SPREAD_U32(1));
        const uint32 word = BALLOT(listed);
        const U32 place = ONES_BELOW(word) + sent;
        const MASK fits = listed & LT(place, SPREAD_U32(DENSE_BYTES / 2));
        const U32 entry = (LANE + (512 * part + 32 * k)) | SELECT(EQ(codes[k], SPREAD_U32(0)), SPREAD_U32(0x8000), SPREAD_U32(0));
        SCATTER_16(fits, room + DENSE_BYTES, place, entry);
        sent += ONES(word);
    }
}

// The codes of row number `part` of a dense block.
INLINE void digits_of_row(U32 (&codes)[16], uint32 part, const byte *bytes) {
    const uint32 powers[5] = {1, 3, 9, 27, 81}, power = powers[part / 8];
    EACH(k) codes[k] = digits_of(LOAD_8(bytes + 512 * (part % 8), 32 * k)) / power % 3;
}

// The codes and places of the entries `first` to `first` + 511 of `sent`. `listed` is true for entries that exist.
INLINE void list_entries(U32 (&codes)[16], U32 (&places)[16], MASK (&listed)[16], const byte *entries, uint32 first, uint32 sent) {
    EACH(k) {
        const U32 entry = GET_16(entries, first + 32 * k, sent);
        listed[k] = LT(LANE + (first + 32 * k), SPREAD_U32(sent));
        places[k] = entry & 0x7FFF;
        codes[k] = SELECT(LT(entry, SPREAD_U32(0x8000)), SPREAD_U32(2), SPREAD_U32(0));
    }
}

// Replace, for each of `count` blocks, the number of its listed codes by the offset of its bytes, and append the end of the last
// block.
KERNEL place_blocks(uint32 *starts, uint32 count) {
    ROWS(at, 1) {
        uint32 end = 0;
        for (uint32 first = 0; first < count; first += 32) {
            const U32 here = SELECT(LT(LANE + first, SPREAD_U32(count)), length_of(LOAD_U32(starts, first, count)), SPREAD_U32(0));
            PUT_U32(starts, first, count, starts_of(here, end));
        }
        STORE_WORD(starts, count, end);
    }
}

// Copy the shorter form of `count` blocks from their scratch to the offsets in `starts`.
KERNEL copy_blocks(const byte *rooms, const uint32 *starts, byte *packed, uint32 count) {
    ROWS(at, count) {
        const uint32 words = (starts[at + 1] - starts[at]) / 2 - 1, dense = words == DENSE_BYTES / 2;
        const byte *from = rooms + ROOM_BYTES * (uint64)at + (dense ? 0 : DENSE_BYTES);
        byte *to = packed + starts[at];
        PUT_16(to, 0, 1, SPREAD_U32(dense ? DENSE : words));
        ROLLED for (uint32 first = 0; first < words; first += 32) PUT_16(to + 2, first, words, GET_16(from, first, words));
    }
}
