// 2-D convolution of one image, stride 1, without padding, on one thread. float32: image [channels][height][width],
// weight [features][channels][taps_y][taps_x], out [features][height - taps_y + 1][width - taps_x + 1].
//
// Either FEATURES x (VECTORS * VECTOR) sums stay in registers while channels and taps run, or a row of `out` stays in
// cache while taps are added to it. Sizes are free: the last tile of a line moves left until it fits, and what it
// shares with the one before is not stored again; a line shorter than a tile is copied first.

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <vector>

// TILE: a tile lies in one row of `out` and reads the image where it is. PATCHES: a tile runs on over the ends of rows,
// and what it needs is copied first. SWEEP: whole rows of `out`, a few taps at a time.
#ifndef ALGORITHM
#define ALGORITHM TILE
#endif
#ifndef ORDER
#define ORDER FEATURES_OUTER // a few features over all pixels; PIXELS_OUTER: one tile of pixels through all features
#endif
#ifndef BLOCK_C
#define BLOCK_C 64 // channels summed in one pass
#endif
#ifndef FEATURES
#define FEATURES 4 // register tile: features, and vectors of pixels; SWEEP does without
#endif
#ifndef VECTORS
#define VECTORS 2
#endif
#ifndef VECTOR
#define VECTOR 8 // floats in one vector
#endif
#ifndef TAPS
#define TAPS 1 // taps that SWEEP adds each time a row passes
#endif

namespace {

enum Algorithm { TILE, PATCHES, SWEEP };
enum Order { FEATURES_OUTER, PIXELS_OUTER };

using Index = std::int64_t;
using Vector = float __attribute__((vector_size(VECTOR * sizeof(float))));
constexpr Index tile_width = VECTORS * VECTOR;

// Copied patches begin on a cache line, so that no vector of theirs crosses two.
struct alignas(64) Line {
    float values[16];
};

Vector load(const float* from) {
    Vector v;
    std::memcpy(&v, from, sizeof v);
    return v;
}

// Call `body` with a number known only at run time, 1 to N, as a constant.
template <int N, class Body>
void with_constant(Index n, const Body& body) {
    if (n == N) return body(std::integral_constant<int, N>{});
    if constexpr (N > 1) with_constant<N - 1>(n, body);
}

// R features of one tile: step k adds weight[r][k] times the pixels at image + offset[k]. Columns from `begin` to `end`
// are stored; `add` is false in the first pass over channels, which overwrites what `out` held.
template <int R>
void tile(const float* weight, Index weight_row, const float* image, const Index* offset, Index depth, float* out,
          Index out_row, Index begin, Index end, bool add) {
    Vector sum[R][VECTORS] = {};
    for (Index k = 0; k < depth; ++k) {
        Vector pixels[VECTORS];
#pragma GCC unroll 16
        for (int v = 0; v < VECTORS; ++v) pixels[v] = load(image + offset[k] + v * VECTOR);
#pragma GCC unroll 16
        for (int r = 0; r < R; ++r) {
            const float factor = weight[r * weight_row + k];
#pragma GCC unroll 16
            for (int v = 0; v < VECTORS; ++v) sum[r][v] += factor * pixels[v];
        }
    }
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
        float* to = out + r * out_row;
        if (end - begin == tile_width) {
#pragma GCC unroll 16
            for (int v = 0; v < VECTORS; ++v) {
                const Vector total = add ? load(to + v * VECTOR) + sum[r][v] : sum[r][v];
                std::memcpy(to + v * VECTOR, &total, sizeof total);
            }
        } else {
            float line[tile_width];
            std::memcpy(line, sum[r], sizeof line);
            for (Index x = begin; x < end; ++x) to[x] = add ? to[x] + line[x] : line[x];
        }
    }
}

