//! Lets the linker find the empty `libcuda.so` of this package for the `-lcuda` of cust's build script.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    if let Some(package) = std::env::var_os("CARGO_MANIFEST_DIR") {
        let folder = std::path::Path::new(&package).join("stub/lib64");
        println!("cargo::rustc-link-search=native={}", folder.display());
    }
}
