// 2-D convolution, stride 1, without padding: a thread sums PIXELS x FEATURES elements of `out` in registers, and reads
// image and weights where they are. What neighbouring threads read again, the cache has.

#include "geometry.cuh"

namespace {

__global__ void __launch_bounds__(threads) conv2d(Sizes s, const float* image, const float* weight, float* out) {
    const Block at = block_of(s);
    // Threads past an edge repeat the last pixel or feature, and store nothing: no read leaves its tensor.
    const int column = min(at.column + static_cast<int>(threadIdx.x) % THREADS_X, s.columns - 1);
    const int row = at.row + threadIdx.x / THREADS_X, taps = s.taps_y * s.taps_x;
    int pixel[PIXELS];
    const float* weights[FEATURES];
#pragma unroll
    for (int p = 0; p < PIXELS; ++p) pixel[p] = min(row + p * THREADS_Y, s.rows - 1) * s.width + column;
#pragma unroll
    for (int f = 0; f < FEATURES; ++f)
        weights[f] = weight + Index{min(at.feature + f, s.features - 1)} * s.channels * taps;

    float sum[FEATURES][PIXELS] = {};
    for (int c = 0; c < s.channels; ++c) {
        const float* plane = image + (Index{at.image} * s.channels + c) * s.height * s.width;
        for (int y = 0; y < s.taps_y; ++y)
            for (int x = 0; x < s.taps_x; ++x) {
                float value[PIXELS];
#pragma unroll
                for (int p = 0; p < PIXELS; ++p) value[p] = plane[pixel[p] + y * s.width + x];
#pragma unroll
                for (int f = 0; f < FEATURES; ++f) {
                    const float factor = weights[f][(c * s.taps_y + y) * s.taps_x + x];
#pragma unroll
                    for (int p = 0; p < PIXELS; ++p) sum[f][p] += factor * value[p];
                }
            }
    }
    store(out, s, at, sum);
}

} // namespace

extern "C" cudaError_t cuda_conv2d_kernel(Index images, Index channels, Index height, Index width, Index features,
                                          Index taps_y, Index taps_x, const float* image, const float* weight,
                                          float* out, cudaStream_t stream) {
    const Sizes s = sizes_of(images, channels, height, width, features, taps_y, taps_x);
    if (blocks(s) == 0) return cudaSuccess;
    conv2d<<<static_cast<unsigned>(blocks(s)), threads, 0, stream>>>(s, image, weight, out);
    return cudaGetLastError();
}
