//! Tests of the attribute: what it accepts, its error messages, and its treatment of documentation.

use crate::{
    attribute::{Bounds, Table, TableElsewhere},
    choice, expand, fields,
};
use quote::ToTokens;
use syn::{Field, Fields, Item, ItemFn, ItemStruct, LitStr, parse_quote, parse_str};

/// The error message of a result that must be an error.
fn refused<T>(result: syn::Result<T>) -> String {
    result.err().expect("this is refused").to_string()
}

fn table(text: &str) -> syn::Result<Table> {
    parse_str(text)
}

#[test]
fn bounds_of_a_row_come_before_those_of_all() {
    let rows = table("max_threads = 128, min_blocks = 2, one = body, two(min_blocks = 3, arch = \"sm_90a\") = body")
        .unwrap()
        .rows;
    let bounds: Vec<_> = rows.iter().map(|row| &row.bounds).collect();
    assert_eq!((bounds[0].max_threads, bounds[0].min_blocks, &bounds[0].arch), (Some(128), Some(2), &None));
    assert_eq!((bounds[1].max_threads, bounds[1].min_blocks), (Some(128), Some(3)));
    assert_eq!(bounds[1].arch.as_deref(), Some("sm_90a"));
}

#[test]
fn rows_have_patterns_where_there_is_a_key() {
    let Table { key, rows, .. } =
        table("key = (Tile, bool), (Tile::A | Tile::B, _) => x = f::<1>, _ => y = f::<2>,").unwrap();
    assert_eq!(key.into_token_stream().to_string(), "(Tile , bool)");
    assert!(rows.iter().all(|row| row.pattern.is_some()));
    assert!(table("x = f").unwrap().rows[0].pattern.is_none());
}

#[test]
fn tables_that_are_none() {
    let cases = [
        ("", "a struct of arguments needs a kernel: `name = body`"),
        ("max_threads = 128", "a struct of arguments needs a kernel: `name = body`"),
        ("key = bool", "a struct of arguments needs a kernel: `name = body`"),
        ("key = bool, elsewhere = others", "a struct of arguments needs a kernel: `name = body`"),
        ("one = body, max_threads = 128", "bounds of all kernels come before the first"),
        ("max_threads = 128, one = body, arch = \"sm_90a\"", "bounds of all kernels come before the first"),
        ("max_threads = 128, max_threads = 256, one = body", "given twice"),
        ("one(min_blocks = 2) = body", "min_blocks needs max_threads"),
        ("one(threads = 2) = body", "known here: max_threads, min_blocks, arch"),
        ("max_threads = 2048, one = body", "a block has at most 1024 threads"),
        ("max_threads = 0, one = body", "must be positive"),
        ("key = bool, one = body", "expected `=>`"),
        ("key = bool, true => one for Sort<u64> = body", "a struct with a key is not generic"),
        ("true => one = body", "expected identifier, found keyword `true`"),
    ];
    for (text, message) in cases {
        assert_eq!(refused(table(text)), message, "{text}");
    }
    assert_eq!(refused(parse_str::<Bounds>("threads = 2")), "known here: max_threads, min_blocks, arch");
}

