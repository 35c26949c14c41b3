//! Kernels that start before the kernel ahead of them in the stream has ended (programmatic dependent launch).

/// The first instructions of a kernel that waits: for the end of the work ahead, which then is visible, and then the
/// permission that blocks of the next kernel start, as soon as no block of this one is left to start.
const WAIT: &str = "\tgriddepcontrol.wait;\n\tgriddepcontrol.launch_dependents;\n";
/// The first architecture with these instructions.
const ARCH: u32 = 90;

/// PTX of a module, changed so that its kernels can be launched with the attribute of programmatic dependent launch
/// (`CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION`): each first waits for the work ahead of it in the stream.
/// The stream's order is then the same with the attribute and without. Targets below sm_90 become sm_90, so devices of
/// compute capability 9.0 and later load the text. `None` if the text is not of the form that `cuda_builder` writes.
///
/// Loads by the read-only path (`ld.global.nc`) become ordinary ones. What they read must not change while the kernel
/// runs, but the work ahead may write it before the wait, and the compiler may move such a load before the wait.
///
/// ```
/// let ptx = ".version 7.8\n.target sm_80\n.visible .entry nothing()\n{\n\tret;\n}\n";
/// let waits = cuda_std::launch::dependent_ptx(ptx).unwrap();
/// assert!(waits.contains(".target sm_90\n") && waits.contains("{\n\tgriddepcontrol.wait;\n"));
/// assert_eq!(cuda_std::launch::dependent_ptx("nothing"), None);
/// ```
pub fn dependent_ptx(ptx: &str) -> Option<String> {
    let mut text = String::with_capacity(ptx.len() + 64 * WAIT.len());
    let (mut targets, mut in_head) = (0, false);
    for line in ptx.lines() {
        if let Some(target) = line.strip_prefix(".target sm_") {
            targets += 1;
            let number = target.trim_end_matches(|c: char| c.is_ascii_lowercase()).parse::<u32>().ok()?;
            if number < ARCH {
                text.push_str(&format!(".target sm_{ARCH}\n"));
                continue;
            }
        }
        let declares = line.split("//").next()?.split_whitespace().any(|word| word == ".entry");
        if declares && in_head {
            return None;
        }
        in_head |= declares;
        match line.split_once("ld.global") {
            Some((before, rest)) if rest.contains(".nc.") => {
                text.push_str(&format!("{before}ld.global{}", rest.replacen(".nc.", ".", 1)));
            }
            _ => text.push_str(line),
        }
        text.push('\n');
        if in_head && line == "{" {
            text.push_str(WAIT);
            in_head = false;
        }
    }
    (targets == 1 && !in_head).then_some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: &str = ".version 8.0\n.target sm_90a\n.address_size 64\n";

    #[test]
    fn every_kernel_waits_first_and_functions_do_not() {
        let body = "{\n\t.reg .b32 %r<2>;\n\tret;\n}\n";
        let function = format!(".func help(\n\t.param .b32 a\n)\n{body}");
        let entry = |name: &str| {
            format!(
                "// about .entry {name}\n.visible .entry {name}(\n\t.param .u32 {name}_param_0\n)\n.maxntid 256, 1, 1\n{body}"
            )
        };
        let text = format!("{HEAD}{function}{}{}", entry("one"), entry("two"));
        let waits = dependent_ptx(&text).unwrap();
        assert_eq!(waits.replace(WAIT, ""), text);
        let starts: Vec<&str> = waits.split("{\n").skip(1).collect();
        assert_eq!(starts.iter().map(|body| body.starts_with(WAIT)).collect::<Vec<_>>(), [false, true, true]);
    }

    #[test]
    fn no_load_takes_the_read_only_path() {
        for (load, expected) in [
            ("\tld.global.nc.b32 \t%r1, [%rd1];", "\tld.global.b32 \t%r1, [%rd1];"),
            (
                "\t@%p1 ld.global.nc.v4.b32 {%r1, %r2, %r3, %r4}, [%rd1+16];",
                "\t@%p1 ld.global.v4.b32 {%r1, %r2, %r3, %r4}, [%rd1+16];",
            ),
            ("\tld.global.L1::no_allocate.nc.b64 %rd2, [%rd1];", "\tld.global.L1::no_allocate.b64 %rd2, [%rd1];"),
            ("\tld.global.b32 %r1, [%rd1];", "\tld.global.b32 %r1, [%rd1];"),
            ("\tld.param.b32 %r1, [a.nc.b];", "\tld.param.b32 %r1, [a.nc.b];"),
        ] {
            let text = |load| format!("{HEAD}.visible .entry one()\n{{\n{load}\n}}\n");
            assert_eq!(dependent_ptx(&text(load)).unwrap().replace(WAIT, ""), text(expected));
        }
    }

    #[test]
    fn only_older_targets_change() {
        for (target, expected) in [("sm_80", "sm_90"), ("sm_89", "sm_90"), ("sm_90", "sm_90"), ("sm_120a", "sm_120a")] {
            let text = format!(".version 7.8\n.target {target}\n");
            assert_eq!(dependent_ptx(&text).unwrap(), text.replace(target, expected));
        }
    }

    #[test]
    fn other_texts_are_refused() {
        for text in
            ["", ".target sm_x\n", ".target sm_80\n.target sm_80\n", ".target sm_80\n.entry a()\n.entry b()\n{\n}\n"]
        {
            assert_eq!(dependent_ptx(text), None, "{text}");
        }
        assert_eq!(dependent_ptx(".target sm_80\n.entry a();\n"), None);
    }
}
