//! One deliberately broken kernel for every fault that the emulator detects. Each must be found in the right kernel,
//! block, thread and line; sound kernels that look similar must pass.
//!
//! The faulty line of a kernel ends in `// FAULT: name`.

/// The named file's [`Source`].
macro_rules! source {
    ($name:literal) => {
        $crate::Source { file: file!(), text: include_str!($name) }
    };
}

/// `launch!(Name { field: value, .. }, blocks, threads)`: launches the one kernel that takes these arguments.
macro_rules! launch {
    ($name:ident $fields:tt, $blocks:expr, $threads:expr) => {
        $crate::launch(&$name::KERNEL, $blocks, $threads, $name $fields)
    };
    ($name:ident, $launch:expr, $blocks:expr, $threads:expr) => {
        $crate::launch(&$name::KERNEL, $blocks, $threads, $launch)
    };
}

mod clusters;
mod collectives;
mod global_memory;
mod global_races;
mod launches;
mod plain_pointers;
mod races;
mod random_programs;
mod shared_memory;
mod warpgroups;

use cuda_std::{
    emulator::{self, Stats, Violation, ViolationKind},
    launch::{Kernel, KernelArgs, LaunchConfig},
};

/// The source of a test file, and its name in the compiler's locations.
struct Source {
    file: &'static str,
    text: &'static str,
}

impl Source {
    /// The line that ends in `// FAULT: name`.
    fn line(&self, name: &str) -> u32 {
        let marker = format!("// FAULT: {name}");
        let mut lines = self.text.lines().zip(1..).filter(|(line, _)| line.ends_with(&marker));
        let (_, number) = lines.next().unwrap_or_else(|| panic!("{} has no line marked {name}", self.file));
        assert!(lines.next().is_none(), "{} has several lines marked {name}", self.file);
        number
    }

    /// Checks that a violation stands at the marked line, in this block and thread, and gives its kind.
    #[track_caller]
    fn fault(
        &self,
        result: Result<Stats, Violation>,
        kernel: &str,
        block: u32,
        thread: u32,
        marker: &str,
    ) -> ViolationKind {
        let violation = result.expect_err("the kernel is broken");
        let place = (violation.kernel, violation.block, violation.thread);
        assert_eq!(place, (kernel, [block, 0, 0], [thread, 0, 0]), "{violation}");
        let location = (violation.location.file.as_str(), violation.location.line);
        assert_eq!(location, (self.file, self.line(marker)), "{violation}");
        *violation.kind
    }
}

/// Launches `blocks` blocks of `threads` threads with 1024 bytes of dynamic shared memory.
#[track_caller]
fn launch<A: KernelArgs>(kernel: &Kernel<A>, blocks: u32, threads: u32, arguments: A) -> Result<Stats, Violation> {
    let config = LaunchConfig::linear(blocks.into(), threads).with_shared(1024);
    // SAFETY: the kernels here are broken only in ways that the emulator stops before harm is done.
    unsafe { emulator::launch(kernel, config, arguments) }
}
