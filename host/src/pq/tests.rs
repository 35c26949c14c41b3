//! Tests against naive references, which share no code with the library, and properties of every shape.

use proptest::prelude::*;
use test_random::Random;

use super::codes;
use super::encode::{self, Residuals};
use super::*;

/// Random numbers in −1..1.
fn noise(len: usize, seed: u64) -> Vec<f32> {
    Random::new(seed).signed_units(len)
}

/// Shapes (dimension, M): M = 1, M = dim, odd widths, and more sub-quantizers than one group.
const SHAPES: [(usize, usize); 11] =
    [(1, 1), (5, 1), (5, 5), (15, 3), (15, 5), (7, 1), (24, 8), (33, 11), (64, 16), (40, 20), (130, 2)];

fn quantizer(dim: usize, sub_quantizers: usize, bits: u32, seed: u64) -> ProductQuantizer {
    ProductQuantizer::from_codebooks(dim, sub_quantizers, bits, noise(dim << bits, seed)).unwrap()
}

/// Rounds to few different values, so that codewords coincide and distances tie.
fn coarse(values: Vec<f32>) -> Vec<f32> {
    values.into_iter().map(|value| (value * 2.0).round()).collect()
}

/// Codes of a vector, number by number, by the definition.
fn naive_numbers(quantizer: &ProductQuantizer, row: &[f32]) -> Vec<u8> {
    let (m, k, w) = (quantizer.sub_quantizers(), quantizer.codewords(), quantizer.dim() / quantizer.sub_quantizers());
    let distance = |part: usize, word: usize| {
        let mut sum = 0.0f32;
        for j in 0..w {
            let difference = row[part * w + j] - quantizer.codebooks()[(part * k + word) * w + j];
            let square = difference * difference;
            sum += square;
        }
        sum
    };
    let nearest = |part: usize| {
        let mut best = 0;
        for word in 1..k {
            if distance(part, word) < distance(part, best) {
                best = word;
            }
        }
        best as u8
    };
    (0..m).map(nearest).collect()
}

/// Packs numbers bit by bit.
fn naive_pack(numbers: &[u8], bits: u32) -> Vec<u8> {
    let mut code = vec![0u8; (numbers.len() * bits as usize).div_ceil(8)];
    for (i, number) in numbers.iter().enumerate() {
        for bit in 0..bits as usize {
            let at = i * bits as usize + bit;
            code[at / 8] |= (number >> bit & 1) << (at % 8);
        }
    }
    code
}

fn naive_encode(quantizer: &ProductQuantizer, rows: &[f32]) -> Vec<u8> {
    let each = rows.chunks_exact(quantizer.dim());
    each.flat_map(|row| naive_pack(&naive_numbers(quantizer, row), quantizer.bits())).collect()
}

/// A number of rows that no device block divides evenly.
const ROWS: usize = 67;

#[test]
fn every_shape_encodes_by_the_definition() {
    for (dim, m) in SHAPES {
        for bits in 4..=8 {
            for tied in [false, true] {
                let (mut books, mut rows) = (noise(dim << bits, 1), noise(ROWS * dim, 2));
                if tied {
                    (books, rows) = (coarse(books), coarse(rows));
                }
                let quantizer = ProductQuantizer::from_codebooks(dim, m, bits, books).unwrap();
                let expected = naive_encode(&quantizer, &rows);
                for isa in Isa::all() {
                    let got = encode::encode(isa, &quantizer, &rows, None).unwrap();
                    assert_eq!(got, expected, "{isa:?}, {dim} / {m}, {bits} bits, tied: {tied}");
                }
                assert_eq!(quantizer.encode(&rows, Device::Cpu).unwrap(), expected);
            }
        }
    }
}

#[test]
fn residuals_are_encoded_by_the_definition() {
    let (dim, m) = (15, 5);
    let quantizer = quantizer(dim, m, 5, 3);
    let (rows, centroids) = (noise(200 * dim, 4), noise(7 * dim, 5));
    let labels: Vec<u32> = (0..200).map(|i| i * i % 7).collect();
    let mut differences = rows.clone();
    for (i, value) in differences.iter_mut().enumerate() {
        *value -= centroids[labels[i / dim] as usize * dim + i % dim];
    }
    let expected = naive_encode(&quantizer, &differences);
    let residuals = Residuals { labels: &labels, centroids: &centroids };
    assert_eq!(quantizer.encode_residuals(&rows, residuals).unwrap(), expected);
}

