// out[column][row] = x[row][column] through registers. A thread reads VECTOR pieces of VECTOR floats that lie under each
// other, and writes them as VECTOR pieces of out; WIDTH threads side by side read one row, so that a narrow block favours
// what is written, a wide one what is read.

#ifndef WIDTH
#define WIDTH 8 // threads of a block along a row of x
#endif
#ifndef VECTOR
#define VECTOR 4 // floats that a thread loads and stores at once
#endif

#include "vector.cuh"

namespace {

constexpr int block_columns = WIDTH * VECTOR, block_rows = THREADS / WIDTH * VECTOR;

__global__ void __launch_bounds__(THREADS) transpose(int rows, int columns, const float* x, float* out) {
    const int across = (columns + block_columns - 1) / block_columns, down = (rows + block_rows - 1) / block_rows;
    const int block_x = ORDER == ACROSS ? blockIdx.x % across : blockIdx.x / down;
    const int block_y = ORDER == ACROSS ? blockIdx.x / across : blockIdx.x % down;
    const int column = block_x * block_columns + threadIdx.x % WIDTH * VECTOR;
    const int row = block_y * block_rows + threadIdx.x / WIDTH * VECTOR;
    if (row >= rows || column >= columns) return;

    Vector lines[VECTOR] = {};
#pragma unroll
    for (int y = 0; y < VECTOR; ++y)
        if (row + y < rows)
            lines[y] = load(x + Index{row + y} * columns + column, columns - column, columns % VECTOR == 0);
#pragma unroll
    for (int c = 0; c < VECTOR; ++c) {
        if (column + c >= columns) return;
        Vector turned;
#pragma unroll
        for (int y = 0; y < VECTOR; ++y) turned.at[y] = lines[y].at[c];
        store(out + Index{column + c} * rows + row, turned, rows - row, rows % VECTOR == 0);
    }
}

} // namespace

extern "C" cudaError_t cuda_transpose_kernel(Index rows, Index columns, const float* x, float* out,
                                             cudaStream_t stream) {
    const Index across = (columns + block_columns - 1) / block_columns, down = (rows + block_rows - 1) / block_rows;
    if (across * down == 0) return cudaSuccess;
    transpose<<<static_cast<unsigned>(across * down), THREADS, 0, stream>>>(rows, columns, x, out);
    return cudaGetLastError();
}
