//! Every file reader on any bytes: a value or an error, never a panic, a hang or a huge reservation.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    warpann::io::read_any_bytes(bytes);
    warpann::mesh::read_any_mesh_bytes(bytes);
});
