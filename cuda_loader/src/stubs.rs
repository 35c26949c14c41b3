//! The exported symbols: for each name of the table a stub in assembly, which preserves all argument registers.

use core::arch::naked_asm;
use std::ffi::CStr;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Looks up the function with that index, stores its address and returns it. Several threads may do so at once; all get
/// the same address.
extern "C" fn resolve(index: usize) -> usize {
    let address = crate::target(NAMES[index]).expose_provenance();
    // Release: the writes of the dynamic loader must be visible to a thread that takes the short way. Every load on
    // x86-64 is an acquire load; the aarch64 stub uses `ldar`.
    TARGETS[index].store(address, Ordering::Release);
    address
}

/// Body of a stub. The short way, after the first call: load, test, jump. The long way saves the registers in which the
/// C calling convention may pass arguments (integers, pointers and floats), resolves the function and jumps.
#[cfg(target_arch = "x86_64")]
macro_rules! stub_body {
    ($index:expr) => {
        naked_asm!(
            "mov rax, qword ptr [rip + {targets} + {offset}]",
            "test rax, rax",
            "jz 2f",
            "jmp rax",
            "2:",
            "push rdi",
            "push rsi",
            "push rdx",
            "push rcx",
            "push r8",
            "push r9",
            // The return address and six registers are 56 bytes: 136 more align the stack to 16.
            "sub rsp, 136",
            "movaps xmmword ptr [rsp], xmm0",
            "movaps xmmword ptr [rsp + 16], xmm1",
            "movaps xmmword ptr [rsp + 32], xmm2",
            "movaps xmmword ptr [rsp + 48], xmm3",
            "movaps xmmword ptr [rsp + 64], xmm4",
            "movaps xmmword ptr [rsp + 80], xmm5",
            "movaps xmmword ptr [rsp + 96], xmm6",
            "movaps xmmword ptr [rsp + 112], xmm7",
            "mov edi, {index}",
            "call {resolve}",
            "movaps xmm0, xmmword ptr [rsp]",
            "movaps xmm1, xmmword ptr [rsp + 16]",
            "movaps xmm2, xmmword ptr [rsp + 32]",
            "movaps xmm3, xmmword ptr [rsp + 48]",
            "movaps xmm4, xmmword ptr [rsp + 64]",
            "movaps xmm5, xmmword ptr [rsp + 80]",
            "movaps xmm6, xmmword ptr [rsp + 96]",
            "movaps xmm7, xmmword ptr [rsp + 112]",
            "add rsp, 136",
            "pop r9",
            "pop r8",
            "pop rcx",
            "pop rdx",
            "pop rsi",
            "pop rdi",
            "jmp rax",
            targets = sym TARGETS,
            offset = const $index * 8,
            index = const $index,
            resolve = sym resolve,
        )
    };
}

/// Body of a stub, as on x86-64. The procedure call standard reserves x16 for such stubs; x8 holds the address of a
/// large result.
#[cfg(target_arch = "aarch64")]
macro_rules! stub_body {
    ($index:expr) => {
        naked_asm!(
            "adrp x16, {targets} + {offset}",
            "add x16, x16, :lo12:{targets} + {offset}",
            "ldar x16, [x16]",
            "cbz x16, 2f",
            "br x16",
            "2:",
            "stp x29, x30, [sp, #-160]!",
            "mov x29, sp",
            "stp x0, x1, [sp, #16]",
            "stp x2, x3, [sp, #32]",
            "stp x4, x5, [sp, #48]",
            "stp x6, x7, [sp, #64]",
            "str x8, [sp, #80]",
            "stp d0, d1, [sp, #96]",
            "stp d2, d3, [sp, #112]",
            "stp d4, d5, [sp, #128]",
            "stp d6, d7, [sp, #144]",
            "mov x0, #{index}",
            "bl {resolve}",
            "mov x16, x0",
            "ldp x0, x1, [sp, #16]",
            "ldp x2, x3, [sp, #32]",
            "ldp x4, x5, [sp, #48]",
            "ldp x6, x7, [sp, #64]",
            "ldr x8, [sp, #80]",
            "ldp d0, d1, [sp, #96]",
            "ldp d2, d3, [sp, #112]",
            "ldp d4, d5, [sp, #128]",
            "ldp d6, d7, [sp, #144]",
            "ldp x29, x30, [sp], #160",
            "br x16",
            targets = sym TARGETS,
            offset = const $index * 8,
            index = const $index,
            resolve = sym resolve,
        )
    };
}

macro_rules! define_stubs {
    ($($name:ident)*) => {
        #[expect(non_camel_case_types, reason = "the names are the driver's")]
        enum Index { $($name),* }

        const COUNT: usize = [$(Index::$name as usize),*].len();

        /// The names of the functions, by index.
        static NAMES: [&CStr; COUNT] = [$(
            match CStr::from_bytes_with_nul(concat!(stringify!($name), "\0").as_bytes()) {
                Ok(name) => name,
                Err(_) => unreachable!(),
            }
        ),*];

        /// Resolved addresses by index; 0 means not yet. Stubs read it, [`resolve`] writes it.
        static TARGETS: [AtomicUsize; COUNT] = [const { AtomicUsize::new(0) }; COUNT];

        /// Every stub, so that one reference keeps all of them.
        pub static STUBS: [unsafe extern "C" fn(); COUNT] = [$($name),*];

        $(
            // SAFETY of the export: the name is that of a driver function, and no other library of the program may
            // define it. The stub accepts any arguments because it does not use them, and the function to which it
            // jumps has the signature that the caller uses.
            #[unsafe(naked)]
            #[unsafe(no_mangle)]
            unsafe extern "C" fn $name() {
                stub_body!(Index::$name as usize)
            }
        )*
    };
}

crate::__with_driver_symbols!(define_stubs);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_sorted_and_distinct() {
        assert!(NAMES.windows(2).all(|pair| pair[0] < pair[1]));
        assert!(NAMES.iter().all(|name| name.to_bytes().starts_with(b"cu")));
    }
}
