//! Product quantization: encoding, reading codes, tables and their bounds. Codebooks and vectors are small whole
//! numbers, whose sums are
//! exact.

use cuda_std::emulator::Buffer;
use cuda_std::launch::LaunchConfig;
use cuda_std::{Ptr, PtrMut, global, kernel, thread, warp};
use test_random::Random;
use warpann_kernels::pq::codes::{Codes, Operands};
use warpann_kernels::pq::encode::{Encode, Staging};
use warpann_kernels::pq::pq_codes::{Bytes, Chunk, Codes as Reader, Packed, ROWS};
use warpann_kernels::pq::pq_tables::*;
use warpann_kernels::product::element::ElementKey;

use crate::lists::stored;

/// Codes of `bits` bits, packed from the lowest bit of the first byte on.
fn pack(codes: &[u32], bits: u32) -> Vec<u8> {
    let mut bytes = vec![0u8; (codes.len() * bits as usize).div_ceil(8)];
    for (number, code) in codes.iter().enumerate() {
        for bit in 0..bits as usize {
            let at = number * bits as usize + bit;
            bytes[at / 8] |= ((code >> bit & 1) as u8) << (at % 8);
        }
    }
    bytes
}

/// A product quantizer, rows of codes in lists, and centroids.
struct Coded {
    bits: u32,
    width: usize,
    parts: usize,
    stride: usize,
    /// Codewords \[part\]\[2^bits\]\[width\].
    codebooks: Vec<f32>,
    codes: Vec<Vec<u32>>,
    lists: Vec<u32>,
    centroids: Vec<f32>,
}

impl Coded {
    fn random(random: &mut Random, bits: u32, width: usize, parts: usize, rows: usize) -> Coded {
        let (dim, lists) = (width * parts, 3);
        let stride = dim.next_multiple_of(4);
        let mut centroids = Vec::new();
        for _ in 0..lists {
            centroids.extend(random.whole(dim, 5));
            centroids.resize(centroids.len().next_multiple_of(stride), 0.0);
        }
        Coded {
            bits,
            width,
            parts,
            stride,
            codebooks: random.whole((parts * width) << bits, 4),
            codes: (0..rows).map(|_| (0..parts).map(|_| random.below(1 << bits) as u32).collect()).collect(),
            lists: (0..rows).map(|_| random.below(lists) as u32).collect(),
            centroids,
        }
    }

    fn dim(&self) -> usize {
        self.width * self.parts
    }

    fn bytes(&self) -> Vec<u8> {
        self.codes.iter().flat_map(|codes| pack(codes, self.bits)).collect()
    }

    /// Component `i` of the codeword of a row.
    fn codeword(&self, row: usize, i: usize) -> f32 {
        let part = i / self.width;
        let at = (part << self.bits) + self.codes[row][part] as usize;
        self.codebooks[at * self.width + i % self.width]
    }

    fn centroid(&self, row: usize, i: usize) -> f32 {
        self.centroids[self.lists[row] as usize * self.stride + i]
    }
}

/// Stores the components that the codes of rows stand for, a row a block, `stride` components each; and their f16
/// operands.
///
/// # Safety
/// The arrays have the shapes of the codes.
#[kernel(max_threads = 32)]
pub unsafe fn read_codes(
    codes: Ptr<u8>,
    code_bytes: u32,
    bits: u32,
    width: u32,
    dim: u32,
    codebooks: Ptr<f32>,
    centroids: Ptr<f32>,
    stride: u32,
    halves: Ptr<u16>,
    offsets: Ptr<u16>,
    lists: Ptr<u32>,
    out: PtrMut<f32>,
    operands: PtrMut<u32>,
) {
    let row = thread::block_idx_x();
    let codes =
        Codes { codes: *codes, code_bytes, bits, width, dim, codebooks: *codebooks, centroids: *centroids, stride };
    let parts = Operands { codes, offsets: *offsets, halves: *halves };
    let mut quad = warp::lane_id();
    while quad < stride / 4 + 2 {
        // SAFETY: the row exists; quads from the stride on have no components and are operands only.
        unsafe {
            let list = global::load(lists.wrapping_add(row as usize));
            let offset = parts.offset4(list, quad);
            let half = |at: u32| global::load_nc(halves.wrapping_add(at as usize));
            let words = parts.quad(row, quad, offset, half);
            for (word, value) in words.into_iter().enumerate() {
                let at = (row * (stride / 2 + 4) + 2 * quad) as usize + word;
                global::store(operands.wrapping_add(at), value);
            }
            if quad < stride / 4 {
                for (e, component) in codes.load4(row, list, quad).into_iter().enumerate() {
                    global::store(out.wrapping_add((row * stride + 4 * quad) as usize + e), component);
                }
            }
        }
        quad += 32;
    }
}

