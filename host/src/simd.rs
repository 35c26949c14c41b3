//! The vector operations of the CPU's scan functions, for AVX-512, AVX2 with FMA, and plain Rust.
//!
//! A scan function is written once, generic over [`Simd`], and compiled once for each instruction set, inside a
//! function that enables the set (see [`crate::product::cpu::scan`]). All functions here are `inline(always)`, so that
//! the intrinsics are compiled with the enabled features.

/// The instruction sets for which scan functions are compiled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Isa {
    /// AVX-512F: 32 registers of 16 f32.
    #[cfg(target_arch = "x86_64")]
    Avx512,
    /// AVX2 and FMA: 16 registers of 8 f32.
    #[cfg(target_arch = "x86_64")]
    Avx2,
    /// Arrays of 4 f32 in plain Rust. The compiler uses SSE2 on x86-64 and NEON on AArch64.
    Portable,
}

impl Isa {
    /// The widest instruction set of this processor.
    pub(crate) fn detect() -> Self {
        #[cfg(target_arch = "x86_64")]
        {
            if is_x86_feature_detected!("avx512f") {
                return Self::Avx512;
            }
            if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
                return Self::Avx2;
            }
        }
        Self::Portable
    }

    /// All instruction sets of this processor, for tests.
    #[cfg(test)]
    pub(crate) fn all() -> Vec<Self> {
        #[cfg(target_arch = "x86_64")]
        match Self::detect() {
            Self::Avx512 => return vec![Self::Avx512, Self::Avx2, Self::Portable],
            Self::Avx2 => return vec![Self::Avx2, Self::Portable],
            Self::Portable => {}
        }
        vec![Self::Portable]
    }

    /// The name of the set, as [`crate::FlatIndex::device`] shows it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            #[cfg(target_arch = "x86_64")]
            Self::Avx512 => "avx512",
            #[cfg(target_arch = "x86_64")]
            Self::Avx2 => "avx2",
            Self::Portable => "portable",
        }
    }

    /// Number of f32 lanes of a register.
    pub(crate) fn lanes(self) -> usize {
        match self {
            #[cfg(target_arch = "x86_64")]
            Self::Avx512 => 16,
            #[cfg(target_arch = "x86_64")]
            Self::Avx2 => 8,
            Self::Portable => 4,
        }
    }
}

/// Prefetches the cache line at `address` on x86-64; does nothing elsewhere. Any address is allowed.
#[inline(always)]
pub(crate) fn prefetch_line<T>(address: *const T) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: every x86-64 processor has the instruction. It neither faults nor changes anything that the program
        // can observe.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(address.cast()) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = address;
}

/// Prefetches the cache lines of `data`, at most 64: after that the hardware prefetcher of the processor is active.
#[inline]
pub(crate) fn prefetch<T>(data: &[T]) {
    for at in (0..size_of_val(data).min(4096)).step_by(64) {
        prefetch_line(data.as_ptr().cast::<u8>().wrapping_add(at));
    }
}

/// Bytes of rows that [`fetched_ahead`] prefetches before their turn: enough that a processor's misses never end, and
/// few beside its first cache. Of 1,536 bytes two rows are as good as four, and one takes a tenth longer (16 threads of
/// a Xeon with an H200, 2026-11-30).
const AHEAD_BYTES: usize = 6 << 10;
/// Fewest and most rows that are prefetched before their turn.
const AHEAD: [usize; 2] = [2, 16];

/// The rows of the places below `count`, one after the other, with those that follow fetched meanwhile. The caller
/// comes to the `following` rows behind them next.
pub(crate) fn fetched_ahead<'a, T: 'a>(
    count: usize,
    following: usize,
    row: impl Fn(usize) -> &'a [T],
) -> impl Iterator<Item = &'a [T]> {
    let all = count + following;
    let row_bytes = if all > 0 { size_of_val(row(0)) } else { 0 };
    let ahead = (AHEAD_BYTES / row_bytes.max(1)).clamp(AHEAD[0], AHEAD[1]);
    (0..all.min(ahead)).for_each(|at| prefetch(row(at)));
    (0..count).map(move |at| {
        if at + ahead < all {
            prefetch(row(at + ahead));
        }
        row(at)
    })
}

