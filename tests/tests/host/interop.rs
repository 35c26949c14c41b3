//! Names of values as text, and the features `serde` and `ndarray`, from the outside of the library.

use std::fmt::{Debug, Display};
use std::str::FromStr;

use ndarray::{Array2, array, s};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use warpann::generate::Generator;
use warpann::io::{Format, GroundTruth, IdMatrix, Open};
use warpann::ivf::{Encoding, IvfIndex, IvfIndexBuilder, IvfStatistics};
use warpann::kmeans::{Clustering, KMeans, Start};
use warpann::knn_graph::{Components, Graph, KnnGraph};
use warpann::matrices::components;
use warpann::mesh::{BoxForm, Mesh, MeshFormat};
use warpann::pq::{PqTraining, ProductQuantizer, Rotation};
use warpann::select::{Algorithm, Best, KeyType};
use warpann::{
    Device, ElementType, Error, FlatIndex, FlatIndexBuilder, Metric, NONE, Neighbors, Placement, RangeNeighbors, Scan,
    SearchOptions, ShiftedIndexBuilder, UnknownName,
};
use warpann_measure::cost_model::WarpSelectShape;

/// `count` vectors of dimension `dim`.
fn vectors(count: usize, dim: usize) -> Vec<f32> {
    (0..count * dim).map(|at| (at as u32).wrapping_mul(2_654_435_761) as f32 / u32::MAX as f32).collect()
}

/// Checks that the text of each value gives the value, also through serde, and that other texts give an error with
/// every name.
fn check_names<T>(kind: &str, values: &[T], names: &[&str])
where
    T: Display + FromStr<Err = UnknownName> + PartialEq + Debug + Copy + Serialize + DeserializeOwned,
{
    for (&value, &name) in values.iter().zip(names) {
        assert_eq!((value.to_string(), name.parse()), (name.to_owned(), Ok(value)));
        assert_eq!(serde_json::to_value(value).unwrap(), json!(name));
        assert_eq!(serde_json::from_value::<T>(json!(name)).unwrap(), value);
    }
    assert_eq!(values.len(), names.len());
    for wrong in ["", "nothing", &names[0].to_uppercase(), &format!("{} ", names[0]), &format!(" {}", names[0])] {
        let error = wrong.parse::<T>().unwrap_err();
        assert_eq!((error.text(), error.kind()), (wrong, kind));
        assert!(
            names.iter().filter(|name| !name.contains(['-', ':'])).all(|name| error.known().contains(name)),
            "{error}"
        );
        assert!(error.known().iter().all(|name| error.to_string().contains(name)), "{error}");
        let error = serde_json::from_value::<T>(json!(wrong)).unwrap_err().to_string();
        assert!(error.contains(&format!("'{wrong}' is not {kind}")), "{error}");
    }
    for wrong in [json!(0), json!(null), json!({}), json!([names[0]])] {
        assert!(serde_json::from_value::<T>(wrong).is_err());
    }
}

#[test]
fn names_are_texts_of_values() {
    check_names("a metric", &Metric::ALL, &["l2", "ip", "cosine", "hamming"]);
    check_names("an element type", &ElementType::ALL, &["f32", "f16", "bf16", "u8", "i8"]);
    check_names("a type of keys", &KeyType::ALL, &["f32", "f16", "bf16", "i32", "u32"]);
    check_names("an algorithm of selection", &Algorithm::ALL, &["auto", "warp-select", "threshold-select"]);
    check_names("a direction of selection", &Best::ALL, &["smallest", "largest"]);
    check_names("an order of a scan", &Scan::ALL, &["auto", "list-major", "query-major"]);
    check_names("a way to open a file", &Open::ALL, &["auto", "read", "map"]);
    check_names("a mesh format", &MeshFormat::ALL, &["obj", "ply"]);
    check_names("a form of boxes", &BoxForm::ALL, &["min-max", "min-extent"]);
    let formats = ["fvecs", "bvecs", "ivecs", "fbin", "u8bin", "i8bin", "ibin", "npy", "bin"];
    check_names("a file format", &Format::ALL, &formats);
    let devices = [Device::Auto, Device::Cpu, Device::Gpu(0), Device::Gpu(17), Device::Emulator];
    check_names("a device", &devices, &["auto", "cpu", "gpu:0", "gpu:17", "emulator"]);
    let pq = |sub_quantizers, bits, rotate| Encoding::Pq { sub_quantizers, bits, rotate };
    let encodings = [
        Encoding::Flat,
        Encoding::F16,
        Encoding::Scalar8,
        pq(16, 8, false),
        pq(3, 4, true),
        pq(0, 99, false),
        Encoding::Bits { bits: 5 },
    ];
    check_names("an encoding", &encodings, &["flat", "f16", "sq8", "pq:16x8", "opq:3x4", "pq:0x99", "bits:5"]);
    assert_eq!(("pq:16".parse(), "opq:7".parse()), (Ok(pq(16, 8, false)), Ok(pq(7, 8, true))));
    for wrong in [
        "pq",
        "pq:",
        "pq:x",
        "pq:16x",
        "pq:x8",
        "pq:16x8x1",
        "pq:-1",
        "pq:99999999999999999999",
        "qp:16x8",
        "flat:1",
        "bits",
        "bits:",
        "bits:x",
    ] {
        assert_eq!(wrong.parse::<Encoding>().unwrap_err().text(), wrong);
    }
    // An encoding that no index can have is refused by the index.
    let built = IvfIndex::<f32>::builder(4, 2).encoding("pq:0x99".parse().unwrap()).device(Device::Cpu).build();
    assert!(matches!(built, Err(Error::NotDivisible { what: "dimension", number: 4, parts: 0, .. })));
    // Formats pad names.
    assert_eq!(format!("{:>4}|{:<7}|", Metric::L2, Metric::Cosine), "  l2|cosine |");
}

