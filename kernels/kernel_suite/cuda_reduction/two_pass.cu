// The sum of n floats. A block adds up TILE of them, with a tree in shared memory, and one block more adds up what the
// others found. The order of the additions depends on n alone, so that the result does not change from call to call.

#include "share.cuh"

namespace {

__global__ void __launch_bounds__(THREADS) sum_tiles(const float* x, Index n, Index tile, float* sums) {
    __shared__ float tree[THREADS];
    const Index begin = blockIdx.x * tile;
    tree[threadIdx.x] = share(x, begin, begin + tile < n ? begin + tile : n);
    for (unsigned half = THREADS / 2; half > 0; half /= 2) {
        __syncthreads();
        if (threadIdx.x < half) tree[threadIdx.x] += tree[threadIdx.x + half];
    }
    if (threadIdx.x == 0) sums[blockIdx.x] = tree[0];
}

Index blocks(Index n) { return n <= TILE ? 1 : (n + TILE - 1) / TILE; }

} // namespace

extern "C" Index cuda_reduction_scratch(Index n) { return blocks(n); } // floats

extern "C" cudaError_t cuda_reduction_kernel(Index n, const float* x, float* out, float* scratch, cudaStream_t stream) {
    const Index count = blocks(n);
    if (count == 1) {
        sum_tiles<<<1, THREADS, 0, stream>>>(x, n, n, out);
    } else {
        sum_tiles<<<static_cast<unsigned>(count), THREADS, 0, stream>>>(x, n, TILE, scratch);
        sum_tiles<<<1, THREADS, 0, stream>>>(scratch, count, count, out);
    }
    return cudaGetLastError();
}
