//! What a kernel's signature may be.

use syn::{FnArg, Ident, ItemFn, Pat, ReturnType, Type, spanned::Spanned};

/// Most parameters; `cuda_std::launch::KernelArgs` is implemented for tuples up to this length.
const MAX_PARAMETERS: usize = 26;

const SCALARS: [&str; 11] = ["u8", "u16", "u32", "u64", "i8", "i16", "i32", "i64", "usize", "f32", "f64"];

/// A parameter.
pub struct Parameter<'a> {
    pub name: &'a Ident,
    pub ty: &'a Type,
}

/// The parameters, if the function can be a kernel.
pub fn parameters(function: &ItemFn) -> syn::Result<Vec<Parameter<'_>>> {
    let signature = &function.sig;
    let refuse = |span, message| Err(syn::Error::new(span, message));
    if signature.unsafety.is_none() {
        return refuse(
            signature.ident.span(),
            "a kernel is an `unsafe fn`: its documentation says what a launch must satisfy",
        );
    }
    if let Some(token) = signature.constness {
        return refuse(token.span(), "a kernel cannot be const");
    }
    if let Some(token) = signature.asyncness {
        return refuse(token.span(), "a kernel cannot be async");
    }
    if let Some(abi) = &signature.abi {
        return refuse(abi.span(), "#[kernel] chooses the ABI");
    }
    if !signature.generics.params.is_empty() {
        return refuse(
            signature.generics.span(),
            "a kernel cannot be generic: write one for each instance, by macro_rules!",
        );
    }
    if let ReturnType::Type(_, ty) = &signature.output {
        return refuse(ty.span(), "a kernel returns nothing: write results through a pointer");
    }
    if let Some(variadic) = &signature.variadic {
        return refuse(variadic.span(), "a kernel cannot be variadic");
    }
    if signature.inputs.len() > MAX_PARAMETERS {
        return refuse(signature.inputs.span(), "a kernel has at most 26 parameters");
    }
    signature.inputs.iter().map(parameter).collect()
}

fn parameter(input: &FnArg) -> syn::Result<Parameter<'_>> {
    let FnArg::Typed(typed) = input else {
        return Err(syn::Error::new(input.span(), "a kernel has no self"));
    };
    let Pat::Ident(pattern) = &*typed.pat else {
        return Err(syn::Error::new(typed.pat.span(), "a kernel's parameters are plain names"));
    };
    if !is_param(&typed.ty) {
        return Err(syn::Error::new(
            typed.ty.span(),
            format!("a kernel's parameters are raw pointers or one of {}", SCALARS.join(", ")),
        ));
    }
    Ok(Parameter { name: &pattern.ident, ty: &typed.ty })
}

/// Whether a kernel can take this type; types that came through `macro_rules!` stand in invisible groups.
fn is_param(ty: &Type) -> bool {
    match ty {
        Type::Group(group) => is_param(&group.elem),
        Type::Paren(paren) => is_param(&paren.elem),
        Type::Ptr(_) => true,
        Type::Path(path) => path.qself.is_none() && SCALARS.iter().any(|scalar| path.path.is_ident(scalar)),
        _ => false,
    }
}
