//! Product quantization: codes and decoded vectors by the definition, tables within their bound, training with the
//! CPU's bits.

use warpann::pq::{PqTraining, ProductQuantizer, Rotation};
use warpann::{Device, Metric};

use super::vectors::{self, Form, Magnitude};
use super::work;
use crate::data::{Random, Vectors};
use crate::reference::{self, textbook};
use crate::runner::{Outcome, text};

/// A quantizer and vectors.
#[derive(Debug)]
struct PqCase {
    width: usize,
    sub_quantizers: usize,
    bits: u32,
    n: usize,
    /// Whether codebooks are trained; otherwise they are any vectors.
    train: Option<Training>,
    form: Form,
    /// The form of codebooks that are not trained.
    books: Form,
}

#[derive(Debug, Clone, Copy)]
struct Training {
    rows: usize,
    iterations: usize,
    points_per_centroid: usize,
    lengthen: bool,
    rotate: bool,
}

/// The case of a seed.
///
/// # Errors
/// The case and the first difference, in words.
pub fn case(seed: u64, device: Device) -> Outcome {
    let random = &mut Random::new(seed);
    let most = work(random, device);
    let train = random.once_in(4);
    // A training is as many runs of k-means as there are sub-quantizers.
    let (most_parts, most_bits) = if train && device == Device::Emulator { (3, 5) } else { (16, 8) };
    let width = random.pick(&[1, 2, 3, 4, 7, 8, 16, 17]);
    let sub_quantizers = 1 + random.size(most_parts - 1);
    let dim = width * sub_quantizers;
    let bits = 4 + random.size(most_bits - 4) as u32;
    let words = 1 << bits;
    let n = random.size((most / dim / words).clamp(4, 300));
    // Codes are defined for all of f32; distances overflow, and so do differences of the greatest numbers.
    let range = Some((-149, 127));
    let form = vectors::form(random, range);
    let train = train.then(|| Training {
        rows: words + random.size((most / dim / words / 4).min(300)),
        iterations: random.below(3),
        points_per_centroid: 1 + random.below(8),
        lengthen: random.once_in(2),
        rotate: dim <= 16 && random.once_in(3),
    });
    // Codewords are often as large as vectors.
    let books = if random.once_in(2) { form } else { vectors::form(random, range) };
    let case = PqCase { width, sub_quantizers, bits, n, train, form, books };
    check(&case, random, device).map_err(|failure| format!("{failure}\n{case:?}"))
}

fn check(case: &PqCase, random: &mut Random, device: Device) -> Outcome {
    let &PqCase { width, sub_quantizers, bits, n, train, ref form, ref books } = case;
    let dim = width * sub_quantizers;
    let quantizer = match train {
        Some(training) => {
            // Training adds f32: it must stay in range.
            let form = Form { magnitude: tame(form.magnitude), ..*form };
            let rows: Vectors<f32> = vectors::vectors(&form, dim, training.rows, 0, random);
            trained(case, training, &rows, device, random.bits())?
        }
        None => {
            let words: Vectors<f32> = vectors::vectors(books, width, sub_quantizers << bits, 0, random);
            ProductQuantizer::from_codebooks(dim, sub_quantizers, bits, words.base).map_err(text)?
        }
    };
    let vectors: Vectors<f32> = vectors::vectors(form, dim, n, 1, random);
    let codes = quantizer.encode(&vectors.base, device).map_err(text)?;
    let bytes = (sub_quantizers * bits as usize).div_ceil(8);
    if codes.len() != n * bytes {
        return Err(format!("{} bytes of codes", codes.len()));
    }
    let decoded = quantizer.decode(&codes).map_err(text)?;
    for (row, vector) in vectors.base.chunks(dim).enumerate() {
        let code = &codes[row * bytes..][..bytes];
        for part in 0..sub_quantizers {
            let found = number(code, part, bits);
            let words = quantizer.codebooks()[(part << bits) * width..].chunks(width).take(1 << bits);
            let expected = first_nearest(&vector[part * width..][..width], words);
            if found != expected {
                return Err(format!("vector {row}, part {part}: code {found}; by definition {expected}"));
            }
            let word = &quantizer.codebooks()[((part << bits) + found) * width..][..width];
            let back = &decoded[row * dim + part * width..][..width];
            if back.iter().map(|x| x.to_bits()).ne(word.iter().map(|x| x.to_bits())) {
                return Err(format!("vector {row}, part {part}: decoded to {back:?}, not {word:?}"));
            }
        }
        let used = sub_quantizers * bits as usize;
        if (used..8 * bytes).any(|at| code[at / 8] >> (at % 8) & 1 == 1) {
            return Err(format!("vector {row}: unused bits of {code:x?}"));
        }
    }
    tables(&quantizer, &vectors, &codes, &decoded)
}

