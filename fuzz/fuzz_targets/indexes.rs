//! Loading an index file of any bytes, and of the same bytes behind right checksums: an index that can be searched and
//! saved again, or an error; never a panic, a hang or a huge reservation.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    warpann::ivf::read_any_index_bytes(bytes);
    warpann::ivf::read_any_faiss_bytes(bytes);
    warpann::graph::hnsw::read_any_hnsw_bytes(bytes);
    let mut mended = bytes.to_vec();
    warpann::ivf::mend_index_bytes(&mut mended);
    warpann::ivf::read_any_index_bytes(&mended);
});
