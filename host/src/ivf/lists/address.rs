//! The address of a vector.

/// The list of a vector, and its place in the list.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub(crate) struct Address {
    pub(crate) list: u32,
    pub(crate) place: u32,
}

/// The number by which addresses ascend.
impl From<Address> for u64 {
    fn from(at: Address) -> u64 {
        u64::from(at.list) << 32 | u64::from(at.place)
    }
}
