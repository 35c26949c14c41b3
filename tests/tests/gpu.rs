//! The case table on the first GPU: ignored where there is none, failing there if `WARPANN_REQUIRE_GPU=1`. On compute
//! capability 9.0 it runs twice: with the kernels of that capability, and with those of all others
//! (`WARPANN_PORTABLE_KERNELS=0` or `1`: with one of them).

fn main() -> std::process::ExitCode {
    warpann_tests::suite::run_with_portable_kernels_too(warpann::Device::Gpu(0))
}
