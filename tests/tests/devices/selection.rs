//! k-selection on the CPU against the reference, on random inputs, in addition to the case table.

use half::{bf16, f16};
use proptest::prelude::*;
use warpann::Device;
use warpann::select::{Best, NO_POSITION, Rows, select_k};
use warpann_tests::data::TestKey;
use warpann_tests::reference;

/// Compares each row's selection with the reference.
fn check<K: TestKey>(rows: &Rows<'_, K>, k: usize, best: Best) {
    let found = select_k(Device::Cpu, rows, k, best).unwrap();
    for row in 0..rows.len() {
        let values: Vec<f64> = rows.row(row).iter().map(|key| key.value()).collect();
        let expected = reference::select(best, &values, k);
        assert_eq!(found.positions[row * k..][..k], expected, "row {row} of {}", values.len());
        for (key, &position) in found.keys[row * k..].iter().zip(&expected) {
            let expected = K::selected(best, values.get(position as usize));
            assert_eq!(key.bits(), expected.bits(), "row {row}, position {position}");
            assert_eq!(position == NO_POSITION, values.get(position as usize).is_none());
        }
    }
}

/// Bits of which few or many are the same: `mask` leaves some of them free.
fn draw<K: TestKey>(bits: &[u32], mask: u32) -> Vec<K> {
    bits.iter().map(|bits| K::from_low_bits(bits & mask | K::ONE_BITS & !mask)).collect()
}

fn check_type<K: TestKey>(bits: &[u32], mask: u32, shape: (usize, usize, usize), cuts: &[u64], k: usize, best: Best) {
    let keys: Vec<K> = draw(bits, mask);
    let (rows, columns, stride) = shape;
    let rows = match columns {
        0 => rows,
        _ if columns > keys.len() => 0,
        _ => rows.min((keys.len() - columns).checked_div(stride).map_or(rows, |more| more + 1)),
    };
    check(&Rows::strided(&keys, rows, columns, stride).unwrap(), k, best);
    let mut starts: Vec<u64> = cuts.iter().map(|cut| cut % (keys.len() as u64 + 1)).collect();
    starts.sort_unstable();
    let ragged = Rows::ragged(&keys, &starts).unwrap();
    check(&ragged, k, best);
    let lengths: Vec<u32> =
        (0..ragged.len()).map(|row| bits.get(row).map_or(0, |b| b % (ragged.row(row).len() as u32 + 1))).collect();
    check(&ragged.with_lengths(&lengths).unwrap(), k, best);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn the_cpu_selects_as_the_reference(
        bits in prop::collection::vec(any::<u32>(), 0..6000),
        mask in prop_oneof![Just(u32::MAX), Just(0), any::<u32>(), Just(0xff00_ff00)],
        shape in (1usize..40, prop_oneof![0usize..70, 0usize..6000], prop_oneof![0usize..70, 0usize..6000]),
        cuts in prop::collection::vec(any::<u64>(), 0..9),
        k in prop_oneof![1usize..40, 1usize..7000],
        largest in any::<bool>(),
    ) {
        let best = if largest { Best::Largest } else { Best::Smallest };
        check_type::<f32>(&bits, mask, shape, &cuts, k, best);
        check_type::<f16>(&bits, mask, shape, &cuts, k, best);
        check_type::<bf16>(&bits, mask, shape, &cuts, k, best);
        check_type::<i32>(&bits, mask, shape, &cuts, k, best);
        check_type::<u32>(&bits, mask, shape, &cuts, k, best);
    }
}
