//! The resources of each kernel as ptxas reports them, and the rule for them.
//!
//! The rule: no stack frame and no spills. A register array that is indexed at run time, or that does not fit, goes to
//! local memory. That makes a kernel several times slower, and only this report shows it. [`canaries`] are kernels that
//! break the rule on purpose; a check that passes them is broken itself.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::shell::Result;

/// Kernels that may break the rule: symbol (or a prefix that ends with `*`) and the reason.
pub const EXCUSED: &[(&str, &str)] = &[
    ("filter_append_resident", "on sm_80 and sm_120 numbers of a tile are spilled (8 bytes of stack), once per tile"),
    (
        "filter_append_streamed",
        "on sm_80 and sm_120 numbers of a tile are spilled (8, 16 bytes of stack), once per tile",
    ),
    ("filter_u8_append_resident", "on sm_80, as the filter of f16 copies"),
    ("filter_u8_append_streamed", "on sm_80, as the filter of f16 copies"),
    ("filter_i8_append_resident", "on sm_80, as the filter of f16 copies"),
    ("filter_i8_append_streamed", "on sm_80, as the filter of f16 copies"),
    ("cluster_select_f16", NO_REGISTERS),
    ("cluster_select_bf16", NO_REGISTERS),
    ("filter_bits_append_resident", NO_BITS),
    ("filter_bits_append_streamed", NO_BITS),
    ("filter_bits_dense_resident", NO_BITS),
    ("append_bits_streamed", NO_BITS),
];

/// The excuse of a kernel with 64 registers for each thread.
const NO_REGISTERS: &str = "on sm_120 numbers of the launch are spilled, outside of loops (32 bytes of stack)";

/// The excuse of products of bits by `mma.sync`.
const NO_BITS: &str = "on sm_80, as the filter of f16 copies; from sm_100 on tensor cores multiply no bits, and the assembler \
    puts other instructions in the place of the product (up to 208 bytes of stack)";

/// Resources of one kernel on one architecture.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Usage {
    /// Number of registers per thread.
    pub registers: u32,
    /// Bytes of stack per thread, including functions that the kernel calls.
    pub stack: u32,
    /// Bytes of spill stores and loads.
    pub spill: u32,
    /// Bytes of static shared memory per block.
    pub shared: u32,
}

impl Usage {
    fn keeps_the_rule(&self) -> bool {
        self.stack == 0 && self.spill == 0
    }
}

/// Assembles a module and returns its kernels' usage by name.
pub fn assemble(ptxas: &Path, ptx: &Path, arch: &str) -> Result<BTreeMap<String, Usage>> {
    let output = Command::new(ptxas)
        .args(["--verbose", "--gpu-name", arch, "--output-file", "/dev/null"])
        .arg(ptx)
        .stdin(Stdio::null())
        .output()
        .map_err(|error| format!("{}: {error}", ptxas.display()))?;
    let text = [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).concat();
    if !output.status.success() {
        return Err(format!("ptxas refuses {} for {arch} ({}):\n{text}", ptx.display(), output.status).into());
    }
    if let Some(line) = text.lines().find(|line| line.contains("wgmma.mma_async instructions are serialized")) {
        return Err(format!("ptxas serialises the products of warpgroups: {line}").into());
    }
    Ok(parse(&text))
}

/// Reads the output of `ptxas --verbose`.
///
/// Each kernel has three parts: a "Compiling entry function" line, "Function properties" with the frame and the spills
/// of the kernel itself and of each function that it calls, and a "Used .. registers" line with totals. The spills of a
/// called function count for the kernel.
fn parse(text: &str) -> BTreeMap<String, Usage> {
    let mut kernels: BTreeMap<String, Usage> = BTreeMap::new();
    let mut current: Option<String> = None;
    for line in text.lines() {
        if let Some((_, rest)) = line.split_once("Compiling entry function '") {
            let name = rest.split('\'').next().unwrap_or_default().to_owned();
            kernels.entry(name.clone()).or_default();
            current = Some(name);
            continue;
        }
        let Some(usage) = current.as_ref().and_then(|name| kernels.get_mut(name)) else { continue };
        // "0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads" and
        // "ptxas info : Used 40 registers, used 1 barriers, 48 bytes cumulative stack size, 512 bytes smem"
        let facts = line.rsplit_once(": ").map_or(line, |(_, facts)| facts);
        for fact in facts.split(',').map(str::trim) {
            let fact = fact.strip_prefix("Used ").unwrap_or(fact);
            let Some((number, what)) = fact.split_once(' ') else { continue };
            let Ok(number) = number.parse::<u32>() else { continue };
            match what {
                "registers" => usage.registers = number,
                "bytes stack frame" | "bytes cumulative stack size" => usage.stack = usage.stack.max(number),
                "bytes spill stores" | "bytes spill loads" => usage.spill += number,
                "bytes smem" => usage.shared = number,
                _ => {}
            }
        }
    }
    kernels
}