/// A register of f32 lanes.
///
/// # Safety
/// Methods may execute instructions of the implementing set, so the processor must have the set. Pointers are valid for
/// [`Simd::LANES`] reads or writes of f32 (or the stated number); they may be unaligned.
pub(crate) trait Simd {
    /// Number of lanes of a register.
    const LANES: usize;
    /// The type of a register.
    type V: Copy;

    /// A register with `value` in all lanes.
    ///
    /// # Safety
    /// As the trait says.
    unsafe fn splat(value: f32) -> Self::V;
    /// Loads the `LANES` values at `from`.
    ///
    /// # Safety
    /// As the trait says.
    unsafe fn load(from: *const f32) -> Self::V;
    /// Loads the first `count < LANES` values at `from` and fills the other lanes with zeros. Only `count` values are
    /// read.
    ///
    /// # Safety
    /// As the trait says.
    unsafe fn load_first(from: *const f32, count: usize) -> Self::V;
    /// Writes the `LANES` values of `value` to `to`.
    ///
    /// # Safety
    /// As the trait says.
    unsafe fn store(value: Self::V, to: *mut f32);
    /// a · b + c, with one rounding or two: the error bound holds for both.
    ///
    /// # Safety
    /// As the trait says.
    unsafe fn mul_add(a: Self::V, b: Self::V, c: Self::V) -> Self::V;
    /// Sum of the lanes, in any order.
    ///
    /// # Safety
    /// As the trait says.
    unsafe fn sum(a: Self::V) -> f32;
    /// A bit set: bit l is 1 unless a\[l\] > b\[l\], so it is 1 also if either is NaN.
    ///
    /// # Safety
    /// As the trait says.
    unsafe fn not_greater(a: Self::V, b: Self::V) -> u32;
}

/// The implementation of [`Isa::Portable`].
pub(crate) struct Portable;

impl Simd for Portable {
    const LANES: usize = 4;
    type V = [f32; 4];

    #[inline(always)]
    unsafe fn splat(value: f32) -> [f32; 4] {
        [value; 4]
    }
    #[inline(always)]
    unsafe fn load(from: *const f32) -> [f32; 4] {
        // SAFETY: `from` is valid for 4 reads (trait contract).
        unsafe { from.cast::<[f32; 4]>().read_unaligned() }
    }
    #[inline(always)]
    unsafe fn load_first(from: *const f32, count: usize) -> [f32; 4] {
        // SAFETY: only indices below `count` are read, which the contract says are valid.
        std::array::from_fn(|i| if i < count { unsafe { from.add(i).read() } } else { 0.0 })
    }
    #[inline(always)]
    unsafe fn store(value: [f32; 4], to: *mut f32) {
        // SAFETY: `to` is valid for 4 writes (trait contract).
        unsafe { to.cast::<[f32; 4]>().write_unaligned(value) }
    }
    #[inline(always)]
    unsafe fn mul_add(a: [f32; 4], b: [f32; 4], c: [f32; 4]) -> [f32; 4] {
        std::array::from_fn(|i| a[i] * b[i] + c[i])
    }
    #[inline(always)]
    unsafe fn sum(a: [f32; 4]) -> f32 {
        (a[0] + a[1]) + (a[2] + a[3])
    }
    #[inline(always)]
    unsafe fn not_greater(a: [f32; 4], b: [f32; 4]) -> u32 {
        (0..4).map(|i| u32::from(!matches!(a[i].partial_cmp(&b[i]), Some(std::cmp::Ordering::Greater))) << i).sum()
    }
}

