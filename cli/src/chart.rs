//! Small line charts, as SVG and as PNG: a linear x axis, a logarithmic y axis, and one line for each series.
//!
//! A chart is drawn on a [`Canvas`]. There are two implementations ([`svg`], [`png`]); neither needs a font or a program of the system.

mod font;
mod png;
mod svg;

use std::path::Path;

use crate::report::{Failure, Outcome};

/// Size of a chart, in the units of the canvas.
const SIZE: (f64, f64) = (800.0, 500.0);
/// Left, top, right and bottom of the axes.
const FRAME: [f64; 4] = [100.0, 50.0, 770.0, 430.0];
const BLACK: Colour = [0x22, 0x22, 0x22];
const GREY: Colour = [0xdd, 0xdd, 0xdd];
const WHITE: Colour = [0xff; 3];
/// Colours of series, which colour-blind readers can distinguish: M. Okabe and K. Ito, Color Universal Design, 2008.
const COLOURS: [Colour; 7] = [
    [0x00, 0x72, 0xb2],
    [0xd5, 0x5e, 0x00],
    [0x00, 0x9e, 0x73],
    [0xcc, 0x79, 0xa7],
    [0xe6, 0x9f, 0x00],
    [0x56, 0xb4, 0xe9],
    [0x55, 0x55, 0x55],
];
/// Height of the capitals of labels.
const TEXT: f64 = 10.5;
const TITLE: f64 = 14.0;

/// A colour as red, green and blue.
pub type Colour = [u8; 3];

/// The position of a text relative to its point.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Anchor {
    /// The text starts at the point.
    Start,
    /// The middle of the text is at the point.
    Middle,
    /// The text ends at the point.
    End,
    /// The middle of the text is at the point, and the text runs upwards.
    Upwards,
}

/// The drawing operations of a chart, with x to the right and y downwards.
pub trait Canvas {
    /// Draws a line through points.
    fn line(&mut self, points: &[(f64, f64)], width: f64, colour: Colour);
    /// Draws a filled rectangle whose upper left corner is `corner`.
    fn rect(&mut self, corner: (f64, f64), size: (f64, f64), colour: Colour);
    /// Draws a text whose capitals have the height `height`; `at` is on its base line.
    fn text(&mut self, at: (f64, f64), anchor: Anchor, height: f64, text: &str);
}

/// A line of a chart.
#[derive(Debug, Clone)]
pub struct Series {
    pub name: String,
    /// x, and y above 0.
    pub points: Vec<(f64, f64)>,
}

/// A chart of some series.
#[derive(Debug, Clone)]
pub struct Chart {
    pub title: String,
    pub x_label: String,
    pub y_label: String,
    pub series: Vec<Series>,
}

impl Chart {
    /// Writes the chart as SVG and as PNG.
    pub fn write(&self, svg: &Path, png: &Path) -> Outcome {
        warpann::io::write_file(svg, self.svg().as_bytes())?;
        let picture = self.png().map_err(|error| Failure::Message(error.to_string()))?;
        Ok(warpann::io::write_file(png, &picture)?)
    }

    fn svg(&self) -> String {
        let mut canvas = svg::Svg::new(SIZE);
        self.draw(&mut canvas);
        canvas.finish()
    }

    fn png(&self) -> Result<Vec<u8>, ::png::EncodingError> {
        let mut canvas = png::Png::new(SIZE);
        self.draw(&mut canvas);
        canvas.finish()
    }