#[test]
fn placements_are_serialised_as_text() {
    for text in ["auto", "gpu:0,gpu:1", "cpu+emulator", "gpu:0+gpu:1,gpu:2+gpu:3"] {
        let placement: Placement = serde_json::from_value(json!(text)).unwrap();
        assert_eq!((placement.to_string(), serde_json::to_value(&placement).unwrap()), (text.to_owned(), json!(text)));
    }
    let error = serde_json::from_value::<Placement>(json!("cpu+cpu,cpu")).unwrap_err();
    assert!(error.to_string().contains("replica 1 has 1 shards"), "{error}");
}

/// Checks that a value is the same after it was written and read.
fn same<T: Serialize + DeserializeOwned + PartialEq + Debug>(value: &T) -> Value {
    let text = serde_json::to_string(value).unwrap();
    assert_eq!(&serde_json::from_str::<T>(&text).unwrap(), value, "{text}");
    serde_json::from_str(&text).unwrap()
}

/// Checks that `valid` gives a value, and that none of the changes of one field gives one.
fn check_refused<T: DeserializeOwned + Debug>(valid: &Value, changes: &[(&str, Value)]) {
    serde_json::from_value::<T>(valid.clone()).unwrap();
    for (field, value) in changes {
        let mut changed = valid.clone();
        assert!(changed.get(field).is_some(), "{field}");
        changed[field] = value.clone();
        let read = serde_json::from_value::<T>(changed);
        assert!(read.is_err(), "{field} = {value}: {read:?}");
    }
}

#[test]
fn results_are_the_same_after_serde() {
    let mut index = FlatIndex::<f32>::new(2, Metric::L2, Device::Cpu).unwrap();
    index.add(&[0.1, 0.2, 0.3, 0.4, 1e-20, 3e38]).unwrap();
    let found = index.search(&[0.1, 0.2, 3e38, 0.5], 5).unwrap();
    assert!(found.ids.contains(&NONE) && found.distances.contains(&f32::INFINITY));
    let value = same(&found);
    assert_eq!((&value["distances"][4], &value["ids"][4]), (&json!("inf"), &json!(NONE)));
    check_refused::<Neighbors>(
        &value,
        &[
            ("k", json!(0)),
            ("k", json!(3)),
            ("ids", json!([1, 2])),
            ("ids", json!([-1, 1, 1, 1, 1, 1, 1, 1, 1, 1])),
            ("distances", json!(vec![0.0; 9])),
            ("distances", json!([null, null, null, null, null, null, null, null, null, null])),
            ("distances", json!(["1", 1, 1, 1, 1, 1, 1, 1, 1, 1])),
        ],
    );
    let special = Neighbors { k: 1, ids: vec![1, 2, 3], distances: vec![f32::NEG_INFINITY, -0.0, 7.0] };
    assert_eq!(same(&special)["distances"], json!(["-inf", -0.0, 7.0]));
    // A NaN is not equal to itself.
    let not_a_number: Neighbors = serde_json::from_value(json!({"k": 1, "ids": [1], "distances": ["NaN"]})).unwrap();
    assert!(not_a_number.distances[0].is_nan());

    let ranges = RangeNeighbors { offsets: vec![0, 2, 2], ids: vec![4, 5], distances: vec![0.5, f32::INFINITY] };
    check_refused::<RangeNeighbors>(
        &same(&ranges),
        &[
            ("offsets", json!([])),
            ("offsets", json!([1, 2, 2])),
            ("offsets", json!([0, 3, 2])),
            ("offsets", json!([0, 1, 1])),
            ("distances", json!([0.5])),
        ],
    );
    let ids = IdMatrix { rows: 2, k: 2, ids: vec![1, 2, 3, NONE] };
    check_refused::<IdMatrix>(&same(&ids), &[("rows", json!(3)), ("k", json!(u64::MAX)), ("ids", json!([]))]);
    let truth = GroundTruth { ids, distances: Some(vec![0.0, 1.0, 2.0, f32::NEG_INFINITY]) };
    check_refused::<GroundTruth>(&same(&truth), &[("distances", json!([1.0]))]);
    same(&GroundTruth { distances: None, ..truth });
}

