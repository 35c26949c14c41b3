//! The output of `#[kernel]`: names, bounds, kernels chosen by a key or by a type, arguments of every type.

use crate::one_block;
use cuda_std::{
    Ptr, PtrMut,
    emulator::{self, Buffer},
    global, kernel,
    launch::{ArgumentRange, Kernel, KernelArgs, Param},
    ptr::TO_END,
    thread,
};
use std::{ffi::c_void, ptr};

/// A kernel a line: name, element, rows a thread, bounds.
macro_rules! family {
    ($($name:ident[$t:ty] $rows:literal, $threads:literal, $blocks:literal;)*) => {$(
        #[kernel(max_threads = $threads, min_blocks = $blocks)]
        pub unsafe fn $name(out: PtrMut<$t>, first: $t) {
            for row in 0..$rows {
                let i = row * thread::block_dim_x() + thread::thread_idx_x();
                // SAFETY: the test gives `rows` values a thread.
                unsafe { global::store(out.add(i as usize), first + i as $t) }
            }
        }
    )*};
}

family! {
    fill_two[u32] 2, 128, 4;
    fill_three[f64] 3, 64, 1;
}

#[test]
fn a_family_from_a_macro() {
    let (mut words, mut doubles) = (Buffer::<u32>::new(20), Buffer::<f64>::new(30));
    let two = FillTwo { out: words.as_mut_ptr(), first: 5 };
    let three = FillThree { out: doubles.as_mut_ptr(), first: 0.5 };
    // SAFETY: two and three values a thread.
    unsafe {
        emulator::launch(&FillTwo::KERNEL, one_block(10, 0), two).unwrap();
        emulator::launch(&FillThree::KERNEL, one_block(10, 0), three).unwrap();
    }
    assert_eq!(words.to_vec(), (5..25).collect::<Vec<_>>());
    assert_eq!(doubles.to_vec(), (0..30).map(|i| f64::from(i) + 0.5).collect::<Vec<_>>());
    assert_eq!((FillTwo::KERNEL.name(), FillThree::KERNEL.name()), ("fill_two", "fill_three"));
    assert_eq!(FillTwo::KERNEL.max_threads(), Some(128));
}

/// One parameter of each type.
#[kernel]
unsafe fn every_type(
    /// Twelve values, one per parameter.
    out: PtrMut<f64>,
    /// An array of one byte.
    bytes: Ptr<u8>,
    a: u8,
    b: u16,
    c: u32,
    d: u64,
    e: i8,
    f: i16,
    g: i32,
    h: i64,
    i: usize,
    /// A parameter's documentation may have
    /// several lines.
    j: f32,
    k: f64,
) {
    let values =
        [a as f64, b as f64, c as f64, d as f64, e as f64, f as f64, g as f64, h as f64, i as f64, j as f64, k];
    for (at, value) in values.into_iter().enumerate() {
        // SAFETY: 12 results, one byte.
        unsafe { global::store(out.add(at), value) }
    }
    // SAFETY: as above.
    unsafe { global::store(out.add(11), global::load(*bytes).into()) }
}

/// Arguments for `every_type`.
fn one_of_each(out: &mut Buffer<f64>, bytes: &Buffer<u8>) -> EveryType {
    EveryType {
        out: out.as_mut_ptr(),
        bytes: bytes.as_ptr(),
        a: 1,
        b: 2,
        c: 3,
        d: 4,
        e: -5,
        f: -6,
        g: -7,
        h: -8,
        i: 9,
        j: 10.5,
        k: -11.25,
    }
}

const ONE_OF_EACH: [f64; 12] = [1.0, 2.0, 3.0, 4.0, -5.0, -6.0, -7.0, -8.0, 9.0, 10.5, -11.25, 77.0];

#[test]
fn arguments_of_every_type() {
    assert_eq!(EveryType::KERNEL.max_threads(), None);
    let (mut out, bytes) = (Buffer::<f64>::new(12), Buffer::from_slice(&[77u8]));
    let launch = one_of_each(&mut out, &bytes);
    // SAFETY: 12 results, one byte.
    unsafe { emulator::launch(&EveryType::KERNEL, one_block(1, 0), launch) }.unwrap();
    assert_eq!(out.to_vec(), ONE_OF_EACH);
}

/// The kernel of that name as a driver finds it.
#[cfg(target_os = "linux")]
fn registered(name: &str) -> &'static dyn emulator::AnyKernel {
    let mut found = emulator::kernels().iter().filter(|kernel| kernel.name() == name);
    let kernel = found.next().unwrap_or_else(|| panic!("no kernel is named {name}"));
    assert!(found.next().is_none(), "several kernels are named {name}");
    *kernel
}