// Add T taps that lie side by side to one row of `out`.
template <int T>
void sweep(const float* weight, const float* image, float* out, Index width) {
    Index x = 0;
    for (; x + VECTOR <= width; x += VECTOR) {
        Vector sum = load(out + x);
#pragma GCC unroll 16
        for (int t = 0; t < T; ++t) sum += weight[t] * load(image + x + t);
        std::memcpy(out + x, &sum, sizeof sum);
    }
    for (; x < width; ++x)
        for (int t = 0; t < T; ++t) out[x] += weight[t] * image[x + t];
}

} // namespace

extern "C" void conv2d_kernel(Index channels, Index height, Index width, Index features, Index taps_y, Index taps_x,
                              const float* image, const float* weight, float* out) {
    const Index out_width = width - taps_x + 1, pixels = (height - taps_y + 1) * out_width, taps = taps_y * taps_x;
    const Index most = std::min<Index>(BLOCK_C, channels) * taps; // steps of one pass
    if (channels == 0) std::fill_n(out, features * pixels, 0.0f);
    // Kept between calls: fresh pages from the system would cost more than the copying they are for.
    thread_local std::vector<Line> scratch;
    thread_local std::vector<Index> in_image, in_patch;
    scratch.resize(most * tile_width / 16 + 1);
    in_image.resize(most), in_patch.resize(most);
    float* patch = scratch.data()->values;

    // The part of `out` that a tile may not leave: a row, or for PATCHES all of it.
    const Index line = ALGORITHM == PATCHES ? pixels : out_width, step = ALGORITHM == SWEEP ? line : tile_width;
    const Index count = std::min(tile_width, line);
    const bool copied = ALGORITHM == PATCHES || (ALGORITHM == TILE && line < tile_width);

    for (Index c0 = 0; c0 < channels; c0 += BLOCK_C) {
        const Index depth = std::min<Index>(BLOCK_C, channels - c0) * taps;
        for (Index k = 0; k < depth; ++k) {
            in_image[k] = ((c0 + k / taps) * height + k % taps / taps_x) * width + k % taps_x;
            in_patch[k] = k * tile_width;
        }

        const auto first_of = [&](Index at) { return at - std::max<Index>(0, at % line + count - line); };
        const auto copy_patch = [&](Index at) {
            const Index first = first_of(at);
            for (Index done = 0, n; done < count; done += n) {
                const Index y = (first + done) / out_width, x = (first + done) % out_width;
                n = std::min(count - done, out_width - x);
                for (Index k = 0; k < depth; ++k)
                    std::copy_n(image + in_image[k] + y * width + x, n, patch + in_patch[k] + done);
            }
        };
        const auto compute = [&](Index f, Index at) { // features from f on, the tile at pixel `at`
            const float* weights = weight + (f * channels + c0) * taps;
            float* to = out + f * pixels;
            if (ALGORITHM == SWEEP) {
                if (c0 == 0) std::fill_n(to + at, line, 0.0f);
                for (Index k = 0, n; k < depth; k += n) {
                    n = std::min<Index>(TAPS, taps_x - k % taps_x);
                    with_constant<TAPS>(n, [&](auto t) {
                        sweep<t>(weights + k, image + in_image[k] + at / out_width * width, to + at, line);
                    });
                }
            } else {
                const Index first = first_of(at), y = first / out_width, x = first % out_width;
                const float* from = copied ? patch : image + y * width + x;
                with_constant<FEATURES>(std::min<Index>(FEATURES, features - f), [&](auto r) {
                    tile<r>(weights, channels * taps, from, (copied ? in_patch : in_image).data(), depth, to + first,
                            pixels, at - first, count, c0 > 0);
                });
            }
        };
        const Index f_step = ALGORITHM == SWEEP ? 1 : FEATURES;
        const auto tiles = [&](const auto& body) {
            for (Index start = 0; start < pixels; start += line)
                for (Index x = 0; x < line; x += step) body(start + x);
        };
        if (ORDER == PIXELS_OUTER || copied)
            tiles([&](Index at) {
                if (copied) copy_patch(at);
                for (Index f = 0; f < features; f += f_step) compute(f, at);
            });
        else
            for (Index f = 0; f < features; f += f_step) tiles([&](Index at) { compute(f, at); });
    }
}
