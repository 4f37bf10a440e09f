// out = a b for row-major float32 matrices, m x k times k x n, on one thread.
//
// A register tile of ROWS x (VECTORS * VECTOR) sums is kept while k runs; cache blocks decide what it reads from where.
// Sizes are free: a tile at the lower edge has fewer rows, a strip at the right edge is copied and filled with zeros.

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

#ifndef ALGORITHM
#define ALGORITHM PACK_B // PACK_B copies each block of b strip by strip; IN_PLACE reads b where it is
#endif
#ifndef ORDER
#define ORDER B_STAYS // B_STAYS takes one strip of b down all rows of a; A_STAYS takes ROWS rows of a along all strips
#endif
#ifndef BLOCK_N
#define BLOCK_N 512 // columns of b in one cache block, and steps of k
#endif
#ifndef BLOCK_K
#define BLOCK_K 256
#endif
#ifndef ROWS
#define ROWS 6 // register tile: rows of a, and vectors of b
#endif
#ifndef VECTORS
#define VECTORS 2
#endif
#ifndef VECTOR
#define VECTOR 8 // floats in one vector
#endif

namespace {

enum Algorithm { IN_PLACE, PACK_B };
enum Order { B_STAYS, A_STAYS };

using Index = std::int64_t;
using Vector = float __attribute__((vector_size(VECTOR * sizeof(float))));
constexpr Index width = VECTORS * VECTOR;

// Scratch memory begins on a cache line, so that no vector of a packed strip crosses two.
struct alignas(64) Line {
    float values[16];
};

// A strip of b, `width` columns wide; row k starts at at + k * row.
struct Strip {
    const float* at;
    Index row;
};

Vector load(const float* from) {
    Vector v;
    std::memcpy(&v, from, sizeof v);
    return v;
}

// One register tile; `add` is false for the first block of k, which overwrites what `out` held.
template <int R>
void tile(const float* a, Index a_row, Strip b, Index depth, float* out, Index out_row, Index columns, bool add) {
    Vector sum[R][VECTORS] = {};
    for (Index k = 0; k < depth; ++k) {
        Vector right[VECTORS];
#pragma GCC unroll 16
        for (int v = 0; v < VECTORS; ++v) right[v] = load(b.at + k * b.row + v * VECTOR);
#pragma GCC unroll 16
        for (int r = 0; r < R; ++r) {
            const float left = a[r * a_row + k];
#pragma GCC unroll 16
            for (int v = 0; v < VECTORS; ++v) sum[r][v] += left * right[v];
        }
    }
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
        float* to = out + r * out_row;
        if (columns == width) {
#pragma GCC unroll 16
            for (int v = 0; v < VECTORS; ++v) {
                const Vector total = add ? load(to + v * VECTOR) + sum[r][v] : sum[r][v];
                std::memcpy(to + v * VECTOR, &total, sizeof total);
            }
        } else {
            float line[width];
            std::memcpy(line, sum[r], sizeof line);
            for (Index x = 0; x < columns; ++x) to[x] = add ? to[x] + line[x] : line[x];
        }
    }
}

// The register tile for a number of rows known only at run time, 1 to R.
template <int R>
void tile_of(Index rows, const float* a, Index a_row, Strip b, Index depth, float* out, Index out_row, Index columns,
             bool add) {
    if (rows == R) return tile<R>(a, a_row, b, depth, out, out_row, columns, add);
    if constexpr (R > 1) tile_of<R - 1>(rows, a, a_row, b, depth, out, out_row, columns, add);
}

// Copy `columns` columns of b to rows of `width` floats, the rest of each row zero.
void pack(const float* b, Index row, Index depth, Index columns, float* to) {
    for (Index k = 0; k < depth; ++k, b += row, to += width) {
        std::copy_n(b, columns, to);
        std::fill(to + columns, to + width, 0.0f);
    }
}

} // namespace

extern "C" void gemm_kernel(Index m, Index n, Index k, const float* a, const float* b, float* out) {
    if (k == 0) std::fill_n(out, m * n, 0.0f);
    // Kept between calls: fresh pages from the system would cost more than the copying they are for.
    thread_local std::vector<Line> scratch;
    scratch.resize((std::min<Index>(BLOCK_N, n) + width) * std::min<Index>(BLOCK_K, k) / 16 + 1);
    float* packed = scratch.data()->values;

    for (Index n0 = 0; n0 < n; n0 += BLOCK_N)
        for (Index k0 = 0; k0 < k; k0 += BLOCK_K) {
            const Index columns = std::min<Index>(BLOCK_N, n - n0), depth = std::min<Index>(BLOCK_K, k - k0);
            const float* block = b + k0 * n + n0;
            // In place, only a strip that would reach over the right edge is copied.
            for (Index x = ALGORITHM == PACK_B ? 0 : columns - columns % width; x < columns; x += width)
                pack(block + x, n, depth, std::min(width, columns - x), packed + x * depth);

            const auto at = [&](Index y, Index x) {
                const bool copied = ALGORITHM == PACK_B || columns - x < width;
                const Strip strip = copied ? Strip{packed + x * depth, width} : Strip{block + x, n};
                tile_of<ROWS>(std::min<Index>(ROWS, m - y), a + y * k + k0, k, strip, depth, out + y * n + n0 + x, n,
                              std::min(width, columns - x), k0 > 0);
            };
            if (ORDER == B_STAYS)
                for (Index x = 0; x < columns; x += width)
                    for (Index y = 0; y < m; y += ROWS) at(y, x);
            else
                for (Index y = 0; y < m; y += ROWS)
                    for (Index x = 0; x < columns; x += width) at(y, x);
        }
}