#[test]
fn the_emulated_kernel_gives_the_same_codes() {
    for (dim, m) in SHAPES {
        for bits in [4, 5, 6, 7, 8] {
            let quantizer = ProductQuantizer::from_codebooks(dim, m, bits, coarse(noise(dim << bits, 6))).unwrap();
            let rows = coarse(noise(3 * dim, 7));
            let got = quantizer.encode(&rows, Device::Emulator).unwrap();
            assert_eq!(got, naive_encode(&quantizer, &rows), "{dim} / {m}, {bits} bits");
        }
    }
    // More rows than a block has, and a budget for the codebooks and a few rows, so that there are several batches.
    let quantizer = quantizer(24, 12, 4, 8);
    let rows = noise(700 * 24, 9);
    let expected = naive_encode(&quantizer, &rows);
    for budget in [None, Some(40_000)] {
        assert_eq!(quantizer.encode_checked(&rows, Device::Emulator, budget).unwrap(), expected);
    }
    let error = quantizer.encode_checked(&rows, Device::Emulator, Some(1000)).unwrap_err();
    assert!(matches!(error, Error::OutOfDeviceMemory { available: 1000, .. }), "{error}");
}

#[test]
fn distances_beyond_f32_take_the_first_codeword() {
    let quantizer = quantizer(6, 2, 4, 10);
    let rows = vec![f32::MAX; 6];
    for device in [Device::Cpu, Device::Emulator] {
        assert_eq!(quantizer.encode(&rows, device).unwrap(), [0], "{device}");
    }
}

proptest! {
    #[test]
    fn decoding_gives_the_codewords(shape in 0..SHAPES.len(), bits in 4u32..=8, seed in any::<u64>()) {
        let (dim, m) = SHAPES[shape];
        let quantizer = quantizer(dim, m, bits, 11);
        let (w, k) = (dim / m, 1usize << bits);
        let raw = noise(5 * m, seed);
        let numbers: Vec<u8> = raw.iter().map(|value| (((value + 1.0) * 0.5 * k as f32) as usize).min(k - 1) as u8).collect();
        let codes: Vec<u8> = numbers.chunks(m).flat_map(|numbers| naive_pack(numbers, bits)).collect();
        let decoded = quantizer.decode(&codes).unwrap();
        for (i, value) in decoded.iter().enumerate() {
            let (row, part, j) = (i / dim, i % dim / w, i % w);
            let word = usize::from(numbers[row * m + part]);
            prop_assert_eq!(*value, quantizer.codebooks()[(part * k + word) * w + j]);
        }
        // The codewords all differ, so a decoded vector is its own nearest.
        prop_assert_eq!(quantizer.encode(&decoded, Device::Cpu).unwrap(), codes);
    }
}

/// Σ of squared differences or products with a decoded vector, in f64.
fn naive_distance(product: bool, x: &[f32], y: &[f32]) -> f64 {
    let pairs = x.iter().zip(y).map(|(&x, &y)| (f64::from(x), f64::from(y)));
    pairs.map(|(x, y)| if product { x * y } else { (x - y) * (x - y) }).sum()
}

#[test]
fn sums_of_entries_beyond_f32_have_no_bound() {
    // Each of two entries is 2.56e38.
    let quantizer = ProductQuantizer::from_codebooks(2, 2, 4, vec![1.6e19; 2 << 4]).unwrap();
    let tables = quantizer.distance_tables(&[0.0, 0.0]).unwrap();
    let mut got = [0.0];
    tables.distances(&[0], &mut got).unwrap();
    assert_eq!((got[0], tables.error_bound()), (f32::INFINITY, f64::INFINITY));
    assert_eq!(tables.to_half().error_bound(), f64::INFINITY);
}

