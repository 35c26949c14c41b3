//! `#[kernel]`: marks a function, or a struct of arguments with a table of functions, that the GPU and the emulator can
//! launch. The documentation stands at `cuda_std::kernel`.

mod attribute;
mod choice;
mod expand;
mod fields;
mod signature;
#[cfg(test)]
mod tests;

use proc_macro::TokenStream;

/// Makes a kernel from an `unsafe fn`, or several kernels from a struct of arguments that all of them take.
///
/// # A function
/// ```
/// # use cuda_std::{PtrMut, global, kernel, launch::LaunchConfig, thread};
/// /// Adds one to each value.
/// ///
/// /// # Safety
/// /// The array is as long as the parameters say.
/// #[kernel(max_threads = 256, min_blocks = 2)]
/// pub unsafe fn increment(
///     /// `n` values.
///     x: PtrMut<f32>,
///     /// Number of values.
///     n: u32,
/// ) {
///     let i = thread::block_idx_x() * thread::block_dim_x() + thread::thread_idx_x();
///     if i < n {
///         // SAFETY: i < n.
///         unsafe { global::store(x.add(i as usize), global::load(x.add(i as usize)) + 1.0) }
///     }
/// }
///
/// // The arguments have names, and a launch is a value with methods, such as one for its grid.
/// impl Increment {
///     /// One thread for each value.
///     pub fn config(&self) -> LaunchConfig {
///         LaunchConfig::linear(self.n.div_ceil(256).into(), 256)
///     }
/// }
///
/// let launch = Increment { x: PtrMut::empty(), n: 1000 };
/// assert_eq!(launch.config().grid, [4, 1, 1]);
/// assert_eq!(Increment::KERNEL.name(), "increment");
/// assert_eq!(Increment::KERNEL.max_threads(), Some(256));
/// ```
///
/// The macro makes:
/// - For the GPU: an entry point of the function's name, plus, as a comment in the PTX, the launch bounds
///   (`// warpann.kernel increment maxntid=256 minnctapersm=2`), which `cuda_builder` turns into directives.
/// - For both: a struct of the arguments. Its name is the function's name in camel case (`Increment`), and its fields
///   are the parameters with their documentation.
/// - For the host: the unchanged function, and the struct's constant `KERNEL`, a `launch::Kernel`.
///
/// # A struct
/// If several kernels take the same arguments, write the struct and list the kernels in the attribute. Each row has the
/// name of the entry point, in parentheses the bounds that differ from those of all kernels, and the function that
/// takes the struct.
///
/// ```
/// # use cuda_std::{Ptr, PtrMut, global, kernel, thread};
/// /// Adds up `rows` values a thread.
/// #[kernel(
///     key = u32,
///     max_threads = 128,
///     /// Two values a thread.
///     2 => add_two = add::<2>,
///     /// Three or more: three a thread.
///     _ => add_three(min_blocks = 4) = add::<3>,
/// )]
/// pub struct Add {
///     /// The summands: as many values a thread as the kernel's name says.
///     pub values: Ptr<f32>,
///     /// The sum of each thread.
///     pub sums: PtrMut<f32>,
/// }
///
/// /// # Safety
/// /// The arrays are as long as [`Add`] says.
/// unsafe fn add<const ROWS: usize>(Add { values, sums }: Add) {
///     let thread = thread::thread_idx_x() as usize;
///     // SAFETY: the caller promises `ROWS` values and a sum for each thread.
///     let sum = (0..ROWS).map(|row| unsafe { global::load(values.add(thread * ROWS + row)) }).sum();
///     // SAFETY: as above.
///     unsafe { global::store(sums.add(thread), sum) }
/// }
/// assert_eq!(Add::kernel(2).name(), "add_two");
/// assert_eq!(Add::kernel(7).name(), "add_three");
/// ```
///
/// The macro makes entry points with the fields as parameters, one by one, and the function `kernel`, which selects a
/// kernel by the key. The patterns are the arms of a `match`, so every value of the key has a kernel. Without a key
/// there is one kernel, `KERNEL`. A generic struct has one `KERNEL` for each type that a row names:
///
/// ```
/// # use cuda_std::{Ptr, PtrMut, global, kernel, launch::KernelArgs, thread};
/// /// Copies a value for each thread.
/// #[kernel(
///     copy_words for Copy<u32> = copy::<u32>,
///     copy_doubles(max_threads = 256) for Copy<f64> = copy::<f64>,
/// )]
/// pub struct Copy<T> {
///     /// One value for each thread.
///     pub from: Ptr<T>,
///     /// One value for each thread.
///     pub to: PtrMut<T>,
/// }
///
/// /// # Safety
/// /// The arrays are as long as [`Copy`] says.
/// unsafe fn copy<T: std::marker::Copy>(Copy { from, to }: Copy<T>) {
///     let thread = thread::thread_idx_x() as usize;
///     // SAFETY: the caller promises a value for each thread.
///     unsafe { global::store(to.add(thread), global::load(from.add(thread))) }
/// }
/// assert_eq!(Copy::<u32>::KERNEL.name(), "copy_words");
/// assert_eq!(Copy::<f64>::KERNEL.max_threads(), Some(256));
/// assert_eq!(Copy::<f64>::NAMES, ["from", "to"]);
/// ```
///
/// If the kernels of a struct belong to several modules, such as one for each format of the data, `elsewhere` names a
/// macro with which each such module of the crate adds a table of its own. The macro makes a function that selects a
/// kernel, by a key or, if there is one kernel, without. The struct must be in scope. The bounds of the attribute hold
/// for all kernels.
///
/// ```
/// mod fill {
///     # use cuda_std::{PtrMut, kernel};
///     /// Fills an array.
///     #[kernel(max_threads = 128, elsewhere = fill_kernels)]
///     pub struct Fill {
///         /// One value for each thread.
///         pub values: PtrMut<u32>,
///     }
/// }
///
/// mod constants {
///     use crate::fill::{Fill, fill_kernels};
///     # use cuda_std::{global, thread};
///     fill_kernels! {
///         /// The kernel that fills with a constant.
///         pub fn filling(key: bool) {
///             false => fill_zeros = fill::<0>,
///             true => fill_ones(min_blocks = 16) = fill::<1>,
///         }
///     }
///
///     /// # Safety
///     /// There is a value for each thread.
///     unsafe fn fill<const VALUE: u32>(Fill { values }: Fill) {
///         // SAFETY: as the caller promises.
///         unsafe { global::store(values.add(thread::thread_idx_x() as usize), VALUE) }
///     }
/// }
///
/// # fn main() {
/// assert_eq!(constants::filling(true).name(), "fill_ones");
/// assert_eq!(constants::filling(true).max_threads(), Some(128));
/// assert_eq!((constants::filling(true).min_blocks(), constants::filling(false).min_blocks()), (Some(16), None));
/// # }
/// ```
///
/// # The crate
/// A crate with kernels starts with one line for the device build, because entry points and the comment need unstable
/// features of the compiler. The host build ignores the line:
///
/// ```text
/// #![cfg_attr(target_arch = "nvptx64", no_std, feature(abi_ptx, asm_experimental_arch))]
/// ```
///
/// # What it accepts
/// - Parameters are pointers with a length, integers (`u8` .. `u64`, `i8` .. `i64`, `usize`), `f32` and `f64`, and
///   enums that derive `cuda_std::launch::Param`, by name; at most 64. No result, no generics but those of a struct.
/// - A pointer is a `cuda_std::Ptr<T>` if the kernel reads its elements, and a `cuda_std::PtrMut<T>` if it writes them.
///   An argument of type `Option` of either may be absent. A body uses a pointer like a raw pointer; the emulator stops
///   accesses outside of its elements.
/// - `max_threads = N`: no launch has more than N threads per block, so the compiler may use more registers.
///   `min_blocks = M`, only together with `max_threads`: the compiler limits registers so that M blocks fit a
///   multiprocessor.
/// - `arch = "sm_90a"`: the kernel uses instructions that only this architecture has (`wgmma`). Its module is for this
///   architecture alone, and other devices refuse it, so check the device before the launch. `arch = "sm_90"`: the
///   kernel uses instructions that this architecture and later ones have (clusters); only older devices refuse it.
/// - A `macro_rules!` macro may generate a kernel if it passes the name and the bounds, and the struct's name if the
///   macro uses that.
///
/// A wrong argument type does not compile:
///
/// ```compile_fail,E0308
/// # use cuda_std::{Ptr, emulator, kernel, launch::LaunchConfig};
/// /// # Safety
/// /// None needed.
/// #[kernel]
/// pub unsafe fn idle(_x: Ptr<f32>, _n: u32) {}
///
/// let launch = Idle { _x: Ptr::<f64>::empty(), _n: 1 };
/// // SAFETY: `idle` touches nothing.
/// unsafe { emulator::launch(&Idle::KERNEL, LaunchConfig::linear(1, 32), launch) };
/// ```
/// A missing argument or one with another name does not compile:
///
/// ```compile_fail,E0063
/// # use cuda_std::{Ptr, kernel};
/// /// # Safety
/// /// None needed.
/// #[kernel]
/// pub unsafe fn idle(_x: Ptr<f32>, _n: u32) {}
///
/// let launch = Idle { _n: 1 };
/// ```
/// A table that leaves out a value of its key does not compile:
///
/// ```compile_fail,E0004
/// # use cuda_std::kernel;
/// #[kernel(key = bool, true => wide = run)]
/// pub struct Run {
///     /// Unused.
///     pub n: u32,
/// }
/// unsafe fn run(_: Run) {}
/// ```
/// A struct without a table does not compile:
///
/// ```compile_fail
/// # use cuda_std::kernel;
/// #[kernel]
/// pub struct Run {
///     /// Unused.
///     pub n: u32,
/// }
/// ```
/// A bound of all kernels after the first kernel does not compile:
///
/// ```compile_fail
/// # use cuda_std::kernel;
/// #[kernel(run_any = run, max_threads = 128)]
/// pub struct Run {
///     /// Unused.
///     pub n: u32,
/// }
/// unsafe fn run(_: Run) {}
/// ```
/// A raw pointer as a parameter does not compile, because it has no length:
///
/// ```compile_fail
/// # use cuda_std::kernel;
/// /// # Safety
/// /// None needed.
/// #[kernel]
/// pub unsafe fn takes_raw_pointer(_x: *const f32) {}
/// ```
/// A parameter that is neither a pointer nor a scalar does not compile:
///
/// ```compile_fail
/// # use cuda_std::kernel;
/// /// # Safety
/// /// None needed.
/// #[kernel]
/// pub unsafe fn takes_slice(_x: &[f32]) {}
/// ```
/// A kernel with a result does not compile:
///
/// ```compile_fail
/// # use cuda_std::kernel;
/// /// # Safety
/// /// None needed.
/// #[kernel]
/// pub unsafe fn returns(n: u32) -> u32 { n }
/// ```
/// An unknown architecture does not compile:
///
/// ```compile_fail
/// # use cuda_std::kernel;
/// /// # Safety
/// /// None needed.
/// #[kernel(arch = "hopper")]
/// pub unsafe fn for_hopper(_n: u32) {}
/// ```
/// A safe function does not compile: a kernel is unsafe, and its documentation states what a launch must satisfy.
///
/// ```compile_fail
/// # use cuda_std::kernel;
/// #[kernel]
/// pub fn safe(_n: u32) {}
/// ```
#[proc_macro_attribute]
pub fn kernel(attribute: TokenStream, item: TokenStream) -> TokenStream {
    let expanded = match syn::parse_macro_input!(item as syn::Item) {
        syn::Item::Fn(function) => {
            let bounds = syn::parse_macro_input!(attribute as attribute::Bounds);
            expand::function(&bounds, function)
        }
        syn::Item::Struct(item) => {
            fields::kernel(&fields::Kernel { groups: Vec::new(), attribute: attribute.into(), item })
        }
        other => Err(syn::Error::new_spanned(other, "#[kernel] stands before a function or a struct of arguments")),
    };
    expanded.unwrap_or_else(syn::Error::into_compile_error).into()
}

