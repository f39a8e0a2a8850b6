// Functions of generated kernels, with the macros of device.h and host.h. A row of 512 values is 16 registers of a warp: register
// k of lane t is coordinate t + 32 k.

#ifdef __CUDACC__
#include "device.h"
#else
#include "host.h"
#endif

#define EACH(k) UNROLL for (int k = 0; k < 16; k++)
#define FINITE_BELOW 0x7F800000u
#define LARGEST 3.4028234663852886e38

// Threefry 4x32-13, as in psnode.codecs.kernels.threefry. W: a number, or a number per lane.
template <typename W> INLINE void rotate(W &x, int by) { x = (x << by) | (x >> (32 - by)); }

template <typename W> INLINE void threefry(W (&x)[4], const uint32 (&key)[5]) {
    const int rotations[8][2] = {{10, 26}, {11, 21}, {13, 27}, {23, 5}, {6, 20}, {17, 11}, {25, 10}, {18, 20}};
    for (int i = 0; i < 4; i++) x[i] = x[i] + key[i];
    UNROLL for (int r = 0; r < 13; r++) {
        const int i = r % 2 ? 3 : 1, j = r % 2 ? 1 : 3;
        x[0] = x[0] + x[i];
        rotate(x[i], rotations[r % 8][0]);
        x[i] = x[i] ^ x[0];
        x[2] = x[2] + x[j];
        rotate(x[j], rotations[r % 8][1]);
        x[j] = x[j] ^ x[2];
        if (r % 4 == 3) {
            const int number = r / 4 + 1;
            for (int i = 0; i < 4; i++) x[i] = x[i] + key[(number + i) % 5];
            x[3] = x[3] + (uint32)number;
        }
    }
}

INLINE void key_of(const uint64 *words, uint32 (&key)[5]) {
    key[0] = (uint32)words[0];
    key[1] = (uint32)(words[0] >> 32);
    key[2] = (uint32)words[1];
    key[3] = (uint32)(words[1] >> 32);
    key[4] = key[0] ^ key[1] ^ key[2] ^ key[3] ^ 0x1BD11BDAu;
}

// The key from the numbers of a body.
INLINE void key_of_words(const uint32 *words, uint32 (&key)[5]) {
    for (int i = 0; i < 4; i++) key[i] = words[i];
    key[4] = key[0] ^ key[1] ^ key[2] ^ key[3] ^ 0x1BD11BDAu;
}

// The random words of a row. Lane t uses the four words of call t and of call t + 32: 16 bits for each of its 16 coordinates.
INLINE void draw(U32 (&words)[8], const uint32 (&key)[5], uint32 stream, uint32 row) {
    UNROLL for (int half = 0; half < 2; half++) {
        U32 x[4] = {LANE + (64 * row + 32 * half), SPREAD_U32(stream), SPREAD_U32(0), SPREAD_U32(0)};
        threefry(x, key);
        UNROLL for (int q = 0; q < 4; q++) words[2 * q + half] = x[q];
    }
}

#define SIXTEEN(words, k) ((k) < 8 ? (words)[(k) & 7] & 0xFFFF : (words)[(k) & 7] >> 16)

// The coins of a row: bit t of the word of lane k < 16 belongs to coordinate t + 32 k. 16 rows share 64 calls.
INLINE U32 toss(const uint32 (&key)[5], uint32 stream, uint32 row) {
    U32 x[4] = {(LANE & 15) + (64 * (row / 16) + 16 * (row & 3)), SPREAD_U32(stream), SPREAD_U32(0), SPREAD_U32(0)};
    threefry(x, key);
    const uint32 word = row / 4 & 3;
    return word & 2 ? (word & 1 ? x[3] : x[2]) : (word & 1 ? x[1] : x[0]);
}

#define COIN(coins, k) BITS_OF_WORD(OF_LANE(coins, k))

// True with probability `fraction`, which is compared with 128 bits of a separate stream.
SELDOM bool chance(double fraction, uint32 a, uint32 b, uint32 c, uint32 d, uint32 stream, uint32 index) {
    const uint32 key[5] = {a, b, c, d, a ^ b ^ c ^ d ^ 0x1BD11BDAu};
    uint32 x[4] = {index, stream + 256, 0, 0};
    threefry(x, key);
    for (int i = 0; i < 4; i++) {
        fraction *= 4294967296.0;
        const uint32 high = (uint32)fraction;
        if (x[i] != high) return x[i] < high;
        fraction -= (double)high;
    }
    return false;
}

