//! The case table on the checking emulator (its small cases).

fn main() -> std::process::ExitCode {
    warpann_tests::suite::run(warpann::Device::Emulator)
}
