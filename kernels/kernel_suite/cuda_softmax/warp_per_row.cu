// Softmax of each row, one warp to a row and as many rows to a block as it has warps: nobody waits for another warp, and
// nothing goes through shared memory. Long rows want a block, short ones leave it idle.

#include "row.cuh"

namespace {

constexpr int rows_of_block = THREADS / 32;

__global__ void __launch_bounds__(THREADS) softmax(Index rows, int n, const float* x, float* out) {
    const int lane = threadIdx.x % 32;
    const Index index = blockIdx.x * Index{rows_of_block} + threadIdx.x / 32;
    if (index >= rows) return; // with its whole warp
    const float* row = x + index * n;
    float high = -FLT_MAX, sum = 0.0f;
    each(row, n, lane, 32, [&](float value) { high = fmaxf(high, value); });
    high = over_warp(high, Larger{});
    each(row, n, lane, 32, [&](float value) { sum += expf(value - high); });
    const float scale = 1.0f / over_warp(sum, Sum{});
    write_each(row, out + index * n, n, lane, 32, [&](float value) { return expf(value - high) * scale; });
}

} // namespace

extern "C" cudaError_t cuda_softmax_kernel(Index rows, Index n, const float* x, float* out, cudaStream_t stream) {
    if (rows == 0 || n == 0) return cudaSuccess;
    softmax<<<static_cast<unsigned>((rows + rows_of_block - 1) / rows_of_block), THREADS, 0, stream>>>(rows, n, x, out);
    return cudaGetLastError();
}
