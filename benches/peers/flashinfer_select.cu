// FlashInfer's top-k: random keys on the GPU, the k largest of each row with their positions, sorted, with results that
// are the same in every run. flashinfer_select.py compiles and runs it.
//
//     flashinfer_select REPEAT [ROWS COLUMNS K]...
//
// Prints for each shape `ROWS COLUMNS K ok|wrong|refused MILLISECONDS...`, the times ascending.
#include <cuda_runtime.h>
// topk.cuh does not name all that it needs.
#include <flashinfer/math.cuh>
#include <flashinfer/topk.cuh>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <vector>

namespace {

constexpr int warm_ups = 2;
constexpr size_t flush_bytes = size_t{256} << 20;
// As flashinfer/topk.py allocates it, zeroed once.
constexpr size_t state_bytes = size_t{1} << 20;

void check(cudaError_t status)
{
    if (status != cudaSuccess) {
        std::fprintf(stderr, "%s\n", cudaGetErrorString(status));
        std::exit(1);
    }
}

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
std::vector<T> copied(T const* from, size_t count)
{
    std::vector<T> host(count);
    check(cudaMemcpy(host.data(), from, count * sizeof(T), cudaMemcpyDeviceToHost));
    return host;
}

// The keys are those of a sort; each position is of its key; none comes twice.
bool right_row(std::vector<float> row, std::vector<float> const& found, std::vector<int32_t> positions)
{
    for (size_t i = 0; i < found.size(); ++i) {
        if (positions[i] < 0 || size_t(positions[i]) >= row.size() || row[positions[i]] != found[i]) return false;
    }
    std::sort(positions.begin(), positions.end());
    if (std::adjacent_find(positions.begin(), positions.end()) != positions.end()) return false;
    std::partial_sort(row.begin(), row.begin() + found.size(), row.end(), std::greater<float>());
    return std::equal(found.begin(), found.end(), row.begin());
}

void measure(int repeat, uint32_t rows, uint32_t columns, uint32_t k, unsigned char* flush)
{
    float *keys, *values;
    int32_t* positions;
    flashinfer::sampling::RadixRowState* states;
    check(cudaMalloc(&keys, size_t{rows} * columns * sizeof(float)));
    check(cudaMalloc(&values, size_t{rows} * k * sizeof(float)));
    check(cudaMalloc(&positions, size_t{rows} * k * sizeof(int32_t)));
    check(cudaMalloc(&states, state_bytes));
    check(cudaMemset(states, 0, state_bytes));
    fill<<<1024, 256>>>(keys, size_t{rows} * columns);
    cudaEvent_t start, end;
    check(cudaEventCreate(&start));
    check(cudaEventCreate(&end));
    std::vector<float> times;
    bool refused = false;
    for (int turn = 0; turn < warm_ups + repeat && !refused; ++turn) {
        check(cudaMemset(flush, 0, flush_bytes));
        check(cudaEventRecord(start));
        cudaError_t status = flashinfer::sampling::TopKDispatch<float, int32_t>(
            keys, positions, values, rows, k, columns, states, /*sorted*/ true, /*deterministic*/ true);
        refused = status != cudaSuccess;
        check(cudaEventRecord(end));
        check(cudaEventSynchronize(end));
        float time;
        check(cudaEventElapsedTime(&time, start, end));
        if (turn >= warm_ups) times.push_back(time);
    }
    bool right = !refused;
    for (uint32_t row = 0; row < rows && right; ++row) {
        if (row >= 4 && row + 4 < rows) continue;
        right = right_row(copied(keys + size_t{row} * columns, columns), copied(values + size_t{row} * k, k),
                          copied(positions + size_t{row} * k, k));
    }
    std::printf("%u %u %u %s", rows, columns, k, refused ? "refused" : right ? "ok" : "wrong");
    std::sort(times.begin(), times.end());
    for (float time : times) std::printf(" %.6f", time);
    std::printf("\n");
    std::fflush(stdout);
    cudaGetLastError();
    for (void* memory : {(void*)keys, (void*)values, (void*)positions, (void*)states}) check(cudaFree(memory));
}

}  // namespace

int main(int count, char** arguments)
{
    unsigned char* flush;
    check(cudaMalloc(&flush, flush_bytes));
    for (int at = 2; at + 2 < count; at += 3) {
        auto number = [&](int place) { return uint32_t(std::strtoul(arguments[place], nullptr, 10)); };
        measure(std::atoi(arguments[1]), number(at), number(at + 1), number(at + 2), flush);
    }
}