#[test]
fn codes_stand_for_their_components() {
    let mut random = Random::new(71);
    for (bits, width, parts) in
        [(8, 4, 3), (8, 8, 2), (8, 2, 6), (8, 2, 5), (8, 3, 4), (5, 4, 3), (4, 1, 7), (6, 2, 4), (8, 4, 40)]
    {
        let coded = Coded::random(&mut random, bits, width, parts, 5);
        let (dim, stride, bytes) = (coded.dim(), coded.stride, coded.bytes());
        let half = |values: &[f32]| -> Vec<u16> {
            stored(ElementKey::F16, values).chunks(2).map(|two| u16::from_le_bytes([two[0], two[1]])).collect()
        };
        let (codes, codebooks) = (Buffer::from_slice(&bytes), Buffer::from_slice(&coded.codebooks));
        let (centroids, lists) = (Buffer::from_slice(&coded.centroids), Buffer::from_slice(&coded.lists));
        let (halves, offsets) =
            (Buffer::from_slice(&half(&coded.codebooks)), Buffer::from_slice(&half(&coded.centroids)));
        let mut out = Buffer::<f32>::new_poisoned(5 * stride);
        let mut operands = Buffer::<u32>::new_poisoned(5 * (stride / 2 + 4));
        let launch = ReadCodes {
            codes: codes.as_ptr(),
            code_bytes: (bytes.len() / 5) as u32,
            bits,
            width: width as u32,
            dim: dim as u32,
            codebooks: codebooks.as_ptr(),
            centroids: centroids.as_ptr(),
            stride: stride as u32,
            halves: halves.as_ptr(),
            offsets: offsets.as_ptr(),
            lists: lists.as_ptr(),
            out: out.as_mut_ptr(),
            operands: operands.as_mut_ptr(),
        };
        // SAFETY: the arrays have these shapes.
        unsafe { crate::launch(&ReadCodes::KERNEL, LaunchConfig::linear(5, 32), launch) };
        let (out, operands) = (out.to_vec(), operands.to_vec());
        for row in 0..5 {
            let sum = |i: usize| if i < dim { coded.centroid(row, i) + coded.codeword(row, i) } else { 0.0 };
            let expected: Vec<f32> = (0..stride).map(sum).collect();
            assert_eq!(out[row * stride..(row + 1) * stride], expected, "{bits} bits, {parts} of {width}");
            let expected = half(&(0..stride + 8).map(sum).collect::<Vec<f32>>());
            let words: Vec<u32> = expected.chunks(2).map(|two| u32::from(two[0]) | u32::from(two[1]) << 16).collect();
            assert_eq!(
                operands[row * words.len()..][..words.len()],
                words,
                "operands, {bits} bits, {parts} of {width}"
            );
            if width % 4 == 0 {
                let of = Codes {
                    codes: *codes.as_ptr(),
                    code_bytes: launch.code_bytes,
                    bits,
                    width: width as u32,
                    dim: dim as u32,
                    codebooks: *codebooks.as_ptr(),
                    centroids: *centroids.as_ptr(),
                    stride: stride as u32,
                };
                let parts = Operands { codes: of, offsets: *offsets.as_ptr(), halves: *halves.as_ptr() };
                for quad in 0..dim / 4 {
                    let (part, i) = (4 * quad / width, 4 * quad % width);
                    let place = (part << bits) * width + i;
                    assert_eq!(parts.book(quad as u32), (part as u32, place as u32), "width {width}");
                }
            }
        }
    }
}

