//! The arguments of the attribute: launch bounds, and before a struct the table of its kernels.
//!
//! ```text
//! function:  max_threads = 256, min_blocks = 2, arch = "sm_90a"
//! struct:    max_threads = 256, scan_64(min_blocks = 3) = scan::<64>, scan_16 = scan::<16>      bounds of all, then kernels
//!            key = Tile, max_threads = 256, Tile::Of64 => scan_64 = scan::<64>, ..              the same, chosen by a value
//!            max_threads = 256, elsewhere = scan_kernels                      no kernels here: a macro for tables in other modules
//! ```

use crate::fields::{self, Field};
use proc_macro2::TokenStream;
use quote::{ToTokens, quote};
use syn::{
    Attribute, Expr, ExprLit, Ident, Lit, Pat, Path, Token, Type, Visibility,
    parse::{Parse, ParseStream},
    spanned::Spanned,
};

/// The launch bounds and the architecture of a kernel.
#[derive(Default, Clone)]
pub struct Bounds {
    /// The only architecture on which the kernel runs; none if it runs on all.
    pub arch: Option<String>,
    /// Largest number of threads of a block.
    pub max_threads: Option<u32>,
    /// Number of blocks that must fit a multiprocessor at once.
    pub min_blocks: Option<u32>,
}

/// The largest block that any GPU can run, in threads.
const MAX_BLOCK: u32 = 1024;

impl Bounds {
    /// Reads the rest of `name = value`, after the name.
    fn read(&mut self, name: &Ident, input: ParseStream) -> syn::Result<()> {
        input.parse::<Token![=]>()?;
        let given_twice = || Err(syn::Error::new(name.span(), "given twice"));
        if name == "arch" {
            let value = architecture(&input.parse()?)?;
            return if self.arch.replace(value).is_some() { given_twice() } else { Ok(()) };
        }
        let value = integer(&input.parse()?)?;
        let slot = match name.to_string().as_str() {
            "max_threads" if value > MAX_BLOCK => {
                return Err(syn::Error::new(name.span(), "a block has at most 1024 threads"));
            }
            "max_threads" => &mut self.max_threads,
            "min_blocks" => &mut self.min_blocks,
            _ => return Err(syn::Error::new(name.span(), UNKNOWN)),
        };
        if slot.replace(value).is_some() { given_twice() } else { Ok(()) }
    }

    /// These bounds; the bounds of `all` replace those that are not given.
    fn or(self, all: &Self) -> Self {
        Self {
            arch: self.arch.or_else(|| all.arch.clone()),
            max_threads: self.max_threads.or(all.max_threads),
            min_blocks: self.min_blocks.or(all.min_blocks),
        }
    }

