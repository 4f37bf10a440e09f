// 2-D convolution, stride 1, without padding: a thread sums PIXELS x FEATURES elements of `out` in registers. The part of
// the image that a block needs, and its weights, lie in shared memory, for up to CHANNELS channels at a time.

#ifndef CHANNELS
#define CHANNELS 4
#endif

#include "geometry.cuh"

namespace {

constexpr int most_shared = 48 * 1024 / sizeof(float); // floats that a block has without asking for more

// The tile of one channel, and its floats in shared memory with the weights.
struct Tile {
    int height, width, floats;
};

__host__ __device__ Tile tile_of(const Sizes& s) {
    const int height = block_rows + s.taps_y - 1, width = THREADS_X + s.taps_x - 1;
    return {height, width, height * width + s.taps_y * s.taps_x * FEATURES};
}

__global__ void __launch_bounds__(threads) conv2d(Sizes s, int at_once, const float* image, const float* weight,
                                                  float* out) {
    extern __shared__ float shared[];
    const Block at = block_of(s);
    const Tile tile = tile_of(s);
    const int me = threadIdx.x, column = me % THREADS_X, row = me / THREADS_X;
    const int area = tile.height * tile.width, taps = s.taps_y * s.taps_x;
    float* const weights = shared + at_once * area; // [channel][tap][feature]

    float sum[FEATURES][PIXELS] = {};
    for (int c0 = 0; c0 < s.channels; c0 += at_once) {
        const int count = min(at_once, s.channels - c0);
        for (int i = me; i < count * area; i += threads) {
            const int y = at.row + i % area / tile.width, x = at.column + i % tile.width;
            const Index plane = Index{at.image} * s.channels + c0 + i / area;
            shared[i] = y < s.height && x < s.width ? image[(plane * s.height + y) * s.width + x] : 0.0f;
        }
        for (int i = me; i < count * taps * FEATURES; i += threads) {
            const int feature = at.feature + i % FEATURES, tap = i / FEATURES; // taps of one channel after another
            weights[i] = feature < s.features ? weight[(Index{feature} * s.channels + c0) * taps + tap] : 0.0f;
        }
        __syncthreads();
        for (int c = 0; c < count; ++c)
            for (int y = 0; y < s.taps_y; ++y)
                for (int x = 0; x < s.taps_x; ++x) {
                    const float* from = shared + c * area + (row + y) * tile.width + column + x;
                    const float* factor = weights + ((c * s.taps_y + y) * s.taps_x + x) * FEATURES;
                    float value[PIXELS];
#pragma unroll
                    for (int p = 0; p < PIXELS; ++p) value[p] = from[p * THREADS_Y * tile.width];
#pragma unroll
                    for (int f = 0; f < FEATURES; ++f)
#pragma unroll
                        for (int p = 0; p < PIXELS; ++p) sum[f][p] += factor[f] * value[p];
                }
        __syncthreads(); // before the tile is overwritten
    }
    store(out, s, at, sum);
}

} // namespace

extern "C" cudaError_t cuda_conv2d_kernel(Index images, Index channels, Index height, Index width, Index features,
                                          Index taps_y, Index taps_x, const float* image, const float* weight,
                                          float* out, cudaStream_t stream) {
    const Sizes s = sizes_of(images, channels, height, width, features, taps_y, taps_x);
    if (blocks(s) == 0) return cudaSuccess;
    const int floats = tile_of(s).floats;
    if (floats > most_shared) return cudaErrorInvalidValue; // a filter this large is not for this source
    const int at_once = CHANNELS * floats <= most_shared ? CHANNELS : most_shared / floats;
    conv2d<<<static_cast<unsigned>(blocks(s)), threads, at_once * floats * sizeof(float), stream>>>(s, at_once, image,
                                                                                                    weight, out);
    return cudaGetLastError();
}
