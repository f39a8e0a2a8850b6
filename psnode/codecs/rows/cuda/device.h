// The macros of generated kernels on a GPU: a thread is a lane of a warp, and a warp processes a row of 512 values. host.h has
// the same macros for a CPU.

typedef unsigned char byte;
typedef unsigned short half_word;
typedef unsigned int uint32;
typedef unsigned long long uint64;

// Numbers of one lane.
typedef float F32;
typedef double F64;
typedef int I32;
typedef uint32 U32;
typedef bool MASK;

#define INLINE static __device__ __forceinline__
#define SELDOM static __device__ __noinline__
#define KERNEL extern "C" __global__ void __launch_bounds__(256)
#define ROWS(at, count) \
    for (uint32 at = (blockIdx.x * blockDim.x + threadIdx.x) / 32; at < (count); at += gridDim.x * blockDim.x / 32)
#define EACH_VALUE(i, count) \
    for (uint64 i = blockIdx.x * (uint64)blockDim.x + threadIdx.x; i < (count); i += gridDim.x * (uint64)blockDim.x)
#define MULTIPLY_ADD(a, b, c) __fmaf_rn(a, b, c)
#define SQUARE_ROOT(x) __fsqrt_rn(x)
#define UNROLL _Pragma("unroll")
#define ROLLED _Pragma("unroll 1")
#define LANE (threadIdx.x & 31)
#define ALL 0xFFFFFFFFu

// From a number of the row to a number in each lane, and back.
#define SPREAD_F32(x) (x)
#define SPREAD_F64(x) (x)
#define SPREAD_I32(x) (x)
#define SPREAD_U32(x) (x)
#define SPREAD_MASK(x) (x)
#define OF_LANE(x, lane) __shfl_sync(ALL, (x), (lane))

#define LT(a, b) ((a) < (b))
#define LE(a, b) ((a) <= (b))
#define GT(a, b) ((a) > (b))
#define GE(a, b) ((a) >= (b))
#define EQ(a, b) ((a) == (b))
#define NE(a, b) ((a) != (b))
#define NOT(a) (!(a))
#define SELECT(mask, a, b) ((mask) ? (a) : (b))
#define TO_F32(x) ((float)(x))
#define TO_F64(x) ((double)(x))
#define TO_I32(x) ((int)(x))
#define TO_U32(x) ((uint32)(x))
#define MASK_TO_U32(x) ((uint32)(x))
#define BITS(x) __float_as_uint(x)
#define FROM_BITS(x) __uint_as_float(x)
#define FLOOR(x) floor(x)
#define SQRT(x) sqrt(x)
#define ABS(x) fabs(x)
INLINE uint32 bits_of(float x) { return __float_as_uint(x); }
INLINE float float_of(uint32 x) { return __uint_as_float(x); }

// Operations across the warp.
#define SHUFFLE_DOWN(x, by) __shfl_down_sync(ALL, (x), (by))
#define SHUFFLE_UP(x, by) __shfl_up_sync(ALL, (x), (by))
#define SHUFFLE_XOR(x, by) __shfl_xor_sync(ALL, (x), (by))
#define BALLOT(mask) __ballot_sync(ALL, (mask))
#define ANY(mask) __any_sync(ALL, (mask))
#define ONES(word) ((uint32)__popc(word))
#define ONES_BELOW(word) ((uint32)__popc((word) & ((1u << LANE) - 1)))
#define TOGETHER __syncwarp()

// Memory accesses at place `at` plus the lane.
#define LOAD_F32(from, at) ((from)[(at) + LANE])
#define STORE_F32(to, at, x) ((to)[(at) + LANE] = (x))
#define LOAD_F64(from, at, end) ((at) + LANE < (end) ? (from)[(at) + LANE] : 0.0)
#define STORE_F64(to, at, x) do { if (LANE == 0) (to)[at] = (x); } while (0)
#define LOAD_8(from, at) ((U32)(from)[(at) + LANE])
#define STORE_8(to, at, x) ((to)[(at) + LANE] = (byte)(x))
#define GET_8(from, at, end) ((at) + LANE < (end) ? (U32)(from)[(at) + LANE] : 0u)
#define STORE_BYTE(to, x) do { if (LANE == 0) *(to) = (byte)(x); } while (0)
#define LOAD_16(from, at) ((U32)((const half_word *)(from))[(at) + LANE])
#define STORE_16(to, at, x) (((half_word *)(to))[(at) + LANE] = (half_word)(x))
#define LOAD_WORD(from, at) (((const uint32 *)(from))[at])
#define STORE_WORD(to, at, x) do { if (LANE == 0) ((uint32 *)(to))[at] = (x); } while (0)
#define LOAD_U32(from, at, end) ((at) + LANE < (end) ? (from)[(at) + LANE] : 0u)
#define PUT_U32(to, at, end, x) do { if ((at) + LANE < (end)) (to)[(at) + LANE] = (x); } while (0)
#define GET_16(from, at, end) ((at) + LANE < (end) ? (U32)((const half_word *)(from))[(at) + LANE] : 0u)
#define PUT_16(to, at, end, x) do { if ((at) + LANE < (end)) ((half_word *)(to))[(at) + LANE] = (half_word)(x); } while (0)
#define SCATTER_16(mask, to, places, x) do { if (mask) ((half_word *)(to))[places] = (half_word)(x); } while (0)
#define GATHER_F32(mask, from, places) ((mask) ? (from)[places] : 0.0f)
#define SCATTER_F32(mask, to, places, x) do { if (mask) (to)[places] = (x); } while (0)
#define LOAD_HALF(from) ((uint32)*(const half_word *)(from))
#define BITS_OF_WORD(word) ((((word) >> LANE) & 1) != 0)
#define LOWER(to, x) do { if (LANE == 0) atomicMin((to), (x)); } while (0)
#define RAISE_SIGNED(to, x) do { if (LANE == 0) atomicMax((to), (x)); } while (0)
#define LOWER_SIGNED(to, x) do { if (LANE == 0) atomicMin((to), (x)); } while (0)
#define EACH_TRUE(mask, ...) do { if (mask) { const int lane = LANE; __VA_ARGS__ } } while (0)
#define AT_LANE(x, lane) (x)
#define MORE(x, lane) ((x) += 1)
