//! Meshes of every form, and of every damage.

use proptest::prelude::*;

use super::*;

/// A square of two triangles above a triangle: quads, relative and slashed indices, remarks, foreign lines.
const OBJ: &str = "# a remark with \\\nmtllib a.mtl\no thing\nv 0 0 0 1.0\nv 1.5 0 0\nv 1.5 1 -2e-1\nv 0 1 0 # last\r\n\
                   vn 0 0 1\nusemtl\nf 1 2 3 4\n\nf -1//1 -2/1/1 -4/1\n";

fn expected() -> Mesh {
    Mesh {
        vertices: vec![[0.0, 0.0, 0.0], [1.5, 0.0, 0.0], [1.5, 1.0, -0.2], [0.0, 1.0, 0.0]],
        triangles: vec![[0, 1, 2], [0, 2, 3], [3, 2, 0]],
    }
}

const HEADER: &str = "comment of nothing\nelement vertex 4\nproperty uchar red\nproperty float x\nproperty double y\n\
                      property float32 z\nelement tag 2\nproperty list ushort int8 name\nelement nothing 18446744073709551615\n\
                      element face 2\nproperty list uchar int vertex_indices\nproperty short quality\nend_header\n";

fn ascii_ply() -> Vec<u8> {
    let body = "7 0 0 0\n255 1.5 0 0\n0 1.5 1 -0.2\n0 0 1 0\n2 -1 5\n0\n4 0 1 2 3 -7\n3 3 2 0 9\n";
    format!("ply\nformat ascii 1.0\n{HEADER}{body}").into_bytes()
}

fn binary_ply(big: bool) -> Vec<u8> {
    fn put<const N: usize>(bytes: &mut Vec<u8>, big: bool, mut value: [u8; N]) {
        if big {
            value.reverse();
        }
        bytes.extend(value);
    }
    let order = if big { "big" } else { "little" };
    let mut bytes = format!("ply\r\nformat binary_{order}_endian 1.0\r\n{HEADER}").into_bytes();
    for [x, y, z] in expected().vertices {
        bytes.push(9);
        put(&mut bytes, big, x.to_le_bytes());
        put(&mut bytes, big, f64::from(y).to_le_bytes());
        put(&mut bytes, big, z.to_le_bytes());
    }
    put(&mut bytes, big, 2u16.to_le_bytes());
    bytes.extend([255, 5]);
    put(&mut bytes, big, 0u16.to_le_bytes());
    for face in [&[0i32, 1, 2, 3][..], &[3, 2, 0]] {
        bytes.push(face.len() as u8);
        face.iter().for_each(|corner| put(&mut bytes, big, corner.to_le_bytes()));
        put(&mut bytes, big, (-3i16).to_le_bytes());
    }
    bytes
}

fn files() -> [(MeshFormat, Vec<u8>); 4] {
    [
        (MeshFormat::Obj, OBJ.as_bytes().to_vec()),
        (MeshFormat::Ply, ascii_ply()),
        (MeshFormat::Ply, binary_ply(false)),
        (MeshFormat::Ply, binary_ply(true)),
    ]
}

/// Returns whether a mesh was read, and checks that its points are finite and its corners exist.
fn assert_sound(read: Result<Mesh, FileDefect>) -> bool {
    let Ok(mesh) = read else { return false };
    assert!(mesh.points().iter().all(|x| x.is_finite()));
    assert!(mesh.triangles.as_flattened().iter().all(|&corner| (corner as usize) < mesh.vertices.len()));
    true
}