// floor(fixed / 2^16), plus 1 if 16 random bits leave a tie and further random bits decide to round up.
INLINE U32 settle(U32 fixed, F64 exact, const uint32 (&key)[5], uint32 stream, uint32 start) {
    U32 code = fixed >> 16;
    const MASK tie = EQ(fixed & 0xFFFF, SPREAD_U32(0xFFFF));
    if (ANY(tie)) {
        const F64 fraction = exact - FLOOR(exact);
        EACH_TRUE(tie, const double open = AT_LANE(fraction, lane);
                  if (chance(open, key[0], key[1], key[2], key[3], stream, start + lane)) MORE(code, lane););
    }
    return code;
}

// The sum of a row, added by the tree of psnode.codecs.kernels.norms. V: F32 or F64.
template <typename V> INLINE auto tree_sum(const V (&x)[16]) {
    const V a = ((x[0] + x[2]) + (x[4] + x[6])) + ((x[8] + x[10]) + (x[12] + x[14]));
    const V b = ((x[1] + x[3]) + (x[5] + x[7])) + ((x[9] + x[11]) + (x[13] + x[15]));
    V sum = (a + SHUFFLE_DOWN(a, 16)) + (b + SHUFFLE_DOWN(b, 16));
    sum = sum + SHUFFLE_XOR(sum, 1);
    sum = sum + SHUFFLE_XOR(sum, 2);
    sum = sum + SHUFFLE_XOR(sum, 4);
    sum = sum + SHUFFLE_XOR(sum, 8);
    return OF_LANE(sum, 0);
}

INLINE uint32 top_bits(const F32 (&x)[16]) {
    U32 top = SPREAD_U32(0);
    EACH(k) {
        const U32 bits = BITS(x[k]) & 0x7FFFFFFF;
        top = SELECT(GT(bits, top), bits, top);
    }
    for (int by = 16; by; by /= 2) {
        const U32 other = SHUFFLE_XOR(top, by);
        top = SELECT(GT(other, top), other, top);
    }
    return OF_LANE(top, 0);
}

// True if `count` rows from number `first` on are finite.
INLINE bool finite_rows(const float *x, uint32 first, uint32 count) {
    uint32 top = 0;
    for (uint32 at = first; at < first + count; at++) {
        F32 v[16];
        EACH(k) v[k] = LOAD_F32(x, 512 * (uint64)at + 32 * k);
        const uint32 found = top_bits(v);
        top = found > top ? found : top;
    }
    return top < FINITE_BELOW;
}

// Bytes of five trits each, limited to the largest valid byte.
INLINE U32 digits_of(U32 bytes) {
    const U32 top = SPREAD_U32(242);
    return SELECT(GT(bytes, top), top, bytes);
}

INLINE float largest(const F32 (&x)[16]) { return float_of(top_bits(x)); }

INLINE bool any_of(const MASK (&x)[16]) {
    MASK some = x[0];
    EACH(k) some = some | x[k];
    return ANY(some);
}

INLINE double square_sum(const F32 (&x)[16]) {
    F32 squares[16];
    EACH(k) squares[k] = x[k] * x[k];
    return (double)tree_sum(squares);
}

INLINE double l2_norm(const F32 (&x)[16]) {
    const double sum = square_sum(x);
    if (sum >= 0x1p-120 && sum <= 0x1p120) return sqrt(sum);
    const double top = (double)largest(x);
    if (top == 0) return 0;
    double total = 0;
    EACH(k) ROLLED for (int lane = 0; lane < 32; lane++) {
        const double each = (double)OF_LANE(x[k], lane);
        total += each * each;
    }
    const double norm = sqrt(total);
    return norm < top ? top : norm > LARGEST ? LARGEST : norm;
}

// A row's part of a sum over the whole input: see psnode.codecs.kernels.trees. `here`: the number of coordinates before the end.
INLINE double row_sum(const F32 (&x)[16], uint32 here) {
    F32 kept[16];
    EACH(k) kept[k] = SELECT(LT(LANE + 32 * k, SPREAD_U32(here)), x[k], SPREAD_F32(0));
    const float sum = tree_sum(kept);
    if ((bits_of(sum) & 0x7FFFFFFF) < FINITE_BELOW) return (double)sum;
    EACH(k) kept[k] = kept[k] * SPREAD_F32(0x1p-10f);
    return 0x1p10 * (double)tree_sum(kept);
}

