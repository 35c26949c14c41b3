//! The kernel modules of this build, and what decides which of them a device runs. The build script names the file of
//! the modules.
//!
//! A module is PTX, which the driver compiles when it loads the module. With the feature `machine-code` the module has
//! machine code of some architectures as well ([`Module::load`]).

use std::ffi::CString;

use cuda_std::launch::dependent_ptx;

use super::driver::{Code, INVALID_PTX};
use crate::Error;

/// A module of kernels.
pub struct Module {
    /// Name of the kernel family, which is the module's name.
    pub name: &'static str,
    /// The `.target` of its PTX: `sm_80`.
    pub target: &'static str,
    /// Bytes of its PTX.
    pub bytes: usize,
    /// The PTX, compressed by zlib.
    #[cfg(not(feature = "machine-code"))]
    compressed: &'static [u8],
    /// The PTX, in a group with that of other modules.
    #[cfg(feature = "machine-code")]
    ptx: Part,
    /// Machine code, in any order.
    #[cfg(feature = "machine-code")]
    cubins: &'static [Cubin],
}

/// Machine code of a module in one form, in a group with that of other modules.
#[cfg(feature = "machine-code")]
#[derive(Clone, Copy)]
struct Cubin {
    /// Compute capability of the oldest devices that run it.
    capability: (i32, i32),
    /// Whether its kernels first wait for the work ahead (`dependent`).
    waits: bool,
    code: Part,
}

/// A part of a group that is compressed as a whole.
#[cfg(feature = "machine-code")]
#[derive(Clone, Copy)]
struct Part {
    /// The group, compressed by zstd, and its size in bytes.
    group: &'static [u8],
    group_bytes: usize,
    /// Place in the group, in bytes.
    start: usize,
    bytes: usize,
}

#[cfg(feature = "machine-code")]
impl Part {
    /// The bytes; `None` if the embedded ones are damaged. Decompressing a group of 1 MiB takes .4 ms (EPYC,
    /// 2026-11-28).
    fn get(&self) -> Option<Vec<u8>> {
        let group = zstd::bulk::decompress(self.group, self.group_bytes).ok()?;
        group.get(self.start..self.start.checked_add(self.bytes)?).map(<[u8]>::to_vec)
    }
}

#[cfg(feature = "machine-code")]
impl Cubin {
    /// Whether devices of a compute capability run it: those of its generation which are not older.
    fn runs_on(&self, (major, minor): (i32, i32)) -> bool {
        major == self.capability.0 && minor >= self.capability.1
    }
}

/// The driver's code and log for a module that it does not load.
pub struct Refusal {
    pub code: Code,
    pub log: String,
}

impl Module {
    /// The PTX; `None` if the embedded bytes are damaged.
    pub fn text(&self) -> Option<Vec<u8>> {
        #[cfg(feature = "machine-code")]
        return self.ptx.get();
        #[cfg(not(feature = "machine-code"))]
        miniz_oxide::inflate::decompress_to_vec_zlib_with_limit(self.compressed, self.bytes)
            .ok()
            .filter(|text| text.len() == self.bytes)
    }

    /// Machine code for devices of a compute capability; `None` if the module has none.
    fn machine_code(&self, capability: (i32, i32), waits: bool) -> Option<Vec<u8>> {
        #[cfg(feature = "machine-code")]
        return self.cubins.iter().find(|cubin| cubin.waits == waits && cubin.runs_on(capability))?.code.get();
        #[cfg(not(feature = "machine-code"))]
        {
            let _ = (capability, waits);
            None
        }
    }

