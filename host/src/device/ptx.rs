//! The kernel modules of this build, and what decides which of them a device runs. The build script names the file of
//! the modules.

/// A module of kernels.
pub struct Module {
    /// Name of the kernel family, which is the module's name.
    pub name: &'static str,
    /// The `.target` of its PTX: `sm_80`.
    pub target: &'static str,
    /// Bytes of its PTX.
    pub bytes: usize,
    /// The PTX, compressed by zlib.
    compressed: &'static [u8],
}

impl Module {
    /// The PTX; `None` if the embedded bytes are damaged.
    pub fn text(&self) -> Option<Vec<u8>> {
        miniz_oxide::inflate::decompress_to_vec_zlib_with_limit(self.compressed, self.bytes)
            .ok()
            .filter(|text| text.len() == self.bytes)
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
        let Module { name, target, bytes, compressed } = MODULES[0];
        let with = |bytes, compressed| Module { name, target, bytes, compressed }.text();
        assert!(with(bytes, compressed).is_some());
        assert_eq!(with(bytes, &compressed[..compressed.len() - 1]), None);
        assert_eq!(with(bytes, &compressed[1..]), None);
        assert_eq!((with(bytes - 1, compressed), with(bytes + 1, compressed)), (None, None));
    }
}
