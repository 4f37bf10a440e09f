// Softmax of each row, one block to a row, which it goes through twice: the largest number and the sum of the
// exponentials are found together, the sum being scaled down whenever a larger number turns up (Milakov and Gimelshein,
// Online normalizer calculation for softmax, arXiv 1805.02867).

#include "row.cuh"

namespace {

__global__ void __launch_bounds__(THREADS) softmax(int n, const float* x, float* out) {
    const int me = threadIdx.x;
    const float* row = x + Index{blockIdx.x} * n;
    float high = -FLT_MAX, sum = 0.0f; // finite, so that a thread without numbers adds nothing, and not NaN
    each(row, n, me, THREADS, [&](float value) {
        if (value > high) {
            sum = sum * expf(high - value) + 1.0f;
            high = value;
        } else {
            sum += expf(value - high);
        }
    });
    const float highest = over_block(high, Larger{});
    const float scale = 1.0f / over_block(sum * expf(high - highest), Sum{});
    write_each(row, out + Index{blockIdx.x} * n, n, me, THREADS,
               [&](float value) { return expf(value - highest) * scale; });
}

} // namespace

extern "C" cudaError_t cuda_softmax_kernel(Index rows, Index n, const float* x, float* out, cudaStream_t stream) {
    if (rows == 0 || n == 0) return cudaSuccess;
    softmax<<<static_cast<unsigned>(rows), THREADS, 0, stream>>>(n, x, out);
    return cudaGetLastError();
}