    /// Loads the module by `load`, which takes an image for the driver: machine code, or PTX if there is none or the
    /// driver refuses it, as a driver does that is older than the assembler. If `waits`, the kernels first wait for the
    /// work ahead.
    ///
    /// # Errors
    /// [`Error::PtxRefused`], also for damaged PTX.
    pub fn load<M>(
        &self,
        capability: (i32, i32),
        waits: bool,
        load: impl Fn(&[u8]) -> Result<M, Refusal>,
    ) -> Result<(M, Form), Error> {
        if let Some(code) = self.machine_code(capability, waits)
            && let Ok(module) = load(&code)
        {
            return Ok((module, Form::MachineCode));
        }
        let refused = |code, log| Error::PtxRefused { module: self.name, code, log };
        let damaged = |log: &str| refused(INVALID_PTX, log.to_owned());
        let text = self.text().and_then(|text| String::from_utf8(text).ok());
        let mut text = text.ok_or_else(|| damaged("the embedded bytes are damaged"))?;
        if waits {
            text = dependent_ptx(&text)
                .ok_or_else(|| damaged("no place was found where kernels can wait for the work ahead"))?;
        }
        let image = CString::new(text).map_err(|_| damaged("the text holds a NUL byte"))?;
        let module = load(image.as_bytes_with_nul()).map_err(|Refusal { code, log }| refused(code, log))?;
        Ok((module, Form::Ptx))
    }
}

/// The form of a module that the driver loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    MachineCode,
    /// Compiled by the driver, or taken from its cache.
    Ptx,
}

impl Form {
    /// The name in events.
    pub fn name(self) -> &'static str {
        match self {
            Self::MachineCode => "machine code",
            Self::Ptx => "ptx",
        }
    }
}

include!(env!("WARPANN_MODULES"));

/// Whether a device runs the kernels of warpgroups. Only compute capability 9.0 has their instructions, and their PTX
/// needs a driver of CUDA 12.
pub(super) fn runs_warpgroups(capability: (i32, i32), driver: (i32, i32)) -> bool {
    capability == (9, 0) && driver.0 >= 12 && !portable_only()
}

