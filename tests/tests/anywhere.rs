//! Every parallel call from rayon pools of one, two and eight threads, from parallel iterators and from many threads,
//! on the CPU and on the emulator. Each runs in a process for itself, which is ended where it takes too long: a
//! deadlock fails, and does not hang.

use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use libtest_mimic::{Arguments, Failed, Trial};
use warpann::Device;
use warpann_tests::anywhere::{CALLS, check};

/// Threads of the pools.
const THREADS: [usize; 3] = [1, 2, 8];
/// How long a call may take in all situations. It takes seconds, and a hundred on two cores that have other work: then
/// every hand-over from thread to thread waits for its turn.
const PATIENCE: Duration = Duration::from_secs(400);
/// In the environment of a process that makes the calls: the device, the call, and the threads of the pools.
const CHILD: &str = "WARPANN_ANYWHERE";

fn main() -> ExitCode {
    if let Ok(text) = std::env::var(CHILD) {
        return match child(&text) {
            Ok(()) => ExitCode::SUCCESS,
            Err(failure) => {
                eprintln!("{failure}");
                ExitCode::FAILURE
            }
        };
    }
    let mut trials = Vec::new();
    for device in [Device::Cpu, Device::Emulator] {
        for &(name, _) in CALLS {
            let test = move || THREADS.into_iter().try_for_each(|threads| parent(device, name, threads));
            trials.push(Trial::test(format!("{device}::{name}"), test));
        }
    }
    libtest_mimic::run(&Arguments::from_args(), trials).exit_code()
}

/// Makes the calls that `text` names.
fn child(text: &str) -> Result<(), String> {
    let words: Vec<&str> = text.split(' ').collect();
    let &[device, name, threads] = words.as_slice() else { return Err(format!("{CHILD} is '{text}'")) };
    let device: Device = device.parse().map_err(|error| format!("{error}"))?;
    let threads: usize = threads.parse().map_err(|error| format!("{error}"))?;
    let &(_, prepare) = CALLS.iter().find(|(known, _)| *known == name).ok_or_else(|| format!("no call '{name}'"))?;
    check(device, prepare, threads)
}

/// Starts a process that makes the calls, and ends it if it hangs.
fn parent(device: Device, name: &str, threads: usize) -> Result<(), Failed> {
    let program = std::env::current_exe().map_err(|error| error.to_string())?;
    let mut process = Command::new(program)
        .env(CHILD, format!("{device} {name} {threads}"))
        .env("RAYON_NUM_THREADS", threads.to_string())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|error| error.to_string())?;
    let begin = Instant::now();
    let status = loop {
        match process.try_wait().map_err(|error| error.to_string())? {
            Some(status) => break status,
            None if begin.elapsed() > PATIENCE => {
                process.kill().and_then(|()| process.wait()).map_err(|error| error.to_string())?;
                return Err(format!("pools of {threads} threads: it hangs").into());
            }
            None => std::thread::sleep(Duration::from_millis(5)),
        }
    };
    if status.success() {
        return Ok(());
    }
    let output = process.wait_with_output().map_err(|error| error.to_string())?;
    Err(format!("pools of {threads} threads: {status}: {}", String::from_utf8_lossy(&output.stderr)).into())
}
