//! The start of the lists of candidates ([`BeginCandidates`]).

use cuda_std::emulator::Buffer;
use warpann_kernels::NO_ROW;
use warpann_kernels::ivf::pairs::BeginCandidates;

/// The threshold is the last score below +∞, if there are enough of them; a list starts with all that was selected.
#[test]
fn lists_of_candidates_start_with_the_selected_ones() {
    let (selected, least, capacity) = (70, 18, 75);
    // Numbers of scores below +∞, and of those with a place, of which the last ones are +∞.
    let found = [(70, 70), (69, 70), (33, 40), (18, 18), (17, 70), (0, 0)];
    let score = |query: usize, at: usize| if at < found[query].0 { (query * 100 + at) as f32 } else { f32::INFINITY };
    let place = |query: usize, at: usize| if at < found[query].1 { (7 * at + query) as u32 } else { NO_ROW };
    let all = || (0..found.len()).flat_map(|query| (0..selected).map(move |at| (query, at)));
    let scores: Vec<f32> = all().map(|(query, at)| score(query, at)).collect();
    let places: Vec<u32> = all().map(|(query, at)| place(query, at)).collect();
    let (scores_at, places_at) = (Buffer::from_slice(&scores), Buffer::from_slice(&places));
    let mut list_scores = Buffer::from_slice(&vec![-1.0f32; found.len() * capacity]);
    let mut list_places = Buffer::from_slice(&vec![5u32; found.len() * capacity]);
    let mut counts = Buffer::<u32>::new_poisoned(found.len());
    let mut thresholds = Buffer::<f32>::new_poisoned(found.len());
    let launch = BeginCandidates {
        query_count: found.len() as u32,
        selected: selected as u32,
        least,
        scores: scores_at.as_ptr(),
        places: places_at.as_ptr(),
        capacity: capacity as u32,
        list_scores: list_scores.as_mut_ptr(),
        list_places: list_places.as_mut_ptr(),
        counts: counts.as_mut_ptr(),
        thresholds: thresholds.as_mut_ptr(),
    };
    // SAFETY: the arrays have these shapes.
    unsafe { crate::launch(&BeginCandidates::KERNEL, launch.config(), launch) };
    let thresholds = thresholds.to_vec();
    assert_eq!(thresholds[..4], [69.0, 168.0, 232.0, 317.0]);
    assert!(thresholds[4..].iter().all(|threshold| threshold.is_nan()), "{thresholds:?}");
    assert_eq!(counts.to_vec(), vec![selected as u32; found.len()]);
    let (list_scores, list_places) = (list_scores.to_vec(), list_places.to_vec());
    for query in 0..found.len() {
        let (from, to) = (query * selected, query * capacity);
        assert_eq!(list_scores[to..][..selected], scores[from..][..selected], "query {query}");
        assert_eq!(list_places[to..][..selected], places[from..][..selected], "query {query}");
        assert!(list_scores[to + selected..to + capacity].iter().all(|&score| score == -1.0), "query {query}");
    }
}