/// Without numbers whose sums or squares leave f32's range.
fn tame(magnitude: Magnitude) -> Magnitude {
    let tame = |exponent: i32| exponent.clamp(-100, 50);
    match magnitude {
        Magnitude::Plain => Magnitude::Plain,
        Magnitude::All(exponent) => Magnitude::All(tame(exponent)),
        Magnitude::Apart { base, queries } => Magnitude::Apart { base: tame(base), queries: tame(queries) },
        Magnitude::Rows { low, high } => Magnitude::Rows { low: tame(low), high: tame(high) },
        Magnitude::Components { low, high } => Magnitude::Components { low: tame(low), high: tame(high) },
        Magnitude::Numbers { low, high } => Magnitude::Numbers { low: tame(low), high: tame(high) },
        Magnitude::FarRow(exponent) => Magnitude::FarRow(tame(exponent)),
        Magnitude::FarNumber(exponent) => Magnitude::FarNumber(tame(exponent)),
    }
}

/// A quantizer, and sometimes a rotation, trained on `device`: the CPU's to the bit.
fn trained(
    case: &PqCase,
    training: Training,
    rows: &Vectors<f32>,
    device: Device,
    seed: u64,
) -> Result<ProductQuantizer, String> {
    let dim = case.width * case.sub_quantizers;
    let settings = |device| {
        PqTraining::new(case.sub_quantizers)
            .bits(case.bits)
            .iterations(training.iterations)
            .points_per_centroid(training.points_per_centroid)
            .lengthen(training.lengthen)
            .rotation_rounds(2)
            .seed(seed)
            .device(device)
    };
    let bits = |values: &[f32]| values.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
    let quantizer = ProductQuantizer::train(&settings(device), &rows.base, dim).map_err(text)?;
    if device != Device::Cpu {
        let expected = ProductQuantizer::train(&settings(Device::Cpu), &rows.base, dim).map_err(text)?;
        if bits(expected.codebooks()) != bits(quantizer.codebooks()) {
            return Err("other codebooks than on the CPU".to_owned());
        }
    }
    if training.rotate {
        let rotation = Rotation::train(&settings(device), &rows.base, dim).map_err(text)?;
        let turned = rotation.apply(&rows.base, device).map_err(text)?;
        check_rotation(&rotation, &rows.exact_base, &turned)?;
        if device != Device::Cpu {
            let expected = Rotation::train(&settings(Device::Cpu), &rows.base, dim).map_err(text)?;
            if bits(expected.matrix()) != bits(rotation.matrix()) {
                return Err("another rotation than on the CPU".to_owned());
            }
        }
    }
    Ok(quantizer)
}

/// That rows are orthonormal to 2 · 10⁻⁷, and that turned vectors are canonical inner products.
fn check_rotation(rotation: &Rotation, rows: &[f64], turned: &[f32]) -> Outcome {
    let dim = rotation.dim();
    let matrix: Vec<f64> = rotation.matrix().iter().map(|&x| f64::from(x)).collect();
    for (i, a) in matrix.chunks(dim).enumerate() {
        for (j, b) in matrix.chunks(dim).enumerate() {
            let error = textbook(Metric::InnerProduct, a, b) - if i == j { 1.0 } else { 0.0 };
            if error.abs() > 2e-7 {
                return Err(format!("rows {i} and {j} of a rotation: {error:e}"));
            }
        }
    }
    for (row, turned) in rows.chunks(dim).zip(turned.chunks(dim)) {
        for (axis, found) in matrix.chunks(dim).zip(turned) {
            let expected = reference::defined(Metric::InnerProduct, row, axis);
            if expected.to_bits() != found.to_bits() {
                return Err(format!("turned to {found:?}; by definition {expected:?}"));
            }
        }
    }
    Ok(())
}