/// Stores the codes of a chunk of two rows as a reader finds them: for each row `count` codes, at the places that the
/// reader names.
///
/// # Safety
/// The arrays have the shapes of the codes.
#[kernel(max_threads = 32)]
pub unsafe fn visit_codes(
    codes: Ptr<u8>,
    code_bytes: u32,
    bits: u32,
    first: u32,
    count: u32,
    /// Bytes of a load; 0 for codes that are read through a buffer.
    load: u32,
    out: PtrMut<u32>,
) {
    let rows = [*codes, codes.wrapping_add(code_bytes as usize)];
    let chunk = Chunk { first, count, bits, code_bytes };
    let mut turn = 0;
    let visit = |start: u32, codes: [u32; ROWS]| {
        for (row, code) in codes.into_iter().enumerate() {
            // SAFETY: there are `count` codes.
            unsafe { global::store(out.wrapping_add(2 * turn + row), start << 8 | code) };
        }
        turn += 1;
    };
    // SAFETY: the rows are whole codes, and the chunk suits the load.
    unsafe {
        match load {
            0 => Packed::visit(rows, chunk, visit),
            4 => Bytes::<u32>::visit(rows, chunk, visit),
            8 => Bytes::<global::U32x2>::visit(rows, chunk, visit),
            _ => Bytes::<global::U32x4>::visit(rows, chunk, visit),
        }
    }
}

#[test]
fn readers_find_every_code() {
    let mut random = Random::new(72);
    for (bits, parts, first, count, load) in [
        (8, 48, 16, 32, 16),
        (8, 40, 8, 24, 8),
        (8, 12, 4, 8, 4),
        (8, 11, 3, 8, 0),
        (8, 12, 4, 8, 0),
        (5, 13, 0, 13, 0),
        (5, 32, 3, 29, 0),
        (6, 32, 16, 11, 0),
        (4, 16, 8, 8, 0),
        (7, 9, 2, 1, 0),
    ] {
        let codes: Vec<Vec<u32>> =
            (0..2).map(|_| (0..parts).map(|_| random.below(1 << bits) as u32).collect()).collect();
        let bytes: Vec<u8> = codes.iter().flat_map(|row| pack(row, bits)).collect();
        let at = Buffer::from_slice(&bytes);
        let mut out = Buffer::<u32>::new_poisoned(2 * count);
        let launch = VisitCodes {
            codes: at.as_ptr(),
            code_bytes: (bytes.len() / 2) as u32,
            bits,
            first,
            count: count as u32,
            load,
            out: out.as_mut_ptr(),
        };
        // SAFETY: two rows, and room for the codes of the chunk.
        unsafe { crate::launch(&VisitCodes::KERNEL, LaunchConfig::linear(1, 1), launch) };
        let expected =
            (0..count).flat_map(|m| [0, 1].map(|row| (m as u32) << bits << 8 | codes[row][first as usize + m]));
        assert_eq!(
            out.to_vec(),
            expected.collect::<Vec<u32>>(),
            "{bits} bits, {first} + {count} of {parts}, by {load}"
        );
    }
}

#[test]
fn vectors_are_encoded_by_the_first_nearest_codeword() {
    let mut random = Random::new(73);
    for (bits, width, parts, rows, run, piece) in
        [(4, 3, 5, 3, 8, 16), (4, 1, 20, 260, 8, 8), (5, 2, 8, 129, 16, 32), (8, 2, 3, 2, 8, 64), (6, 4, 9, 1, 8, 16)]
    {
        for residual in [false, true] {
            let (dim, stride, codewords) = (width * parts, width * parts + 2, 1usize << bits);
            let (values, centroids) = (random.whole(rows * stride, 7), random.whole(3 * stride, 3));
            let labels: Vec<u32> = (0..rows).map(|_| random.below(3) as u32).collect();
            // [part][component][codeword], as the kernel reads them.
            let books = random.whole(parts * width * codewords, 5);
            let expected: Vec<u8> = (0..rows)
                .flat_map(|row| {
                    let x = |i: usize| {
                        let centroid = if residual { centroids[labels[row] as usize * stride + i] } else { 0.0 };
                        values[row * stride + i] - centroid
                    };
                    let distance = |part: usize, codeword: usize| -> f32 {
                        let square =
                            |j: usize| (x(part * width + j) - books[(part * width + j) * codewords + codeword]).powi(2);
                        (0..width).map(square).sum()
                    };
                    let nearest = |part: usize| {
                        let by = |a: &usize, b: &usize| distance(part, *a).total_cmp(&distance(part, *b));
                        (0..codewords).min_by(by).unwrap() as u32
                    };
                    pack(&(0..parts).map(nearest).collect::<Vec<u32>>(), bits)
                })
                .collect();
            assert_eq!(dim + 2, stride);
            let (values, centroids) = (Buffer::from_slice(&values), Buffer::from_slice(&centroids));
            let (labels, books) = (Buffer::from_slice(&labels), Buffer::from_slice(&books));
            for staging in [Staging::Shared, Staging::Global] {
                let mut codes = Buffer::<u8>::new_poisoned(expected.len());
                let launch = Encode {
                    rows: values.as_ptr(),
                    row_count: rows as u32,
                    labels: residual.then(|| labels.as_ptr()),
                    centroids: centroids.as_ptr(),
                    codebooks: books.as_ptr(),
                    stride: stride as u32,
                    sub_quantizers: parts as u32,
                    width: width as u32,
                    bits,
                    piece: if staging == Staging::Shared { piece } else { codewords as u32 },
                    run,
                    codes: codes.as_mut_ptr(),
                };
                // SAFETY: the arrays have these shapes.
                unsafe { crate::launch(Encode::kernel(staging), launch.config(staging), launch) };
                assert_eq!(codes.to_vec(), expected, "{bits} bits, {parts} of {width}, {rows} rows, {staging:?}");
            }
        }
    }
}

