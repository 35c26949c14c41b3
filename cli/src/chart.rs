//! Small line charts, as SVG and as PNG: a linear x axis, a logarithmic y axis, one line for each series, and a legend below the axes.
//!
//! A series has a colour, the shape of its markers and the dashes of its line, so that a reader can tell series apart without colour.
//!
//! A chart is drawn on a [`Canvas`]. There are two implementations ([`svg`], [`png`]); neither needs a font or a program of the system.

mod font;
mod png;
mod svg;

use std::f64::consts::TAU;
use std::path::Path;

use crate::report::{Failure, Outcome};

/// Width of a chart, in the units of the canvas.
const WIDTH: f64 = 800.0;
/// Height of the axes.
const HEIGHT: f64 = 380.0;
/// Space at the left and at the right of the axes.
const LEFT: f64 = 100.0;
const RIGHT: f64 = 30.0;
/// Space between a text and the edge of the chart.
const MARGIN: f64 = 20.0;
const BLACK: Colour = [0x22, 0x22, 0x22];
const GREY: Colour = [0xdd, 0xdd, 0xdd];
const WHITE: Colour = [0xff; 3];
/// The colour of the best points, which lies under the series.
const BEST: Colour = [0xf3, 0xe2, 0xa0];
const BEST_WIDTH: f64 = 11.0;
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
/// Lengths of dash and gap of the variants of a subject; the first is solid.
const DASHES: [Option<(f64, f64)>; 3] = [None, Some((9.0, 5.0)), Some((2.5, 4.0))];
/// Height of the capitals of labels.
const TEXT: f64 = 10.5;
const TITLE: f64 = 14.0;
/// Distance between two lines of the legend or of the title.
const LEGEND_LINE: f64 = 20.0;
const TITLE_LINE: f64 = 24.0;
/// Start of the names in the legend, right of their markers.
const NAMES: f64 = LEFT + 44.0;

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
    /// Draws a filled polygon.
    fn polygon(&mut self, corners: &[(f64, f64)], colour: Colour);
    /// Draws a text whose capitals have the height `height`; `at` is on its base line.
    fn text(&mut self, at: (f64, f64), anchor: Anchor, height: f64, text: &str);
}

/// A line of a chart.
#[derive(Debug, Clone)]
pub struct Series {
    pub name: String,
    /// What the series shows, which gives it colour and markers, and the variant, which gives it dashes.
    pub subject: usize,
    pub variant: usize,
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
    /// Lines through the best points of several series.
    pub best: Vec<Vec<(f64, f64)>>,
}

/// The look of a series.
struct Style {
    colour: Colour,
    marker: usize,
    hollow: bool,
    dash: Option<(f64, f64)>,
}

impl Style {
    fn of(series: &Series) -> Self {
        let (round, marker) = (series.subject / COLOURS.len(), series.subject % COLOURS.len());
        let dash = DASHES[series.variant % DASHES.len()];
        Self { colour: COLOURS[marker], marker, hollow: round % 2 == 1, dash }
    }

    fn line(&self, canvas: &mut impl Canvas, points: &[(f64, f64)]) {
        match self.dash {
            None => canvas.line(points, 2.0, self.colour),
            Some(dash) => dashed(points, dash).iter().for_each(|part| canvas.line(part, 2.0, self.colour)),
        }
    }

    /// Draws a marker in the middle of a small white space, so that it stands out from lines.
    fn mark(&self, canvas: &mut impl Canvas, (x, y): (f64, f64)) {
        let inside = if self.hollow { WHITE } else { self.colour };
        for (size, colour) in [(6.5, WHITE), (5.0, self.colour), (3.0, inside)] {
            let corners = marker(self.marker).into_iter().map(|(dx, dy)| (x + size * dx, y + size * dy));
            canvas.polygon(&corners.collect::<Vec<_>>(), colour);
        }
    }
}

/// The corners of a marker within a circle of radius 1: square, circle, triangle, diamond, triangle that points down, plus, cross.
fn marker(number: usize) -> Vec<(f64, f64)> {
    let regular = |corners: usize, turn: f64| -> Vec<(f64, f64)> {
        (0..corners).map(|at| (TAU * (at as f64 / corners as f64 + turn)).sin_cos()).collect()
    };
    // The corners of a plus, of which four lie within.
    let plus = |turn: f64| -> Vec<(f64, f64)> {
        let (half, arm) = (0.3, 1.0);
        let quarter = [(half, -half), (arm, -half), (arm, half)];
        let turned = |(x, y): (f64, f64), angle: f64| {
            let (sin, cos) = (TAU * angle).sin_cos();
            (x * cos - y * sin, x * sin + y * cos)
        };
        (0..4).flat_map(|side| quarter.map(|corner| turned(corner, f64::from(side) / 4.0 + turn))).collect()
    };
    match number {
        0 => regular(4, 0.125),
        1 => regular(20, 0.0),
        // y points downwards.
        2 => regular(3, 0.5),
        3 => regular(4, 0.0),
        4 => regular(3, 0.0),
        5 => plus(0.0),
        _ => plus(0.125),
    }
}