#[test]
fn graphs_meshes_and_generators_are_checked() {
    let graph = Graph::from_ids(&IdMatrix { rows: 3, k: 1, ids: vec![1, 0, NONE] }).unwrap();
    let nodes = ("neighbours", json!([1, 0, 3]));
    check_refused::<Graph>(&same(&graph), &[nodes, ("k", json!(2)), ("k", json!(0)), ("k", json!(u64::MAX))]);
    let parts = same(&graph.components());
    let sizes = |sizes: Value| ("sizes", sizes);
    check_refused::<Components>(&parts, &[sizes(json!([2])), sizes(json!([1, 2])), sizes(json!([2, 1, 0]))]);
    assert!(serde_json::from_value::<Components>(json!({"of": [0, 0, 9], "sizes": [2, 1]})).is_err());
    same(&graph.path(&[0.0f32, 3.0, 9.0], 1, Metric::L2, 0, 1).unwrap());
    let lonely = same(&graph.path(&[0.0f32, 3.0, 9.0], 1, Metric::L2, 2, 2).unwrap());
    assert_eq!(lonely, json!({"nodes": [2], "largest": null}));

    let mesh = Mesh { vertices: vec![[0.0; 3], [1.0; 3], [2.0; 3]], triangles: vec![[0, 1, 2]] };
    check_refused::<Mesh>(&same(&mesh), &[("triangles", json!([[0, 1, 3]])), ("vertices", json!([[0, 0, 1e39]]))]);
    let generator = Generator::new(8, 1000, 7).unwrap();
    check_refused::<Generator>(&same(&generator), &[("dim", json!(0)), ("clusters", json!(0)), ("seed", json!(-1))]);
    let shape = WarpSelectShape::new(10, 32, 2).unwrap();
    check_refused::<WarpSelectShape>(&same(&shape), &[("k", json!(0)), ("k", json!(33)), ("warp_queue", json!(33))]);
}

#[test]
fn quantizers_and_clusterings_work_after_serde() {
    let rows = vectors(400, 8);
    let settings = PqTraining::new(2).bits(4).iterations(3).rotation_rounds(1).device(Device::Cpu);
    let again: PqTraining = serde_json::from_value(serde_json::to_value(&settings).unwrap()).unwrap();
    let quantizer = ProductQuantizer::train(&again, &rows, 8).unwrap();
    assert!(quantizer == ProductQuantizer::train(&settings, &rows, 8).unwrap());
    let value = same(&quantizer);
    check_refused::<ProductQuantizer>(
        &value,
        &[
            ("dim", json!(9)),
            ("dim", json!(0)),
            ("sub_quantizers", json!(0)),
            ("bits", json!(9)),
            ("codebooks", json!([1.0])),
        ],
    );
    let read: ProductQuantizer = serde_json::from_value(value).unwrap();
    assert_eq!(read.encode(&rows, Device::Cpu).unwrap(), quantizer.encode(&rows, Device::Cpu).unwrap());
    let rotation = Rotation::train(&settings, &rows, 8).unwrap();
    let matrix = json!(vec![1.0; 64]);
    check_refused::<Rotation>(&same(&rotation), &[("dim", json!(7)), ("matrix", matrix), ("matrix", json!([]))]);
    let read: Rotation = serde_json::from_value(serde_json::to_value(&rotation).unwrap()).unwrap();
    assert_eq!(
        read.apply_transposed(&rows, Device::Cpu).unwrap(),
        rotation.apply_transposed(&rows, Device::Cpu).unwrap()
    );

    let settings =
        KMeans::new(4).iterations(3).labels(true).balanced(Some(1.5)).device("cpu,cpu".parse::<Placement>().unwrap());
    let again: KMeans = serde_json::from_value(serde_json::to_value(&settings).unwrap()).unwrap();
    let clustering = settings.train(&rows, 8).unwrap();
    assert_eq!(again.train(&rows, 8).unwrap(), clustering);
    check_refused::<Clustering>(
        &same(&clustering),
        &[
            ("dim", json!(0)),
            ("dim", json!(7)),
            ("centroids", json!([])),
            ("centroids", json!(["inf", 0, 0, 0, 0, 0, 0, 0])),
            ("sizes", json!([1, 2])),
            ("labels", json!([4])),
            ("device", json!("cpu+")),
        ],
    );
    for start in [Start::Random, Start::PlusPlus, Start::Given(vec![1.0, -2.0])] {
        same(&start);
    }
}