#[test]
fn table_distances_are_within_their_bounds() {
    for (dim, m) in SHAPES {
        for bits in [4, 7, 8] {
            for magnitude in [1.0, 1e-18, 1e17] {
                let scaled = |values: Vec<f32>| values.into_iter().map(|value| value * magnitude).collect::<Vec<f32>>();
                let books = scaled(noise(dim << bits, 12));
                let quantizer = ProductQuantizer::from_codebooks(dim, m, bits, books).unwrap();
                let (query, rows) = (scaled(noise(dim, 13)), scaled(noise(300 * dim, 14)));
                let codes = quantizer.encode(&rows, Device::Cpu).unwrap();
                let decoded = quantizer.decode(&codes).unwrap();
                let check = |name: &str, product: bool, x: &[f32], bound: f64, got: &[f32]| {
                    for (i, &got) in got.iter().enumerate() {
                        let expected = naive_distance(product, x, &decoded[i * dim..][..dim]);
                        let error = (f64::from(got) - expected).abs();
                        assert!(error <= bound, "{name} {dim}/{m}/{bits}, {magnitude}: {got} {expected} {bound}");
                    }
                };
                let mut got = vec![0.0; 300];
                for product in [false, true] {
                    let tables =
                        if product { quantizer.product_tables(&query) } else { quantizer.distance_tables(&query) };
                    let tables = tables.unwrap();
                    tables.distances(&codes, &mut got).unwrap();
                    check("f32", product, &query, tables.error_bound(), &got);
                    let half = tables.to_half();
                    half.distances(&codes, &mut got).unwrap();
                    check("f16", product, &query, half.error_bound(), &got);
                    // The bounds are tight: a few roundings of the largest sum, and those of f16.
                    let largest: f64 = query.iter().map(|x| (f64::from(x.abs()) + f64::from(magnitude)).powi(2)).sum();
                    assert!(tables.error_bound() <= (dim + m + 4) as f64 * 6.1e-8 * largest + 1e-42);
                    assert!(half.error_bound() <= tables.error_bound() + largest / 1000.0);
                }
                let symmetric = quantizer.symmetric_tables();
                let tables = symmetric.tables(&codes[..quantizer.code_bytes()]).unwrap();
                tables.distances(&codes, &mut got).unwrap();
                check("symmetric", false, &decoded[..dim], tables.error_bound(), &got);
                assert_eq!(tables.values(), quantizer.distance_tables(&decoded[..dim]).unwrap().values());
            }
        }
    }
}

/// Vectors near a subspace of four directions.
fn correlated(count: usize, dim: usize) -> Vec<f32> {
    let (directions, weights, rest) = (noise(4 * dim, 20), noise(4 * count, 21), noise(count * dim, 22));
    let value = |row: usize, column: usize| {
        let plane: f32 = (0..4).map(|d| weights[4 * row + d] * directions[d * dim + column] * (4 >> d) as f32).sum();
        plane + 0.05 * rest[row * dim + column]
    };
    (0..count * dim).map(|i| value(i / dim, i % dim)).collect()
}

fn mean_error(x: &[f32], y: &[f32], dim: usize) -> f64 {
    naive_distance(false, x, y) / (x.len() / dim) as f64
}

#[test]
fn the_error_falls_with_more_sub_quantizers_and_bits() {
    let dim = 16;
    let rows = correlated(2000, dim);
    let error = |m: usize, bits: u32| {
        let settings = PqTraining::new(m).bits(bits).device(Device::Cpu).iterations(10);
        let quantizer = ProductQuantizer::train(&settings, &rows, dim).unwrap();
        let codes = quantizer.encode(&rows, Device::Cpu).unwrap();
        mean_error(&rows, &quantizer.decode(&codes).unwrap(), dim)
    };
    let by_parts: Vec<f64> = [1, 2, 4, 8, 16].map(|m| error(m, 6)).to_vec();
    let by_bits: Vec<f64> = (4..=8).map(|bits| error(4, bits)).collect();
    for errors in [by_parts, by_bits] {
        assert!(errors.windows(2).all(|pair| pair[1] < 0.9 * pair[0]), "{errors:?}");
    }
}

#[test]
fn training_repeats_by_its_seed_and_is_the_same_on_the_emulator() {
    let rows = correlated(300, 6);
    let settings = PqTraining::new(2).bits(4).iterations(5).points_per_centroid(10).device(Device::Cpu).seed(3);
    let train = |settings: &PqTraining| ProductQuantizer::train(settings, &rows, 6).unwrap();
    let first = train(&settings);
    assert_eq!(first, train(&settings));
    assert_eq!(first, train(&settings.clone().device(Device::Emulator)));
    assert_ne!(first, train(&settings.seed(4)));
}

/// 256 places in a plane; most points are at a few of them.
fn uneven_places() -> Vec<f32> {
    let of_place = |place: usize| if place.is_multiple_of(16) { 200 } else { 4 };
    (0..256).flat_map(|place| [(place % 16) as f32, (place / 16) as f32].repeat(of_place(place))).collect()
}