/// The kernels of a report that break the rule and are not excused, one line each.
pub fn violations(arch: &str, kernels: &BTreeMap<String, Usage>, excused: &[(&str, &str)]) -> Vec<String> {
    let is_excused = |kernel: &str| {
        excused.iter().any(|(name, _)| match name.strip_suffix('*') {
            Some(prefix) => kernel.starts_with(prefix),
            None => *name == kernel,
        })
    };
    let broken = kernels.iter().filter(|(kernel, usage)| !usage.keeps_the_rule() && !is_excused(kernel));
    broken
        .map(|(kernel, usage)| {
            format!("{kernel} on {arch}: {} bytes of stack, {} bytes spilled", usage.stack, usage.spill)
        })
        .collect()
}

/// A table of all kernels: for each kernel the figures of every architecture if `full`, else the greatest figures.
pub fn table(reports: &[(&str, BTreeMap<String, Usage>)], full: bool) -> String {
    let mut by_kernel: BTreeMap<&str, Vec<(&str, &Usage)>> = BTreeMap::new();
    for (arch, kernels) in reports {
        for (kernel, usage) in kernels {
            by_kernel.entry(kernel).or_default().push((arch, usage));
        }
    }
    let width = by_kernel.keys().map(|kernel| kernel.len()).max().unwrap_or(0).max("kernel".len());
    let archs: Vec<&str> = reports.iter().map(|(arch, _)| *arch).collect();
    let mut out = String::new();
    let mut line = |kernel: &str, arch: &str, registers: &str, stack: &str, spill: &str, shared: &str| {
        // Writing to a string cannot fail.
        let _ = writeln!(out, "{kernel:width$}  {arch:>7}  {registers:>9}  {stack:>6}  {spill:>6}  {shared:>7}");
    };
    line("kernel", "arch", "registers", "stack", "spills", "shared");
    for (kernel, usages) in by_kernel {
        if full {
            for (arch, usage) in usages {
                let Usage { registers, stack, spill, shared } = usage;
                line(kernel, arch, &registers.to_string(), &stack.to_string(), &spill.to_string(), &shared.to_string());
            }
        } else {
            let greatest = |of: fn(&Usage) -> u32| usages.iter().map(|(_, usage)| of(usage)).max().unwrap_or(0);
            let least = usages.iter().map(|(_, usage)| usage.registers).min().unwrap_or(0);
            let most = greatest(|usage| usage.registers);
            let registers = if least == most { most.to_string() } else { format!("{least}..{most}") };
            let [stack, spill, shared] =
                [greatest(|usage| usage.stack), greatest(|usage| usage.spill), greatest(|usage| usage.shared)];
            line(kernel, "all", &registers, &stack.to_string(), &spill.to_string(), &shared.to_string());
        }
    }
    if !full {
        let _ = writeln!(out, "(registers: least..most of {}; others: the greatest)", archs.join(", "));
    }
    out
}

