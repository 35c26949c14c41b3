//! The output of the macro. For the GPU: entry points. For the host: the arguments as a struct, the kernels, and
//! functions that run one thread.

use crate::{
    attribute::{Bounds, Row, Table, TableElsewhere},
    fields::{self, Argument, Field},
    signature::{self, Parameter},
};
use proc_macro2::{Group, TokenStream, TokenTree};
use quote::{ToTokens, format_ident, quote};
use syn::{Attribute, GenericArgument, Generics, Ident, ItemFn, ItemStruct, PathArguments, Type, Visibility};

/// Expands a function to one kernel and a struct of its arguments.
pub fn function(bounds: &Bounds, mut function: ItemFn) -> syn::Result<TokenStream> {
    let documented = signature::take_documentation(&mut function);
    let parameters = signature::of_function(&function, &documented)?;
    let ItemFn { attrs, vis, sig, block } = &function;
    let (name, inputs) = (&sig.ident, &sig.inputs);
    let names = parameters.iter().map(|parameter| parameter.name);
    let of_struct: Vec<Field> = parameters.iter().map(|parameter| Field::plain(parameter.name, parameter.ty)).collect();
    let arguments = format_ident!("{}", camel_case(&name.to_string()), span = name.span());
    let documentation = format!("The arguments of [`{name}`].");
    let fields = parameters.iter().map(|Parameter { name, ty, documentation }| {
        quote! { #(#documentation)* #vis #name: #ty }
    });
    let call = quote! { #name(#(arguments.#names),*) };
    let items = [
        arguments_impl(&arguments, &Generics::default(), &of_struct),
        kernel_const(vis, &arguments.to_token_stream(), name, bounds, &call),
    ];
    let note = bounds_note(name, bounds);
    let wanted = wanted(name);
    Ok(quote! {
        #[cfg(target_arch = "nvptx64")]
        #[cfg(#wanted)]
        #(#attrs)*
        #[allow(clippy::too_many_arguments, reason = "the entry point takes its arguments one by one")]
        #[unsafe(no_mangle)]
        #vis unsafe extern "ptx-kernel" fn #name(#inputs) #block

        #[cfg(target_arch = "nvptx64")]
        ::cuda_std::private::global_asm!(#note);

        // Compiled where it is called: in the function that runs a thread of the emulator, if there is one.
        #[cfg(not(target_arch = "nvptx64"))]
        #(#attrs)*
        #[allow(clippy::too_many_arguments, reason = "the entry point takes its arguments one by one")]
        #[inline]
        #vis unsafe fn #name(#inputs) #block

        #[doc = #documentation]
        #[allow(missing_docs, reason = "the kernel's documentation has what the arguments must be")]
        #[derive(Debug, Clone, Copy)]
        #vis struct #arguments { #(#fields),* }

        #(#[cfg(not(target_arch = "nvptx64"))] #items)*
    })
}

/// Expands a struct of arguments to the kernels of its table. `groups` has the names of the fields of each group.
pub fn arguments(table: &Table, item: &ItemStruct, groups: &[Vec<Ident>]) -> syn::Result<TokenStream> {
    let fields = signature::of_struct(item, groups)?;
    let ItemStruct { vis, ident, generics, .. } = item;
    let entry_of = |row| Ok(entry(row, ident, &fields, &types(row, item, &fields)?));
    let entries = table.rows.iter().map(entry_of).collect::<syn::Result<Vec<_>>>()?;
    let implementation = arguments_impl(ident, generics, &fields);
    let elsewhere = match &table.elsewhere {
        Some(name) if generics.params.is_empty() => {
            tables_elsewhere(name, &TableElsewhere::head(ident, &fields, &table.all), ident, &fields)
        }
        Some(name) => return Err(syn::Error::new(name.span(), "a generic struct has all its kernels in one table")),
        None => TokenStream::new(),
    };
    let unmarked = fields::unmarked(item);
    let kernels = match &table.key {
        Some(key) => {
            let names: Vec<_> = table.rows.iter().map(|row| format!("`{}`", row.name)).collect();
            let documentation = format!("The kernel for `key`: one of {}.", names.join(", "));
            let select = quote! {
                #[doc = #documentation]
                #vis fn kernel(key: #key)
            };
            let function = selecting(&select, ident, Some(key), &table.rows);
            quote! {
                // Only the host uses the key. The device build names its type here, so that its import is not reported
                // as unused.
                #[cfg(target_arch = "nvptx64")]
                const _: ::core::option::Option<#key> = ::core::option::Option::None;

                #[cfg(not(target_arch = "nvptx64"))]
                impl #ident {
                    #function
                }
            }
        }
        None => {
            let rows = table.rows.iter().map(|row| {
                let (name, body) = (&row.name, &row.body);
                let arguments =
                    row.arguments.as_ref().map_or_else(|| ident.to_token_stream(), ToTokens::to_token_stream);
                kernel_const(vis, &arguments, name, &row.bounds, &quote! { #body(*arguments) })
            });
            quote! { #(#[cfg(not(target_arch = "nvptx64"))] #rows)* }
        }
    };
    Ok(quote! {
        #[derive(Debug, Clone, Copy)]
        #unmarked

        #(#entries)*

        #[cfg(not(target_arch = "nvptx64"))]
        #implementation

        #kernels

        #elsewhere
    })
}

/// The macro `name` for tables in other modules, and the types of the fields, which such a module need not import.
fn tables_elsewhere(name: &Ident, head: &TokenStream, arguments: &Ident, fields: &[Field]) -> TokenStream {
    let types = fields::types(arguments, fields.iter().map(|field| &field.ty));
    quote! {
        #types

        macro_rules! #name {
            ($($table:tt)*) => { ::cuda_std::private::kernels! { #head $($table)* } };
        }
        pub(crate) use #name;
    }
}

/// Expands a table in another module than its struct.
pub fn elsewhere(table: &TableElsewhere) -> TokenStream {
    let TableElsewhere { arguments, fields, attributes, vis, name, key, rows } = table;
    let types: Vec<_> = fields::arguments(fields).into_iter().map(|argument| argument.ty).collect();
    let entries = rows.iter().map(|row| entry(row, arguments, fields, &types));
    let key_parameter = key.iter().map(|key| quote! { key: #key });
    let select = quote! { #(#attributes)* #vis fn #name(#(#key_parameter),*) };
    let function = selecting(&select, arguments, key.as_ref(), rows);
    let used = key.as_ref().map(|key| {
        let patterns = rows.iter().map(|row| &row.pattern);
        quote! {
            // Only the host selects kernels. The device build names types and patterns here, so that their imports are
            // not reported as unused.
            #[cfg(target_arch = "nvptx64")]
            const _: fn(#key) = |key| match key { #(#patterns => {}),* };
        }
    });
    quote! {
        #(#entries)*

        #used

        #[cfg(not(target_arch = "nvptx64"))]
        #function
    }
}

/// The entry point of a row. Its parameters are the fields one by one, those of groups too, so that loads are
/// `ld.global`; through a struct they would be generic.
fn entry(row: &Row, struct_name: &Ident, fields: &[Field], types: &[TokenStream]) -> TokenStream {
    let Row { name, body, bounds, .. } = row;
    // The parameters do not have the fields' names, because the body's path may equal one of those.
    let given: Vec<_> = fields::arguments(fields).into_iter().map(|argument| argument.variable).collect();
    let arguments = fields::literal(struct_name, fields, given.iter().map(ToTokens::to_token_stream));
    let note = bounds_note(name, bounds);
    let wanted = wanted(name);
    quote! {
        #[cfg(target_arch = "nvptx64")]
        #[cfg(#wanted)]
        const _: () = {
            #[allow(clippy::too_many_arguments, reason = "the entry point takes its arguments one by one")]
            #[unsafe(no_mangle)]
            unsafe extern "ptx-kernel" fn #name(#(#given: #types),*) {
                // SAFETY: the launch keeps the contract of the kernel, which is that of the body.
                unsafe { #body(#arguments) }
            }
        };

        #[cfg(target_arch = "nvptx64")]
        ::cuda_std::private::global_asm!(#note);
    }
}

/// The types of the parameters of a row's entry point.
fn types(row: &Row, item: &ItemStruct, fields: &[Field]) -> syn::Result<Vec<TokenStream>> {
    let types = fields::arguments(fields).into_iter().map(|argument| argument.ty);
    match &row.arguments {
        None if item.generics.params.is_empty() => Ok(types.collect()),
        None => Err(syn::Error::new(row.name.span(), "the struct is generic: `name for Type<..> = body`")),
        Some(arguments) => substituted(arguments, &item.generics, types),
    }
}

/// The types of the parameters, with the type parameters of the struct replaced by the types in `arguments`.
fn substituted(
    arguments: &Type,
    generics: &Generics,
    types: impl Iterator<Item = TokenStream>,
) -> syn::Result<Vec<TokenStream>> {
    let refuse = || syn::Error::new_spanned(arguments, "names the struct with a type for each of its parameters");
    let Type::Path(path) = arguments else { return Err(refuse()) };
    let last = path.path.segments.last().ok_or_else(refuse)?;
    let PathArguments::AngleBracketed(given) = &last.arguments else { return Err(refuse()) };
    let given: Vec<&GenericArgument> = given.args.iter().collect();
    let names: Vec<&Ident> = generics.type_params().map(|parameter| &parameter.ident).collect();
    if names.len() != given.len() {
        return Err(refuse());
    }
    let pairs: Vec<_> = names.into_iter().zip(given.iter().map(|argument| argument.to_token_stream())).collect();
    Ok(types.map(|ty| replaced(ty, &pairs)).collect())
}

fn replaced(tokens: TokenStream, pairs: &[(&Ident, TokenStream)]) -> TokenStream {
    let of = |token: TokenTree| -> TokenStream {
        match token {
            TokenTree::Ident(ident) => match pairs.iter().find(|(name, _)| **name == ident) {
                Some((_, to)) => to.clone(),
                None => ident.to_token_stream(),
            },
            TokenTree::Group(group) => Group::new(group.delimiter(), replaced(group.stream(), pairs)).to_token_stream(),
            other => other.to_token_stream(),
        }
    };
    tokens.into_iter().flat_map(of).collect()
}

/// The implementation of `KernelArgs` for a struct of arguments.
fn arguments_impl(arguments: &Ident, generics: &Generics, fields: &[Field]) -> TokenStream {
    let mut bounded = generics.clone();
    bounded.type_params_mut().for_each(|parameter| parameter.bounds.push(syn::parse_quote!(::core::marker::Copy)));
    let (with_bounds, names_only, conditions) = bounded.split_for_impl();
    let (with_bounds, names_only) = (with_bounds.to_token_stream(), names_only.to_token_stream());
    let (places, texts): (Vec<_>, Vec<_>) =
        fields::arguments(fields).into_iter().map(|Argument { place, text, .. }| (place, text)).unzip();
    let read = (0..places.len()).map(|number| {
        // SAFETY: the caller promises an address of a value for each parameter.
        quote! { unsafe { ::cuda_std::launch::raw_arg(addresses, #number) } }
    });
    let read = fields::literal(&format_ident!("Self"), fields, read);
    quote! {
        // SAFETY: the calls require `Param` of every argument, and each function names all arguments in order.
        unsafe impl #with_bounds ::cuda_std::launch::KernelArgs for #arguments #names_only #conditions {
            const NAMES: &'static [&'static str] = &[#(#texts),*];

            fn as_raw(&mut self) -> ::cuda_std::launch::RawArgs {
                ::cuda_std::launch::RawArgs::new(&[#(::core::ptr::from_mut(&mut self.#places).cast()),*])
            }

            fn ranges(&self) -> impl ::core::iter::Iterator<Item = ::cuda_std::launch::ArgumentRange> {
                let given: [::core::option::Option<::cuda_std::launch::ArgumentRange>; _] =
                    [#(::cuda_std::launch::Param::range(&self.#places, #texts)),*];
                given.into_iter().flatten()
            }

            unsafe fn from_raw(addresses: *const *mut ::core::ffi::c_void) -> Self {
                let _ = addresses;
                #read
            }
        }
    }
}

/// The constant `KERNEL` of a struct with one kernel.
fn kernel_const(
    vis: &Visibility,
    arguments: &TokenStream,
    name: &Ident,
    bounds: &Bounds,
    call: &TokenStream,
) -> TokenStream {
    let kernel = kernel_value(arguments, name, bounds, call);
    let documentation = format!("The kernel `{name}`.");
    quote! {
        const _: () = {
            impl #arguments {
                #[doc = #documentation]
                #vis const KERNEL: ::cuda_std::launch::Kernel<Self> = #kernel;
            }

            ::cuda_std::private::register!(&<#arguments>::KERNEL);
        };
    }
}

/// The function `select`, which selects one of the kernels by its parameter `key`, or has the only one if there is no
/// key.
fn selecting(select: &TokenStream, arguments: &Ident, key: Option<&Type>, rows: &[Row]) -> TokenStream {
    let (mut statics, mut arms) = (Vec::new(), Vec::new());
    for Row { attributes, pattern, name, bounds, body, .. } in rows {
        let place = format_ident!("{}", name.to_string().to_uppercase(), span = name.span());
        let kernel = kernel_value(&arguments.to_token_stream(), name, bounds, &quote! { #body(*arguments) });
        let documented = attributes.iter().filter(|attribute| attribute.path().is_ident("doc"));
        statics.push(quote! {
            #(#documented)*
            static #place: ::cuda_std::launch::Kernel<#arguments> = #kernel;
            ::cuda_std::private::register!(&#place);
        });
        arms.push(quote! { #pattern => &#place });
    }
    let selected = match key {
        Some(_) => quote! { match key { #(#arms,)* } },
        None => {
            let only = rows.iter().map(|row| format_ident!("{}", row.name.to_string().to_uppercase()));
            quote! { #(&#only)* }
        }
    };
    quote! {
        #select -> &'static ::cuda_std::launch::Kernel<#arguments> {
            #(#statics)*
            #selected
        }
    }
}

/// A `Kernel`: `call` runs one thread with `arguments`.
fn kernel_value(arguments: &TokenStream, name: &Ident, bounds: &Bounds, call: &TokenStream) -> TokenStream {
    let name_text = name.to_string();
    let option = |value: Option<u32>| match value {
        Some(value) => quote!(::core::option::Option::Some(#value)),
        None => quote!(::core::option::Option::None),
    };
    let (max_threads, min_blocks) = (option(bounds.max_threads), option(bounds.min_blocks));
    quote! {
        {
            unsafe fn call(arguments: &#arguments) {
                let _ = arguments;
                // SAFETY: the caller has the kernel's contract.
                unsafe { #call }
            }
            ::cuda_std::launch::Kernel::new(#name_text, #max_threads, #min_blocks, call)
        }
    }
}

/// The `cfg` condition under which a device build contains the entry point of the kernel `name`. `CudaBuilder::kernels`
/// sets both options; without them a build contains all kernels. The comment with the launch bounds is always there, so
/// the text names every kernel of the crate.
///
/// The condition stands in a second `cfg`, after the one for the target. A compilation for the host stops at the first
/// `cfg` and so does not warn about unknown options.
fn wanted(name: &Ident) -> TokenStream {
    let name = name.to_string();
    quote! { any(not(cuda_builder_kernels), cuda_builder_kernel = #name) }
}

/// The comment that carries the launch bounds through the compiler, which has no attribute for them.
fn bounds_note(name: &Ident, bounds: &Bounds) -> String {
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

/// Converts `fill_two` to `FillTwo`.
fn camel_case(name: &str) -> String {
    let words = name.split('_').filter(|word| !word.is_empty());
    words.map(|word| word[..1].to_uppercase() + &word[1..]).collect()
}

/// The doc attributes of one parameter.
pub type Documentation = Vec<Attribute>;
