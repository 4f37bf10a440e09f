// The inner part of a product whose threads keep THREAD_M x THREAD_N sums each: every number that is read from shared
// memory serves a whole row or column of them. A thread's rows lie together, its columns threads_x apart, so that the
// threads of a warp read neighbouring columns, and write them.

namespace {

// Tiles of both factors, that of a turned round; the float more keeps the lines of a column apart in the banks.
struct Tiles {
    float a[BLOCK_K][BLOCK_M + 1];
    float b[BLOCK_K][BLOCK_N];
};

__device__ void add_products(const Tiles& tiles, float (&sum)[THREAD_M][THREAD_N]) {
    const int x = threadIdx.x % threads_x, y = threadIdx.x / threads_x * THREAD_M;
#pragma unroll
    for (int k = 0; k < BLOCK_K; ++k) {
        float left[THREAD_M], right[THREAD_N];
#pragma unroll
        for (int i = 0; i < THREAD_M; ++i) left[i] = tiles.a[k][y + i];
#pragma unroll
        for (int j = 0; j < THREAD_N; ++j) right[j] = tiles.b[k][x + j * threads_x];
#pragma unroll
        for (int i = 0; i < THREAD_M; ++i)
#pragma unroll
            for (int j = 0; j < THREAD_N; ++j) sum[i][j] += left[i] * right[j];
    }
}

__device__ void store(float* out, int m, int n, Corner at, const float (&sum)[THREAD_M][THREAD_N]) {
    const int column = at.column + threadIdx.x % threads_x, row = at.row + threadIdx.x / threads_x * THREAD_M;
#pragma unroll
    for (int i = 0; i < THREAD_M; ++i)
#pragma unroll
        for (int j = 0; j < THREAD_N; ++j)
            if (row + i < m && column + j * threads_x < n) out[Index{row + i} * n + column + j * threads_x] = sum[i][j];
}

} // namespace