/// Kernels that break the rule: name and PTX. One indexes a local array at run time (a stack frame); the other needs
/// far more values at once than there are registers (spills).
pub fn canaries() -> [(&'static str, String); 2] {
    const HEADER: &str = ".version 7.8\n.target sm_80\n.address_size 64\n";
    let frame = format!(
        "{HEADER}.visible .entry canary_frame(.param .u64 out, .param .u32 index)\n{{\n\
         .local .align 4 .b8 array[256];\n.reg .u32 %r<4>;\n.reg .u64 %rd<8>;\n\
         ld.param.u64 %rd1, [out];\nld.param.u32 %r1, [index];\ncvta.to.global.u64 %rd1, %rd1;\n\
         mov.u64 %rd2, array;\nmul.wide.u32 %rd3, %r1, 4;\nadd.u64 %rd4, %rd2, %rd3;\n\
         mov.u32 %r2, 7;\nst.local.u32 [%rd4], %r2;\nld.local.u32 %r3, [%rd2+16];\nst.global.u32 [%rd1], %r3;\nret;\n}}\n"
    );

    const VALUES: usize = 96;
    let mut spill = format!(
        "{HEADER}.visible .entry canary_spill(.param .u64 data)\n.maxnreg 24\n{{\n\
         .reg .f32 %f<{}>;\n.reg .u64 %rd<2>;\nld.param.u64 %rd1, [data];\ncvta.to.global.u64 %rd1, %rd1;\n",
        VALUES + 1
    );
    for value in 0..VALUES {
        let _ = writeln!(spill, "ld.volatile.global.f32 %f{value}, [%rd1+{}];", 4 * value);
    }
    for value in 0..VALUES {
        let _ = writeln!(spill, "st.volatile.global.f32 [%rd1+{}], %f{value};", 4 * value);
    }
    spill.push_str("ret;\n}\n");
    [("canary_frame", frame), ("canary_spill", spill)]
}

/// Assembles the canaries and fails unless the check catches both.
pub fn check_canaries(ptxas: &Path, folder: &Path, archs: &[&str]) -> Result<()> {
    for (name, ptx) in canaries() {
        let file = folder.join(format!("{name}.ptx"));
        std::fs::write(&file, ptx)?;
        for arch in archs {
            let caught = violations(arch, &assemble(ptxas, &file, arch)?, EXCUSED);
            if caught.len() != 1 {
                return Err(format!("the check is broken: it does not catch {name} on {arch}").into());
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Shortened output of ptxas 13.
    const VERBOSE: &str = "\
ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'select_k32' for 'sm_90'
ptxas info    : Function properties for select_k32
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 32 registers, used 1 barriers, 4096 bytes smem, 432 bytes cmem[0]
ptxas info    : Compile time = 61.450 ms
ptxas info    : Compiling entry function 'divides' for 'sm_90'
ptxas info    : Function properties for divides
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 40 registers, used 0 barriers, 48 bytes cumulative stack size
ptxas info    : Compiling entry function 'big' for 'sm_90'
ptxas info    : Function properties for big
    8 bytes stack frame, 64 bytes spill stores, 60 bytes spill loads
ptxas info    : Used 128 registers, used 0 barriers, 8 bytes cumulative stack size
";

    fn usage(registers: u32, stack: u32, spill: u32, shared: u32) -> Usage {
        Usage { registers, stack, spill, shared }
    }

    #[test]
    fn verbose_output_is_read() {
        let expected =
            [("big", usage(128, 8, 124, 0)), ("divides", usage(40, 48, 0, 0)), ("select_k32", usage(32, 0, 0, 4096))];
        assert_eq!(parse(VERBOSE), expected.map(|(name, usage)| (name.to_owned(), usage)).into());
    }

    #[test]
    fn stack_and_spills_break_the_rule() {
        let report = parse(VERBOSE);
        let found = violations("sm_90", &report, &[]);
        assert_eq!(
            found,
            [
                "big on sm_90: 8 bytes of stack, 124 bytes spilled",
                "divides on sm_90: 48 bytes of stack, 0 bytes spilled"
            ]
        );
        assert_eq!(violations("sm_90", &report, &[("big", "a reason")]).len(), 1);
        assert!(violations("sm_90", &report, &[("b*", "a reason"), ("divides", "a reason")]).is_empty());
    }

    #[test]
    fn the_table_holds_every_kernel() {
        let reports = [("sm_80", parse(&VERBOSE.replace("Used 32", "Used 40"))), ("sm_90", parse(VERBOSE))];
        let short = table(&reports, false);
        assert!(short.lines().any(|line| line.starts_with("select_k32") && line.contains("32..40")), "{short}");
        assert_eq!(table(&reports, true).lines().count(), 1 + 6);
    }

    #[test]
    fn every_excuse_has_a_reason() {
        assert!(EXCUSED.iter().all(|(name, reason)| !name.is_empty() && reason.len() > 10));
    }

    /// Ignored by default, because `cargo xtask ptx` always checks the canaries.
    #[test]
    #[ignore = "needs an assembler: WARPANN_PTXAS=/path/to/ptxas"]
    fn canaries_are_caught() {
        let ptxas = std::env::var_os("WARPANN_PTXAS").expect("WARPANN_PTXAS names an assembler");
        let folder = tempfile::tempdir().unwrap();
        check_canaries(Path::new(&ptxas), folder.path(), &["sm_80", "sm_90"]).unwrap();
    }
}