// The products <x, y> and <y, y> of a row x and its decoded row y: see psnode.codecs.kernels.dots. They are written to the places
// of row number `row` of `rows`.
INLINE void put_products(const F32 (&x)[16], const F32 (&y)[16], uint32 here, double *dots, uint32 row, uint32 rows) {
    F32 kept[16], products[16];
    EACH(k) kept[k] = SELECT(LT(LANE + 32 * k, SPREAD_U32(here)), y[k], SPREAD_F32(0));
    EACH(k) products[k] = x[k] * kept[k];
    double xy = (double)tree_sum(products);
    EACH(k) products[k] = kept[k] * kept[k];
    double yy = (double)tree_sum(products);
    if (!(yy >= 0x1p-100 && yy <= LARGEST && fabs(xy) <= LARGEST)) {
        F64 wide[16];
        EACH(k) wide[k] = TO_F64(x[k]) * TO_F64(kept[k]);
        xy = tree_sum(wide);
        EACH(k) wide[k] = TO_F64(kept[k]) * TO_F64(kept[k]);
        yy = tree_sum(wide);
    }
    STORE_F64(dots, row, xy);
    STORE_F64(dots, rows + (uint64)row, yy);
}

// The offsets of 32 neighbours with these lengths. The first one begins at `end`, which becomes the end of the last one.
INLINE U32 starts_of(U32 lengths, uint32 &end) {
    U32 sum = lengths;
    for (int by = 1; by < 32; by *= 2) {
        const U32 before = SHUFFLE_UP(sum, by);
        sum = sum + SELECT(GE(LANE, SPREAD_U32(by)), before, SPREAD_U32(0));
    }
    const U32 starts = sum - lengths + end;
    end += OF_LANE(sum, 31);
    return starts;
}

INLINE double count_512(const MASK (&x)[16], uint32 here) {
    uint32 count = 0;
    EACH(k) count += ONES(BALLOT(x[k] & LT(LANE + 32 * k, SPREAD_U32(here))));
    return (double)count;
}

// The sum of the parts of `count` rows, added one after another.
INLINE double chain(const double *parts, uint32 count) {
    double total = 0;
    for (uint32 first = 0; first < count; first += 32) {
        const F64 part = LOAD_F64(parts, first, count);
        ROLLED for (int lane = 0; lane < 32; lane++) total += OF_LANE(part, lane);
    }
    return total;
}

// The L2 norm of `up` times `count` rows, coordinate by coordinate.
SELDOM double careful_norm(const float *x, uint32 count, float up) {
    double total = 0, top = 0;
    for (uint32 at = 0; at < 16 * count; at++) {
        const F32 v = LOAD_F32(x, 32 * (uint64)at) * SPREAD_F32(up);
        ROLLED for (int lane = 0; lane < 32; lane++) {
            const double each = fabs((double)OF_LANE(v, lane));
            total += each * each;
            top = each > top ? each : top;
        }
    }
    const double norm = sqrt(total);
    return norm < top ? top : norm > LARGEST ? LARGEST : norm;
}

// Replace the part of the first row by the norm of all `count` rows, and the other parts by zeros, so that their tree gives the
// norm.
INLINE void norm_of_all(const float *x, double *parts, uint32 count) {
    const double total = chain(parts, count);
    double norm = sqrt(total);
    if (!(total >= 0x1p-120 && total <= 0x1p120)) {
        norm = careful_norm(x, count, 1);
        if (norm >= LARGEST) norm = careful_norm(x, count, 0x1p-20f) * 0x1p20;
    }
    for (uint32 at = 0; at < count; at++) STORE_F64(parts, at, at ? 0.0 : norm);
}

// Reduce each of `sums` sequences of `numbers` numbers to `groups` sums of 512 numbers.
KERNEL fold_sums(const double *from, double *to, uint32 numbers, uint32 groups, uint32 sums) {
    ROWS(at, groups * sums) {
        F64 x[16];
        EACH(k) x[k] = LOAD_F64(from + (uint64)numbers * (at / groups), 512 * (at % groups) + 32 * k, numbers);
        STORE_F64(to, at, tree_sum(x) + 0.0);
    }
}

