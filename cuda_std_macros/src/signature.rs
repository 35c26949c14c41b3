//! Checks of a kernel's parameters.

use crate::{
    expand::Documentation,
    fields::{self, Field},
};
use syn::{
    Fields, FnArg, GenericArgument, Ident, ItemFn, ItemStruct, Pat, PathArguments, ReturnType, Token, Type, TypePath,
    punctuated::Punctuated, spanned::Spanned,
};

/// Largest number of parameters, equal to `cuda_std::launch::MAX_PARAMS`.
const MAX_PARAMETERS: usize = 64;

const SCALARS: [&str; 11] = ["u8", "u16", "u32", "u64", "i8", "i16", "i32", "i64", "usize", "f32", "f64"];

/// A parameter of a function.
pub struct Parameter<'a> {
    pub name: &'a Ident,
    pub ty: &'a Type,
    pub documentation: &'a [syn::Attribute],
}

fn refuse<T>(span: proc_macro2::Span, message: impl std::fmt::Display) -> syn::Result<T> {
    Err(syn::Error::new(span, message))
}

/// Removes the documentation of each parameter from the function and returns it, because Rust does not allow it there.
pub fn take_documentation(function: &mut ItemFn) -> Vec<Documentation> {
    let of = |input: &mut FnArg| match input {
        FnArg::Typed(typed) => typed.attrs.extract_if(.., |attribute| attribute.path().is_ident("doc")).collect(),
        FnArg::Receiver(_) => Vec::new(),
    };
    function.sig.inputs.iter_mut().map(of).collect()
}

/// The parameters, if the function can be a kernel.
pub fn of_function<'a>(function: &'a ItemFn, documented: &'a [Documentation]) -> syn::Result<Vec<Parameter<'a>>> {
    let signature = &function.sig;
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
            "a kernel cannot be generic: give a struct of its arguments a table of kernels",
        );
    }
    if let ReturnType::Type(_, ty) = &signature.output {
        return refuse(ty.span(), "a kernel returns nothing: write results through a pointer");
    }
    if let Some(variadic) = &signature.variadic {
        return refuse(variadic.span(), "a kernel cannot be variadic");
    }
    if signature.inputs.len() > MAX_PARAMETERS {
        return refuse(signature.inputs.span(), format!("a kernel has at most {MAX_PARAMETERS} parameters"));
    }
    signature.inputs.iter().zip(documented).map(|(input, documentation)| parameter(input, documentation)).collect()
}

fn parameter<'a>(input: &'a FnArg, documentation: &'a [syn::Attribute]) -> syn::Result<Parameter<'a>> {
    let FnArg::Typed(typed) = input else {
        return refuse(input.span(), "a kernel has no self");
    };
    let Pat::Ident(pattern) = &*typed.pat else {
        return refuse(typed.pat.span(), "a kernel's parameters are plain names");
    };
    check_type(&typed.ty)?;
    Ok(Parameter { name: &pattern.ident, ty: &typed.ty, documentation })
}

/// The fields, if they can be the arguments of a kernel. `groups` has the names of the fields of each group.
pub fn of_struct(item: &ItemStruct, groups: &[Vec<Ident>]) -> syn::Result<Vec<Field>> {
    if item.generics.lifetimes().next().is_some() || item.generics.const_params().next().is_some() {
        return refuse(item.generics.span(), "the arguments of a kernel can be generic over types only");
    }
    let mut groups = groups.iter();
    let field = |field: &syn::Field| {
        let Some(name) = &field.ident else { return refuse(field.span(), "an argument has a name") };
        if fields::is_marked(field) {
            return Ok(Field { members: groups.next().cloned(), ..Field::plain(name, &field.ty) });
        }
        check_type(&field.ty)?;
        Ok(Field::plain(name, &field.ty))
    };
    let fields = named(item)?.iter().map(field).collect::<syn::Result<Vec<_>>>()?;
    if fields::arguments(&fields).len() > MAX_PARAMETERS {
        return refuse(item.fields.span(), format!("a kernel has at most {MAX_PARAMETERS} parameters"));
    }
    Ok(fields)
}

/// The fields of a group, if they can be arguments of a kernel.
pub fn of_group(item: &ItemStruct) -> syn::Result<Vec<(&Ident, &Type)>> {
    if !item.generics.params.is_empty() {
        return refuse(item.generics.span(), "a group is not generic");
    }
    let field = |field: &'_ syn::Field| {
        if fields::is_marked(field) {
            return refuse(field.span(), "a group has no groups");
        }
        check_type(&field.ty)
    };
    let fields = named(item)?;
    fields.iter().try_for_each(field)?;
    Ok(fields.iter().filter_map(|field| Some((field.ident.as_ref()?, &field.ty))).collect())
}

fn named(item: &ItemStruct) -> syn::Result<&Punctuated<syn::Field, Token![,]>> {
    match &item.fields {
        Fields::Named(fields) => Ok(&fields.named),
        other => refuse(other.span(), "the arguments of a kernel are fields with names"),
    }
}

/// Refuses a type that no parameter may have. A type that a `macro_rules!` macro passed stands in an invisible group.
fn check_type(ty: &Type) -> syn::Result<()> {
    match ty {
        Type::Group(group) => check_type(&group.elem),
        Type::Paren(paren) => check_type(&paren.elem),
        Type::Ptr(pointer) => {
            let name = if pointer.mutability.is_some() { "PtrMut" } else { "Ptr" };
            refuse(
                ty.span(),
                format!(
                    "a raw pointer has no length: a kernel takes `{name}<..>`, or `Option<{name}<..>>` if it may be absent"
                ),
            )
        }
        Type::Path(path) if path.qself.is_none() && is_param(path) => Ok(()),
        _ => refuse(
            ty.span(),
            format!(
                "a kernel takes `Ptr<..>`, `PtrMut<..>`, an `Option` of either, an enum that derives `Param`, or one of {}",
                SCALARS.join(", ")
            ),
        ),
    }
}

/// Whether this may be the name of a scalar, of an enum or of a pointer. What the name stands for is for the trait
/// `Param` to check.
fn is_param(path: &TypePath) -> bool {
    let plain = path.path.segments.iter().all(|segment| matches!(segment.arguments, PathArguments::None));
    match (path.path.segments.last(), only_argument(path)) {
        (Some(last), None) if plain => !is_pointer(&last.ident) && last.ident != "Option",
        (Some(last), Some(_)) if is_pointer(&last.ident) => true,
        (Some(last), Some(Type::Path(inner))) if last.ident == "Option" => {
            inner.path.segments.last().is_some_and(|last| is_pointer(&last.ident)) && only_argument(inner).is_some()
        }
        _ => false,
    }
}

fn is_pointer(name: &Ident) -> bool {
    name == "Ptr" || name == "PtrMut"
}

/// The type `T` of a path `Name<T>`.
fn only_argument(path: &TypePath) -> Option<&Type> {
    let PathArguments::AngleBracketed(arguments) = &path.path.segments.last()?.arguments else { return None };
    match arguments.args.iter().collect::<Vec<_>>()[..] {
        [GenericArgument::Type(ty)] => Some(ungrouped(ty)),
        _ => None,
    }
}

/// The type inside the invisible groups of `macro_rules!`.
fn ungrouped(ty: &Type) -> &Type {
    match ty {
        Type::Group(group) => ungrouped(&group.elem),
        other => other,
    }
}
