//! `derive(Param)`: an enum as a kernel's parameter.

use proc_macro2::TokenStream;
use quote::{ToTokens, quote};
use syn::{Data, DeriveInput, Fields, Ident};

/// The implementation for the host; a GPU gets the word as it is.
pub fn param(item: &DeriveInput) -> syn::Result<TokenStream> {
    let refuse = |at: &dyn ToTokens, message: &str| Err(syn::Error::new_spanned(at, message));
    let name = &item.ident;
    let Data::Enum(data) = &item.data else { return refuse(name, "a parameter is an enum, a pointer or a number") };
    if !is_word(item)? {
        return refuse(name, "a parameter is 32 bits wide: #[repr(u32)]");
    }
    if !item.generics.params.is_empty() {
        return refuse(&item.generics, "a parameter is not generic");
    }
    if let Some(variant) = data.variants.iter().find(|variant| !matches!(variant.fields, Fields::Unit)) {
        return refuse(variant, "a parameter is a word: its variants have no fields");
    }
    if data.variants.is_empty() {
        return refuse(name, "a parameter has a value");
    }
    let variants: Vec<&Ident> = data.variants.iter().map(|variant| &variant.ident).collect();
    Ok(quote! {
        #[cfg(not(target_arch = "nvptx64"))]
        // SAFETY: the enum is `repr(u32)`, and all of its variants are listed.
        unsafe impl ::cuda_std::launch::Choice for #name {
            const ALL: &'static [Self] = &[#(Self::#variants),*];

            fn word(self) -> u32 {
                self as u32
            }
        }
    })
}

/// Whether the enum is laid out as a u32.
fn is_word(item: &DeriveInput) -> syn::Result<bool> {
    let mut word = false;
    for attribute in item.attrs.iter().filter(|attribute| attribute.path().is_ident("repr")) {
        attribute.parse_nested_meta(|meta| {
            word |= meta.path.is_ident("u32");
            Ok(())
        })?;
    }
    Ok(word)
}
