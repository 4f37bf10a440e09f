// What all ways to multiply share: the knobs, where a block's tile of `out` lies, and elements with zeros around them.

#include <cstdint>

#ifndef BLOCK_M
#define BLOCK_M 128 // rows of a and columns of b that one block multiplies
#endif
#ifndef BLOCK_N
#define BLOCK_N 128
#endif
#ifndef BLOCK_K
#define BLOCK_K 8 // steps of the sum that lie in shared memory at once
#endif
#ifndef THREAD_M
#define THREAD_M 8 // sums that one thread keeps, down and across
#endif
#ifndef THREAD_N
#define THREAD_N 8
#endif

namespace {

using Index = std::int64_t; // of elements; rows, columns and steps are counted with int

constexpr int threads_x = BLOCK_N / THREAD_N, threads = BLOCK_M / THREAD_M * threads_x;

// A row-major matrix; outside of it are zeros.
struct Matrix {
    const float* data;
    int rows, columns;

    __device__ bool has(int row, int column) const { return row < rows && column < columns; }
    __device__ const float* at(int row, int column) const { return data + Index{row} * columns + column; }
    __device__ float operator()(int row, int column) const { return has(row, column) ? *at(row, column) : 0.0f; }
};

// The upper left corner of this block's tile.
struct Corner {
    int row, column;
};

__device__ Corner corner(int n) {
    const int across = (n + BLOCK_N - 1) / BLOCK_N, block = blockIdx.x;
    return {block / across * BLOCK_M, block % across * BLOCK_N};
}

Index blocks(Index m, Index n) { return (m + BLOCK_M - 1) / BLOCK_M * ((n + BLOCK_N - 1) / BLOCK_N); }

} // namespace
