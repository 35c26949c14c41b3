//! Names the file that the library includes for its kernels, in the variable `WARPANN_MODULES` of the compiler.
//!
//! | build | file |
//! |---|---|
//! | feature `build-kernels` in a checkout of the repository | `OUT_DIR/modules.rs`, compiled here from `kernels-rs` ([`kernels`]); with `machine-code` also assembled ([`machine_code`]) |
//! | feature `cuda` in a package | `ptx/modules.rs` of the package, which `cargo xtask package` wrote |
//! | without `cuda` | none |

#[cfg(feature = "build-kernels")]
mod kernels;
#[cfg(feature = "machine-code")]
mod machine_code;

use std::path::Path;

/// The kernels that a package carries.
const PACKAGED: &str = "ptx/modules.rs";
/// The crate of the kernels in a checkout.
const KERNELS: &str = "../kernels-rs";

fn main() {
    println!("cargo::rerun-if-changed=build");
    // Cargo would run this program at every build if the file were named and missing.
    if Path::new(PACKAGED).exists() {
        println!("cargo::rerun-if-changed={PACKAGED}");
    }
    if let Err(error) = run() {
        // One line a diagnostic: the compiler search's message spans several, and each must show.
        for line in error.to_string().lines() {
            println!("cargo::error={line}");
        }
        #[cfg(feature = "build-kernels")]
        if kernels::is_of_the_compiler(&*error) {
            // Cargo shows what the compiler wrote to standard error only if this program fails.
            std::process::exit(1);
        }
    }
}

fn run() -> Result<(), Box<dyn std::error::Error>> {
    let checkout = Path::new(KERNELS).join("Cargo.toml").exists();
    let file = if checkout {
        #[cfg(feature = "build-kernels")]
        let file = kernels::write(Path::new(KERNELS))?;
        #[cfg(not(feature = "build-kernels"))]
        let file = Path::new(PACKAGED).to_owned();
        file
    } else if cfg!(feature = "machine-code") {
        return Err(
            "the feature `machine-code` of warpann assembles the kernels of a checkout; this package has PTX only"
                .into(),
        );
    } else if Path::new(PACKAGED).exists() {
        Path::new(PACKAGED).to_owned()
    } else {
        // Without `cuda` as well, so that such a package cannot be published: cargo builds what it packs.
        return Err("this package has no kernels: make packages of warpann by `cargo xtask package`".into());
    };
    if cfg!(feature = "cuda") {
        if !file.exists() {
            return Err("a checkout has no compiled kernels: add the feature `build-kernels` of warpann to `cuda`, \
                        which compiles them with a compiler for device code"
                .into());
        }
        println!("cargo::rustc-env=WARPANN_MODULES={}", file.canonicalize()?.display());
    }
    Ok(())
}
