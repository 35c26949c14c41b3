//! The fields of a struct of arguments, and groups of them.
//!
//! `#[kernel]` needs the names of the fields of each group, which another item declares. So `#[group]` makes a macro of
//! the struct's name, and `#[kernel]` expands to a call of the macro of its last group. The macro passes the call on to
//! `kernel_of_groups!`, with the names of the group's fields in front:
//!
//! ```text
//! Keys! { (attribute) struct }  =>  kernel_of_groups! { {values, count} (attribute) struct }
//! ```
//!
//! `kernel_of_groups!` calls the macro of the group before, and so on. The first group is the last that is added, so
//! the groups then stand in the order of the fields.

use crate::{expand, signature};
use proc_macro2::TokenStream;
use quote::{ToTokens, format_ident, quote};
use syn::{
    Ident, ItemStruct, Token,
    parse::{Parse, ParseStream},
};

/// A field of a struct of arguments.
pub struct Field {
    pub name: Ident,
    pub ty: TokenStream,
    /// The names of the fields of the group; none if the field is one argument.
    pub members: Option<Vec<Ident>>,
}

impl Field {
    /// A field that is one argument.
    pub fn plain(name: &Ident, ty: &syn::Type) -> Self {
        Self { name: name.clone(), ty: ty.to_token_stream(), members: None }
    }
}

/// One argument of a kernel: a field, or a field of a group.
pub struct Argument {
    /// The path from the struct of arguments, such as `keys.count`.
    pub place: TokenStream,
    /// The same as text, for messages.
    pub text: String,
    /// The parameter of the entry point.
    pub variable: Ident,
    pub ty: TokenStream,
}

/// The arguments, in the order of the fields.
pub fn arguments(fields: &[Field]) -> Vec<Argument> {
    let of_field = |Field { name, ty, members }: &Field| match members {
        None => vec![Argument {
            place: name.to_token_stream(),
            text: name.to_string(),
            variable: format_ident!("argument_{name}"),
            ty: ty.clone(),
        }],
        Some(members) => {
            let of_member = |(number, member): (usize, &Ident)| Argument {
                place: quote! { #name.#member },
                text: format!("{name}.{member}"),
                variable: format_ident!("argument_{name}_{member}"),
                ty: quote! { <#ty as ::cuda_std::private::Field<#number>>::Type },
            };
            members.iter().enumerate().map(of_member).collect()
        }
    };
    fields.iter().flat_map(of_field).collect()
}

/// An expression for the struct `name` with `values` for its arguments, in order.
pub fn literal(name: &Ident, fields: &[Field], mut values: impl Iterator<Item = TokenStream>) -> TokenStream {
    // Only an alias can name the type of a group here, because that type may be a projection.
    let mut aliases = TokenStream::new();
    let values = fields.iter().enumerate().map(|(number, Field { name, ty, members })| match members {
        None => {
            let value = values.next();
            quote! { #name: #value }
        }
        Some(members) => {
            let alias = format_ident!("Group{number}");
            aliases.extend(quote! { type #alias = #ty; });
            let values = values.by_ref().take(members.len());
            quote! { #name: #alias { #(#members: #values),* } }
        }
    });
    let literal = quote! { #name { #(#values),* } };
    if aliases.is_empty() {
        literal
    } else {
        quote! { { #aliases #literal } }
    }
}

/// Implementations that give other modules the types of the fields.
pub fn types(name: &Ident, types: impl Iterator<Item = impl ToTokens>) -> TokenStream {
    let implementations = types.enumerate().map(|(number, ty)| {
        quote! {
            impl ::cuda_std::private::Field<#number> for #name {
                type Type = #ty;
            }
        }
    });
    quote! { #(#implementations)* }
}

/// Whether the field is a group.
pub fn is_marked(field: &syn::Field) -> bool {
    field.attrs.iter().any(|attribute| attribute.path().is_ident("group"))
}

/// The struct without the attributes that only the macro reads.
pub fn unmarked(item: &ItemStruct) -> ItemStruct {
    let mut item = item.clone();
    for field in &mut item.fields {
        field.attrs.retain(|attribute| !attribute.path().is_ident("group"));
    }
    item
}

/// Expands a group: the struct, the types of its fields, and the macro that gives a kernel their names.
pub fn group(item: &ItemStruct) -> syn::Result<TokenStream> {
    let (names, of_fields): (Vec<_>, Vec<_>) = signature::of_group(item)?.into_iter().unzip();
    let (name, types) = (&item.ident, types(&item.ident, of_fields.into_iter()));
    let helper = format_ident!("group_{name}");
    Ok(quote! {
        #[derive(Debug, Clone, Copy)]
        #item

        #types

        macro_rules! #helper {
            ($($kernel:tt)*) => { ::cuda_std::private::kernel_of_groups! { {#(#names),*} $($kernel)* } };
        }
        // The macro and the struct have one name, so one import has both.
        pub(crate) use #helper as #name;
    })
}

/// A struct of arguments, its attribute, and the names of the fields of those of its groups that are known.
pub struct Kernel {
    pub groups: Vec<Vec<Ident>>,
    pub attribute: TokenStream,
    pub item: ItemStruct,
}

impl Parse for Kernel {
    fn parse(input: ParseStream) -> syn::Result<Self> {
        let mut groups = Vec::new();
        while input.peek(syn::token::Brace) {
            groups.push(names(input)?);
        }
        let inside;
        syn::parenthesized!(inside in input);
        Ok(Self { groups, attribute: inside.parse()?, item: input.parse()? })
    }
}

/// Reads names in braces.
pub fn names(input: ParseStream) -> syn::Result<Vec<Ident>> {
    let inside;
    syn::braced!(inside in input);
    Ok(inside.parse_terminated(Ident::parse, Token![,])?.into_iter().collect())
}

/// Expands a struct of arguments if the names of all groups' fields are known, and else to a call of the next group's
/// macro.
pub fn kernel(Kernel { groups, attribute, item }: &Kernel) -> syn::Result<TokenStream> {
    let marked: Vec<_> = item.fields.iter().filter(|field| is_marked(field)).map(|field| &field.ty).collect();
    let Some(next) = marked.iter().rev().nth(groups.len()) else {
        return expand::arguments(&syn::parse2(attribute.clone())?, item, groups);
    };
    let syn::Type::Path(next) = next else {
        return Err(syn::Error::new_spanned(next, "a group is a struct with the attribute #[group], by name"));
    };
    let groups = groups.iter().map(|names| quote! { {#(#names),*} });
    Ok(quote! { #next! { #(#groups)* (#attribute) #item } })
}