    /// The bounds as the attribute writes them.
    fn written(&self) -> TokenStream {
        let Self { arch, max_threads, min_blocks } = self;
        let arch = arch.iter().map(|value| quote! { arch = #value, });
        let max_threads = max_threads.iter().map(|value| quote! { max_threads = #value, });
        let min_blocks = min_blocks.iter().map(|value| quote! { min_blocks = #value, });
        quote! { #(#arch)* #(#max_threads)* #(#min_blocks)* }
    }

    fn check(&self, span: proc_macro2::Span) -> syn::Result<()> {
        if self.min_blocks.is_some() && self.max_threads.is_none() {
            return Err(syn::Error::new(span, "min_blocks needs max_threads"));
        }
        Ok(())
    }
}

const UNKNOWN: &str = "known here: max_threads, min_blocks, arch";

impl Parse for Bounds {
    fn parse(input: ParseStream) -> syn::Result<Self> {
        let mut bounds = Self::default();
        let span = input.span();
        while !input.is_empty() {
            bounds.read(&input.parse()?, input)?;
            if !input.is_empty() {
                input.parse::<Token![,]>()?;
            }
        }
        bounds.check(span)?;
        Ok(bounds)
    }
}

/// One kernel of a table.
pub struct Row {
    /// Attributes of the row, such as its documentation.
    pub attributes: Vec<Attribute>,
    /// The values of the key that select this kernel.
    pub pattern: Option<Pat>,
    /// The name of the entry point.
    pub name: Ident,
    /// Launch bounds, those of the whole table included.
    pub bounds: Bounds,
    /// The type of the arguments, if the struct is generic.
    pub arguments: Option<Type>,
    /// The function that takes the struct.
    pub body: Path,
}

/// The attribute of a struct.
pub struct Table {
    /// The type of the key that selects a kernel.
    pub key: Option<Type>,
    /// The kernels, in the order of the attribute.
    pub rows: Vec<Row>,
    /// The macro for tables in other modules.
    pub elsewhere: Option<Ident>,
    /// The bounds of all kernels.
    pub all: Bounds,
}

impl Parse for Table {
    fn parse(input: ParseStream) -> syn::Result<Self> {
        let (mut key, mut all, mut rows, mut elsewhere) = (None, Bounds::default(), Vec::new(), None);
        let span = input.span();
        while !input.is_empty() {
            let named_value = input.peek(Ident) && input.peek2(Token![=]) && !input.peek2(Token![=>]);
            let ahead: Option<Ident> = if named_value { input.fork().parse().ok() } else { None };
            match ahead {
                Some(name) if name == "key" && rows.is_empty() => {
                    input.parse::<Ident>()?;
                    input.parse::<Token![=]>()?;
                    key = Some(input.parse()?);
                }
                Some(name) if name == "elsewhere" && rows.is_empty() => {
                    input.parse::<Ident>()?;
                    input.parse::<Token![=]>()?;
                    elsewhere = Some(input.parse()?);
                }
                Some(name) if ["max_threads", "min_blocks", "arch"].iter().any(|bound| name == bound) => {
                    if !rows.is_empty() {
                        return Err(syn::Error::new(name.span(), "bounds of all kernels come before the first"));
                    }
                    all.read(&input.parse()?, input)?;
                }
                _ => rows.push(row(input, key.is_some(), &all)?),
            }
            if !input.is_empty() {
                input.parse::<Token![,]>()?;
            }
        }
        if rows.is_empty() && (elsewhere.is_none() || key.is_some()) {
            return Err(syn::Error::new(span, "a struct of arguments needs a kernel: `name = body`"));
        }
        Ok(Self { key, rows, elsewhere, all })
    }
}

/// A table in another module than its struct:
/// `Struct { field, group { field, .. }, .. } (bounds) docs vis fn name(key: Type) { rows }`. The macro that the
/// attribute makes adds the part before the documentation.
pub struct TableElsewhere {
    /// The struct of arguments.
    pub arguments: Ident,
    /// The fields of the struct, with types by projection, so that the module need not import them.
    pub fields: Vec<Field>,
    /// Attributes of the function that selects a kernel, such as its documentation.
    pub attributes: Vec<Attribute>,
    /// The visibility of the function.
    pub vis: Visibility,
    /// The name of the function.
    pub name: Ident,
    /// The type of the key; none if there is one kernel.
    pub key: Option<Type>,
    /// The kernels, in the order of the table.
    pub rows: Vec<Row>,
}

impl TableElsewhere {
    /// The part before the documentation.
    pub fn head(arguments: &Ident, fields: &[Field], all: &Bounds) -> TokenStream {
        let bounds = all.written();
        let fields = fields.iter().map(|Field { name, members, .. }| match members {
            Some(members) => quote! { #name { #(#members),* } },
            None => name.to_token_stream(),
        });
        quote! { #arguments { #(#fields),* } (#bounds) }
    }
}

impl Parse for TableElsewhere {
    fn parse(input: ParseStream) -> syn::Result<Self> {
        let arguments: Ident = input.parse()?;
        let (in_fields, bounds, in_key, in_rows);
        syn::braced!(in_fields in input);
        let mut fields = Vec::new();
        while !in_fields.is_empty() {
            let (name, number): (Ident, _) = (in_fields.parse()?, fields.len());
            let members = if in_fields.peek(syn::token::Brace) { Some(fields::names(&in_fields)?) } else { None };
            let ty = quote! { <#arguments as ::cuda_std::private::Field<#number>>::Type };
            fields.push(Field { name, ty, members });
            if !in_fields.is_empty() {
                in_fields.parse::<Token![,]>()?;
            }
        }
        syn::parenthesized!(bounds in input);
        let all: Bounds = bounds.parse()?;
        let attributes = input.call(Attribute::parse_outer)?;
        let vis = input.parse()?;
        input.parse::<Token![fn]>()?;
        let name: Ident = input.parse()?;
        syn::parenthesized!(in_key in input);
        let key = if in_key.is_empty() {
            None
        } else {
            in_key.parse::<Ident>()?;
            in_key.parse::<Token![:]>()?;
            Some(in_key.parse()?)
        };
        syn::braced!(in_rows in input);
        let mut rows = Vec::new();
        while !in_rows.is_empty() {
            rows.push(row(&in_rows, key.is_some(), &all)?);
            if !in_rows.is_empty() {
                in_rows.parse::<Token![,]>()?;
            }
        }
        if rows.is_empty() || key.is_none() && rows.len() > 1 {
            return Err(syn::Error::new(name.span(), "a table has a kernel, and a key if it has several"));
        }
        Ok(Self { arguments, fields, attributes, vis, name, key, rows })
    }
}

/// Reads `[docs] [pattern =>] name[(bounds)] [for Type] = body`.
fn row(input: ParseStream, keyed: bool, all: &Bounds) -> syn::Result<Row> {
    let attributes = input.call(Attribute::parse_outer)?;
    let pattern = if keyed {
        let pattern = Pat::parse_multi(input)?;
        input.parse::<Token![=>]>()?;
        Some(pattern)
    } else {
        None
    };
    let name: Ident = input.parse()?;
    let mut bounds = Bounds::default();
    if input.peek(syn::token::Paren) {
        let inside;
        syn::parenthesized!(inside in input);
        while !inside.is_empty() {
            bounds.read(&inside.parse()?, &inside)?;
            if !inside.is_empty() {
                inside.parse::<Token![,]>()?;
            }
        }
    }
    let bounds = bounds.or(all);
    bounds.check(name.span())?;
    let arguments = if input.peek(Token![for]) {
        let token = input.parse::<Token![for]>()?;
        if keyed {
            return Err(syn::Error::new(token.span, "a struct with a key is not generic"));
        }
        Some(input.parse()?)
    } else {
        None
    };
    input.parse::<Token![=]>()?;
    Ok(Row { attributes, pattern, name, bounds, arguments, body: input.parse()? })
}

/// The value of a positive integer literal, also one that came through `macro_rules!` (an invisible group).
fn integer(expression: &Expr) -> syn::Result<u32> {
    match expression {
        Expr::Group(group) => integer(&group.expr),
        Expr::Lit(ExprLit { lit: Lit::Int(literal), .. }) => match literal.base10_parse()? {
            0 => Err(syn::Error::new(literal.span(), "must be positive")),
            value => Ok(value),
        },
        other => {
            Err(syn::Error::new(other.span(), "a bound must be an integer literal, because it is written into the PTX"))
        }
    }
}

/// The value of a string literal that names an architecture.
fn architecture(expression: &Expr) -> syn::Result<String> {
    match expression {
        Expr::Group(group) => architecture(&group.expr),
        Expr::Lit(ExprLit { lit: Lit::Str(literal), .. }) => {
            let name = literal.value();
            let number = name.strip_prefix("sm_").map(|rest| rest.trim_end_matches(|c: char| c.is_ascii_lowercase()));
            match number {
                Some(number) if !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit()) => Ok(name),
                _ => Err(syn::Error::new(literal.span(), "not the name of an architecture, such as \"sm_90a\"")),
            }
        }
        other => {
            Err(syn::Error::new(other.span(), "arch must be a string literal, because it is written into the PTX"))
        }
    }
}