#[test]
fn settings_are_checked_when_they_are_used() {
    let read = |value: &Value| serde_json::from_value::<IvfIndexBuilder<f32>>(value.clone());
    let builder =
        IvfIndex::<f32>::builder(4, 2).metric(Metric::Cosine).encoding("pq:2x4".parse().unwrap()).device(Device::Cpu);
    let value = serde_json::to_value(&builder).unwrap();
    assert_eq!(
        (&value["encoding"], &value["device"], &value["memory_budget"]),
        (&json!("pq:2x4"), &json!("cpu"), &json!(null))
    );
    let index = read(&value).unwrap().build().unwrap();
    assert_eq!((index.dim(), index.metric(), index.encoding()), (4, Metric::Cosine, "pq:2x4".parse().unwrap()));
    let changed = |field: &str, to: Value| {
        let mut value = value.clone();
        value[field] = to;
        read(&value).unwrap().build().unwrap_err()
    };
    assert!(matches!(changed("dim", json!(0)), Error::Zero { what: "dimension" }));
    assert!(matches!(changed("lists", json!(0)), Error::Zero { what: "lists" }));
    assert!(matches!(changed("encoding", json!("pq:3x4")), Error::NotDivisible { .. }));

    let flat = FlatIndex::<u8>::builder(3).metric(Metric::InnerProduct).device(Device::Cpu).memory_budget(1 << 20);
    let value = serde_json::to_value(&flat).unwrap();
    let read: FlatIndexBuilder<u8> = serde_json::from_value(value.clone()).unwrap();
    assert_eq!(serde_json::to_value(&read).unwrap(), value);
    assert_eq!(read.build().unwrap().metric(), Metric::InnerProduct);
    let error = serde_json::from_value::<FlatIndexBuilder<f32>>(value).unwrap_err();
    assert!(error.to_string().contains("of an index of u8, not of f32"), "{error}");
    let shifted = json!({"dim": 2, "device": "cpu", "shifts": null, "neighborhood": 0, "memory_budget": null});
    let shifted: ShiftedIndexBuilder = serde_json::from_value(shifted).unwrap();
    assert!(matches!(shifted.build(), Err(Error::Zero { what: "positions" })));
    let graph = serde_json::to_value(KnnGraph::new(3)).unwrap();
    serde_json::from_value::<KnnGraph>(graph).unwrap();

    // Search options have defaults, and a filter cannot be lost silently.
    let options: SearchOptions<'_> = serde_json::from_value(json!({"probes": 3})).unwrap();
    assert_eq!(options, SearchOptions::new().probes(3));
    assert_eq!(
        serde_json::to_value(options.scan(Scan::QueryMajor)).unwrap(),
        json!({"beam": null, "probes": 3, "prove": "none", "radius": null, "refine": 4.0, "scan": "query-major", "widen": true})
    );
    let wide = SearchOptions::new().radius(f32::INFINITY);
    assert_eq!(serde_json::from_value::<SearchOptions<'_>>(serde_json::to_value(wide).unwrap()).unwrap(), wide);
    let filter = warpann::Bitset::new(8);
    let error = serde_json::to_value(SearchOptions::new().filter(&filter)).unwrap_err();
    assert!(error.to_string().contains("filter"), "{error}");
}

#[test]
fn statistics_and_descriptions_are_the_same_after_serde() {
    let mut index = IvfIndex::<f32>::builder(4, 4).device(Device::Cpu).build().unwrap();
    index.train(&vectors(64, 4)).unwrap();
    index.add(&vectors(64, 4)).unwrap();
    let value: IvfStatistics = serde_json::from_value(serde_json::to_value(index.statistics()).unwrap()).unwrap();
    assert_eq!((value.vectors, value.lists, value.mean), (64, 4, 16.0));
    let file = tempfile::NamedTempFile::new().unwrap();
    index.save(file.path()).unwrap();
    same(&warpann::IndexInfo::read(file.path()).unwrap());
    let shown = serde_json::to_value(warpann::device::info::cpu()).unwrap();
    assert_eq!(shown["threads"], json!(rayon::current_num_threads()));
}

#[test]
fn matrices_of_any_layout_are_searched() {
    let (n, dim) = (60, 5);
    let base = Array2::from_shape_vec((n, dim), vectors(n, dim)).unwrap();
    let queries = base.slice(s![..7, ..]).to_owned();
    let mut index = FlatIndex::<f32>::new(dim, Metric::L2, Device::Cpu).unwrap();
    index.add(base.as_slice().unwrap()).unwrap();
    let expected = index.search(queries.as_slice().unwrap(), 4).unwrap();

    // The same rows: of the standard layout, of columns, reversed twice, and as a part of a wider matrix.
    // `to_owned` would keep the order in memory.
    let columns = base.t().as_standard_layout().into_owned();
    let reversed = base.slice(s![..;-1, ..]).as_standard_layout().into_owned();
    let mut wide = Array2::from_elem((n, dim + 3), f32::NAN);
    wide.slice_mut(s![.., 1..=dim]).assign(&base);
    for (rows, borrowed) in [
        (base.view(), true),
        (columns.t(), false),
        (reversed.slice(s![..;-1, ..]), false),
        (wide.slice(s![.., 1..=dim]), false),
    ] {
        let values = components(&rows, dim).unwrap();
        assert_eq!(matches!(values, std::borrow::Cow::Borrowed(_)), borrowed);
        assert_eq!(&values[..], base.as_slice().unwrap());
        let mut index = FlatIndex::<f32>::new(dim, Metric::L2, Device::Cpu).unwrap();
        index.add_matrix(rows).unwrap();
        assert_eq!(index.search_matrix(queries.view(), 4, &SearchOptions::new()).unwrap(), expected);
        let mut inverted = IvfIndex::<f32>::builder(dim, 3).device(Device::Cpu).build().unwrap();
        inverted.train_matrix(rows).unwrap();
        inverted.add_matrix(rows).unwrap();
        assert_eq!(inverted.search_matrix(queries.view(), 4, &SearchOptions::new().probes(3)).unwrap(), expected);
    }
    let (ids, distances) = (expected.ids_matrix(), expected.distances_matrix());
    assert_eq!((ids.dim(), distances.dim()), ((7, 4), (7, 4)));
    for query in 0..7 {
        let (of_ids, of_distances) = expected.row(query);
        assert_eq!((ids.row(query).to_slice(), distances.row(query).to_slice()), (Some(of_ids), Some(of_distances)));
    }

    // Other numbers of columns, components that are not finite, and matrices without rows.
    for wrong in [array![[1.0f32, 2.0]].view(), Array2::zeros((0, 0)).view(), Array2::zeros((3, 0)).view()] {
        let actual = wrong.ncols();
        for error in
            [index.add_matrix(wrong).unwrap_err(), index.search_matrix(wrong, 1, &SearchOptions::new()).unwrap_err()]
        {
            assert!(
                matches!(error, Error::WrongDimension { expected: 5, actual: found } if found == actual),
                "{error}"
            );
        }
    }
    let error = index.add_matrix(wide.slice(s![.., ..dim])).unwrap_err();
    assert!(matches!(error, Error::NotFinite { row: 0, column: 0, .. }), "{error}");
    assert_eq!(index.len(), n);
    index.add_matrix(Array2::zeros((0, dim)).view()).unwrap();
    assert_eq!(
        index.search_matrix(Array2::zeros((0, dim)).view(), 3, &SearchOptions::new()).unwrap().ids_matrix().dim(),
        (0, 3)
    );
    // Public fields that contradict each other give whole rows only.
    let odd = Neighbors { k: 2, ids: vec![1, 2, 3], distances: vec![] };
    assert_eq!((odd.ids_matrix().dim(), odd.distances_matrix().dim()), ((1, 2), (0, 2)));
    let none = Neighbors { k: 0, ids: vec![1], distances: vec![1.0] };
    assert_eq!(none.ids_matrix().dim(), (0, 0));
}