#[test]
fn tables_elsewhere_have_the_bounds_of_the_struct() {
    let item: ItemStruct = parse_quote! { pub struct Fill { values: PtrMut<u32>, n: u32 } };
    let struct_table = table("max_threads = 128, min_blocks = 2, elsewhere = fill_kernels").unwrap();
    let expanded = expand::arguments(&struct_table, &item, &[]).unwrap().to_string();
    let head = "Fill { values , n } (max_threads = 128u32 , min_blocks = 2u32 ,)";
    assert!(expanded.contains(head) && expanded.contains("macro_rules ! fill_kernels"), "{expanded}");
    let made: TableElsewhere = parse_str(&format!(
        "{head} /// One.\npub fn fill(key: bool) {{ true => a = f, _ => b(min_blocks = 3) = f::<2> }}"
    ))
    .unwrap();
    let bounds: Vec<_> = made.rows.iter().map(|row| (row.bounds.max_threads, row.bounds.min_blocks)).collect();
    assert_eq!(bounds, [(Some(128), Some(2)), (Some(128), Some(3))]);
    let text = expand::elsewhere(&made).to_string();
    assert!(
        text.contains("fn a (argument_values : < Fill as :: cuda_std :: private :: Field < 0usize >> :: Type ,"),
        "{text}"
    );
    let refused_tables =
        ["Fill { } () fn fill() { }", "Fill { } () fn fill() { a = f, b = f }", "Fill { } () fn fill(key: bool) { }"];
    for text in refused_tables {
        let message = refused(parse_str::<TableElsewhere>(text));
        assert_eq!(message, "a table has a kernel, and a key if it has several", "{text}");
    }
}

#[test]
fn a_generic_struct_has_one_table() {
    let item: ItemStruct = parse_quote! { struct Sort<K> { keys: PtrMut<K> } };
    let message = refused(expand::arguments(&table("elsewhere = sorts").unwrap(), &item, &[]));
    assert_eq!(message, "a generic struct has all its kernels in one table");
}

#[test]
fn a_generic_struct_needs_a_type_in_each_row() {
    let item: ItemStruct = parse_quote! { struct Sort<K> { keys: PtrMut<K> } };
    let expanded = |text| expand::arguments(&table(text).unwrap(), &item, &[]);
    assert_eq!(refused(expanded("sort = sort")), "the struct is generic: `name for Type<..> = body`");
    let wrong_count = "names the struct with a type for each of its parameters";
    assert_eq!(refused(expanded("sort for Sort<u32, u64> = sort")), wrong_count);
    assert_eq!(refused(expanded("sort for Sort = sort")), wrong_count);
    let text = expanded("sort_u32 for Sort<u32> = sort::<u32>").unwrap().to_string();
    assert!(text.contains("fn sort_u32 (argument_keys : PtrMut < u32 >)"), "{text}");
}

#[test]
fn a_body_may_have_the_name_of_a_field() {
    let item: ItemStruct = parse_quote! { struct Sort { sort: u32 } };
    let text = expand::arguments(&table("sort_words = sort").unwrap(), &item, &[]).unwrap().to_string();
    assert!(text.contains("sort (Sort { sort : argument_sort })"), "{text}");
}

