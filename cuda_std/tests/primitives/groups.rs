//! Groups of parameters: their names, order and addresses, alone and in tables of other modules.

use crate::one_block;
use cuda_std::{
    Ptr, PtrMut,
    emulator::{self, Buffer},
    global, kernel,
    launch::{ArgumentRange, KernelArgs},
    thread,
};

mod values {
    use cuda_std::{Ptr, group};

    #[group]
    #[derive(Default)]
    pub struct Values {
        pub of: Ptr<u32>,
        pub count: u32,
    }
}

mod pair {
    use super::values::Values;
    use cuda_std::{PtrMut, kernel};

    #[kernel(max_threads = 64, elsewhere = pair_kernels)]
    pub struct Pair {
        pub factor: u32,
        #[group]
        pub left: Values,
        #[group]
        pub right: Values,
        pub out: PtrMut<u32>,
    }
}

use pair::{Pair, pair_kernels};
use values::Values;

pair_kernels! {
    /// The kernel of sums.
    fn sums() { sums_of_pairs = add::<1> }
}

/// # Safety
/// The arrays are as long as [`Pair`] says.
unsafe fn add<const MORE: u32>(Pair { factor, left, right, out }: Pair) {
    let i = thread::thread_idx_x() as usize;
    // SAFETY: the tests give the values, except where they test the message.
    let [a, b] = [left, right].map(|values| unsafe { global::load(values.of.add(i)) });
    // SAFETY: as above.
    unsafe { global::store(out.add(i), factor * (a + b) + MORE) }
}

/// Copies with a group in a generic struct.
#[kernel(copy_some_words for CopySome<u32> = copy::<u32>)]
struct CopySome<T> {
    #[group]
    from: Values,
    to: PtrMut<T>,
}

/// # Safety
/// There are values for each thread.
unsafe fn copy<T: Copy + From<u32>>(CopySome { from, to }: CopySome<T>) {
    let i = thread::thread_idx_x() as usize;
    // SAFETY: as the caller promises.
    unsafe { global::store(to.add(i), global::load(from.of.add(i)).into()) }
}

fn pair(left: &Buffer<u32>, right: &Buffer<u32>, out: &mut Buffer<u32>) -> Pair {
    let values = |values: &Buffer<u32>| Values { of: values.as_ptr(), count: 3 };
    Pair { factor: 10, left: values(left), right: values(right), out: out.as_mut_ptr() }
}

#[test]
fn arguments_have_the_names_of_field_and_group() {
    assert_eq!(Pair::NAMES, ["factor", "left.of", "left.count", "right.of", "right.count", "out"]);
    assert_eq!(CopySome::<u32>::NAMES, ["from.of", "from.count", "to"]);
}

#[test]
fn a_table_in_a_module_that_does_not_import_the_group() {
    let (left, right, mut out) = (Buffer::from_slice(&[1, 2, 3]), Buffer::from_slice(&[4, 5, 6]), Buffer::new(3));
    // SAFETY: three values in each array.
    unsafe { emulator::launch(sums(), one_block(3, 0), pair(&left, &right, &mut out)) }.unwrap();
    assert_eq!(out.to_vec(), [51, 71, 91]);
    assert_eq!(sums().max_threads(), Some(64));
}

#[test]
fn a_group_in_a_generic_struct() {
    let (from, mut to) = (Buffer::from_slice(&[7, 8]), Buffer::new(2));
    let launch = CopySome { from: Values { of: from.as_ptr(), count: 2 }, to: to.as_mut_ptr() };
    // SAFETY: two values in each array.
    unsafe { emulator::launch(&CopySome::<u32>::KERNEL, one_block(2, 0), launch) }.unwrap();
    assert_eq!(to.to_vec(), [7, 8]);
}

#[test]
fn a_message_names_the_argument_of_a_group() {
    let (left, right, mut out) = (Buffer::from_slice(&[1; 4]), Buffer::from_slice(&[2; 3]), Buffer::new(4));
    // SAFETY: the emulator stops the access beyond the end.
    let stopped = unsafe { emulator::launch(sums(), one_block(4, 0), pair(&left, &right, &mut out)) };
    let message = stopped.unwrap_err().to_string();
    assert!(message.contains("sums_of_pairs") && message.contains("right.of"), "{message}");
}

#[test]
fn ranges_and_addresses_are_those_of_the_fields() {
    let (left, right, mut out) = (Buffer::from_slice(&[1, 2, 3]), Buffer::from_slice(&[4, 5, 6]), Buffer::new(3));
    let mut launch = pair(&left, &right, &mut out);
    let range =
        |name, pointer: Ptr<u32>, writable| ArgumentRange { name, address: pointer.addr(), bytes: Some(12), writable };
    let ranges: Vec<_> = launch.ranges().collect();
    let expected = [
        range("left.of", left.as_ptr(), false),
        range("right.of", right.as_ptr(), false),
        range("out", out.as_mut_ptr().into(), true),
    ];
    assert_eq!(ranges, expected);
    let raw = launch.as_raw();
    let addresses = raw.as_slice();
    assert_eq!(addresses[2].addr(), (&raw const launch.left.count).addr());
    assert_eq!(addresses[3].addr(), (&raw const launch.right.of).addr());
    assert_eq!(addresses.len(), 6);
    // SAFETY: `launch` has a value for each parameter and is not moved.
    let read = unsafe { Pair::from_raw(addresses.as_ptr()) };
    let parts =
        |pair: &Pair| (pair.factor, pair.left.of.addr(), pair.left.count, pair.right.of.addr(), pair.out.addr());
    assert_eq!(parts(&read), parts(&launch));
}
