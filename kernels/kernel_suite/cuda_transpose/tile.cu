// out[column][row] = x[row][column] through shared memory. A block reads a square tile line by line and writes it column
// by column, so that neighbouring threads read neighbours and write neighbours. PADDING moves each line of the tile on by
// one bank, or else all elements of a column lie in one.

#ifndef TILE
#define TILE 32 // rows and columns of a block's tile
#endif
#ifndef PADDING
#define PADDING 1 // floats after each line of the tile that hold nothing
#endif
#ifndef VECTOR
#define VECTOR 1 // floats that a thread loads and stores at once
#endif

#include "vector.cuh"

namespace {

constexpr int pieces = TILE / VECTOR; // vectors of a line

__global__ void __launch_bounds__(THREADS) transpose(int rows, int columns, const float* x, float* out) {
    __shared__ float tile[TILE][TILE + PADDING];
    const int across = (columns + TILE - 1) / TILE, down = (rows + TILE - 1) / TILE;
    const int left = (ORDER == ACROSS ? blockIdx.x % across : blockIdx.x / down) * TILE;
    const int top = (ORDER == ACROSS ? blockIdx.x / across : blockIdx.x % down) * TILE;

#pragma unroll
    for (int i = threadIdx.x; i < TILE * pieces; i += THREADS) {
        const int line = i / pieces, first = i % pieces * VECTOR;
        const int row = top + line, column = left + first;
        if (row < rows && column < columns) {
            const Vector v = load(x + Index{row} * columns + column, columns - column, columns % VECTOR == 0);
#pragma unroll
            for (int e = 0; e < VECTOR; ++e) tile[line][first + e] = v.at[e];
        }
    }
    __syncthreads();
#pragma unroll
    for (int i = threadIdx.x; i < TILE * pieces; i += THREADS) {
        const int line = i / pieces, first = i % pieces * VECTOR; // of the tile turned round
        const int row = top + first, column = left + line;
        if (row < rows && column < columns) {
            Vector v;
#pragma unroll
            for (int e = 0; e < VECTOR; ++e) v.at[e] = tile[first + e][line];
            store(out + Index{column} * rows + row, v, rows - row, rows % VECTOR == 0);
        }
    }
}

} // namespace

extern "C" cudaError_t cuda_transpose_kernel(Index rows, Index columns, const float* x, float* out,
                                             cudaStream_t stream) {
    const Index across = (columns + TILE - 1) / TILE, down = (rows + TILE - 1) / TILE;
    if (across * down == 0) return cudaSuccess;
    transpose<<<static_cast<unsigned>(across * down), THREADS, 0, stream>>>(rows, columns, x, out);
    return cudaGetLastError();
}