// Codes of `bits` bits, 0 to 16, in planes, as in psnode.codecs.kernels.planes. Lane j mod 32 makes byte j of a plane.
template <int WIDTH> INLINE byte *pack_plane(const U32 (&codes)[16], int shift, byte *to) {
    UNROLL for (int m = 0; m < 2 * WIDTH; m++) {
        U32 word = SPREAD_U32(0);
        UNROLL for (int k = 0; k < 8 / WIDTH; k++)
            word = word | (((codes[m + 2 * WIDTH * k] >> shift) & ((1u << WIDTH) - 1)) << (WIDTH * k));
        STORE_8(to, 32 * m, word);
    }
    return to + 64 * WIDTH;
}

INLINE void pack_planes(const U32 (&codes)[16], int bits, byte *to) {
    if (bits >= 8) to = pack_plane<8>(codes, 0, to);
    if (bits >= 16) to = pack_plane<8>(codes, 8, to);
    if (bits & 4) to = pack_plane<4>(codes, bits & ~7, to);
    if (bits & 2) to = pack_plane<2>(codes, bits & ~3, to);
    if (bits & 1) to = pack_plane<1>(codes, bits & ~1, to);
}

template <int WIDTH> INLINE const byte *unpack_plane(U32 (&codes)[16], int shift, const byte *from) {
    UNROLL for (int m = 0; m < 2 * WIDTH; m++) {
        const U32 word = LOAD_8(from, 32 * m);
        UNROLL for (int k = 0; k < 8 / WIDTH; k++)
            codes[m + 2 * WIDTH * k] = codes[m + 2 * WIDTH * k] | (((word >> (WIDTH * k)) & ((1u << WIDTH) - 1)) << shift);
    }
    return from + 64 * WIDTH;
}

INLINE void unpack_planes(U32 (&codes)[16], int bits, const byte *from) {
    EACH(k) codes[k] = SPREAD_U32(0);
    if (bits >= 8) from = unpack_plane<8>(codes, 0, from);
    if (bits >= 16) from = unpack_plane<8>(codes, 8, from);
    if (bits & 4) from = unpack_plane<4>(codes, bits & ~7, from);
    if (bits & 2) from = unpack_plane<2>(codes, bits & ~3, from);
    if (bits & 1) from = unpack_plane<1>(codes, bits & ~1, from);
}

// Conversions between float32 and integers in the same order.
INLINE int ordered(int bits) { return bits ^ ((bits >> 31) & 0x7FFFFFFF); }
INLINE float top_of(int place) { return float_of((uint32)ordered(place)); }
INLINE float least_of(int place) { return float_of(((uint32)place + 1) & 0x7FFFFFFF); }

// Update tops: the largest magnitude, the least and the greatest value, and, after the size, the bits of the least nonzero
// magnitude minus 1.
KERNEL survey(const float *x, int *tops, uint32 count) {
    ROWS(at, count) {
        I32 least = SPREAD_I32(0x7FFFFFFF), greatest = SPREAD_I32(~0x7FFFFFFF), tiny = SPREAD_I32(0x7FFFFFFF);
        F32 v[16];
        EACH(k) {
            v[k] = LOAD_F32(x, 512 * (uint64)at + 32 * k);
            const I32 bits = (I32)BITS(v[k]), place = bits ^ ((bits >> 31) & 0x7FFFFFFF);
            least = SELECT(LT(place, least), place, least);
            greatest = SELECT(GT(place, greatest), place, greatest);
            const I32 below = (I32)((BITS(v[k]) - 1) & 0x7FFFFFFF);
            tiny = SELECT(LT(below, tiny), below, tiny);
        }
        for (int by = 16; by; by /= 2) {
            const I32 low = SHUFFLE_XOR(least, by), high = SHUFFLE_XOR(greatest, by);
            least = SELECT(LT(low, least), low, least);
            greatest = SELECT(GT(high, greatest), high, greatest);
            const I32 other = SHUFFLE_XOR(tiny, by);
            tiny = SELECT(LT(other, tiny), other, tiny);
        }
        RAISE_SIGNED(tops, (int)top_bits(v));
        LOWER_SIGNED(tops + 1, OF_LANE(least, 0));
        RAISE_SIGNED(tops + 2, OF_LANE(greatest, 0));
        LOWER_SIGNED(tops + 4, OF_LANE(tiny, 0));
    }
}