    fn draw(&self, canvas: &mut impl Canvas) {
        let [left, top, right, bottom] = FRAME;
        canvas.rect((0.0, 0.0), SIZE, WHITE);
        let drawable = |&(x, y): &(f64, f64)| x.is_finite() && y.is_finite() && y > 0.0;
        let points = || self.series.iter().flat_map(|series| series.points.iter().copied().filter(drawable));
        let x_ticks = linear_ticks(points().map(|(x, _)| x));
        let y_ticks = logarithmic_ticks(points().map(|(_, y)| y));
        let (x_low, x_high) = ends(&x_ticks);
        let (y_low, y_high) = ends(&y_ticks);
        let x_at = |x: f64| left + (x - x_low) / (x_high - x_low) * (right - left);
        let y_at = |y: f64| bottom - (y / y_low).ln() / (y_high / y_low).ln() * (bottom - top);

        let decimals = decimals(&x_ticks);
        for &x in &x_ticks {
            canvas.line(&[(x_at(x), top), (x_at(x), bottom)], 1.0, GREY);
            canvas.text((x_at(x), bottom + 20.0), Anchor::Middle, TEXT, &format!("{x:.decimals$}"));
        }
        for &y in &y_ticks {
            canvas.line(&[(left, y_at(y)), (right, y_at(y))], 1.0, GREY);
            canvas.text((left - 8.0, y_at(y) + TEXT / 2.0), Anchor::End, TEXT, &short(y));
        }
        canvas.line(&[(left, top), (left, bottom), (right, bottom), (right, top), (left, top)], 1.0, BLACK);
        canvas.text(((left + right) / 2.0, bottom + 48.0), Anchor::Middle, TEXT, &self.x_label);
        canvas.text((24.0, (top + bottom) / 2.0), Anchor::Upwards, TEXT, &self.y_label);
        // A letter of the wider canvas, PNG, is six sevenths as wide as high, with the space behind it.
        let fits = self.title.chars().count() as f64 * TITLE * 6.0 / 7.0 < SIZE.0;
        let height = if fits { TITLE } else { TEXT };
        canvas.text((SIZE.0 / 2.0, top - 20.0), Anchor::Middle, height, &self.title);

        for (series, &colour) in self.series.iter().zip(COLOURS.iter().cycle()) {
            let points: Vec<(f64, f64)> =
                series.points.iter().filter(|point| drawable(point)).map(|&(x, y)| (x_at(x), y_at(y))).collect();
            canvas.line(&points, 2.0, colour);
            for (x, y) in points {
                canvas.rect((x - 3.0, y - 3.0), (6.0, 6.0), colour);
            }
        }
        // Lower left: curves of recall and speed fall towards the right.
        let height = 18.0 * self.series.len() as f64;
        for (index, (series, &colour)) in self.series.iter().zip(COLOURS.iter().cycle()).enumerate() {
            let y = bottom - height + 18.0 * index as f64;
            canvas.line(&[(left + 12.0, y), (left + 36.0, y)], 2.0, colour);
            canvas.rect((left + 21.0, y - 3.0), (6.0, 6.0), colour);
            canvas.text((left + 44.0, y + TEXT / 2.0), Anchor::Start, TEXT, &series.name);
        }
    }
}

fn range(values: impl Iterator<Item = f64>) -> Option<(f64, f64)> {
    values.fold(None, |range, value| match range {
        None => Some((value, value)),
        Some((low, high)) => Some((value.min(low), value.max(high))),
    })
}

fn ends(ticks: &[f64]) -> (f64, f64) {
    (ticks[0], ticks[ticks.len() - 1])
}

/// Ticks 1, 2 or 5 times a power of ten apart that enclose the values: at least two, about ten.
fn linear_ticks(values: impl Iterator<Item = f64>) -> Vec<f64> {
    let (low, high) = range(values).unwrap_or((0.0, 1.0));
    // If all values are equal, they lie in the middle of a small range.
    let span = if high > low { high - low } else { low.abs().max(1e-3) * 0.1 };
    let power = 10f64.powf((span / 10.0).log10().floor());
    let step = [1.0, 2.0, 5.0, 10.0].map(|step| step * power).into_iter().find(|step| span / step <= 10.0);
    let step = step.unwrap_or(10.0 * power);
    // Rounding must not add a tick next to a value that lies on a tick.
    let (first, last) = ((low / step + 1e-9).floor(), (high / step - 1e-9).ceil());
    let last = last.max(first + 1.0);
    (0..=(last - first) as usize).map(|index| (first + index as f64) * step).collect()
}

/// 1, 2 and 5 times powers of ten that enclose the values; powers of ten alone if there were many.
fn logarithmic_ticks(values: impl Iterator<Item = f64>) -> Vec<f64> {
    let (low, high) = range(values).unwrap_or((1.0, 10.0));
    let (first, last) = (low.log10().floor() as i32, high.log10().ceil() as i32);
    let steps: &[f64] = if last - first > 4 { &[1.0] } else { &[1.0, 2.0, 5.0] };
    let ticks: Vec<f64> = (first..=last.max(first + 1))
        .flat_map(|power| steps.iter().map(move |step| step * 10f64.powi(power)))
        .collect();
    let from = ticks.iter().rposition(|&tick| tick <= low).unwrap_or(0);
    let to = ticks.iter().position(|&tick| tick >= high).unwrap_or(ticks.len() - 1);
    ticks[from..=to.max(from + 1).min(ticks.len() - 1)].to_vec()
}

