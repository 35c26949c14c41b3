//! The output: an entry point for the GPU; for the host the function itself and its typed handle.

use crate::{attribute::Bounds, signature};
use proc_macro2::TokenStream;
use quote::{format_ident, quote};
use syn::ItemFn;

pub fn kernel(bounds: &Bounds, function: &ItemFn) -> syn::Result<TokenStream> {
    let parameters = signature::parameters(function)?;
    let names: Vec<_> = parameters.iter().map(|parameter| parameter.name).collect();
    let types: Vec<_> = parameters.iter().map(|parameter| parameter.ty).collect();
    let ItemFn { attrs, vis, sig, block } = function;
    let (name, inputs) = (&sig.ident, &sig.inputs);
    let name_text = name.to_string();
    let handle = format_ident!("{}", name_text.to_uppercase(), span = name.span());
    let handle_doc = format!("[`{name_text}`] for a launch.");
    let note = bounds_note(&name_text, bounds);
    let (max_threads, min_blocks) = (option(bounds.max_threads), option(bounds.min_blocks));
    Ok(quote! {
        #[cfg(target_arch = "nvptx64")]
        #(#attrs)*
        #[allow(clippy::too_many_arguments, reason = "a kernel's parameters are what its launch passes")]
        #[unsafe(no_mangle)]
        #vis unsafe extern "ptx-kernel" fn #name(#inputs) #block

        #[cfg(target_arch = "nvptx64")]
        ::cuda_std::private::global_asm!(#note);

        #[cfg(not(target_arch = "nvptx64"))]
        #(#attrs)*
        #[allow(clippy::too_many_arguments, reason = "a kernel's parameters are what its launch passes")]
        #vis unsafe fn #name(#inputs) #block

        #[cfg(not(target_arch = "nvptx64"))]
        #[doc = #handle_doc]
        #[allow(clippy::type_complexity, reason = "the types are the kernel's parameters")]
        #vis const #handle: ::cuda_std::launch::Kernel<(#(#types,)*)> = {
            unsafe fn call(arguments: &(#(#types,)*)) {
                let (#(#names,)*) = *arguments;
                // SAFETY: the caller has the kernel's contract.
                unsafe { #name(#(#names),*) }
            }
            ::cuda_std::launch::Kernel::new(#name_text, ::core::module_path!(), #max_threads, #min_blocks, call)
        };

        #[cfg(all(not(target_arch = "nvptx64"), target_os = "linux"))]
        const _: () = {
            #[used]
            // SAFETY: the section holds values of this type only (`cuda_std::emulator::kernels`).
            #[unsafe(link_section = "cuda_std_kernels")]
            static KERNEL: ::cuda_std::private::Registered = &#handle;
        };
    })
}

/// The comment that carries the launch bounds through the compiler, which has no attribute for them.
fn bounds_note(name: &str, bounds: &Bounds) -> String {
    let mut note = format!("// warpann.kernel {name}");
    if let Some(threads) = bounds.max_threads {
        note += &format!(" maxntid={threads}");
    }
    if let Some(blocks) = bounds.min_blocks {
        note += &format!(" minnctapersm={blocks}");
    }
    if let Some(arch) = &bounds.arch {
        note += &format!(" arch={arch}");
    }
    note
}

fn option(value: Option<u32>) -> TokenStream {
    match value {
        Some(value) => quote!(::core::option::Option::Some(#value)),
        None => quote!(::core::option::Option::None),
    }
}
