//! The case table on the CPU.

fn main() -> std::process::ExitCode {
    warpann_tests::suite::run(warpann::Device::Cpu)
}