#[test]
#[cfg(target_os = "linux")]
fn arguments_by_their_addresses() {
    let (mut out, bytes) = (Buffer::<f64>::new(12), Buffer::from_slice(&[77u8]));
    let mut launch = one_of_each(&mut out, &bytes);
    let mut raw = launch.as_raw();
    // SAFETY: 12 results, one byte; `launch` has a value for each parameter and is not moved.
    let launch = unsafe { registered("every_type").bind(one_block(1, 0), raw.as_mut_ptr()) };
    launch().unwrap();
    assert_eq!(out.to_vec(), ONE_OF_EACH);
}

#[kernel]
unsafe fn idle() {}

#[kernel]
unsafe fn five(_a: u32, _b: f64, _c: Option<Ptr<u8>>, _d: u8, _e: Ptr<u64>) {}

#[test]
fn arguments_have_the_parameters_names() {
    assert_eq!(FillTwo::NAMES, ["out", "first"]);
    assert_eq!(EveryType::NAMES, ["out", "bytes", "a", "b", "c", "d", "e", "f", "g", "h", "i", "j", "k"]);
    assert_eq!(Mix::NAMES, ["values", "out", "count"]);
    assert_eq!(Reversed::<f64>::NAMES, ["values", "out", "count"]);
    assert!(Idle::NAMES.is_empty());
}

#[test]
fn arguments_as_the_driver_takes_them() {
    let p = ptr::without_provenance::<u64>(0x1238);
    let mut launch = Five { _a: 7, _b: 2.5, _c: None, _d: 9, _e: Ptr::new(p, 3) };
    let addresses: [*mut c_void; 5] = [
        (&raw mut launch._a).cast(),
        (&raw mut launch._b).cast(),
        (&raw mut launch._c).cast(),
        (&raw mut launch._d).cast(),
        (&raw mut launch._e).cast(),
    ];
    let mut raw = launch.as_raw();
    assert_eq!(raw.as_slice(), addresses);
    // The driver copies 8 bytes of a pointer: its address, which is null if it is absent.
    // SAFETY: an address lies at the beginning of each pointer.
    assert_eq!(unsafe { addresses[2].cast::<*const u8>().read() }, ptr::null());
    // SAFETY: as above.
    assert_eq!(unsafe { addresses[4].cast::<*const u64>().read() }, p);
    assert_eq!(raw.as_mut_ptr().addr(), raw.as_slice().as_ptr().addr());
    assert!(Idle {}.as_raw().as_slice().is_empty());
}

#[test]
fn arguments_from_their_addresses() {
    // Neither in the struct's order nor aligned.
    let mut bytes = [0u8; 40];
    let places = [12, 1, 16, 0, 25];
    bytes[12..16].copy_from_slice(&7u32.to_ne_bytes());
    bytes[1..9].copy_from_slice(&2.5f64.to_ne_bytes());
    bytes[0] = 9;
    bytes[25..33].copy_from_slice(&0x1238u64.to_ne_bytes());
    let addresses = places.map(|place| bytes.as_mut_ptr().wrapping_add(place).cast::<c_void>());
    // SAFETY: at each address lies a scalar of the parameter's type or an address; zeros are a null pointer.
    let Five { _a, _b, _c, _d, _e } = unsafe { Five::from_raw(addresses.as_ptr()) };
    assert_eq!((_a, _b, _d), (7, 2.5, 9));
    assert!(_c.is_none());
    assert_eq!((_e.addr(), _e.len()), (0x1238, TO_END));
    // A null address that is not optional has no elements.
    bytes[25..33].fill(0);
    // SAFETY: as above.
    assert!(unsafe { Five::from_raw(addresses.as_ptr()) }._e.is_empty());
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Param)]
#[repr(u32)]
enum Step {
    Increment = 7,
    Double = 1 << 31,
}

#[kernel]
unsafe fn take_step(out: PtrMut<u32>, step: Step, _after: u8) {
    let to = match step {
        Step::Increment => 1,
        Step::Double => 2,
    };
    // SAFETY: the test gives a value.
    unsafe { global::store(*out, to) }
}