/// Most random points are at the crowded places, and k-means from there leaves many places without a codeword.
#[test]
fn codewords_of_narrow_sub_vectors_are_spread_before_k_means() {
    let rows = uneven_places();
    let quantizer = ProductQuantizer::train(&PqTraining::new(1).device(Device::Cpu), &rows, 2).unwrap();
    let decoded = quantizer.decode(&quantizer.encode(&rows, Device::Cpu).unwrap()).unwrap();
    assert_eq!(mean_error(&rows, &decoded, 2), 0.0, "every place has its codeword");
}

#[test]
fn longer_codewords_have_half_of_what_is_missing() {
    let (dim, width, codewords) = (12, 6, 16);
    let rows = noise(2000 * dim, 5);
    let settings = PqTraining::new(2).bits(4).device(Device::Cpu);
    let means = ProductQuantizer::train(&settings, &rows, dim).unwrap();
    let longer = ProductQuantizer::train(&settings.clone().lengthen(true), &rows, dim).unwrap();
    let books = |quantizer: &ProductQuantizer| quantizer.codebooks().to_vec();
    for (part, (means, longer)) in
        books(&means).chunks(codewords * width).zip(books(&longer).chunks(codewords * width)).enumerate()
    {
        let factors: Vec<f32> = longer.iter().zip(means).map(|(long, mean)| long / mean).collect();
        assert!(
            factors.iter().all(|factor| (factor / factors[0] - 1.0).abs() < 1e-5),
            "one factor for all: {factors:?}"
        );
        // The missing length, from codes made by the definition: after 25 iterations hardly any point moves.
        let quantizer = ProductQuantizer::from_codebooks(width, 1, 4, means.to_vec()).unwrap();
        let (mut had, mut kept) = (0.0, 0.0);
        for row in rows.chunks(dim) {
            let row = &row[part * width..][..width];
            let word = usize::from(naive_numbers(&quantizer, row)[0]);
            had += row.iter().map(|x| f64::from(x * x)).sum::<f64>();
            kept += means[word * width..][..width].iter().map(|x| f64::from(x * x)).sum::<f64>();
        }
        let expected = 0.5 + 0.5 * (had / kept).sqrt();
        assert!(expected < 1.25 && (f64::from(factors[0]) / expected - 1.0).abs() < 2e-3, "{} {expected}", factors[0]);
    }
    // Codewords grow by a quarter at most: 16 codewords keep little of 64 components.
    let rows = noise(2000 * 64, 6);
    let settings = PqTraining::new(1).bits(4).device(Device::Cpu);
    let means = ProductQuantizer::train(&settings, &rows, 64).unwrap();
    let longer = ProductQuantizer::train(&settings.lengthen(true), &rows, 64).unwrap();
    let pairs = longer.codebooks().iter().zip(means.codebooks());
    assert!(pairs.clone().all(|(long, mean)| *long == (f64::from(*mean) * 1.25) as f32));
    // Without an iteration there are no means to lengthen.
    let points = PqTraining::new(2).bits(4).iterations(0).device(Device::Cpu);
    let train = |settings: &PqTraining| ProductQuantizer::train(settings, &rows, 64).unwrap();
    assert_eq!(train(&points.clone().lengthen(true)), train(&points));
    // If nothing is missing, or longer codewords leave f32's range, the means stay.
    for value in [0.0, 3.3e38] {
        let rows: Vec<f32> = (0..64).map(|row| if row % 2 == 0 { value } else { -value }).collect();
        let settings = PqTraining::new(1).bits(4).device(Device::Cpu);
        let means = ProductQuantizer::train(&settings, &rows, 2).unwrap();
        assert_eq!(ProductQuantizer::train(&settings.lengthen(true), &rows, 2).unwrap(), means);
    }
}

