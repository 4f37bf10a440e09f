// The sum of n floats in one launch. A block adds up TILE of them: each warp by shuffles, the first warp what the others
// found; then the block adds its sum to the result with one atomic addition. Blocks do so in whatever order they end,
// which moves the last digits from call to call.

#include "share.cuh"

namespace {

constexpr int warps = THREADS / 32;
static_assert(THREADS % 32 == 0, "shuffles want whole warps");

// The sum over a warp, which lane 0 gets.
__device__ float warp_sum(float value) {
#pragma unroll
    for (int half = 16; half > 0; half /= 2) value += __shfl_down_sync(0xffffffffu, value, half);
    return value;
}

__global__ void __launch_bounds__(THREADS) add_tiles(const float* x, Index n, float* out) {
    __shared__ float sums[warps];
    const unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const Index begin = blockIdx.x * Index{TILE};
    const float mine = warp_sum(share(x, begin, begin + TILE < n ? begin + TILE : n));
    if (lane == 0) sums[warp] = mine;
    __syncthreads();
    if (warp == 0) {
        const float all = warp_sum(lane < warps ? sums[lane] : 0.0f);
        if (lane == 0) atomicAdd(out, all);
    }
}

} // namespace

extern "C" Index cuda_reduction_scratch(Index) { return 0; }

extern "C" cudaError_t cuda_reduction_kernel(Index n, const float* x, float* out, float*, cudaStream_t stream) {
    const cudaError_t cleared = cudaMemsetAsync(out, 0, sizeof(float), stream);
    if (cleared != cudaSuccess || n == 0) return cleared;
    add_tiles<<<static_cast<unsigned>((n + TILE - 1) / TILE), THREADS, 0, stream>>>(x, n, out);
    return cudaGetLastError();
}