/// Number of decimals that distinguish the ticks.
fn decimals(ticks: &[f64]) -> usize {
    let step = ticks[1] - ticks[0];
    (-(step * 1.001).log10().floor()).clamp(0.0, 9.0) as usize
}

/// A number in thousands, millions or billions.
fn short(value: f64) -> String {
    let units = [(1e9, "G"), (1e6, "M"), (1e3, "k")];
    match units.iter().find(|(unit, _)| value >= *unit * 0.9999) {
        Some((unit, name)) => format!("{}{name}", rounded(value / unit)),
        None => rounded(value),
    }
}

fn rounded(value: f64) -> String {
    if value >= 0.9999 { format!("{value:.0}") } else { format!("{value:.1e}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chart() -> Chart {
        let series = |name: &str, scale: f64| Series {
            name: name.into(),
            points: (0..12).map(|i| (1.0 - 0.5 / f64::from(1 + i * i), scale / f64::from(1 + i))).collect(),
        };
        Chart {
            title: "flat <4096> & co".into(),
            x_label: "recall@10".into(),
            y_label: "queries per second".into(),
            series: vec![series("batch 10000", 2e6), series("batch 1", 3e4)],
        }
    }

    #[test]
    fn ticks_enclose_the_values() {
        let close = |ticks: Vec<f64>, expected: &[f64]| {
            assert_eq!(ticks.len(), expected.len(), "{ticks:?}");
            assert!(ticks.iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-9 * b.abs().max(1.0)), "{ticks:?}");
        };
        close(linear_ticks([0.52, 0.98].into_iter()), &[0.5, 0.55, 0.6, 0.65, 0.7, 0.75, 0.8, 0.85, 0.9, 0.95, 1.0]);
        close(linear_ticks([0.0, 1.0].into_iter()), &[0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0]);
        close(logarithmic_ticks([1500.0, 90_000.0].into_iter()), &[1e3, 2e3, 5e3, 1e4, 2e4, 5e4, 1e5]);
        close(logarithmic_ticks([3.0, 4e7].into_iter()), &[1.0, 10.0, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8]);
        for value in [1.0, 0.95, 1e-9, 123456.0, 1000.0] {
            for ticks in [linear_ticks([value].into_iter()), logarithmic_ticks([value].into_iter())] {
                let (low, high) = ends(&ticks);
                assert!(low <= value * 1.000001 && value <= high * 1.000001 && low < high, "{value}: {ticks:?}");
            }
        }
        assert!(linear_ticks(std::iter::empty()).len() > 1 && logarithmic_ticks(std::iter::empty()).len() > 1);
        assert_eq!([short(1e3), short(5e6), short(200.0), short(0.5)], ["1k", "5M", "200", "5.0e-1"]);
        assert_eq!([decimals(&[0.5, 0.55]), decimals(&[0.0, 0.1]), decimals(&[0.0, 20.0])], [2, 1, 0]);
    }

    #[test]
    fn svg_holds_every_line_and_escapes_names() {
        let svg = chart().svg();
        assert!(svg.starts_with("<svg") && svg.ends_with("</svg>\n"));
        assert!(
            svg.contains("flat &lt;4096&gt; &amp; co") && svg.contains("batch 10000") && svg.contains("rotate(-90")
        );
        // Two series, two legends, the frame, the grid.
        assert!(svg.matches("<polyline").count() > 5 + 10, "{svg}");
    }

    #[test]
    fn png_shows_both_colours_and_ink_where_the_labels_are() {
        let bytes = chart().png().unwrap();
        let mut reader = ::png::Decoder::new(std::io::Cursor::new(&bytes)).read_info().unwrap();
        let mut pixels = vec![0; reader.output_buffer_size().unwrap()];
        let info = reader.next_frame(&mut pixels).unwrap();
        assert_eq!((info.width, info.height), (1600, 1000));
        let count = |colour: Colour| pixels.chunks_exact(3).filter(|pixel| **pixel == colour).count();
        assert!(count(COLOURS[0]) > 1000 && count(COLOURS[1]) > 1000 && count(COLOURS[2]) == 0);
        let dark = |xs: std::ops::Range<usize>, ys: std::ops::Range<usize>| {
            ys.flat_map(|y| xs.clone().map(move |x| 3 * (1600 * y + x))).filter(|&at| pixels[at] < 0x60).count()
        };
        // Title, x label, y label.
        for (xs, ys) in [(600..1000, 20..70), (600..1100, 930..970), (20..60, 200..800)] {
            assert!(dark(xs.clone(), ys.clone()) > 300, "{xs:?} {ys:?}");
        }
    }
}