#[test]
fn every_form_gives_the_same_mesh() {
    for (format, bytes) in files() {
        assert_eq!(mesh_from_bytes(format, &bytes).unwrap(), expected(), "{format:?}");
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("thing.PLY");
    std::fs::write(&path, binary_ply(true)).unwrap();
    assert_eq!(read_mesh(&path).unwrap(), expected());
    assert!(matches!(
        read_mesh(folder.path().join("thing.stl")),
        Err(Error::BadFile { defect: FileDefect::UnknownExtension { .. }, .. })
    ));
    assert!(matches!(read_mesh(folder.path().join("none.obj")), Err(Error::Io { .. })));
    std::fs::write(&path, b"").unwrap();
    assert!(matches!(read_mesh(&path), Err(Error::BadFile { defect: FileDefect::BadLine { line: 1, .. }, .. })));
}

#[test]
fn every_truncation_is_answered() {
    for (format, bytes) in files() {
        for end in 0..bytes.len() {
            let sound = assert_sound(mesh_from_bytes(format, &bytes[..end]));
            // A binary file is whole or wrong; text may end with a shorter number or a line less.
            assert!(!sound || bytes.starts_with(b"#") || bytes.starts_with(b"ply\nformat ascii"), "{end} {format:?}");
        }
    }
}

#[test]
fn flipped_bits_and_bytes_are_answered() {
    for (format, bytes) in files() {
        for at in 0..bytes.len() {
            for change in [1, 2, 4, 8, 16, 32, 64, 128, 255] {
                let mut damaged = bytes.clone();
                damaged[at] ^= change;
                assert_sound(mesh_from_bytes(format, &damaged));
            }
        }
    }
}

#[test]
fn defects_are_named() {
    let obj = |text: &str| mesh_from_bytes(MeshFormat::Obj, text.as_bytes()).unwrap_err();
    assert!(matches!(obj("v 0 0 0\nv 1 2\n"), FileDefect::BadLine { line: 2, .. }));
    for line in [
        "v 0 0 nan",
        "v 0 0 1e99",
        "v 0 0 x",
        "f 1 2",
        "f 0 1 2",
        "f 1 2 3/1/1/1",
        "f 1 2 -5",
        "f 1 2 3/x",
        "x 1",
        "v 0 0 0 \\",
    ] {
        assert!(matches!(obj(line), FileDefect::BadLine { line: 1, .. }), "{line}");
    }
    let defect = obj("v 0 0 0\nf 1 1 1\nf 1 1 2\n");
    assert!(matches!(defect, FileDefect::BadElement { element: "triangle", index: 1, .. }), "{defect}");
    assert_eq!(mesh_from_bytes(MeshFormat::Obj, b"").unwrap(), Mesh::default());

    let ply = |change: &dyn Fn(String) -> String| {
        let text = String::from_utf8(ascii_ply()).unwrap();
        let changed = change(text.clone());
        assert_ne!(text, changed);
        mesh_from_bytes(MeshFormat::Ply, changed.as_bytes()).unwrap_err()
    };
    assert!(matches!(ply(&|text| text.replace("property float x\n", "")), FileDefect::BadHeader(_)));
    assert!(matches!(ply(&|text| text.replace("float x", "float y")), FileDefect::BadHeader(_)));
    assert!(matches!(ply(&|text| text.replace("format ascii 1.0\n", "")), FileDefect::BadHeader(_)));
    assert!(matches!(
        ply(&|text| text.replace("uchar int vertex", "uchar float vertex")),
        FileDefect::BadLine { line: 13, .. }
    ));
    assert!(matches!(ply(&|text| text.replace("list uchar", "list float")), FileDefect::BadLine { line: 13, .. }));
    assert!(matches!(
        ply(&|text| text.replace("element face", "element vertex")),
        FileDefect::BadLine { line: 12, .. }
    ));
    assert!(matches!(ply(&|text| text + "1"), FileDefect::Oversized { .. }));
    assert!(matches!(
        ply(&|text| text.replace("255 1.5", "256 1.5")),
        FileDefect::BadElement { element: "vertex", index: 1, .. }
    ));
    assert!(matches!(
        ply(&|text| text.replace("255 1.5", "255 inf")),
        FileDefect::BadElement { element: "vertex", index: 1, .. }
    ));
    assert!(matches!(
        ply(&|text| text.replace("3 3 2 0", "3 3 2 4")),
        FileDefect::BadElement { element: "triangle", index: 2, .. }
    ));
    assert!(matches!(
        ply(&|text| text.replace("3 3 2 0", "3 3 2 -1")),
        FileDefect::BadElement { element: "face", index: 1, .. }
    ));
    assert!(matches!(
        ply(&|text| text.replace("3 3 2 0", "2 3 2")),
        FileDefect::BadElement { element: "face", index: 1, .. }
    ));
    assert!(matches!(
        ply(&|text| text.replace("vertex 4", "vertex 99999999999")),
        FileDefect::BadElement { element: "vertex", .. }
    ));
}

#[test]
fn boxes_both_ways() {
    let mesh = expected();
    let box_of_second = [0.0, 0.0, -0.2, 1.5, 1.0, 0.0f32];
    assert_eq!(mesh.boxes(BoxForm::MinMax)[6..12], box_of_second);
    assert_eq!(mesh.boxes(BoxForm::MinExtent)[6..12], [0.0, 0.0, -0.2, 1.5, 1.0, 0.2]);
    assert_eq!(BoxForm::MinExtent.points(&[1.0, 2.0, 3.0, 4.0]), [1.0, 2.0, 3.0, 0.0, 0.0, 0.0]);
    for form in BoxForm::ALL {
        assert_eq!(form.to_string().parse(), Ok(form));
    }
    assert!("centre".parse::<BoxForm>().unwrap_err().to_string().contains("'centre'"));
}

proptest! {
    #[test]
    fn any_bytes_are_answered(bytes in prop::collection::vec(any::<u8>(), 0..200), start in 0usize..4) {
        for format in MeshFormat::ALL {
            assert_sound(mesh_from_bytes(format, &bytes));
        }
        // Behind a header, they are values.
        let (format, file) = files()[start].clone();
        let header = if start == 0 { 0 } else { file.windows(11).position(|w| w == b"end_header\n").unwrap_or(0) + 11 };
        assert_sound(mesh_from_bytes(format, &[&file[..header], &bytes[..]].concat()));
    }
}
