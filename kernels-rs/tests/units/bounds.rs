//! The bounds of distances in low precision.

use warpann_kernels::product::bounds::*;
use warpann_kernels::product::metric::Metric;

const LEAST: f32 = f32::MIN_POSITIVE;

#[test]
fn bounds_are_normal_numbers_below_the_farthest_or_infinite() {
    for exponent in -300..270 {
        for factor in [1.0, 1.1, 1.999] {
            let root = factor * 2f64.powi(exponent);
            let Bounds { norm, residual } = Bounds::of_squares(root * root, root * root);
            assert_eq!(norm.to_bits(), residual.to_bits());
            assert!(f64::from(norm) >= root && norm >= LEAST, "{root:e}: {norm:e}");
            assert!(norm < FARTHEST || norm == f32::INFINITY, "{root:e}: {norm:e}");
            assert_eq!(norm == f32::INFINITY, exponent >= 62, "{root:e}: {norm:e}");
            assert!(norm == f32::INFINITY || f64::from(norm) <= root * (1.0 + 2e-6) + 1.2e-38, "{root:e}: {norm:e}");
        }
    }
    let none = Bounds::of_squares(0.0, 0.0);
    assert_eq!((none.norm, none.residual), (LEAST, LEAST));
    for lost in [f64::INFINITY, f64::NAN] {
        assert_eq!(Bounds::of_squares(1.0, lost).residual, f32::INFINITY);
    }
}

/// E in f64, from the norms as they are.
fn proved(metric: Metric, padded: u32, x: Bounds, y: Bounds) -> f64 {
    let [xn, xr, yn, yr] = [x.norm, x.residual, y.norm, y.residual].map(f64::from);
    let product = (xr + f64::from(padded) * 2f64.powi(-22) * xn) * yn + xn * yr;
    let unit = 2f64.powi(-20);
    match metric {
        Metric::L2 => 2.0 * product + unit * (xn * xn + yn * yn) + 1e-36,
        Metric::InnerProduct | Metric::Cosine => product + unit * xn * yn + 1e-36,
    }
}

/// An error above the proved one is sound, but lets more rows pass the filters.
#[test]
fn no_magnitude_makes_the_error_too_small_or_large() {
    let magnitudes = || (-126..62).step_by(7).map(|exponent| 1.3 * 2f32.powi(exponent));
    for metric in Metric::UNNORMALISED {
        for padded in [64, 1_024, MOST_COMPONENTS] {
            for (x_norm, y_norm) in magnitudes().flat_map(|x| magnitudes().map(move |y| (x, y))) {
                for lost in [0.0, 1.0 / 4_096.0, 1.0] {
                    let bounds = |norm: f32| Bounds { norm, residual: (lost * norm).max(LEAST) };
                    let (x, y) = (bounds(x_norm), bounds(y_norm));
                    let error = QueryTerms::new(metric, padded, x).error(metric, y);
                    let least = proved(metric, padded, x, y);
                    // Additions for 16 components more, roundings, and what covers subnormal results.
                    let most = proved(metric, padded + 16, x, y) * (1.0 + 1e-5) + 2e-35;
                    assert!(
                        (least..=most).contains(&f64::from(error)),
                        "{metric:?}, {padded}, {x_norm:e}, {y_norm:e}: {error:e}, {least:e} to {most:e}"
                    );
                }
            }
        }
    }
}

#[test]
fn errors_are_infinite_and_never_nan_where_nothing_is_proved() {
    let of = |norm: f32, residual: f32| Bounds { norm, residual };
    let far = Bounds::of_squares(2f64.powi(124), 1.0);
    let near = [of(LEAST, LEAST), of(1.0, LEAST), of(1e18, 1e15), of(1e18, f32::INFINITY), far];
    for metric in Metric::UNNORMALISED {
        let error = |padded: u32, x: Bounds, y: Bounds| QueryTerms::new(metric, padded, x).error(metric, y);
        for other in near {
            assert_eq!(error(64, far, other), f32::INFINITY);
            assert_eq!(error(64, other, far), f32::INFINITY);
            assert_eq!(error(MOST_COMPONENTS + 64, of(1.0, LEAST), other), f32::INFINITY);
            for factor in [0.0, -0.0, f32::INFINITY, f32::NEG_INFINITY, f32::NAN] {
                let terms = QueryTerms::new(metric, 64, of(1.0, LEAST)).with_factor(factor);
                assert_eq!(terms.error(metric, other), f32::INFINITY);
            }
        }
        assert!(error(MOST_COMPONENTS, of(1.0, 0.1), of(1.0, 0.1)) < 2.0);
        let proved = |padded| QueryTerms::are_proved(metric, padded);
        assert!(proved(64) && proved(MOST_COMPONENTS) && !proved(MOST_COMPONENTS + 1));
        // The largest norms that have a bound leave room for scores and thresholds.
        let largest = Bounds::of_squares(2f64.powi(123), 2f64.powi(100));
        assert!(error(4_096, largest, largest) < 1e37);
    }
}
