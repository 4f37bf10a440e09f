// What all ways to softmax share: how threads go through a row, and how they agree on one number.

#include <cfloat>
#include <cstdint>

#ifndef THREADS
#define THREADS 256
#endif
#ifndef VECTOR
#define VECTOR 4 // floats that a thread loads and stores at once
#endif
#ifndef UNROLL
#define UNROLL 2 // loads that a thread has under way
#endif

namespace {

using Index = std::int64_t; // of elements; what lies within a row is counted with int

struct alignas(VECTOR * sizeof(float)) Vector {
    float at[VECTOR];
};

// Call `body` with each number of this thread's share of a row, the thread being one of `threads`. Rows begin where a
// vector may be loaded only if they are made of whole ones.
template <class Body>
__device__ void each(const float* row, int n, int thread, int threads, const Body& body) {
    const int stride = threads * VECTOR;
    int i = thread * VECTOR;
    if (n % VECTOR == 0)
        for (; i + (UNROLL - 1) * stride < n; i += UNROLL * stride) {
            Vector v[UNROLL];
#pragma unroll
            for (int u = 0; u < UNROLL; ++u) v[u] = *reinterpret_cast<const Vector*>(row + i + u * stride);
#pragma unroll
            for (int u = 0; u < UNROLL; ++u)
#pragma unroll
                for (int e = 0; e < VECTOR; ++e) body(v[u].at[e]);
        }
    for (; i < n; i += stride)
        for (int e = 0; e < VECTOR && i + e < n; ++e) body(row[i + e]);
}

// As `each`, with what `body` returns written to the same place of `out`.
template <class Body>
__device__ void write_each(const float* row, float* out, int n, int thread, int threads, const Body& body) {
    const int stride = threads * VECTOR;
    int i = thread * VECTOR;
    if (n % VECTOR == 0)
        for (; i + (UNROLL - 1) * stride < n; i += UNROLL * stride) {
            Vector v[UNROLL];
#pragma unroll
            for (int u = 0; u < UNROLL; ++u) v[u] = *reinterpret_cast<const Vector*>(row + i + u * stride);
#pragma unroll
            for (int u = 0; u < UNROLL; ++u) {
#pragma unroll
                for (int e = 0; e < VECTOR; ++e) v[u].at[e] = body(v[u].at[e]);
                *reinterpret_cast<Vector*>(out + i + u * stride) = v[u];
            }
        }
    for (; i < n; i += stride)
        for (int e = 0; e < VECTOR && i + e < n; ++e) out[i + e] = body(row[i + e]);
}

struct Larger {
    __device__ float operator()(float a, float b) const { return fmaxf(a, b); }
};

struct Sum {
    __device__ float operator()(float a, float b) const { return a + b; }
};

// All lanes of a warp get what `join` makes of their values.
template <class Join>
__device__ float over_warp(float value, Join join) {
#pragma unroll
    for (int apart = 16; apart > 0; apart /= 2) value = join(value, __shfl_xor_sync(0xffffffffu, value, apart));
    return value;
}

// All threads of a block do. A kernel may ask once for each Join: nothing keeps a second answer out of the first one's way.
template <class Join>
__device__ float over_block(float value, Join join) {
    __shared__ float found[THREADS / 32];
    value = over_warp(value, join);
    if (threadIdx.x % 32 == 0) found[threadIdx.x / 32] = value;
    __syncthreads();
    value = found[0];
    for (int w = 1; w < THREADS / 32; ++w) value = join(value, found[w]);
    return value;
}

} // namespace