#[test]
fn an_enum_is_passed_as_its_word() {
    let mut out = Buffer::from_slice(&[0u32]);
    for (step, seen) in [(Step::Increment, 1), (Step::Double, 2)] {
        let mut launch = TakeStep { out: out.as_mut_ptr(), step, _after: 3 };
        // SAFETY: one value.
        unsafe { emulator::launch(&TakeStep::KERNEL, one_block(1, 0), launch) }.unwrap();
        assert_eq!(out.to_vec(), [seen]);
        out.copy_from(&[0]);
        // As the driver has it: a 32-bit word at the second address.
        let mut raw = launch.as_raw();
        // SAFETY: the enum is 32 bits wide.
        assert_eq!(unsafe { raw.as_slice()[1].cast::<u32>().read() }, step as u32);
        // SAFETY: `launch` has a value for each parameter and is not moved.
        let launch = unsafe { registered("take_step").bind(one_block(1, 0), raw.as_mut_ptr()) };
        launch().unwrap();
        assert_eq!(out.to_vec(), [seen]);
    }
}

#[test]
#[should_panic(expected = "8 is not a value of the parameter's type primitives::kernels::Step")]
fn a_word_that_is_no_variant_is_refused() {
    let mut launch = TakeStep { out: PtrMut::empty(), step: Step::Increment, _after: 3 };
    let mut addresses = launch.as_raw().as_slice().to_vec();
    let mut word = 8u32;
    addresses[1] = ptr::from_mut(&mut word).cast();
    // SAFETY: at each address lies a scalar of the parameter's width.
    unsafe { TakeStep::from_raw(addresses.as_ptr()) };
}

#[test]
fn ranges_of_arguments() {
    let p = ptr::without_provenance_mut::<f64>(0x1000);
    let range = |name, bytes, writable| ArgumentRange { name, address: 0x1000, bytes, writable };
    let launch = FillThree { out: PtrMut::new(p, 5), first: 0.0 };
    assert_eq!(launch.ranges().collect::<Vec<_>>(), [range("out", Some(40), true)]);
    let launch = Five { _a: 0, _b: 0.0, _c: None, _d: 0, _e: Ptr::new(p.cast(), TO_END) };
    assert_eq!(launch.ranges().collect::<Vec<_>>(), [range("_e", None, false)], "an absent argument has no range");
    let launch = Five { _c: Some(Ptr::new(p.cast(), 3)), _e: Ptr::new(p.cast(), usize::MAX / 2), ..launch };
    let ranges: Vec<_> = launch.ranges().collect();
    assert_eq!(ranges[0], range("_c", Some(3), false));
    assert_eq!(ranges[1].bytes, Some(usize::MAX - 1), "a length that overflows is no unknown length");
}

#[test]
fn views_of_pointers() {
    let p = PtrMut::new(ptr::without_provenance_mut::<u32>(0x1000), 10);
    let parts = |p: Ptr<u32>| (p.addr(), p.len());
    assert_eq!(parts(p.into()), (0x1000, 10));
    assert_eq!(parts(p.skip(3).read_only()), (0x100c, 7));
    assert_eq!(parts(p.skip(10).into()), (0x1028, 0));
    assert_eq!(parts(p.skip(usize::MAX).into()), (0x1028, 0), "never beyond the end");
    assert_eq!(parts(p.take(3).into()), (0x1000, 3));
    assert_eq!(parts(p.take(30).into()), (0x1000, 10));
    assert_eq!(parts(p.skip(9).take(3).into()), (0x1024, 1));
    assert_eq!((p.as_bytes().addr(), p.as_bytes().len()), (0x1000, 40));
    assert_eq!(p.cast::<[u32; 4]>().len(), 2, "whole elements only");
    assert_eq!(p.cast::<u8>().cast::<u64>().len(), 5);
    let present: Option<Ptr<u32>> = p.into();
    assert_eq!(present.map(parts), Some((0x1000, 10)));
    let open = Ptr::new(ptr::without_provenance::<u32>(0x1000), TO_END);
    assert_eq!(parts(open.skip(4)), (0x1010, TO_END));
    assert_eq!(parts(open.skip(4).take(2)), (0x1010, 2));
    assert_eq!(open.as_bytes().len(), TO_END);
    assert_eq!(parts(Ptr::new(ptr::null(), 3)), (align_of::<u32>(), 3));
    assert_eq!(format!("{p:?} {open:?}"), "0x1000[..10] 0x1000 to the end");
}

/// A kernel is a constant, and may be kept in a table.
#[test]
fn kernels_are_values() {
    static TABLE: [Kernel<FillTwo>; 1] = [FillTwo::KERNEL];
    assert_eq!(TABLE[0].name(), "fill_two");
}

/// How `mix` joins two values.
#[derive(Clone, Copy)]
enum Join {
    Add,
    Multiply,
}

