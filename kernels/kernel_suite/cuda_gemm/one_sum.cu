// out = a b, row-major, m x k times k x n: each thread has one element of `out`, and both factors come through shared
// memory, so that a block reads each number once instead of once for every thread.

#ifndef BLOCK_M
#define BLOCK_M 16
#endif
#ifndef BLOCK_N
#define BLOCK_N 16
#endif
#ifndef BLOCK_K
#define BLOCK_K 16
#endif
#define THREAD_M 1
#define THREAD_N 1

#include "tiles.cuh"

namespace {

__global__ void __launch_bounds__(threads) gemm(Matrix a, Matrix b, float* out) {
    __shared__ float left[BLOCK_M][BLOCK_K], right[BLOCK_K][BLOCK_N];
    const Corner at = corner(b.columns);
    const int me = threadIdx.x, y = me / BLOCK_N, x = me % BLOCK_N;
    float sum = 0.0f;
    for (int k0 = 0; k0 < a.columns; k0 += BLOCK_K) {
        for (int i = me; i < BLOCK_M * BLOCK_K; i += threads)
            left[i / BLOCK_K][i % BLOCK_K] = a(at.row + i / BLOCK_K, k0 + i % BLOCK_K);
        for (int i = me; i < BLOCK_K * BLOCK_N; i += threads)
            right[i / BLOCK_N][i % BLOCK_N] = b(k0 + i / BLOCK_N, at.column + i % BLOCK_N);
        __syncthreads();
#pragma unroll
        for (int k = 0; k < BLOCK_K; ++k) sum += left[y][k] * right[k][x];
        __syncthreads(); // before the tiles are overwritten
    }
    if (at.row + y < a.rows && at.column + x < b.columns) out[Index{at.row + y} * b.columns + at.column + x] = sum;
}

} // namespace

extern "C" cudaError_t cuda_gemm_kernel(Index m, Index n, Index k, const float* a, const float* b, float* out,
                                        cudaStream_t stream) {
    if (m == 0 || n == 0) return cudaSuccess;
    const Matrix left = {a, static_cast<int>(m), static_cast<int>(k)};
    const Matrix right = {b, static_cast<int>(k), static_cast<int>(n)};
    gemm<<<static_cast<unsigned>(blocks(m, n)), threads, 0, stream>>>(left, right, out);
    return cudaGetLastError();
}