#[test]
fn tables_and_terms_are_sums_over_codewords() {
    let mut random = Random::new(74);
    for (bits, width, parts, vectors) in [(4, 3, 2, 1), (5, 2, 9, 8), (6, 4, 5, 9), (8, 1, 2, 17)] {
        let coded = Coded::random(&mut random, bits, width, parts, 40);
        let stride = coded.stride;
        let x = random.whole(vectors * stride, 9);
        for (scale, squares) in [(-2.0, 0.0), (2.0, 1.0)] {
            let entries = parts << bits;
            let (x_at, books) = (Buffer::from_slice(&x), Buffer::from_slice(&coded.codebooks));
            let mut tables = Buffer::<f32>::new_poisoned(vectors * entries);
            let launch = SubTables {
                vectors: x_at.as_ptr(),
                stride: stride as u32,
                count: vectors as u32,
                codebooks: books.as_ptr(),
                sub_dim: width as u32,
                sub_quantizers: parts as u32,
                bits,
                scale,
                squares,
                tables: tables.as_mut_ptr(),
            };
            // SAFETY: the arrays have these shapes.
            unsafe { crate::launch(&SubTables::KERNEL, launch.config(), launch) };
            let entry = |at: usize| -> f32 {
                let (vector, entry) = (at / entries, at % entries);
                let component = |i: usize| {
                    let p = coded.codebooks[entry * width + i];
                    p * (squares * p + scale * x[vector * stride + (entry >> bits) * width + i])
                };
                (0..width).map(component).sum()
            };
            assert_eq!(tables.to_vec(), (0..vectors * entries).map(entry).collect::<Vec<f32>>(), "{parts} of {width}");
        }
        // Lists 0 to 2 in the storage, with gaps: list 1 is empty.
        let (starts, lengths) = ([1u32, 11, 12], [9u32, 0, 27]);
        let bytes = coded.bytes();
        let (codes, books) = (Buffer::from_slice(&bytes), Buffer::from_slice(&coded.codebooks));
        let (starts_at, lengths_at) = (Buffer::from_slice(&starts), Buffer::from_slice(&lengths));
        let centroids = Buffer::from_slice(&coded.centroids);
        let mut terms = Buffer::from_slice(&[-1.0f32; 40]);
        let launch = RowTerms {
            coded: CodedLists {
                codes: codes.as_ptr(),
                code_bytes: (bytes.len() / 40) as u32,
                list_starts: starts_at.as_ptr(),
                list_lengths: lengths_at.as_ptr(),
                centroids: centroids.as_ptr(),
                stride: stride as u32,
                codebooks: books.as_ptr(),
                sub_dim: width as u32,
                sub_quantizers: parts as u32,
                bits,
            },
            slices: 1 + parts as u32 % 2,
            terms: terms.as_mut_ptr(),
        };
        // SAFETY: as above.
        unsafe { crate::launch(&RowTerms::KERNEL, launch.config(3), launch) };
        let term = |row: usize| {
            let list = (0..3).find(|&list| (starts[list]..starts[list] + lengths[list]).contains(&(row as u32)))?;
            let of =
                |i: usize| coded.codeword(row, i) * (coded.codeword(row, i) + 2.0 * coded.centroids[list * stride + i]);
            Some((0..coded.dim()).map(of).sum::<f32>())
        };
        let expected: Vec<f32> = (0..40).map(|row| term(row).unwrap_or(-1.0)).collect();
        assert_eq!(terms.to_vec(), expected, "terms, {bits} bits, {parts} of {width}");
    }
}