#[test]
fn bad_arguments_are_refused_with_the_numbers() {
    let rows = noise(100 * 6, 30);
    let train = |settings: PqTraining, rows: &[f32], dim: usize| {
        ProductQuantizer::train(&settings.device(Device::Cpu), rows, dim).unwrap_err()
    };
    assert!(matches!(train(PqTraining::new(2), &rows, 0), Error::Zero { what: "dimension" }));
    assert!(matches!(
        train(PqTraining::new(0), &rows, 6),
        Error::NotDivisible { what: "dimension", number: 6, parts: 0, .. }
    ));
    assert!(matches!(
        train(PqTraining::new(4), &rows, 6),
        Error::NotDivisible { what: "dimension", number: 6, parts: 4, .. }
    ));
    for bits in [0, 3, 9, u32::MAX] {
        assert!(
            matches!(train(PqTraining::new(2).bits(bits), &rows, 6), Error::OutOfRange { what: "bits per sub-quantizer", value, least: 4, most: 8 } if value == u64::from(bits))
        );
    }
    assert!(matches!(train(PqTraining::new(2), &rows, 6), Error::TooFewTrainingVectors { have: 100, need: 256 }));
    assert!(matches!(
        train(PqTraining::new(2), &rows[1..], 6),
        Error::Ragged { what: "components", len: 599, size: 6 }
    ));
    let mut infinite = rows.clone();
    infinite[50] = f32::INFINITY;
    assert!(matches!(train(PqTraining::new(2).bits(4), &infinite, 6), Error::NotFinite { row: 8, column: 2, .. }));

    let books = |len: usize| ProductQuantizer::from_codebooks(6, 2, 4, vec![0.0; len]);
    assert!(matches!(books(95), Err(Error::WrongLength { what: "components of codebooks", expected: 96, actual: 95 })));
    let huge = ProductQuantizer::from_codebooks(usize::MAX, 1, 8, vec![]);
    assert!(matches!(huge, Err(Error::TooMany { what: "dimensions", asked: u64::MAX, .. })));
    let mut bad = vec![0.0; 96];
    bad[95] = f32::NAN;
    let bad = ProductQuantizer::from_codebooks(6, 2, 4, bad);
    assert!(matches!(bad, Err(Error::NotFinite { row: 31, column: 2, .. })));

    let quantizer = books(96).unwrap();
    assert_eq!((quantizer.dim(), quantizer.sub_quantizers(), quantizer.bits(), quantizer.code_bytes()), (6, 2, 4, 1));
    for device in [Device::Cpu, Device::Emulator] {
        assert!(matches!(quantizer.encode(&rows[1..], device), Err(Error::Ragged { what: "components", .. })));
        assert!(matches!(quantizer.encode(&infinite, device), Err(Error::NotFinite { row: 8, column: 2, .. })));
        assert!(quantizer.encode(&[], device).unwrap().is_empty());
    }
    let three = ProductQuantizer::from_codebooks(6, 3, 5, vec![0.0; 192]).unwrap();
    assert!(matches!(three.decode(&[0; 5]), Err(Error::Ragged { what: "code bytes", len: 5, size: 2 })));
    assert!(three.decode(&[]).unwrap().is_empty());
    assert_eq!(three.decode(&[0xff; 2]).unwrap(), [0.0; 6]);
    assert!(matches!(three.distance_tables(&[0.0; 5]), Err(Error::WrongDimension { expected: 6, actual: 5 })));
    assert!(matches!(three.product_tables(&infinite[48..54]), Err(Error::NotFinite { row: 0, column: 2, .. })));
    let tables = three.distance_tables(&[0.0; 6]).unwrap();
    assert!(matches!(tables.distances(&[0; 3], &mut [0.0]), Err(Error::Ragged { what: "code bytes", .. })));
    let short = tables.distances(&[0; 4], &mut [0.0]);
    assert!(matches!(short, Err(Error::WrongLength { what: "results", expected: 2, actual: 1 })));
    assert!(matches!(three.symmetric_tables().tables(&[0; 4]), Err(Error::Ragged { what: "code bytes", .. })));
    assert_eq!(codes::code_bytes(3, 5), 2);
}

#[test]
fn a_learned_rotation_lowers_the_error_and_is_orthogonal() {
    let dim = 16;
    let rows = correlated(3000, dim);
    let settings = PqTraining::new(4).bits(5).iterations(10).device(Device::Cpu);
    let error = |rows: &[f32]| {
        let quantizer = ProductQuantizer::train(&settings, rows, dim).unwrap();
        let codes = quantizer.encode(rows, Device::Cpu).unwrap();
        mean_error(rows, &quantizer.decode(&codes).unwrap(), dim)
    };
    let rotation = Rotation::train(&settings, &rows, dim).unwrap();
    assert_eq!(rotation, Rotation::train(&settings, &rows, dim).unwrap());
    let rotated = rotation.apply(&rows, Device::Cpu).unwrap();
    let (plain, opq) = (error(&rows), error(&rotated));
    assert!(opq < 0.7 * plain, "{plain} {opq}");
    let start = Rotation::train(&settings.clone().rotation_rounds(0), &rows, dim).unwrap();
    let random = error(&start.apply(&rows, Device::Cpu).unwrap());
    assert!(opq < 0.8 * random, "{random} {opq}");

    for rotation in [&rotation, &start] {
        let row = |i: usize| &rotation.matrix()[i * dim..][..dim];
        for i in 0..dim {
            for j in 0..dim {
                let product: f64 = row(i).iter().zip(row(j)).map(|(&a, &b)| f64::from(a) * f64::from(b)).sum();
                assert!((product - f64::from(u8::from(i == j))).abs() <= rotation.orthogonality_error() + 1e-15);
            }
        }
        assert!(rotation.orthogonality_error() < 2e-7);
    }
}

