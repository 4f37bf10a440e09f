// What both ways to convolve share: the knobs, the sizes, and which part of `out` a block and a thread have.

#include <cstdint>

#ifndef THREADS_X
#define THREADS_X 32 // threads of a block, across and down the image
#endif
#ifndef THREADS_Y
#define THREADS_Y 8
#endif
#ifndef PIXELS
#define PIXELS 2 // pixels of a thread, THREADS_Y rows apart, and features of each
#endif
#ifndef FEATURES
#define FEATURES 4
#endif

namespace {

using Index = std::int64_t; // of elements; all else is counted with int

constexpr int threads = THREADS_X * THREADS_Y, block_rows = THREADS_Y * PIXELS;

// image [images][channels][height][width], weight [features][channels][taps_y][taps_x], out [images][features][rows]
// [columns], where rows = height - taps_y + 1 and columns = width - taps_x + 1
struct Sizes {
    int images, channels, height, width, features, taps_y, taps_x, rows, columns;
};

Sizes sizes_of(Index images, Index channels, Index height, Index width, Index features, Index taps_y, Index taps_x) {
    const auto number = [](Index n) { return static_cast<int>(n); };
    return {number(images), number(channels), number(height), number(width), number(features), number(taps_y),
            number(taps_x), number(height - taps_y + 1), number(width - taps_x + 1)};
}

// Where a block begins.
struct Block {
    int image, feature, row, column;
};

__host__ __device__ int parts(int n, int size) { return (n + size - 1) / size; }

__device__ Block block_of(const Sizes& s) {
    const int across = parts(s.columns, THREADS_X), down = parts(s.rows, block_rows), deep = parts(s.features, FEATURES);
    const int index = blockIdx.x;
    return {index / across / down / deep, index / across / down % deep * FEATURES, index / across % down * block_rows,
            index % across * THREADS_X};
}

Index blocks(const Sizes& s) {
    return Index{parts(s.columns, THREADS_X)} * parts(s.rows, block_rows) * parts(s.features, FEATURES) * s.images;
}

__device__ void store(float* out, const Sizes& s, const Block& at, const float (&sum)[FEATURES][PIXELS]) {
    const int column = at.column + threadIdx.x % THREADS_X, row = at.row + threadIdx.x / THREADS_X;
#pragma unroll
    for (int f = 0; f < FEATURES; ++f)
#pragma unroll
        for (int p = 0; p < PIXELS; ++p)
            if (at.feature + f < s.features && row + p * THREADS_Y < s.rows && column < s.columns)
                out[((Index{at.image} * s.features + at.feature + f) * s.rows + row + p * THREADS_Y) * s.columns +
                    column] = sum[f][p];
}

} // namespace
