// What both sums share: the knobs, and what one thread adds up by itself.

#include <cstdint>

#ifndef THREADS
#define THREADS 256
#endif
#ifndef TILE
#define TILE 16384 // elements that one block adds up
#endif
#ifndef VECTOR
#define VECTOR 4 // floats that a thread loads at once
#endif
#ifndef UNROLL
#define UNROLL 4 // loads that a thread has under way
#endif

namespace {

using Index = std::int64_t;
constexpr Index stride = THREADS * VECTOR; // what all threads load at once

struct alignas(VECTOR * sizeof(float)) Vector {
    float at[VECTOR];
};

// One thread's share of x[begin] to x[end - 1]; begin is a multiple of VECTOR.
__device__ float share(const float* x, Index begin, Index end) {
    float sum[UNROLL] = {};
    Index i = begin + threadIdx.x * VECTOR;
    for (; i + (UNROLL - 1) * stride + VECTOR <= end; i += UNROLL * stride) {
#pragma unroll
        for (int u = 0; u < UNROLL; ++u) {
            const Vector v = *reinterpret_cast<const Vector*>(x + i + u * stride);
#pragma unroll
            for (int e = 0; e < VECTOR; ++e) sum[u] += v.at[e];
        }
    }
    for (; i < end; i += stride)
        for (int e = 0; e < VECTOR && i + e < end; ++e) sum[0] += x[i + e];
#pragma unroll
    for (int u = 1; u < UNROLL; ++u) sum[0] += sum[u];
    return sum[0];
}

} // namespace
