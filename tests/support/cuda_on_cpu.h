// Just enough of CUDA to run a kernel on the CPU, one block after another, so that what it computes can be tested without
// a GPU. Every thread of a block is a fibre, which runs until it has to wait for others: whoever reads what another
// thread writes, with no barrier between them, finds it missing. Copies that are asynchronous are made when waited for.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <deque>
#include <functional>
#include <utility>
#include <ucontext.h>
#include <vector>

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __shared__ static

struct dim3 {
    unsigned x, y, z;
    constexpr dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
};

enum cudaError_t { cudaSuccess = 0, cudaErrorInvalidValue = 1, cudaErrorInvalidConfiguration = 9, cudaErrorLaunchFailure = 719 };
using cudaStream_t = void*;

inline dim3 gridDim, blockDim, blockIdx, threadIdx;
using std::max;
using std::min;

namespace on_cpu {

struct Copy {
    void* to;
    const void* from;
    std::size_t bytes, zeros; // of the bytes, the last are zeros
};

struct Thread {
    ucontext_t context;
    std::vector<char> stack = std::vector<char>(64 << 10);
    dim3 index;
    bool ended = false;
    long passed_block = 0, passed_warp = 0; // barriers
    std::deque<std::vector<Copy>> copies = std::deque<std::vector<Copy>>(1);
};

// Threads that wait for each other: a block, or a warp of it.
struct Group {
    unsigned size = 0, waiting = 0;
    long opened = 0;
};

inline std::vector<Thread> threads;
inline std::vector<Group> warps;
inline Group block;
inline ucontext_t scheduler;
inline unsigned current;
inline std::function<void()> body;
inline std::vector<float> exchanged, dynamic;
inline cudaError_t last_error = cudaSuccess;

inline void run() {
    body();
    threads[current].ended = true;
}

inline void wait(Group& group) {
    const long ticket = group.opened;
    if (++group.waiting == group.size) group.waiting = 0, ++group.opened;
    while (group.opened == ticket) swapcontext(&threads[current].context, &scheduler);
}

inline void launch(dim3 grid, dim3 size, std::size_t shared_bytes, cudaStream_t, std::function<void()> kernel) {
    const unsigned count = size.x * size.y * size.z;
    if (count == 0 || count > 1024 || grid.x == 0 || grid.y == 0 || grid.z == 0 || grid.y > 65535 || grid.z > 65535) {
        last_error = cudaErrorInvalidConfiguration;
        return;
    }
    if (shared_bytes > 48 << 10) {
        last_error = cudaErrorInvalidValue;
        return;
    }
    gridDim = grid, blockDim = size, body = std::move(kernel);
    for (blockIdx.z = 0; blockIdx.z < grid.z; ++blockIdx.z)
        for (blockIdx.y = 0; blockIdx.y < grid.y; ++blockIdx.y)
            for (blockIdx.x = 0; blockIdx.x < grid.x; ++blockIdx.x) {
                threads = std::vector<Thread>(count);
                warps.assign((count + 31) / 32, {});
                block = {count};
                exchanged.assign(count, NAN);
                dynamic.assign(shared_bytes / sizeof(float), NAN);
                for (unsigned t = 0; t < count; ++t) {
                    Thread& thread = threads[t];
                    ++warps[t / 32].size;
                    thread.index = {t % size.x, t / size.x % size.y, t / size.x / size.y};
                    getcontext(&thread.context);
                    thread.context.uc_stack.ss_sp = thread.stack.data();
                    thread.context.uc_stack.ss_size = thread.stack.size();
                    thread.context.uc_link = &scheduler;
                    makecontext(&thread.context, run, 0);
                }
                for (bool left = true, stuck = false; left;) {
                    const long before = block.opened;
                    long warps_before = 0, warps_after = 0;
                    for (const Group& warp : warps) warps_before += warp.opened;
                    left = false;
                    bool ended = false;
                    for (current = 0; current < count; ++current) {
                        if (threads[current].ended) continue;
                        left = true;
                        threadIdx = threads[current].index;
                        swapcontext(&scheduler, &threads[current].context);
                        ended |= threads[current].ended;
                    }
                    for (const Group& warp : warps) warps_after += warp.opened;
                    const bool moved = ended || block.opened != before || warps_after != warps_before;
                    if (left && !moved && stuck) { // twice: the first round may have only arrived at a barrier
                        last_error = cudaErrorLaunchFailure;
                        return;
                    }
                    stuck = !moved;
                }
            }
}

} // namespace on_cpu

inline void __syncthreads() { on_cpu::wait(on_cpu::block); }

inline void __syncwarp(unsigned = 0xffffffffu) { on_cpu::wait(on_cpu::warps[on_cpu::current / 32]); }

inline float on_cpu_exchange(float value, unsigned lane) {
    on_cpu::Group& warp = on_cpu::warps[on_cpu::current / 32];
    on_cpu::exchanged[on_cpu::current] = value;
    on_cpu::wait(warp);
    const float got = lane < warp.size ? on_cpu::exchanged[on_cpu::current / 32 * 32 + lane] : value;
    on_cpu::wait(warp);
    return got;
}

inline float __shfl_down_sync(unsigned, float value, unsigned by) {
    return on_cpu_exchange(value, on_cpu::current % 32 + by);
}
inline float __shfl_xor_sync(unsigned, float value, unsigned by) {
    return on_cpu_exchange(value, on_cpu::current % 32 ^ by);
}

inline float atomicAdd(float* to, float value) { return std::exchange(*to, *to + value); }
inline float __expf(float x) { return std::exp(x); }
inline float __ldg(const float* from) { return *from; }

inline void __pipeline_memcpy_async(void* to, const void* from, std::size_t bytes, std::size_t zeros = 0) {
    on_cpu::threads[on_cpu::current].copies.back().push_back({to, from, bytes, zeros});
}
inline void __pipeline_commit() { on_cpu::threads[on_cpu::current].copies.emplace_back(); }
inline void __pipeline_wait_prior(std::size_t batches) {
    auto& copies = on_cpu::threads[on_cpu::current].copies;
    for (; copies.size() > batches + 1; copies.pop_front())
        for (const on_cpu::Copy& copy : copies.front()) {
            std::memcpy(copy.to, copy.from, copy.bytes - copy.zeros);
            std::memset(static_cast<char*>(copy.to) + copy.bytes - copy.zeros, 0, copy.zeros);
        }
}

inline cudaError_t cudaMemsetAsync(void* to, int value, std::size_t bytes, cudaStream_t) {
    std::memset(to, value, bytes);
    return cudaSuccess;
}
inline cudaError_t cudaGetLastError() { return std::exchange(on_cpu::last_error, cudaSuccess); }