#[test]
fn rotations_are_learned_with_means() {
    let rows = correlated(600, 8);
    let settings = PqTraining::new(4).bits(4).rotation_rounds(1).device(Device::Cpu);
    let train = |settings: &PqTraining| Rotation::train(settings, &rows, 8).unwrap();
    assert_eq!(train(&settings.clone().lengthen(true)), train(&settings));
}

#[test]
fn vectors_in_a_subspace_give_a_rotation_too() {
    // Columns 1 and 3 are zero, and 16 vectors have at most 16 directions.
    let mut rows = noise(16 * 40, 40);
    rows.iter_mut().enumerate().filter(|(i, _)| matches!(i % 40, 1 | 3)).for_each(|(_, value)| *value = 0.0);
    for rows in [rows, vec![0.0; 16 * 40]] {
        let settings = PqTraining::new(8).bits(4).device(Device::Cpu).rotation_rounds(5);
        assert!(Rotation::train(&settings, &rows, 40).unwrap().orthogonality_error() < 2e-7);
    }
}

#[test]
fn rotating_follows_the_definition_on_every_device() {
    for dim in [1, 2, 5, 31, 130] {
        let settings = PqTraining::new(1).bits(4).device(Device::Cpu).rotation_rounds(1).iterations(1);
        let rotation = Rotation::train(&settings, &noise(30 * dim, 41), dim).unwrap();
        let rows = noise(9 * dim, 42);
        for back in [false, true] {
            let by =
                |device| if back { rotation.apply_transposed(&rows, device) } else { rotation.apply(&rows, device) };
            let got = by(Device::Cpu).unwrap();
            for (i, got) in got.iter().enumerate() {
                let (row, component) = (&rows[i / dim * dim..][..dim], i % dim);
                let entry = |j: usize| rotation.matrix()[if back { j * dim + component } else { component * dim + j }];
                let exact: f64 = (0..dim).map(|j| f64::from(entry(j)) * f64::from(row[j])).sum();
                assert!((f64::from(*got) - exact).abs() <= 6e-8 * exact.abs() + 1e-14, "{dim}: {got} {exact}");
                let column: Vec<f32> = (0..dim).map(entry).collect();
                assert_eq!(
                    got.to_bits(),
                    crate::metric::canonical(crate::Metric::InnerProduct, row, &column).to_bits()
                );
            }
            assert_eq!(by(Device::Emulator).unwrap(), got);
        }
    }
}

#[test]
fn matrices_that_are_no_rotations_are_refused() {
    let error = |dim, matrix| Rotation::from_matrix(dim, matrix).unwrap_err();
    assert!(matches!(error(0, vec![]), Error::Zero { what: "dimension" }));
    assert!(matches!(error(2, vec![1.0; 3]), Error::NotOrthogonal { dim: 2, len: 3, .. }));
    assert!(matches!(error(usize::MAX, vec![]), Error::TooMany { what: "dimensions", asked: u64::MAX, .. }));
    assert!(matches!(error(2, vec![1.0, 0.0, 0.5, 1.0]), Error::NotOrthogonal { error: 0.5, .. }));
    assert!(matches!(error(1, vec![f32::NAN]), Error::NotFinite { .. }));
    let turn = Rotation::from_matrix(2, vec![0.0, 1.0, -1.0, 0.0]).unwrap();
    assert_eq!(turn.apply(&[3.0, 4.0], Device::Cpu).unwrap(), [4.0, -3.0]);
    assert_eq!(turn.apply_transposed(&[4.0, -3.0], Device::Cpu).unwrap(), [3.0, 4.0]);
    assert!(matches!(turn.apply(&[0.0; 3], Device::Cpu), Err(Error::Ragged { what: "components", len: 3, size: 2 })));
    let few = Rotation::train(&PqTraining::new(1).bits(4), &[0.0; 30], 2);
    assert!(matches!(few, Err(Error::TooFewTrainingVectors { have: 15, need: 16 })));
}
