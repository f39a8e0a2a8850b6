// The macros of generated kernels on a CPU: a warp is a vector of 32 lanes. The same text as on a GPU can thus be run and
// examined without a GPU. Built with -ffp-contract=off -fwrapv.

#include <cmath>
#include <cstdint>
#include <cstring>

typedef uint8_t byte;
typedef uint16_t half_word;
typedef uint32_t uint32;
typedef uint64_t uint64;

// Numbers of all lanes.
typedef float F32 __attribute__((vector_size(128)));
typedef double F64 __attribute__((vector_size(256)));
typedef int32_t I32 __attribute__((vector_size(128)));
typedef uint32_t U32 __attribute__((vector_size(128)));
typedef int64_t I64 __attribute__((vector_size(256)));
typedef I32 MASK;  // -1 and 0

#define INLINE static inline
#define SELDOM static
#define KERNEL extern "C" void
#define ROWS(at, count) for (uint32 at = 0; at < (count); at++)
#define EACH_VALUE(i, count) for (uint64 i = 0; i < (count); i++)
#define MULTIPLY_ADD(a, b, c) std::fma(a, b, c)
#define SQUARE_ROOT(x) std::sqrt(x)
#define UNROLL
#define ROLLED

static const U32 LANE = {0,  1,  2,  3,  4,  5,  6,  7,  8,  9,  10, 11, 12, 13, 14, 15,
                         16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31};

// x - 0 is x, also for x = -0.
INLINE F32 SPREAD_F32(float x) { return x - F32{}; }
INLINE F64 SPREAD_F64(double x) { return x - F64{}; }
INLINE I32 SPREAD_I32(int32_t x) { return I32{} + x; }
INLINE U32 SPREAD_U32(uint32 x) { return U32{} + x; }
INLINE MASK SPREAD_MASK(bool x) { return I32{} - (int32_t)x; }
#define OF_LANE(x, lane) ((x)[lane])

INLINE MASK narrow(I32 x) { return x; }
INLINE MASK narrow(I64 x) { return __builtin_convertvector(x, I32); }
#define LT(a, b) narrow((a) < (b))
#define LE(a, b) narrow((a) <= (b))
#define GT(a, b) narrow((a) > (b))
#define GE(a, b) narrow((a) >= (b))
#define EQ(a, b) narrow((a) == (b))
#define NE(a, b) narrow((a) != (b))
#define NOT(a) (~(a))
INLINE F32 SELECT(MASK mask, F32 a, F32 b) { return mask ? a : b; }
INLINE I32 SELECT(MASK mask, I32 a, I32 b) { return mask ? a : b; }
INLINE U32 SELECT(MASK mask, U32 a, U32 b) { return mask ? a : b; }
INLINE F64 SELECT(MASK mask, F64 a, F64 b) { return __builtin_convertvector(mask, I64) ? a : b; }
#define TO_F32(x) __builtin_convertvector((x), F32)
#define TO_F64(x) __builtin_convertvector((x), F64)
#define TO_I32(x) __builtin_convertvector((x), I32)
#define TO_U32(x) __builtin_convertvector((x), U32)
#define MASK_TO_U32(x) ((U32)(x) & 1)
#define BITS(x) ((U32)(x))
#define FROM_BITS(x) ((F32)(x))
#define EACH_LANE(result, expression) \
    do { for (int lane = 0; lane < 32; lane++) result[lane] = (expression); } while (0)
INLINE F32 FLOOR(F32 x) { F32 y; EACH_LANE(y, std::floor(x[lane])); return y; }
INLINE F64 FLOOR(F64 x) { F64 y; EACH_LANE(y, std::floor(x[lane])); return y; }
INLINE F32 SQRT(F32 x) { F32 y; EACH_LANE(y, std::sqrt(x[lane])); return y; }
INLINE F64 SQRT(F64 x) { F64 y; EACH_LANE(y, std::sqrt(x[lane])); return y; }
INLINE F32 ABS(F32 x) { F32 y; EACH_LANE(y, std::fabs(x[lane])); return y; }
INLINE F64 ABS(F64 x) { F64 y; EACH_LANE(y, std::fabs(x[lane])); return y; }
INLINE uint32 bits_of(float x) { uint32 y; std::memcpy(&y, &x, 4); return y; }
INLINE float float_of(uint32 x) { float y; std::memcpy(&y, &x, 4); return y; }

