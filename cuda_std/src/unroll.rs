//! A loop whose index is a literal in every turn.

#[cfg(target_arch = "nvptx64")]
macro_rules! unrolled {
    ($($index:literal)*) => {
        /// The device version: one call for each index. The host version has the documentation.
        #[inline(always)]
        pub fn unroll<const N: usize>(mut f: impl FnMut(usize)) {
            const { assert!(N <= 64, "unroll goes up to 64") };
            $(
                if N > $index {
                    f($index);
                }
            )*
        }
    };
}

#[cfg(target_arch = "nvptx64")]
unrolled! {
    0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30 31 32 33 34 35 36 37 38 39
    40 41 42 43 44 45 46 47 48 49 50 51 52 53 54 55 56 57 58 59 60 61 62 63
}

/// `f(0)`, `f(1)`, .. `f(N - 1)`, with a literal index in each call; `N` ≤ 64.
///
/// On the GPU every call inlines (the device build raises the inline threshold for this purpose), so an array indexed
/// by the argument stays in registers. With a loop, all but the smallest arrays would lie in local memory.
///
/// ```
/// let mut squares = [0; 5];
/// cuda_std::unroll::<5>(|i| squares[i] = i * i);
/// assert_eq!(squares, [0, 1, 4, 9, 16]);
/// ```
#[cfg(not(target_arch = "nvptx64"))]
#[inline(always)]
pub fn unroll<const N: usize>(f: impl FnMut(usize)) {
    const { assert!(N <= 64, "unroll goes up to 64") };
    (0..N).for_each(f);
}