/// The dashes of a line through points.
fn dashed(points: &[(f64, f64)], (dash, gap): (f64, f64)) -> Vec<[(f64, f64); 2]> {
    let mut parts = Vec::new();
    // Length of the line before the current part.
    let mut before = 0.0;
    for pair in points.windows(2) {
        let ((x0, y0), (x1, y1)) = (pair[0], pair[1]);
        let length = (x1 - x0).hypot(y1 - y0);
        let at = |along: f64| {
            let share = (along / length).clamp(0.0, 1.0);
            (x0 + share * (x1 - x0), y0 + share * (y1 - y0))
        };
        let mut start = -(before % (dash + gap));
        while start < length {
            let (from, to) = (start.max(0.0), (start + dash).min(length));
            if from < to {
                parts.push([at(from), at(to)]);
            }
            start += dash + gap;
        }
        before += length;
    }
    parts
}

/// Width of a text in the units of the canvas. Letters of PNG are wider than those of SVG.
fn width_of(text: &str, height: f64) -> f64 {
    png::advance(height) * text.chars().count() as f64
}

/// Breaks a text at its spaces into lines of at most `width`. A longer word is a line.
fn wrapped(text: &str, height: f64, width: f64) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split_whitespace() {
        match lines.last_mut() {
            Some(line) if width_of(line, height) + width_of(" ", height) + width_of(word, height) <= width => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}

/// The lines of a chart's texts, which decide its height.
struct Layout {
    title: Vec<String>,
    /// The names of the series.
    names: Vec<Vec<String>>,
    /// Top of the axes.
    top: f64,
    size: (f64, f64),
}

impl Chart {
    /// Writes the chart as SVG and as PNG.
    pub fn write(&self, svg: &Path, png: &Path) -> Outcome {
        warpann::io::write_file(svg, self.svg().as_bytes())?;
        let picture = self.png().map_err(|error| Failure::Message(error.to_string()))?;
        Ok(warpann::io::write_file(png, &picture)?)
    }

    fn svg(&self) -> String {
        let layout = self.layout();
        let mut canvas = svg::Svg::new(layout.size);
        self.draw(&mut canvas, &layout);
        canvas.finish()
    }

    fn png(&self) -> Result<Vec<u8>, ::png::EncodingError> {
        let layout = self.layout();
        let mut canvas = png::Png::new(layout.size);
        self.draw(&mut canvas, &layout);
        canvas.finish()
    }

    fn layout(&self) -> Layout {
        let title = wrapped(&self.title, TITLE, WIDTH - 2.0 * MARGIN);
        let best = (!self.best.is_empty()).then_some("best of all (Pareto line)");
        let names = self.series.iter().map(|series| &*series.name).chain(best);
        let names: Vec<_> = names.map(|name| wrapped(name, TEXT, WIDTH - NAMES - MARGIN)).collect();
        let top = 20.0 + TITLE_LINE * title.len() as f64;
        let lines: usize = names.iter().map(Vec::len).sum();
        let size = (WIDTH, top + HEIGHT + 80.0 + LEGEND_LINE * lines as f64);
        Layout { title, names, top, size }
    }

    fn draw(&self, canvas: &mut impl Canvas, layout: &Layout) {
        let (left, top, right, bottom) = (LEFT, layout.top, WIDTH - RIGHT, layout.top + HEIGHT);
        canvas.rect((0.0, 0.0), layout.size, WHITE);
        let drawable = |&(x, y): &(f64, f64)| x.is_finite() && y.is_finite() && y > 0.0;
        let points = || self.series.iter().flat_map(|series| series.points.iter().copied().filter(drawable));
        let x_ticks = linear_ticks(points().map(|(x, _)| x));
        let y_ticks = logarithmic_ticks(points().map(|(_, y)| y));
        let (x_low, x_high) = ends(&x_ticks);
        let (y_low, y_high) = ends(&y_ticks);
        let x_at = |x: f64| left + (x - x_low) / (x_high - x_low) * (right - left);
        let y_at = |y: f64| bottom - (y / y_low).ln() / (y_high / y_low).ln() * (bottom - top);
        let placed = |points: &[(f64, f64)]| -> Vec<(f64, f64)> {
            points.iter().filter(|point| drawable(point)).map(|&(x, y)| (x_at(x), y_at(y))).collect()
        };

        let decimals = decimals(&x_ticks);
        for &x in &x_ticks {
            canvas.line(&[(x_at(x), top), (x_at(x), bottom)], 1.0, GREY);
            canvas.text((x_at(x), bottom + 20.0), Anchor::Middle, TEXT, &format!("{x:.decimals$}"));
        }
        for &y in &y_ticks {
            canvas.line(&[(left, y_at(y)), (right, y_at(y))], 1.0, GREY);
            canvas.text((left - 8.0, y_at(y) + TEXT / 2.0), Anchor::End, TEXT, &short(y));
        }
        canvas.text(((left + right) / 2.0, bottom + 44.0), Anchor::Middle, TEXT, &self.x_label);
        canvas.text((24.0, (top + bottom) / 2.0), Anchor::Upwards, TEXT, &self.y_label);
        for (line, text) in layout.title.iter().enumerate() {
            canvas.text((WIDTH / 2.0, 30.0 + TITLE_LINE * line as f64), Anchor::Middle, TITLE, text);
        }

        for best in &self.best {
            canvas.line(&placed(best), BEST_WIDTH, BEST);
        }
        canvas.line(&[(left, top), (left, bottom), (right, bottom), (right, top), (left, top)], 1.0, BLACK);
        let styled = || self.series.iter().map(|series| (Style::of(series), placed(&series.points)));
        styled().for_each(|(style, points)| style.line(canvas, &points));
        styled().for_each(|(style, points)| points.iter().for_each(|&point| style.mark(canvas, point)));

        let mut y = bottom + 74.0;
        for (index, lines) in layout.names.iter().enumerate() {
            let (from, middle, to) = ((left, y), (left + 18.0, y), (left + 36.0, y));
            match self.series.get(index) {
                Some(series) => {
                    let style = Style::of(series);
                    style.line(canvas, &[from, to]);
                    style.mark(canvas, middle);
                }
                // The ends of a line are round and reach further than its points.
                None => canvas.line(&[(from.0 + BEST_WIDTH / 2.0, y), (to.0 - BEST_WIDTH / 2.0, y)], BEST_WIDTH, BEST),
            }
            for line in lines {
                canvas.text((NAMES, y + TEXT / 2.0), Anchor::Start, TEXT, line);
                y += LEGEND_LINE;
            }
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

/// A tick, which is 1, 2 or 5 times a power of ten, with the decimals that it needs.
fn rounded(value: f64) -> String {
    let decimals = (-(value * 1.001).log10().floor()).max(0.0) as usize;
    if decimals <= 4 { format!("{value:.decimals$}") } else { format!("{value:.0e}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chart() -> Chart {
        let series = |name: &str, subject: usize, scale: f64| Series {
            name: name.into(),
            subject,
            variant: 0,
            points: (0..12).map(|i| (1.0 - 0.5 / f64::from(1 + i * i), scale / f64::from(1 + i))).collect(),
        };
        Chart {
            title: "flat <4096> & co".into(),
            x_label: "recall@10".into(),
            y_label: "queries per second".into(),
            series: vec![series("batch 10000", 0, 2e6), series("batch 1", 1, 3e4)],
            best: Vec::new(),
        }
    }

    /// A chart with long names, which has as many series as `count`, and a line of the best points.
    fn crowded(count: usize) -> Chart {
        let name = |index| {
            format!(
                "ivf-pq, 65536 lists, 32 sub-quantizers of 8 bits, rotated, k = 100, batch {index}, gpu:0 NVIDIA H200 and others"
            )
        };
        let points =
            |index: usize| (1..9).map(|i| (0.1 * f64::from(i), 1e3 * (1 + index) as f64 / f64::from(i * i))).collect();
        let device = "gpu:0 (NVIDIA H200), gpu:1 (NVIDIA H200); gpu:2 (NVIDIA H200), gpu:3 (NVIDIA H200)";
        Chart {
            title: format!("Recall and speed on {device}, of the first 10000 queries"),
            series: (0..count)
                .map(|index| Series {
                    name: name(index),
                    subject: index / 3,
                    variant: index % 3,
                    points: points(index),
                })
                .collect(),
            best: vec![points(count)],
            ..chart()
        }
    }

    /// Keeps the boxes of all texts, left, top, right and bottom.
    #[derive(Default)]
    struct Texts(Vec<(String, [f64; 4])>);

    impl Canvas for Texts {
        fn line(&mut self, _: &[(f64, f64)], _: f64, _: Colour) {}
        fn rect(&mut self, _: (f64, f64), _: (f64, f64), _: Colour) {}
        fn polygon(&mut self, _: &[(f64, f64)], _: Colour) {}
        fn text(&mut self, (x, y): (f64, f64), anchor: Anchor, height: f64, text: &str) {
            let width = width_of(text, height);
            // Two rows of dots lie below the base line.
            let below = height * 2.0 / 7.0;
            let place = match anchor {
                Anchor::Start => [x, y - height, x + width, y + below],
                Anchor::Middle => [x - width / 2.0, y - height, x + width / 2.0, y + below],
                Anchor::End => [x - width, y - height, x, y + below],
                Anchor::Upwards => [x - height, y - width / 2.0, x + below, y + width / 2.0],
            };
            self.0.push((text.to_owned(), place));
        }
    }

    #[test]
    fn no_text_is_clipped_or_covers_another() {
        for chart in [chart(), crowded(1), crowded(21)] {
            let layout = chart.layout();
            let mut texts = Texts::default();
            chart.draw(&mut texts, &layout);
            for (at, (text, [left, top, right, bottom])) in texts.0.iter().enumerate() {
                assert!(*left >= 0.0 && *top >= 0.0, "{text}");
                assert!(*right <= layout.size.0 && *bottom <= layout.size.1, "{text}");
                for (other, [l, t, r, b]) in &texts.0[..at] {
                    assert!(right <= l || r <= left || bottom <= t || b <= top, "{text} covers {other}");
                }
            }
            let all: Vec<&str> = texts.0.iter().map(|(text, _)| text.as_str()).collect();
            let all = all.join(" ");
            assert!(
                chart.series.iter().all(|series| all.contains(&series.name)) && all.contains(&chart.title),
                "{all}"
            );
        }
    }

    #[test]
    fn series_differ_without_colour() {
        let looks: Vec<_> = crowded(14 * 3).series.iter().map(Style::of).collect();
        let shape = |look: &Style| (look.marker, look.hollow, look.dash);
        for (at, look) in looks.iter().enumerate() {
            assert!(looks[..at].iter().all(|other| shape(other) != shape(look)), "series {at}");
        }
        let shapes: Vec<_> = (0..COLOURS.len()).map(marker).collect();
        for (at, shape) in shapes.iter().enumerate() {
            assert!(shape.iter().all(|(x, y)| x.hypot(*y) < 1.05), "{at}");
            assert!(!shapes[..at].contains(shape), "{at}");
        }
    }

    #[test]
    fn dashes_cover_their_share_of_a_line() {
        let line = [(0.0, 0.0), (30.0, 40.0), (30.0, 140.0)];
        let parts = dashed(&line, (9.0, 6.0));
        let length: f64 = parts.iter().map(|[(x0, y0), (x1, y1)]| (x1 - x0).hypot(y1 - y0)).sum();
        assert!((length - 90.0).abs() < 1e-9, "{length}");
        // The dash that starts at 45 continues behind the corner at 50.
        assert!(
            parts.contains(&[(27.0, 36.0), (30.0, 40.0)]) && parts.contains(&[(30.0, 40.0), (30.0, 44.0)]),
            "{parts:?}"
        );
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
        assert_eq!([short(1e3), short(5e6), short(200.0), short(1.0)], ["1k", "5M", "200", "1"]);
        assert_eq!([short(0.5), short(0.02), short(0.0001), short(2e-5)], ["0.5", "0.02", "0.0001", "2e-5"]);
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
        // Three polygons are a marker: for every point and in the legend.
        assert_eq!(svg.matches("<polygon").count(), 3 * 2 * (12 + 1), "{svg}");
        let crowded = crowded(3).svg();
        assert!(crowded.contains("best of all") && crowded.matches("#f3e2a0").count() == 2, "{crowded}");
    }

    #[test]
    fn png_shows_both_colours_and_ink_where_the_labels_are() {
        let bytes = chart().png().unwrap();
        let mut reader = ::png::Decoder::new(std::io::Cursor::new(&bytes)).read_info().unwrap();
        let mut pixels = vec![0; reader.output_buffer_size().unwrap()];
        let info = reader.next_frame(&mut pixels).unwrap();
        assert_eq!((info.width, info.height), (1600, 1088));
        let count = |colour: Colour| pixels.chunks_exact(3).filter(|pixel| **pixel == colour).count();
        assert!(count(COLOURS[0]) > 1000 && count(COLOURS[1]) > 1000 && count(COLOURS[2]) == 0);
        let dark = |xs: std::ops::Range<usize>, ys: std::ops::Range<usize>| {
            ys.flat_map(|y| xs.clone().map(move |x| 3 * (1600 * y + x))).filter(|&at| pixels[at] < 0x60).count()
        };
        // Title, x label, y label.
        for (xs, ys) in [(600..1000, 20..70), (600..1100, 900..950), (20..60, 200..800)] {
            assert!(dark(xs.clone(), ys.clone()) > 300, "{xs:?} {ys:?}");
        }
    }
}