/// A table of kernels in another module than its struct of arguments. Only the macro calls it that [`macro@kernel`]
/// makes by `elsewhere`.
#[doc(hidden)]
#[proc_macro]
pub fn kernels(table: TokenStream) -> TokenStream {
    expand::elsewhere(&syn::parse_macro_input!(table as attribute::TableElsewhere)).into()
}

/// A struct of arguments with groups. Only the macro calls it that [`macro@group`] makes.
#[doc(hidden)]
#[proc_macro]
pub fn kernel_of_groups(kernel: TokenStream) -> TokenStream {
    fields::kernel(&syn::parse_macro_input!(kernel as fields::Kernel))
        .unwrap_or_else(syn::Error::into_compile_error)
        .into()
}

/// Makes a struct a group of parameters: a field of the structs of several kernels, which the group documents once. The
/// field has the attribute `#[group]`. The entry points take the fields of the group one by one, as if they stood in
/// the struct of arguments, and messages name them with the field, such as `keys.count`.
///
/// ```
/// # use cuda_std::{Ptr, PtrMut, global, group, kernel, launch::KernelArgs, thread};
/// /// Keys, in any order.
/// #[group]
/// pub struct Keys {
///     /// `count` keys.
///     pub values: Ptr<u32>,
///     /// Number of keys.
///     pub count: u32,
/// }
///
/// /// Copies the keys, each plus `more`.
/// #[kernel(max_threads = 128, raise_keys = raise)]
/// pub struct Raise {
///     /// The keys to copy.
///     #[group]
///     pub keys: Keys,
///     /// The addend.
///     pub more: u32,
///     /// One key for each of `keys`.
///     pub out: PtrMut<u32>,
/// }
///
/// /// # Safety
/// /// The arrays are as long as [`Raise`] says.
/// unsafe fn raise(Raise { keys, more, out }: Raise) {
///     let thread = thread::thread_idx_x();
///     if thread < keys.count {
///         // SAFETY: thread < count.
///         unsafe {
///             let key = global::load(keys.values.add(thread as usize));
///             global::store(out.add(thread as usize), key + more);
///         }
///     }
/// }
/// assert_eq!(Raise::NAMES, ["keys.values", "keys.count", "more", "out"]);
///
/// use cuda_std::{emulator, launch::LaunchConfig};
/// let (values, mut out) = (emulator::Buffer::from_slice(&[3u32, 4]), emulator::Buffer::<u32>::new(2));
/// let launch = Raise { keys: Keys { values: values.as_ptr(), count: 2 }, more: 5, out: out.as_mut_ptr() };
/// // SAFETY: there are two keys, and room for two.
/// unsafe { emulator::launch(&Raise::KERNEL, LaunchConfig::linear(1, 32), launch).unwrap() };
/// assert_eq!(out.to_vec(), [8, 9]);
/// ```
///
/// The fields of a group are those that a kernel accepts, except groups, and a group is not generic. It is visible to
/// the kernels of its crate. A kernel's module imports it by its own name.
///
/// A field that is a group but does not say so does not compile:
///
/// ```compile_fail,E0277
/// # use cuda_std::{Ptr, group, kernel};
/// /// Keys.
/// #[group]
/// pub struct Keys {
///     /// Number of keys.
///     pub count: u32,
/// }
/// #[kernel(run_all = run)]
/// pub struct Run {
///     /// The keys.
///     pub keys: Keys,
/// }
/// unsafe fn run(_: Run) {}
/// ```
/// A missing field of a group does not compile:
///
/// ```compile_fail,E0063
/// # use cuda_std::{Ptr, group};
/// /// Keys.
/// #[group]
/// pub struct Keys {
///     /// `count` keys.
///     pub values: Ptr<u32>,
///     /// Number of keys.
///     pub count: u32,
/// }
/// let keys = Keys { count: 2 };
/// ```
#[proc_macro_attribute]
pub fn group(attribute: TokenStream, item: TokenStream) -> TokenStream {
    syn::parse_macro_input!(attribute as syn::parse::Nothing);
    fields::group(&syn::parse_macro_input!(item as syn::ItemStruct))
        .unwrap_or_else(syn::Error::into_compile_error)
        .into()
}