#[cfg(target_arch = "x86_64")]
pub(crate) use x86::{Avx2, Avx512};

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::*;

    use super::Simd;

    /// The implementation of [`super::Isa::Avx512`].
    pub(crate) struct Avx512;

    // SAFETY (of every block in this implementation): the processor has AVX-512F, and pointers are valid for the lanes
    // read or written: the trait's contract. A masked load does not touch the lanes masked off.
    impl Simd for Avx512 {
        const LANES: usize = 16;
        type V = __m512;

        #[inline(always)]
        unsafe fn splat(value: f32) -> __m512 {
            // SAFETY: as stated above the implementation.
            unsafe { _mm512_set1_ps(value) }
        }
        #[inline(always)]
        unsafe fn load(from: *const f32) -> __m512 {
            // SAFETY: as stated above the implementation.
            unsafe { _mm512_loadu_ps(from) }
        }
        #[inline(always)]
        unsafe fn load_first(from: *const f32, count: usize) -> __m512 {
            // SAFETY: as stated above the implementation.
            unsafe { _mm512_maskz_loadu_ps(((1u32 << count) - 1) as u16, from) }
        }
        #[inline(always)]
        unsafe fn store(value: __m512, to: *mut f32) {
            // SAFETY: as stated above the implementation.
            unsafe { _mm512_storeu_ps(to, value) }
        }
        #[inline(always)]
        unsafe fn mul_add(a: __m512, b: __m512, c: __m512) -> __m512 {
            // SAFETY: as stated above the implementation.
            unsafe { _mm512_fmadd_ps(a, b, c) }
        }
        #[inline(always)]
        unsafe fn sum(a: __m512) -> f32 {
            // SAFETY: as stated above the implementation.
            unsafe { _mm512_reduce_add_ps(a) }
        }
        #[inline(always)]
        unsafe fn not_greater(a: __m512, b: __m512) -> u32 {
            // SAFETY: as stated above the implementation.
            unsafe { u32::from(_mm512_cmp_ps_mask::<_CMP_NGT_UQ>(a, b)) }
        }
    }

    /// The implementation of [`super::Isa::Avx2`].
    pub(crate) struct Avx2;

    // SAFETY (of every block in this implementation): the processor has AVX2 and FMA, and pointers are valid for the
    // lanes read or written: the trait's contract. A masked load does not touch the lanes masked off.
    impl Simd for Avx2 {
        const LANES: usize = 8;
        type V = __m256;

        #[inline(always)]
        unsafe fn splat(value: f32) -> __m256 {
            // SAFETY: as stated above the implementation.
            unsafe { _mm256_set1_ps(value) }
        }
        #[inline(always)]
        unsafe fn load(from: *const f32) -> __m256 {
            // SAFETY: as stated above the implementation.
            unsafe { _mm256_loadu_ps(from) }
        }
        #[inline(always)]
        unsafe fn load_first(from: *const f32, count: usize) -> __m256 {
            // SAFETY: as stated above the implementation.
            unsafe {
                let lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
                _mm256_maskload_ps(from, _mm256_cmpgt_epi32(_mm256_set1_epi32(count as i32), lane))
            }
        }
        #[inline(always)]
        unsafe fn store(value: __m256, to: *mut f32) {
            // SAFETY: as stated above the implementation.
            unsafe { _mm256_storeu_ps(to, value) }
        }
        #[inline(always)]
        unsafe fn mul_add(a: __m256, b: __m256, c: __m256) -> __m256 {
            // SAFETY: as stated above the implementation.
            unsafe { _mm256_fmadd_ps(a, b, c) }
        }
        #[inline(always)]
        unsafe fn sum(a: __m256) -> f32 {
            // SAFETY: as stated above the implementation.
            unsafe {
                let four = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps::<1>(a));
                let two = _mm_add_ps(four, _mm_movehl_ps(four, four));
                _mm_cvtss_f32(_mm_add_ss(two, _mm_shuffle_ps::<1>(two, two)))
            }
        }
        #[inline(always)]
        unsafe fn not_greater(a: __m256, b: __m256) -> u32 {
            // SAFETY: as stated above the implementation.
            unsafe { _mm256_movemask_ps(_mm256_cmp_ps::<_CMP_NGT_UQ>(a, b)) as u32 }
        }
    }
}
