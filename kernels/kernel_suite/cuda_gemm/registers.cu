// out = a b, row-major, m x k times k x n: each thread keeps THREAD_M x THREAD_N sums in registers. Loading the next
// tiles and multiplying the last ones take turns.

#include "tiles.cuh"

#include "outer_product.cuh"

namespace {

__global__ void __launch_bounds__(threads) gemm(Matrix a, Matrix b, float* out) {
    __shared__ Tiles tiles;
    const Corner at = corner(b.columns);
    float sum[THREAD_M][THREAD_N] = {};
    for (int k0 = 0; k0 < a.columns; k0 += BLOCK_K) {
#pragma unroll
        for (int i = threadIdx.x; i < BLOCK_M * BLOCK_K; i += threads)
            tiles.a[i % BLOCK_K][i / BLOCK_K] = a(at.row + i / BLOCK_K, k0 + i % BLOCK_K);
#pragma unroll
        for (int i = threadIdx.x; i < BLOCK_K * BLOCK_N; i += threads)
            tiles.b[i / BLOCK_N][i % BLOCK_N] = b(k0 + i / BLOCK_N, at.column + i % BLOCK_N);
        __syncthreads();
        add_products(tiles, sum);
        __syncthreads(); // before the tiles are overwritten
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