template <typename V> INLINE V SHUFFLE_DOWN(V x, int by) { V y; EACH_LANE(y, x[(lane + by) & 31]); return y; }
template <typename V> INLINE V SHUFFLE_UP(V x, int by) { V y; EACH_LANE(y, x[lane < by ? lane : lane - by]); return y; }
template <typename V> INLINE V SHUFFLE_XOR(V x, int by) { V y; EACH_LANE(y, x[lane ^ by]); return y; }
INLINE uint32 BALLOT(MASK mask) {
    uint32 word = 0;
    for (int lane = 0; lane < 32; lane++) word |= (uint32)(mask[lane] & 1) << lane;
    return word;
}
#define ANY(mask) (BALLOT(mask) != 0)
#define ONES(word) ((uint32)__builtin_popcount(word))
INLINE U32 ONES_BELOW(uint32 word) { U32 y; EACH_LANE(y, ONES(word & ((1u << lane) - 1))); return y; }
#define TOGETHER

INLINE F32 LOAD_F32(const float *from, size_t at) { F32 y; std::memcpy(&y, from + at, sizeof y); return y; }
INLINE void STORE_F32(float *to, size_t at, F32 x) { std::memcpy(to + at, &x, sizeof x); }
INLINE F64 LOAD_F64(const double *from, size_t at, size_t end) {
    F64 y;
    EACH_LANE(y, at + lane < end ? from[at + lane] : 0.0);
    return y;
}
#define STORE_F64(to, at, x) ((to)[at] = (x))
INLINE U32 LOAD_8(const byte *from, size_t at) { U32 y; EACH_LANE(y, from[at + lane]); return y; }
INLINE void STORE_8(byte *to, size_t at, U32 x) { for (int lane = 0; lane < 32; lane++) to[at + lane] = (byte)x[lane]; }
INLINE U32 GET_8(const byte *from, size_t at, size_t end) { U32 y; EACH_LANE(y, at + lane < end ? from[at + lane] : 0); return y; }
#define STORE_BYTE(to, x) (*(to) = (byte)(x))
INLINE U32 LOAD_16(const byte *from, size_t at) { U32 y; EACH_LANE(y, ((const half_word *)from)[at + lane]); return y; }
INLINE void STORE_16(byte *to, size_t at, U32 x) {
    for (int lane = 0; lane < 32; lane++) ((half_word *)to)[at + lane] = (half_word)x[lane];
}
#define LOAD_WORD(from, at) (((const uint32 *)(from))[at])
#define STORE_WORD(to, at, x) (((uint32 *)(to))[at] = (x))
INLINE U32 LOAD_U32(const uint32 *from, size_t at, size_t end) { U32 y; EACH_LANE(y, at + lane < end ? from[at + lane] : 0); return y; }
INLINE void PUT_U32(uint32 *to, size_t at, size_t end, U32 x) {
    for (size_t lane = 0; lane < 32 && at + lane < end; lane++) to[at + lane] = x[lane];
}
INLINE U32 GET_16(const byte *from, size_t at, size_t end) {
    U32 y;
    EACH_LANE(y, at + lane < end ? ((const half_word *)from)[at + lane] : 0);
    return y;
}
INLINE void PUT_16(byte *to, size_t at, size_t end, U32 x) {
    for (size_t lane = 0; lane < 32 && at + lane < end; lane++) ((half_word *)to)[at + lane] = (half_word)x[lane];
}
INLINE void SCATTER_16(MASK mask, byte *to, U32 places, U32 x) {
    for (int lane = 0; lane < 32; lane++) if (mask[lane]) ((half_word *)to)[places[lane]] = (half_word)x[lane];
}
INLINE F32 GATHER_F32(MASK mask, const float *from, U32 places) { F32 y; EACH_LANE(y, mask[lane] ? from[places[lane]] : 0.0f); return y; }
INLINE void SCATTER_F32(MASK mask, float *to, U32 places, F32 x) {
    for (int lane = 0; lane < 32; lane++) if (mask[lane]) to[places[lane]] = x[lane];
}
#define LOAD_HALF(from) ((uint32)*(const half_word *)(from))
#define BITS_OF_WORD(word) NE((SPREAD_U32(word) >> LANE) & 1, U32{})
#define LOWER(to, x) do { if ((x) < *(to)) *(to) = (x); } while (0)
#define RAISE_SIGNED(to, x) do { if ((x) > *(to)) *(to) = (x); } while (0)
#define LOWER_SIGNED(to, x) LOWER(to, x)
#define EACH_TRUE(mask, ...) \
    do { for (int lane = 0; lane < 32; lane++) if ((mask)[lane]) { __VA_ARGS__ } } while (0)
#define AT_LANE(x, lane) ((x)[lane])
#define MORE(x, lane) ((x)[lane] += 1)