/// Number `part` of a code, bit by bit.
fn number(code: &[u8], part: usize, bits: u32) -> usize {
    let bit = |at: usize| usize::from(code[at / 8] >> (at % 8) & 1);
    (0..bits as usize).map(|b| bit(part * bits as usize + b) << b).sum()
}

/// The first of the codewords whose distance, summed in f32 from the first component on, is the smallest.
fn first_nearest<'a>(x: &[f32], words: impl Iterator<Item = &'a [f32]>) -> usize {
    let distances = words.map(|word| {
        x.iter().zip(word).fold(0f32, |sum, (x, c)| {
            let difference = x - c;
            sum + difference * difference
        })
    });
    let mut best = (0, f32::INFINITY);
    for (number, distance) in distances.enumerate() {
        if distance < best.1 {
            best = (number, distance);
        }
    }
    best.0
}

/// Distances and products by tables, against those to the decoded vectors.
fn tables(quantizer: &ProductQuantizer, vectors: &Vectors<f32>, codes: &[u8], decoded: &[f32]) -> Outcome {
    let dim = quantizer.dim();
    let (query, exact) = (&vectors.queries[..dim], &vectors.exact_queries[..dim]);
    let mut distances = vec![0f32; decoded.len() / dim];
    for metric in [Metric::L2, Metric::InnerProduct] {
        let tables = match metric {
            Metric::L2 => quantizer.distance_tables(query),
            _ => quantizer.product_tables(query),
        };
        let tables = tables.map_err(text)?;
        let half = tables.to_half();
        for (name, bound) in [("f32", tables.error_bound()), ("f16", half.error_bound())] {
            match name {
                "f32" => tables.distances(codes, &mut distances),
                _ => half.distances(codes, &mut distances),
            }
            .map_err(text)?;
            if bound.is_infinite() {
                continue;
            }
            for (row, (vector, &found)) in decoded.chunks(dim).zip(&distances).enumerate() {
                let vector: Vec<f64> = vector.iter().map(|&x| f64::from(x)).collect();
                let expected = textbook(metric, exact, &vector);
                let error = (f64::from(found) - expected).abs();
                // NaN where the table overflowed though its bound did not.
                if error.is_nan() || error > bound * (1.0 + 1e-9) {
                    return Err(format!(
                        "{metric:?}, {name} table, vector {row}: {found:?}, exactly {expected:?}, bound {bound:e}"
                    ));
                }
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::vectors::{Twist, Values};
    use super::*;

    #[test]
    fn codes_found_by_hand() {
        let words = [[0.0f32, 0.0], [1.0, 1.0], [1.0, 1.0], [f32::MAX, 0.0]];
        let nearest = |x: [f32; 2]| first_nearest(&x, words.iter().map(|word| &word[..]));
        assert_eq!([nearest([0.2, 0.2]), nearest([2.0, 0.9]), nearest([f32::MIN, 1.0])], [0, 1, 0]);
        // 5 bits each, from the lowest of the first byte: 31, 1, 10.
        let code = [0b0011_1111, 0b0010_1000];
        assert_eq!([number(&code, 0, 5), number(&code, 1, 5), number(&code, 2, 5)], [31, 1, 10]);
    }

    #[test]
    fn tamed_forms_stay_in_range() {
        let form = Form {
            values: Values::Normal,
            magnitude: tame(Magnitude::Numbers { low: -149, high: 127 }),
            twist: Twist::None,
            own: false,
        };
        let rows: Vectors<f32> = vectors::vectors(&form, 4, 50, 0, &mut Random::new(1));
        assert!(rows.base.iter().all(|x| x.abs() < 2f32.powi(54)));
    }
}