/// Inlines a function of device code into its callers: always on the GPU, where a call costs registers and memory. On
/// the host, which runs kernels in the emulator, the compiler decides: there every copy of a body only costs time to
/// compile. (The kernels of warpann compile in 100 s of CPU instead of 146, EPYC, 2026-11-29.)
///
/// ```
/// # use cuda_std::device_inline;
/// #[device_inline]
/// fn twice(x: u32) -> u32 {
///     2 * x
/// }
/// # assert_eq!(twice(4), 8);
/// ```
#[proc_macro_attribute]
pub fn device_inline(attribute: TokenStream, item: TokenStream) -> TokenStream {
    syn::parse_macro_input!(attribute as syn::parse::Nothing);
    let item = proc_macro2::TokenStream::from(item);
    quote::quote! {
        #[cfg_attr(target_arch = "nvptx64", inline(always))]
        #[cfg_attr(not(target_arch = "nvptx64"), inline)]
        #item
    }
    .into()
}

/// Makes an enum a kernel's parameter: a `#[repr(u32)]` enum whose variants have no fields. It is passed as a 32-bit
/// word, and a launch can only pass a variant, so that a kernel may match on it without an arm for other words.
///
/// ```
/// # use cuda_std::{PtrMut, global, kernel, launch::Param, thread};
/// /// The change of a value.
/// #[derive(Debug, Clone, Copy, Param)]
/// #[repr(u32)]
/// pub enum Step {
///     /// One more.
///     Increment,
///     /// Twice as much.
///     Double,
/// }
///
/// /// Changes the first value.
/// ///
/// /// # Safety
/// /// There is a value.
/// #[kernel]
/// pub unsafe fn change(x: PtrMut<f32>, step: Step) {
///     if thread::thread_idx_x() == 0 {
///         // SAFETY: the caller promises a value.
///         let value = unsafe { global::load(*x) };
///         let changed = match step {
///             Step::Increment => value + 1.0,
///             Step::Double => 2.0 * value,
///         };
///         // SAFETY: as above.
///         unsafe { global::store(*x, changed) }
///     }
/// }
///
/// use cuda_std::{emulator, launch::LaunchConfig};
/// let mut values = emulator::Buffer::from_slice(&[3.0f32]);
/// for step in [Step::Increment, Step::Double] {
///     let launch = Change { x: values.as_mut_ptr(), step };
///     // SAFETY: there is one value.
///     unsafe { emulator::launch(&Change::KERNEL, LaunchConfig::linear(1, 32), launch).unwrap() };
/// }
/// assert_eq!(values.to_vec(), [8.0]);
/// ```
///
/// An enum of another width does not compile:
///
/// ```compile_fail
/// # use cuda_std::launch::Param;
/// #[derive(Clone, Copy, Param)]
/// #[repr(u8)]
/// pub enum Step { Increment, Double }
/// ```
///
/// Nor does one with fields:
///
/// ```compile_fail
/// # use cuda_std::launch::Param;
/// #[derive(Clone, Copy, Param)]
/// #[repr(u32)]
/// pub enum Step { Increment, Add(u32) }
/// ```
///
/// Nor an enum as a parameter that does not derive it:
///
/// ```compile_fail,E0277
/// # use cuda_std::kernel;
/// #[derive(Debug, Clone, Copy)]
/// #[repr(u32)]
/// pub enum Step { Increment, Double }
///
/// /// # Safety
/// /// None needed.
/// #[kernel]
/// pub unsafe fn change(_step: Step) {}
/// ```
#[proc_macro_derive(Param)]
pub fn param(item: TokenStream) -> TokenStream {
    choice::param(&syn::parse_macro_input!(item as syn::DeriveInput))
        .unwrap_or_else(syn::Error::into_compile_error)
        .into()
}
