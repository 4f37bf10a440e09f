// out = a b, row-major, m x k times k x n: as with registers alone, but STAGES tiles of each factor are in shared memory
// or on their way there, by copies that do not pass through registers, while one is multiplied.

#ifndef STAGES
#define STAGES 2
#endif

#include "tiles.cuh"

#include "outer_product.cuh"

#include <cuda_pipeline.h>

namespace {

// Begin to copy one element, or to write a zero where there is none.
__device__ void fetch(float* to, const Matrix& from, int row, int column) {
    const bool there = from.has(row, column);
    __pipeline_memcpy_async(to, there ? from.at(row, column) : from.data, sizeof(float), there ? 0 : sizeof(float));
}

__global__ void __launch_bounds__(threads) gemm(Matrix a, Matrix b, float* out) {
    __shared__ Tiles stages[STAGES];
    const Corner at = corner(b.columns);
    const int steps = (a.columns + BLOCK_K - 1) / BLOCK_K;
    const auto fetch_tiles = [&](int step) { // a step past the last is an empty batch, so that there is one for each
        if (step < steps) {
            Tiles& tiles = stages[step % STAGES];
#pragma unroll
            for (int i = threadIdx.x; i < BLOCK_M * BLOCK_K; i += threads)
                fetch(&tiles.a[i % BLOCK_K][i / BLOCK_K], a, at.row + i / BLOCK_K, step * BLOCK_K + i % BLOCK_K);
#pragma unroll
            for (int i = threadIdx.x; i < BLOCK_K * BLOCK_N; i += threads)
                fetch(&tiles.b[i / BLOCK_N][i % BLOCK_N], b, step * BLOCK_K + i / BLOCK_N, at.column + i % BLOCK_N);
        }
        __pipeline_commit();
    };

    float sum[THREAD_M][THREAD_N] = {};
    for (int step = 0; step < STAGES - 1; ++step) fetch_tiles(step);
    for (int step = 0; step < steps; ++step) {
        __pipeline_wait_prior(STAGES - 2); // this thread's part of this step has come
        __syncthreads();                   // everybody's has, and nobody reads the stage that is filled next any more
        fetch_tiles(step + STAGES - 1);
        add_products(stages[step % STAGES], sum);
    }
    store(out, a.rows, b.columns, at, sum);
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
