//! Shared memory by 32-bit address. The accesses are asm because Rust has no pointer type for this address space. The
//! asm is not `pure`, so LLVM does not move an access across a barrier.

use crate::Site;
use core::{
    arch::{asm, global_asm},
    mem::transmute_copy,
};

global_asm!(".extern .shared .align 1024 .b8 cuda_std_dynamic_shared[];");

#[inline(always)]
pub fn dynamic() -> u32 {
    let address: u32;
    // SAFETY: takes the address of a symbol.
    unsafe { asm!("mov.u32 {0}, cuda_std_dynamic_shared;", out(reg32) address, options(pure, nomem, nostack)) }
    address
}

#[inline(always)]
pub fn static_array<T, const LEN: usize>(_: usize, _: Site) -> u32 {
    let address: u32;
    // SAFETY: declares an array in a separate scope and takes its address. Not `pure`: every copy of the text declares
    // another array, so LLVM must not duplicate it.
    unsafe {
        asm!(
            "{{ .shared .align 16 .b8 cuda_std_static_shared[{1}]; mov.u32 {0}, cuda_std_static_shared; }}",
            out(reg32) address, const LEN * size_of::<T>(), options(nomem, nostack)
        )
    }
    address
}

/// # Safety
/// As `SharedPtr::load`; the size of `T` is 1, 2, 4, 8 or 16.
#[inline(always)]
pub unsafe fn load<T: Copy>(address: u32, _: Site) -> T {
    // SAFETY: the place is readable and aligned by contract; the loaded bytes are a valid T, and the sizes are equal in
    // each arm.
    unsafe {
        match size_of::<T>() {
            1 => {
                let v: u16;
                asm!("ld.shared.u8 {0}, [{1}];", out(reg16) v, in(reg32) address, options(readonly, nostack));
                transmute_copy(&(v as u8))
            }
            2 => {
                let v: u16;
                asm!("ld.shared.b16 {0}, [{1}];", out(reg16) v, in(reg32) address, options(readonly, nostack));
                transmute_copy(&v)
            }
            4 => {
                let v: u32;
                asm!("ld.shared.b32 {0}, [{1}];", out(reg32) v, in(reg32) address, options(readonly, nostack));
                transmute_copy(&v)
            }
            8 => {
                let v: u64;
                asm!("ld.shared.b64 {0}, [{1}];", out(reg64) v, in(reg32) address, options(readonly, nostack));
                transmute_copy(&v)
            }
            _ => {
                let (a, b, c, d): (u32, u32, u32, u32);
                asm!(
                    "ld.shared.v4.b32 {{{0}, {1}, {2}, {3}}}, [{4}];",
                    out(reg32) a, out(reg32) b, out(reg32) c, out(reg32) d, in(reg32) address,
                    options(readonly, nostack)
                );
                transmute_copy(&[a, b, c, d])
            }
        }
    }
}

/// # Safety
/// As `SharedPtr::store`; the size of `T` is 1, 2, 4, 8 or 16.
#[inline(always)]
pub unsafe fn store<T: Copy>(address: u32, value: T, _: Site) {
    // SAFETY: the place is writable and aligned by contract; the sizes are equal in each arm.
    unsafe {
        match size_of::<T>() {
            1 => {
                let v = u16::from(transmute_copy::<T, u8>(&value));
                asm!("st.shared.u8 [{0}], {1};", in(reg32) address, in(reg16) v, options(nostack));
            }
            2 => {
                let v: u16 = transmute_copy(&value);
                asm!("st.shared.b16 [{0}], {1};", in(reg32) address, in(reg16) v, options(nostack));
            }
            4 => {
                let v: u32 = transmute_copy(&value);
                asm!("st.shared.b32 [{0}], {1};", in(reg32) address, in(reg32) v, options(nostack));
            }
            8 => {
                let v: u64 = transmute_copy(&value);
                asm!("st.shared.b64 [{0}], {1};", in(reg32) address, in(reg64) v, options(nostack));
            }
            _ => {
                let [a, b, c, d]: [u32; 4] = transmute_copy(&value);
                asm!(
                    "st.shared.v4.b32 [{0}], {{{1}, {2}, {3}, {4}}};",
                    in(reg32) address, in(reg32) a, in(reg32) b, in(reg32) c, in(reg32) d, options(nostack)
                );
            }
        }
    }
}