/// Joins the values of each thread, and negates the sum where the key's second part is true.
#[kernel(
    key = (Join, bool),
    max_threads = 64,
    min_blocks = 2,
    /// The sum of both values.
    (Join::Add, false) => mix_sum = mix::<true, false>,
    (Join::Add, true) => mix_negative_sum(max_threads = 32, min_blocks = 4) = mix::<true, true>,
    (Join::Multiply, _) => mix_product(max_threads = 96) = mix::<false, false>,
)]
struct Mix {
    /// `count` values a thread.
    values: Ptr<i32>,
    /// One value a thread.
    out: PtrMut<i32>,
    /// Values of a thread.
    count: u32,
}

/// # Safety
/// The arrays are as long as [`Mix`] says.
unsafe fn mix<const ADD: bool, const NEGATIVE: bool>(Mix { values, out, count }: Mix) {
    let t = thread::thread_idx_x();
    let mut joined = i32::from(!ADD);
    for i in 0..count {
        // SAFETY: i < count.
        let value = unsafe { global::load(values.add((t * count + i) as usize)) };
        joined = if ADD { joined + value } else { joined * value };
    }
    // SAFETY: one value a thread.
    unsafe { global::store(out.add(t as usize), if NEGATIVE { -joined } else { joined }) }
}

#[test]
fn kernels_chosen_by_a_key() {
    let values = Buffer::from_slice(&[1, 2, 3, 4, -5, 6]);
    for (key, name, max_threads, expected) in [
        ((Join::Add, false), "mix_sum", 64, [6, 5]),
        ((Join::Add, true), "mix_negative_sum", 32, [-6, -5]),
        ((Join::Multiply, false), "mix_product", 96, [6, -120]),
        ((Join::Multiply, true), "mix_product", 96, [6, -120]),
    ] {
        let kernel = Mix::kernel(key);
        assert_eq!((kernel.name(), kernel.max_threads()), (name, Some(max_threads)));
        let mut out = Buffer::<i32>::new(2);
        let launch = Mix { values: values.as_ptr(), out: out.as_mut_ptr(), count: 3 };
        // SAFETY: three values and a result for each of two threads.
        unsafe { emulator::launch(kernel, one_block(2, 0), launch) }.unwrap();
        assert_eq!(out.to_vec(), expected, "{name}");
        #[cfg(target_os = "linux")]
        assert_eq!(registered(name).name(), name);
    }
}

/// Reverses the values of a block.
#[kernel(
    reversed_words for Reversed<u32> = reversed::<u32>,
    reversed_doubles(max_threads = 256) for Reversed<f64> = reversed::<f64>,
)]
struct Reversed<T> {
    /// One value a thread.
    values: Ptr<T>,
    /// One value a thread.
    out: PtrMut<T>,
    /// Number of values.
    count: u32,
}

/// # Safety
/// The arrays are as long as [`Reversed`] says.
unsafe fn reversed<T: Copy>(Reversed { values, out, count }: Reversed<T>) {
    let t = thread::thread_idx_x();
    // SAFETY: one value and one result a thread.
    unsafe { global::store(out.add((count - 1 - t) as usize), global::load(values.add(t as usize))) }
}

/// Launches the kernel with `values`.
fn run_reversed<T: bytemuck::AnyBitPattern>(kernel: &Kernel<Reversed<T>>, values: &[T]) -> Vec<T> {
    let (input, mut out) = (Buffer::from_slice(values), Buffer::from_slice(values));
    let count = values.len() as u32;
    let launch = Reversed { values: input.as_ptr(), out: out.as_mut_ptr(), count };
    // SAFETY: one value and one result a thread.
    unsafe { emulator::launch(kernel, one_block(count, 0), launch) }.unwrap();
    out.to_vec()
}

#[test]
fn kernels_of_a_generic_struct() {
    let (words, doubles) = (&Reversed::<u32>::KERNEL, &Reversed::<f64>::KERNEL);
    assert_eq!((words.name(), words.max_threads()), ("reversed_words", None));
    assert_eq!((doubles.name(), doubles.max_threads()), ("reversed_doubles", Some(256)));
    assert_eq!(run_reversed(words, &[1, 2, 3]), [3, 2, 1]);
    assert_eq!(run_reversed(doubles, &[0.5, 1.5]), [1.5, 0.5]);
    #[cfg(target_os = "linux")]
    for name in ["reversed_words", "reversed_doubles"] {
        assert_eq!(registered(name).name(), name);
    }
}
