// What both ways to transpose share: where a block is, and vectors of VECTOR floats, which the source sets.

#include <cstdint>

#ifndef THREADS
#define THREADS 256
#endif
#ifndef ORDER
#define ORDER ACROSS // the next block is the one to the right in x, or, DOWN, the one below
#endif

namespace {

enum Order { ACROSS, DOWN };

using Index = std::int64_t; // of elements; rows and columns stay int, or nvcc 13.0 splits wide stores

struct alignas(VECTOR * sizeof(float)) Vector {
    float at[VECTOR];
};

// VECTOR floats, of which `left` are there; `whole` if every line is made of whole vectors.
__device__ Vector load(const float* from, int left, bool whole) {
    if (whole) return *reinterpret_cast<const Vector*>(from);
    Vector v = {};
#pragma unroll
    for (int e = 0; e < VECTOR; ++e)
        if (e < left) v.at[e] = from[e];
    return v;
}

__device__ void store(float* to, const Vector& v, int left, bool whole) {
    if (whole) {
        *reinterpret_cast<Vector*>(to) = v;
        return;
    }
#pragma unroll
    for (int e = 0; e < VECTOR; ++e)
        if (e < left) to[e] = v.at[e];
}

} // namespace
