//! The arguments of the attribute.

use syn::{Expr, ExprLit, Ident, Lit, Token, parse::ParseStream, spanned::Spanned};

/// Launch bounds, and what devices the kernel is for.
#[derive(Default)]
pub struct Bounds {
    /// The one architecture that it runs on.
    pub arch: Option<String>,
    /// Most threads of a block.
    pub max_threads: Option<u32>,
    /// Blocks that must fit a multiprocessor.
    pub min_blocks: Option<u32>,
}

/// Most threads that any GPU takes in a block.
const MAX_BLOCK: u32 = 1024;

impl syn::parse::Parse for Bounds {
    fn parse(input: ParseStream) -> syn::Result<Self> {
        let mut bounds = Self::default();
        let whole = input.span();
        while !input.is_empty() {
            let name: Ident = input.parse()?;
            input.parse::<Token![=]>()?;
            if name == "arch" {
                let value = architecture(&input.parse()?)?;
                if bounds.arch.replace(value).is_some() {
                    return Err(syn::Error::new(name.span(), "given twice"));
                }
                if !input.is_empty() {
                    input.parse::<Token![,]>()?;
                }
                continue;
            }
            let value = integer(&input.parse()?)?;
            let slot = match name.to_string().as_str() {
                "max_threads" if value > MAX_BLOCK => {
                    return Err(syn::Error::new(name.span(), "a block has at most 1024 threads"));
                }
                "max_threads" => &mut bounds.max_threads,
                "min_blocks" => &mut bounds.min_blocks,
                _ => return Err(syn::Error::new(name.span(), "known here: max_threads, min_blocks, arch")),
            };
            if slot.replace(value).is_some() {
                return Err(syn::Error::new(name.span(), "given twice"));
            }
            if !input.is_empty() {
                input.parse::<Token![,]>()?;
            }
        }
        if bounds.min_blocks.is_some() && bounds.max_threads.is_none() {
            return Err(syn::Error::new(whole, "min_blocks needs max_threads"));
        }
        Ok(bounds)
    }
}

/// The value of a positive integer literal, also one that came through `macro_rules!` (an invisible group).
fn integer(expression: &Expr) -> syn::Result<u32> {
    match expression {
        Expr::Group(group) => integer(&group.expr),
        Expr::Lit(ExprLit { lit: Lit::Int(literal), .. }) => match literal.base10_parse()? {
            0 => Err(syn::Error::new(literal.span(), "must be positive")),
            value => Ok(value),
        },
        other => Err(syn::Error::new(other.span(), "needs an integer literal: the bound is written into the PTX")),
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
                _ => Err(syn::Error::new(literal.span(), "names no architecture: \"sm_90a\" would")),
            }
        }
        other => Err(syn::Error::new(other.span(), "needs a string literal: the name is written into the PTX")),
    }
}
