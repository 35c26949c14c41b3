//! PNG: a small rasteriser with smooth lines, at two pixels a unit.

use png::{BitDepth, ColorType, Encoder, EncodingError};

use super::font::{self, COLUMNS, ROWS};
use super::{Anchor, BLACK, Canvas, Colour, WHITE};

/// Pixels per unit of the canvas.
const SCALE: f64 = 2.0;

/// Size of a dot of a text in pixels. A dot is a whole number of pixels and starts at a whole pixel, so that its edges are sharp.
fn dot(height: f64) -> f64 {
    (height * SCALE / f64::from(ROWS)).round().max(1.0)
}

/// Width of a letter and the space behind it, in the units of the canvas.
pub fn advance(height: f64) -> f64 {
    f64::from(COLUMNS + 1) * dot(height) / SCALE
}

pub struct Png {
    width: usize,
    height: usize,
    pixels: Vec<Colour>,
}

impl Png {
    pub fn new((width, height): (f64, f64)) -> Self {
        let (width, height) = ((width * SCALE) as usize, (height * SCALE) as usize);
        Self { width, height, pixels: vec![WHITE; width * height] }
    }

    pub fn finish(self) -> Result<Vec<u8>, EncodingError> {
        let mut bytes = Vec::new();
        let mut encoder = Encoder::new(&mut bytes, self.width as u32, self.height as u32);
        encoder.set_color(ColorType::Rgb);
        encoder.set_depth(BitDepth::Eight);
        let mut writer = encoder.write_header()?;
        writer.write_image_data(self.pixels.as_flattened())?;
        writer.finish()?;
        Ok(bytes)
    }

    /// Covers the fraction `coverage(x, y)` of every pixel of a box whose middle is (x, y). Parts outside of the image are ignored.
    fn paint(&mut self, low: (f64, f64), high: (f64, f64), colour: Colour, coverage: impl Fn(f64, f64) -> f64) {
        let bounds =
            |low: f64, high: f64, end: usize| low.floor().max(0.0) as usize..(high.ceil().max(0.0) as usize).min(end);
        for y in bounds(low.1, high.1, self.height) {
            for x in bounds(low.0, high.0, self.width) {
                let share = coverage(x as f64 + 0.5, y as f64 + 0.5).clamp(0.0, 1.0);
                for (old, new) in self.pixels[y * self.width + x].iter_mut().zip(colour) {
                    *old = (f64::from(*old) + share * (f64::from(new) - f64::from(*old))).round() as u8;
                }
            }
        }
    }
}

impl Canvas for Png {
    fn line(&mut self, points: &[(f64, f64)], width: f64, colour: Colour) {
        let reach = width * SCALE / 2.0;
        for pair in points.windows(2) {
            let [(x0, y0), (x1, y1)] = [pair[0], pair[1]].map(|(x, y)| (x * SCALE, y * SCALE));
            let (dx, dy) = (x1 - x0, y1 - y0);
            let length = (dx * dx + dy * dy).max(f64::MIN_POSITIVE);
            let margin = reach + 1.0;
            let (low, high) = ((x0.min(x1) - margin, y0.min(y1) - margin), (x0.max(x1) + margin, y0.max(y1) + margin));
            self.paint(low, high, colour, |x, y| {
                // Distance from the segment; half a pixel within the edge is full, half a pixel without is none.
                let along = (((x - x0) * dx + (y - y0) * dy) / length).clamp(0.0, 1.0);
                let distance = (x - x0 - along * dx).hypot(y - y0 - along * dy);
                reach + 0.5 - distance
            });
        }
    }

    fn rect(&mut self, (x, y): (f64, f64), (width, height): (f64, f64), colour: Colour) {
        let (x0, y0, x1, y1) = (x * SCALE, y * SCALE, (x + width) * SCALE, (y + height) * SCALE);
        self.paint((x0, y0), (x1, y1), colour, |x, y| {
            let overlap = |at: f64, low: f64, high: f64| ((at + 0.5).min(high) - (at - 0.5).max(low)).max(0.0);
            overlap(x, x0, x1) * overlap(y, y0, y1)
        });
    }

    fn polygon(&mut self, corners: &[(f64, f64)], colour: Colour) {
        let corners: Vec<(f64, f64)> = corners.iter().map(|(x, y)| (x * SCALE, y * SCALE)).collect();
        let ends = |of: fn(&(f64, f64)) -> f64| {
            corners.iter().map(of).fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), x| (low.min(x), high.max(x)))
        };
        let ((x0, x1), (y0, y1)) = (ends(|corner| corner.0), ends(|corner| corner.1));
        // A point is inside if a ray to the right crosses an odd number of edges.
        let inside = |x: f64, y: f64| {
            let edges = corners.iter().zip(corners.iter().cycle().skip(1));
            let crossed = edges
                .filter(|((x0, y0), (x1, y1))| (*y0 > y) != (*y1 > y) && x < x0 + (y - y0) / (y1 - y0) * (x1 - x0));
            crossed.count() % 2 == 1
        };
        let steps = [-0.375, -0.125, 0.125, 0.375];
        self.paint((x0, y0), (x1, y1), colour, |x, y| {
            let samples = steps.iter().flat_map(|dy| steps.iter().map(move |dx| (x + dx, y + dy)));
            samples.filter(|&(x, y)| inside(x, y)).count() as f64 / 16.0
        });
    }

    fn text(&mut self, (x, y): (f64, f64), anchor: Anchor, height: f64, text: &str) {
        let dot = dot(height);
        let advance = f64::from(COLUMNS + 1) * dot;
        let length = advance * text.chars().count() as f64 - dot;
        let before = match anchor {
            Anchor::Start => 0.0,
            Anchor::Middle | Anchor::Upwards => length / 2.0,
            Anchor::End => length,
        };
        let (x, y) = ((x * SCALE).round(), (y * SCALE).round());
        for (place, character) in text.chars().enumerate() {
            let start = (place as f64 * advance - before).round();
            for (column, row) in font::dots(character) {
                // Along the text, and up from the base line.
                let (along, up) = (start + f64::from(column) * dot, (f64::from(ROWS) - f64::from(row)) * dot);
                let (x0, y0) = match anchor {
                    Anchor::Upwards => (x - up, y - along - dot),
                    _ => (x + along, y - up),
                };
                self.paint((x0, y0), (x0 + dot, y0 + dot), BLACK, |_, _| 1.0);
            }
        }
    }
}