/// The bound of the module documentation of the tables, in f64, and B.
fn proved(form: u32, q: f64, [c, p, part]: [f64; 3], gamma: f64, parts: f64, halves: bool) -> (f64, f64) {
    let sum = if form == FORM_INNER_PRODUCT { q * (c + p) } else { (q + c + p).powi(2) };
    let (of_all, of_one) = match form {
        FORM_ROW_TERMS => (2.0 * q * p, 2.0 * q * part),
        FORM_INNER_PRODUCT => (q * p, q * part),
        FORM_LIST_TERMS => (p * p + 2.0 * c * p + 2.0 * q * p, part * part + 2.0 * c * part + 2.0 * q * part),
        _ => ((q + c + p).powi(2), (q + c + part).powi(2)),
    };
    let of_halves = of_all * 2f64.powi(-11) + parts * of_one * 2f64.powi(-38);
    (gamma * sum + if halves { (1.0 + gamma).powi(2) * of_halves } else { 0.0 }, of_one)
}

#[test]
fn bounds_of_tables_are_those_of_the_proof() {
    assert_eq!([roundings(128, 16), roundings(64, 1), roundings(0, 0)], [16 + 13 + 16, 1 + 64 + 16, 9 + 16]);
    let norms = [0.0f32, 1.0, 3e-20, 7e4, 1e19, 9e18];
    let queries: Vec<f32> = norms.iter().flat_map(|&norm| [0.0, norm, 0.0, 0.0]).collect();
    for form in [FORM_ROW_TERMS, FORM_LIST_TERMS, FORM_RESIDUAL, FORM_INNER_PRODUCT] {
        for of_base in [[2.0, 3.0, 1.5], [0.0, 1e-3, 1e-3], [50.0, 1.0, 0.25], [1e37, 9.9e37, 1.0]] {
            for (gamma, parts, halves) in [(1e-5, 16, false), (1e-7, 1, true), (1e-3, 64, true)] {
                let at = Buffer::from_slice(&queries);
                let mut errors = Buffer::<f32>::new_poisoned(norms.len());
                let mut scales = Buffer::<f32>::new_poisoned(norms.len());
                let launch = TableBounds {
                    queries: at.as_ptr(),
                    stride: 4,
                    count: norms.len() as u32,
                    form,
                    sub_quantizers: parts,
                    centroid_norm: of_base[0],
                    codeword_norm: of_base[1],
                    sub_codeword_norm: of_base[2],
                    gamma,
                    greatest_factor: None,
                    errors: errors.as_mut_ptr(),
                    scales: halves.then(|| scales.as_mut_ptr()),
                };
                // SAFETY: queries of four components, and a bound and a scale for each.
                unsafe { crate::launch(&TableBounds::KERNEL, launch.config(), launch) };
                let (errors, scales) = (errors.to_vec(), scales.to_vec());
                for (query, norm) in norms.into_iter().map(f64::from).enumerate() {
                    let what = format!("form {form}, norm {norm:e}, {of_base:?}, {gamma}, {halves}: {}", errors[query]);
                    let (least, greatest_entry) = proved(form, norm, of_base, gamma, parts.into(), halves);
                    let sum = if form == FORM_INNER_PRODUCT {
                        norm * (of_base[0] + of_base[1])
                    } else {
                        (norm + of_base[0] + of_base[1]).powi(2)
                    };
                    if sum + least >= 1e38 || of_base[0] + of_base[1] >= 1e38 {
                        assert_eq!(errors[query], f32::INFINITY, "{what}");
                    } else {
                        let error = f64::from(errors[query]);
                        assert!(error >= least + 1e-35 && error <= (least + 2e-35) * (1.0 + 1e-5), "{what}, {least:e}");
                    }
                    if halves && (1e-30..1e30).contains(&greatest_entry) {
                        let scaled = f64::from(scales[query]) * greatest_entry;
                        assert!((16383.0..32768.0).contains(&scaled), "{what}, scaled to {scaled}");
                    }
                }
            }
        }
    }
}
