//! The letters of PNG charts: printable ASCII, drawn on five by seven dots, and two rows below the base line.

/// Dots of a letter, across.
pub const COLUMNS: u32 = 5;
/// Rows of dots above the base line; two more are below it.
pub const ROWS: u32 = 7;

/// The dots of a character as (column, row), from the upper left; those of '?' for what is not printable ASCII.
pub fn dots(character: char) -> impl Iterator<Item = (u32, u32)> {
    let index = |character: char| (character as usize).checked_sub(' ' as usize);
    let glyph = index(character).and_then(|index| GLYPHS.get(index)).unwrap_or(&GLYPHS['?' as usize - ' ' as usize]);
    (0..COLUMNS * (ROWS + 2)).filter(move |bit| glyph >> bit & 1 == 1).map(|bit| (bit % COLUMNS, bit / COLUMNS))
}

/// From space to tilde; bit 5 · row + column is a dot.
const GLYPHS: [u64; 95] = [
    0x000000000000,
    0x000100421084,
    0x00000000294a,
    0x000295f57d4a,
    0x00011f4717c4,
    0x000632222263,
    0x000593511526,
    0x000000001084,
    0x000208210888,
    0x000088842082,
    0x000009575480,
    0x0000084f9080,
    0x02218c000000,
    0x0000000f8000,
    0x00018c000000,
    0x000002222200,
    0x0003a33ae62e,
    0x0003884210c4,
    0x0007c226422e,
    0x0003a306422e,
    0x000211f4a988,
    0x0003a3083c3f,
    0x0003a317844c,
    0x00008422221f,
    0x0003a317462e,
    0x0001910f462e,
    0x00000c6018c0,
    0x02218c031800,
    0x000208208888,
    0x000001f07c00,
    0x000088882082,
    0x00010044422e,
    0x0003ab5b422e,
    0x0004631fc62e,
    0x0003e317c62f,
    0x0003a210862e,
    0x0003e318c62f,
    0x0007c217843f,
    0x00004217843f,
    0x0007a31e862e,
    0x0004631fc631,
    0x00038842108e,
    0x00019284211c,
    0x000452519531,
    0x0007c2108421,
    0x0004631ad771,
    0x0004639ace31,
    0x0003a318c62e,
    0x00004217c62f,
    0x00059358c62e,
    0x00045257c62f,
    0x0003e107043e,
    0x00010842109f,
    0x0003a318c631,
    0x00011518c631,
    0x0004775ac631,
    0x000462a22a31,
    0x000108422a31,
    0x0007c222221f,
    0x00038421084e,
    0x000020820820,
    0x00039084210e,
    0x000000004544,
    0x0007c0000000,
    0x000000002082,
    0x0007a3e83800,
    0x0003e319b421,
    0x0003a210b800,
    0x0007a31cda10,
    0x000383f8b800,
    0x000084238a4c,
    0x0e87a318f800,
    0x00046319b421,
    0x000388421804,
    0x064a10843008,
    0x00024a32a421,
    0x000388421086,
    0x0004635aac00,
    0x00046319b400,
    0x0003a318b800,
    0x010be318bc00,
    0x1087a318f800,
    0x00004219b400,
    0x0003e0e0b800,
    0x000324211c42,
    0x0005b318c400,
    0x00011518c400,
    0x0002ab58c400,
    0x000454454400,
    0x0e87a318c400,
    0x0007c4447c00,
    0x000208411088,
    0x000108421084,
    0x000088441082,
    0x0000008a8800,
];

#[cfg(test)]
mod tests {
    use super::*;

    /// A letter as lines of text.
    fn art(character: char) -> String {
        let dots: Vec<(u32, u32)> = dots(character).collect();
        let row =
            |row| (0..COLUMNS).map(|column| if dots.contains(&(column, row)) { '#' } else { '.' }).collect::<String>();
        (0..ROWS + 2).map(row).collect::<Vec<_>>().join("\n")
    }

    #[test]
    fn letters_are_upright_and_all_different() {
        assert_eq!(art('R'), "####.\n#...#\n#...#\n####.\n#.#..\n#..#.\n#...#\n.....\n.....");
        assert_eq!(art('7'), "#####\n....#\n...#.\n..#..\n.#...\n.#...\n.#...\n.....\n.....");
        assert!(art('p').ends_with("####.\n#....\n#...."));
        let all: std::collections::HashSet<String> = (' '..='~').map(art).collect();
        assert_eq!(all.len(), 95);
        assert_eq!(art('ß'), art('?'));
        assert_eq!(dots(' ').count(), 0);
    }
}
