// RAFT's matrix::select_k: random keys on the GPU, the k smallest of each row with their positions, sorted.
// raft_select.py compiles and runs it.
//
//     raft_select REPEAT [ROWS COLUMNS K]...
//
// Prints for each shape `ROWS COLUMNS K ok|wrong MILLISECONDS...`, the times ascending.
#include <raft/core/device_mdarray.hpp>
#include <raft/core/resource/cuda_stream.hpp>
#include <raft/core/resource/device_memory_resource.hpp>
#include <raft/core/resources.hpp>
#include <raft/matrix/select_k.cuh>
#include <raft/util/cudart_utils.hpp>
#include <rmm/mr/cuda_memory_resource.hpp>
#include <rmm/mr/per_device_resource.hpp>
#include <rmm/mr/pool_memory_resource.hpp>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <numeric>
#include <optional>
#include <string>
#include <vector>

namespace {

// 32-bit positions: what warpann returns, and with 64-bit ones RAFT's last sort runs over 64 bits of its 32-bit keys.
using Position = uint32_t;
using Keys = raft::device_matrix<float, int64_t>;
using Positions = raft::device_matrix<Position, int64_t>;

constexpr int warm_ups = 2;
constexpr size_t flush_bytes = size_t{256} << 20;
// The pool's first size, a multiple of 256; it grows where more is needed.
constexpr size_t pool_bytes = size_t{1} << 30;

// Evenly in 0..1 in steps of 2^-24: the finaliser of MurmurHash3 over the place in the matrix.
__global__ void fill(float* keys, size_t count)
{
    size_t stride = size_t{gridDim.x} * blockDim.x;
    for (size_t i = size_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += stride) {
        uint64_t bits = i + 0x9e3779b97f4a7c15;
        bits = (bits ^ (bits >> 33)) * 0xff51afd7ed558ccd;
        bits = (bits ^ (bits >> 33)) * 0xc4ceb9fe1a85ec53;
        keys[i] = static_cast<float>(bits >> 40) * 0x1p-24f;
    }
}

template <typename T>
std::vector<T> row_of(raft::device_matrix<T, int64_t> const& matrix, int64_t row)
{
    std::vector<T> host(matrix.extent(1));
    T const* first = matrix.data_handle() + row * matrix.extent(1);
    RAFT_CUDA_TRY(cudaMemcpy(host.data(), first, host.size() * sizeof(T), cudaMemcpyDefault));
    return host;
}

// The keys are those of a sort; each position is of its key; none comes twice.
bool right_row(std::vector<float> row, std::vector<float> const& found, std::vector<Position> positions)
{
    for (size_t i = 0; i < found.size(); ++i) {
        if (positions[i] >= row.size() || row[positions[i]] != found[i]) return false;
    }
    std::sort(positions.begin(), positions.end());
    if (std::adjacent_find(positions.begin(), positions.end()) != positions.end()) return false;
    std::partial_sort(row.begin(), row.begin() + found.size(), row.end());
    return std::equal(found.begin(), found.end(), row.begin());
}

// The first four rows and the last four.
bool right(Keys const& keys, Keys const& found, Positions const& positions)
{
    int64_t rows = keys.extent(0);
    for (int64_t row = 0; row < rows; ++row) {
        if (row >= 4 && row < rows - 4) continue;
        if (!right_row(row_of(keys, row), row_of(found, row), row_of(positions, row))) return false;
    }
    return true;
}

void measure(raft::resources const& resources, Keys const& keys, int64_t k, int repeat, void* flush)
{
    cudaStream_t stream = raft::resource::get_cuda_stream(resources).get();
    auto found = raft::make_device_matrix<float, int64_t>(resources, keys.extent(0), k);
    auto positions = raft::make_device_matrix<Position, int64_t>(resources, keys.extent(0), k);
    cudaEvent_t start, end;
    RAFT_CUDA_TRY(cudaEventCreate(&start));
    RAFT_CUDA_TRY(cudaEventCreate(&end));
    std::vector<float> times;
    for (int run = -warm_ups; run < repeat; ++run) {
        RAFT_CUDA_TRY(cudaMemsetAsync(flush, 0, flush_bytes, stream));
        RAFT_CUDA_TRY(cudaEventRecord(start, stream));
        bool smallest = true, sorted = true;
        raft::matrix::select_k<float, Position>(resources, keys.view(), std::nullopt, found.view(), positions.view(),
                                                smallest, sorted, raft::matrix::SelectAlgo::kAuto);
        RAFT_CUDA_TRY(cudaEventRecord(end, stream));
        RAFT_CUDA_TRY(cudaEventSynchronize(end));
        float milliseconds;
        RAFT_CUDA_TRY(cudaEventElapsedTime(&milliseconds, start, end));
        if (run >= 0) times.push_back(milliseconds);
    }
    RAFT_CUDA_TRY(cudaEventDestroy(start));
    RAFT_CUDA_TRY(cudaEventDestroy(end));
    std::sort(times.begin(), times.end());
    char const* verdict = right(keys, found, positions) ? "ok" : "wrong";
    std::printf("%lld %lld %lld %s", (long long)keys.extent(0), (long long)keys.extent(1), (long long)k, verdict);
    for (float milliseconds : times) std::printf(" %.6f", milliseconds);
    std::printf("\n");
    std::fflush(stdout);
}

void run(int repeat, std::vector<int64_t> const& shapes)
{
    cudaStream_t stream;
    RAFT_CUDA_TRY(cudaStreamCreate(&stream));
    // All memory, the workspace of select_k too, comes from a pool, which the warm-ups fill: no allocation is timed.
    rmm::mr::pool_memory_resource pool{rmm::mr::cuda_memory_resource{}, pool_bytes};
    rmm::mr::set_current_device_resource(pool);
    raft::resources resources;
    raft::resource::set_cuda_stream(resources, cuda::stream_ref{stream});
    raft::resource::set_workspace_resource(resources, raft::mr::device_resource{pool});
    auto flush = raft::make_device_vector<char, int64_t>(resources, flush_bytes);
    std::optional<Keys> keys;
    for (size_t i = 0; i + 2 < shapes.size(); i += 3) {
        int64_t rows = shapes[i], columns = shapes[i + 1];
        if (!keys || keys->extent(0) != rows || keys->extent(1) != columns) {
            keys.reset();
            keys = raft::make_device_matrix<float, int64_t>(resources, rows, columns);
            fill<<<4096, 256, 0, stream>>>(keys->data_handle(), keys->size());
            RAFT_CUDA_TRY(cudaGetLastError());
        }
        measure(resources, *keys, shapes[i + 2], repeat, flush.data_handle());
    }
}

}  // namespace

int main(int count, char** words)
{
    if (count < 2 || count % 3 != 2) {
        std::fprintf(stderr, "usage: %s REPEAT [ROWS COLUMNS K]...\n", words[0]);
        return 2;
    }
    try {
        std::vector<int64_t> shapes;
        for (int i = 2; i < count; ++i) shapes.push_back(std::stoll(words[i]));
        run(std::stoi(words[1]), shapes);
    } catch (std::exception const& error) {
        std::fprintf(stderr, "raft_select: %s\n", error.what());
        return 1;
    }
}
