//! The case table on the first GPU: ignored where there is none, failing there if `WARPANN_REQUIRE_GPU=1`.

fn main() -> std::process::ExitCode {
    warpann_tests::suite::run(warpann::Device::Gpu(0))
}
