// Softmax of each row, one block to a row. It goes through the row three times: for the largest number, for the sum of
// the exponentials, and to write them. Where a row fits, the first level of cache serves the second and third time.

#include "row.cuh"

namespace {

__global__ void __launch_bounds__(THREADS) softmax(int n, const float* x, float* out) {
    const int me = threadIdx.x;
    const float* row = x + Index{blockIdx.x} * n;
    float high = -FLT_MAX, sum = 0.0f;
    each(row, n, me, THREADS, [&](float value) { high = fmaxf(high, value); });
    high = over_block(high, Larger{});
    each(row, n, me, THREADS, [&](float value) { sum += expf(value - high); });
    const float scale = 1.0f / over_block(sum, Sum{});
    write_each(row, out + Index{blockIdx.x} * n, n, me, THREADS,
               [&](float value) { return expf(value - high) * scale; });
}

} // namespace

extern "C" cudaError_t cuda_softmax_kernel(Index rows, Index n, const float* x, float* out, cudaStream_t stream) {
    if (rows == 0 || n == 0) return cudaSuccess;
    softmax<<<static_cast<unsigned>(rows), THREADS, 0, stream>>>(n, x, out);
    return cudaGetLastError();
}