#[test]
fn fields_that_no_kernel_takes() {
    let one = table("one = body").unwrap();
    let expanded = |item: ItemStruct| expand::arguments(&one, &item, &[]);
    let allowed = "a kernel takes `Ptr<..>`, `PtrMut<..>`, an `Option` of either, an enum that derives `Param`, or one of u8, u16";
    assert!(refused(expanded(parse_quote! { struct A { x: &'static f32 } })).starts_with(allowed));
    assert!(refused(expanded(parse_quote! { struct A { x: Option<u32> } })).starts_with(allowed));
    assert!(refused(expanded(parse_quote! { struct A { x: Ptr } })).starts_with(allowed));
    assert!(refused(expanded(parse_quote! { struct A { x: Option<Option<Ptr<u32>>> } })).starts_with(allowed));
    assert!(refused(expanded(parse_quote! { struct A(u32); })).contains("fields with names"));
    assert!(refused(expanded(parse_quote! { struct A<'a> { x: Ptr<&'a u32> } })).contains("over types only"));
    assert!(refused(expanded(parse_quote! { struct A<const N: usize> { x: u32 } })).contains("over types only"));
}

#[test]
fn a_kernel_takes_the_fields_of_its_groups_in_order() {
    let step = |text: &str| fields::kernel(&parse_str(text).unwrap()).unwrap().to_string();
    let head = "(max_threads = 64 , one = body)";
    let item = "struct A { # [group] x : Rows , k : u32 , # [group] y : other :: Keys }";
    let calls = [step(&format!("{head} {item}")), step(&format!("{{ n }} {head} {item}"))];
    assert_eq!(calls, [format!("other :: Keys ! {{ {head} {item} }}"), format!("Rows ! {{ {{ n }} {head} {item} }}")]);
    let text = step(&format!("{{ of, len }} {{ n }} {head} {item}"));
    let of = |group, number| format!("< {group} as :: cuda_std :: private :: Field < {number}usize >> :: Type");
    let parameters = [
        format!("argument_x_of : {}", of("Rows", 0)),
        format!("argument_x_len : {}", of("Rows", 1)),
        "argument_k : u32".to_owned(),
        format!("argument_y_n : {}", of("other :: Keys", 0)),
    ];
    assert!(text.contains(&format!("fn one ({})", parameters.join(" , "))), "{text}");
    let literal = "A { x : Group0 { of : argument_x_of , len : argument_x_len } , k : argument_k , \
                   y : Group2 { n : argument_y_n } }";
    assert!(text.contains("type Group0 = Rows ; type Group2 = other :: Keys ;") && text.contains(literal), "{text}");
    assert!(text.contains("struct A { x : Rows , k : u32 , y : other :: Keys }"), "{text}");
}

#[test]
fn groups_that_are_none() {
    let cases = [
        ("struct Rows<T> { of: Ptr<T> }", "a group is not generic"),
        ("struct Rows { #[group] of: Keys }", "a group has no groups"),
        ("struct Rows(u32);", "the arguments of a kernel are fields with names"),
        ("struct Rows { of: *const u32 }", "a raw pointer has no length"),
    ];
    for (text, message) in cases {
        assert!(refused(fields::group(&parse_str(text).unwrap())).starts_with(message), "{text}");
    }
    let kernel = |text: &str| fields::kernel(&parse_str(text).unwrap());
    let message = refused(kernel("(one = body) struct A { #[group] x: [u32; 2] }"));
    assert_eq!(message, "a group is a struct with the attribute #[group], by name");
    let members: Vec<_> = (0..64).map(|number| format!("f{number}")).collect();
    let with = |more| format!("{{ {} }} (one = body) struct A {{ #[group] x: Rows, {more} }}", members.join(", "));
    assert!(kernel(&with("")).is_ok());
    assert_eq!(refused(kernel(&with("k: u32"))), "a kernel has at most 64 parameters");
}

#[test]
fn tables_elsewhere_have_the_groups_of_the_struct() {
    let item: ItemStruct = parse_quote! { struct Fill { k: u32, #[group] x: Rows } };
    let names = [vec![parse_quote!(of), parse_quote!(len)]];
    let text = expand::arguments(&table("elsewhere = fills").unwrap(), &item, &names).unwrap().to_string();
    let head = "Fill { k , x { of , len } } ()";
    assert!(text.contains(head), "{text}");
    let made = parse_str(&format!("{head} pub fn fill() {{ a = f }}")).unwrap();
    let text = expand::elsewhere(&made).to_string();
    let of_field = "< Fill as :: cuda_std :: private :: Field < 1usize >> :: Type";
    let parameter = format!("argument_x_len : < {of_field} as :: cuda_std :: private :: Field < 1usize >> :: Type");
    assert!(text.contains(&parameter) && text.contains(&format!("type Group1 = {of_field} ;")), "{text}");
}

#[test]
fn enums_that_are_no_word() {
    let cases = [
        ("struct Step(u32);", "a parameter is an enum, a pointer or a number"),
        ("enum Step { A }", "a parameter is 32 bits wide: #[repr(u32)]"),
        ("#[repr(u64)] enum Step { A }", "a parameter is 32 bits wide: #[repr(u32)]"),
        ("#[repr(u32)] enum Step { A, B(u32) }", "a parameter is a word: its variants have no fields"),
        ("#[repr(u32)] enum Step { A, B {} }", "a parameter is a word: its variants have no fields"),
        ("#[repr(u32)] enum Step<T> { A, B }", "a parameter is not generic"),
        ("#[repr(u32)] enum Step {}", "a parameter has a value"),
    ];
    for (text, message) in cases {
        assert_eq!(refused(choice::param(&parse_str(text).unwrap())), message, "{text}");
    }
    let made = choice::param(&parse_quote! { #[repr(u32)] enum Step { A = 3, B } }).unwrap().to_string();
    assert!(made.contains("& [Self :: A , Self :: B]"), "{made}");
}

#[test]
fn raw_pointers_have_no_length() {
    let one = table("one = body").unwrap();
    let message = refused(expand::arguments(&one, &parse_quote! { struct A { x: *const f32 } }, &[]));
    assert_eq!(
        message,
        "a raw pointer has no length: a kernel takes `Ptr<..>`, or `Option<Ptr<..>>` if it may be absent"
    );
    let function: ItemFn = parse_quote! { unsafe fn f(x: *mut f32) {} };
    let message = refused(expand::function(&Bounds::default(), function));
    assert!(message.contains("`PtrMut<..>`, or `Option<PtrMut<..>>`"), "{message}");
}

#[test]
fn pointers_with_a_length() {
    let one = table("one = body").unwrap();
    let item: ItemStruct = parse_quote! {
        struct A { a: Ptr<u32>, b: cuda_std::PtrMut<[f32; 4]>, c: Option<Ptr<u8>>, d: core::option::Option<PtrMut<f64>> }
    };
    assert!(expand::arguments(&one, &item, &[]).is_ok());
}

/// The documentation of a field, a line each.
fn documentation(field: &Field) -> Vec<String> {
    let lines = field.attrs.iter().filter(|attribute| attribute.path().is_ident("doc"));
    let text = |value: &syn::Expr| syn::parse2::<LitStr>(value.to_token_stream()).unwrap().value();
    lines.map(|attribute| text(&attribute.meta.require_name_value().unwrap().value)).collect()
}

#[test]
fn parameters_documentation_moves_to_the_fields() {
    let function: ItemFn = parse_quote! {
        /// Stores a value in two places.
        pub unsafe fn fill_two(
            /// The destination.
            ///
            /// Two lines.
            out: PtrMut<u32>,
            first: u32,
        ) {}
    };
    let expanded = expand::function(&Bounds::default(), function).unwrap();
    let items = syn::parse2::<syn::File>(expanded).unwrap().items;
    let of_functions: Vec<_> =
        items.iter().filter_map(|item| if let Item::Fn(f) = item { Some(f) } else { None }).collect();
    // One for the GPU, one for the host.
    assert_eq!(of_functions.len(), 2);
    for input in of_functions.iter().flat_map(|function| &function.sig.inputs) {
        let syn::FnArg::Typed(typed) = input else { panic!("a kernel has no self") };
        assert!(typed.attrs.is_empty(), "the language has no documentation of parameters");
    }
    let structs: Vec<_> =
        items.iter().filter_map(|item| if let Item::Struct(s) = item { Some(s) } else { None }).collect();
    let [arguments] = structs[..] else { panic!("one struct") };
    assert_eq!(arguments.ident, "FillTwo");
    assert!(!arguments.attrs.iter().any(|attribute| attribute.path().is_ident("cfg")), "`config` is for both sides");
    let Fields::Named(fields) = &arguments.fields else { panic!("fields have names") };
    let fields: Vec<_> = fields.named.iter().collect();
    assert_eq!(
        fields.iter().map(|field| field.ident.as_ref().unwrap().to_string()).collect::<Vec<_>>(),
        ["out", "first"]
    );
    assert_eq!(documentation(fields[0]), [" The destination.", "", " Two lines."]);
    assert!(documentation(fields[1]).is_empty());
}