/// Whether a device uses only what all devices have. It does with `WARPANN_PORTABLE_KERNELS=1` in the environment, so
/// that tests run both on one device.
pub(super) fn portable_only() -> bool {
    std::env::var_os("WARPANN_PORTABLE_KERNELS").is_some_and(|value| value == "1")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_module_has_the_kernels_that_the_table_names() {
        let mut kernels = 0;
        for module in MODULES {
            let text = String::from_utf8(module.text().unwrap()).unwrap();
            assert!(text.contains(&format!(".target {}", module.target)), "{}", module.name);
            for (kernel, _) in KERNELS.iter().filter(|(_, of)| *of == module.name) {
                assert!(text.contains(&format!(".entry {kernel}(")), "{kernel}");
                kernels += 1;
            }
        }
        assert!(kernels == KERNELS.len() && kernels >= 197, "{kernels} kernels");
    }

    #[test]
    fn damaged_modules_have_no_text() {
        let Module { bytes, compressed, .. } = MODULES[0];
        let with = |bytes, compressed| Module { bytes, compressed, ..MODULES[0] }.text();
        assert!(with(bytes, compressed).is_some());
        assert_eq!(with(bytes, &compressed[..compressed.len() - 1]), None);
        assert_eq!(with(bytes, &compressed[1..]), None);
        assert_eq!((with(bytes - 1, compressed), with(bytes + 1, compressed)), (None, None));
    }

    /// Loads a module as a driver that refuses what `refuses` names: the form, or the error.
    fn loaded(
        module: &Module,
        capability: (i32, i32),
        waits: bool,
        refuses: impl Fn(&[u8]) -> bool,
    ) -> Result<(Vec<u8>, Form), Error> {
        let refusal = || Refusal { code: 209, log: "no kernel image".to_owned() };
        module.load(capability, waits, |image| if refuses(image) { Err(refusal()) } else { Ok(image.to_vec()) })
    }

    #[test]
    fn ptx_ends_with_nul_and_its_refusal_is_an_error() {
        for (waits, target) in [(false, ".target sm_80"), (true, ".target sm_90")] {
            // No machine code is of a generation that does not exist.
            let (image, form) = loaded(&MODULES[0], (99, 0), waits, |_| false).unwrap();
            let text = CString::from_vec_with_nul(image).unwrap().into_string().unwrap();
            assert!(text.contains(target) && text.contains("griddepcontrol.wait") == waits);
            assert_eq!(form, Form::Ptx);
        }
        let error = loaded(&MODULES[0], (99, 0), true, |_| true).unwrap_err();
        assert!(
            matches!(error, Error::PtxRefused { module, code: 209, ref log } if module == MODULES[0].name && log == "no kernel image")
        );
    }

    #[cfg(feature = "machine-code")]
    mod machine_code {
        use super::*;

        /// A module whose machine code is short texts.
        fn module() -> Module {
            let group = b"8.0 plain;9.0 plain;9.0 waits;".repeat(50);
            let compressed: &'static [u8] = zstd::bulk::compress(&group, 3).unwrap().leak();
            let cubin = |capability, waits, start| Cubin {
                capability,
                waits,
                code: Part { group: compressed, group_bytes: group.len(), start, bytes: 9 },
            };
            let cubins = [((8, 0), false, 0), ((9, 0), false, 10), ((9, 0), true, 20)]
                .map(|(capability, waits, start)| cubin(capability, waits, start));
            Module { cubins: cubins.to_vec().leak(), ..MODULES[0] }
        }

        #[test]
        fn a_device_gets_the_code_of_its_generation_and_form() {
            for (capability, waits, expected) in [
                ((8, 0), false, "8.0 plain"),
                ((8, 9), false, "8.0 plain"),
                ((9, 0), false, "9.0 plain"),
                ((9, 0), true, "9.0 waits"),
                ((9, 3), true, "9.0 waits"),
            ] {
                let (image, form) = loaded(&module(), capability, waits, |_| false).unwrap();
                assert_eq!((str::from_utf8(&image).unwrap(), form), (expected, Form::MachineCode));
            }
            for (capability, waits) in [((8, 0), true), ((7, 9), false), ((10, 0), false)] {
                assert_eq!(loaded(&module(), capability, waits, |_| false).unwrap().1, Form::Ptx);
            }
        }

        #[test]
        fn refused_and_damaged_code_gives_way_to_ptx() {
            let (image, form) = loaded(&module(), (9, 0), true, |image| image == b"9.0 waits").unwrap();
            assert!(form == Form::Ptx && String::from_utf8(image).unwrap().contains("griddepcontrol.wait"));
            let whole = module();
            let damage: [fn(&mut Cubin); 4] = [
                |cubin| cubin.code.group = &cubin.code.group[1..],
                |cubin| cubin.code.group = &cubin.code.group[..cubin.code.group.len() - 1],
                |cubin| cubin.code.start = cubin.code.group_bytes - 8,
                |cubin| cubin.code.bytes = usize::MAX,
            ];
            for damage in damage {
                let mut cubins = whole.cubins.to_vec();
                cubins.iter_mut().for_each(damage);
                let damaged = Module { cubins: cubins.leak(), ..MODULES[0] };
                assert_eq!(loaded(&damaged, (8, 0), false, |_| false).unwrap().1, Form::Ptx);
            }
        }

        #[test]
        fn every_module_has_machine_code_for_every_architecture() {
            for module in MODULES {
                for ((major, minor), forms) in [((8, 0), 1), ((9, 0), 2), ((10, 0), 2), ((12, 0), 2)] {
                    // Modules with clusters run from compute capability 9.0 on.
                    if module.target == "sm_90a" && major != 9 || module.target == "sm_90" && major < 9 {
                        continue;
                    }
                    for waits in [false, true].into_iter().take(forms) {
                        let code = module.machine_code((major, minor), waits).unwrap();
                        // Of ELF for CUDA; byte 49 is the architecture.
                        assert!(code.starts_with(b"\x7fELF") && code[18] == 190, "{}", module.name);
                        assert_eq!(i32::from(code[49]), 10 * major + minor, "{}", module.name);
                        for (kernel, _) in KERNELS.iter().filter(|(_, of)| *of == module.name) {
                            let section = format!(".text.{kernel}\0");
                            assert!(code.windows(section.len()).any(|name| name == section.as_bytes()), "{kernel}");
                        }
                    }
                }
            }
        }
    }
}
