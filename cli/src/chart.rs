//! Small line charts, as SVG and as PNG: a linear x axis, a logarithmic y axis, one line for each series, and a legend
//! below the axes.
//!
//! A series has a colour, the shape of its markers and the dashes of its line, so that a reader can tell series apart
//! without colour.
//!
//! The crate kuva draws axes, lines and markers, and brings the font of the PNG, so that no font of the system is
//! needed. It costs 9 crates and 3.9 MB of the program, 1.2 MB of which are fonts. Measured against others
//! (2026-11-27):
//! | crate | why not |
//! |---|---|
//! | plotters 0.3.7 | 4 crates, 0.2 MB, but no font; markers, ticks and legend would stay here; no release since 2024 |
//! | charts-rs 2.3, quill 0.2 | 67 and 71 crates, most of them of resvg, which draws the PNG |
//! | charming 0.6 | a JavaScript engine draws the PNG: 259 crates |
//! | poloto 19, splot 0.11, plotlib 0.5 | no PNG |

use std::path::Path;

use kuva::backend::png::PngBackend;
use kuva::backend::svg::SvgBackend;
use kuva::plot::line::LineStyle;
use kuva::plot::scatter::MarkerShape;
use kuva::plot::{LinePlot, ScatterPlot};
use kuva::render::layout::{Layout, TickFormat};
use kuva::render::plots::Plot;
use kuva::render::render::{Primitive, Scene, TextAnchor, render_multiple};
use kuva::render::render_utils::wrap_text;

use crate::report::{Failure, Outcome};

/// Width of a chart in pixels of the SVG; the PNG has twice as many.
const WIDTH: f64 = 800.0;
const WHITE: &str = "#ffffff";
/// The colour of the best points, which lies under the series.
const BEST: &str = "#f3e2a0";
const BEST_WIDTH: f64 = 11.0;
/// Colours of series, which colour-blind readers can distinguish (M. Okabe and K. Ito, Color Universal Design, 2008),
/// and their markers.
const LOOKS: [(&str, MarkerShape); 7] = [
    ("#0072b2", MarkerShape::Square),
    ("#d55e00", MarkerShape::Circle),
    ("#009e73", MarkerShape::Triangle),
    ("#cc79a7", MarkerShape::Diamond),
    ("#e69f00", MarkerShape::TriangleDown),
    ("#56b4e9", MarkerShape::Star),
    ("#555555", MarkerShape::Cross),
];
/// Lengths of dash and gap of the variants of a subject; the first is solid.
const DASHES: [Option<&str>; 3] = [None, Some("9 7"), Some("1.5 6")];
/// Size of the letters of the legend.
const TEXT: u32 = 12;
/// Distance between two lines of the legend.
const LEGEND_LINE: f64 = 20.0;
/// The x coordinates at which the lines of the legend start, and its names.
const KEYS: f64 = 90.0;
const NAMES: f64 = KEYS + 44.0;
/// Letters in a line of the title and in a line of the legend. A letter is at most 0.65 of its size wide on average.
const TITLE_LETTERS: usize = 64;
const NAME_LETTERS: usize = 82;

/// A line of a chart.
#[derive(Debug, Clone)]
pub struct Series {
    pub name: String,
    /// The subject of the series, which gives it colour and markers, and the variant, which gives it dashes.
    pub subject: usize,
    pub variant: usize,
    pub marks: Vec<Mark>,
}

/// A point of a series.
#[derive(Debug, Clone)]
pub struct Mark {
    /// x, and y above 0.
    pub place: (f64, f64),
    /// A browser shows this text while the pointer is on the mark. Lines end with line feeds.
    pub text: String,
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
#[derive(Debug, PartialEq)]
struct Style {
    colour: &'static str,
    marker: MarkerShape,
    hollow: bool,
    dash: Option<&'static str>,
}

impl Style {
    fn of(series: &Series) -> Self {
        let (colour, marker) = LOOKS[series.subject % LOOKS.len()];
        let hollow = series.subject / LOOKS.len() % 2 == 1;
        Self { colour, marker, hollow, dash: DASHES[series.variant % DASHES.len()] }
    }

    fn line(&self, points: &[(f64, f64)]) -> Plot {
        let dashes = self.dash.map_or(LineStyle::Solid, |dash| LineStyle::Custom(dash.to_owned()));
        Plot::Line(LinePlot::new().with_data(points.to_vec()).with_color(self.colour).with_line_style(dashes))
    }

    /// Markers in the middle of a small white space, so that they stand out from lines. The pointer is on a mark if it
    /// is on any of its shapes, so each has the text.
    fn markers(&self, points: &[(f64, f64)], texts: &[String]) -> impl Iterator<Item = Plot> {
        let inside = self.hollow.then_some((3.0, WHITE));
        [(6.5, WHITE), (5.0, self.colour)].into_iter().chain(inside).map(|(size, colour)| {
            let markers = ScatterPlot::new().with_data(points.to_vec()).with_marker(self.marker);
            Plot::Scatter(markers.with_size(size).with_color(colour).with_tooltip_labels(texts.to_vec()))
        })
    }
}

fn best_line(points: &[(f64, f64)]) -> Plot {
    Plot::Line(LinePlot::new().with_data(points.to_vec()).with_color(BEST).with_stroke_width(BEST_WIDTH))
}

impl Chart {
    /// Writes the chart as SVG and as PNG.
    pub fn write(&self, svg: &Path, png: &Path) -> Outcome {
        warpann::io::write_file(svg, self.svg().as_bytes())?;
        let picture = PngBackend::new().render_scene(&self.scene()).map_err(Failure::Message)?;
        Ok(warpann::io::write_file(png, &picture)?)
    }

    pub fn svg(&self) -> String {
        SvgBackend::new().render_scene(&self.scene())
    }

    fn scene(&self) -> Scene {
        let drawable = |&(x, y): &(f64, f64)| x.is_finite() && y.is_finite() && y > 0.0;
        let series = self.series.iter().map(|one| {
            let marks = one.marks.iter().filter(|mark| drawable(&mark.place));
            let (points, texts): (Vec<_>, Vec<_>) = marks.map(|mark| (mark.place, mark.text.clone())).unzip();
            (Style::of(one), points, texts)
        });
        let series: Vec<_> = series.collect();
        let best = self.best.iter().map(|line| best_line(&line.iter().copied().filter(drawable).collect::<Vec<_>>()));
        let lines = series.iter().map(|(style, points, _)| style.line(points));
        let markers = series.iter().flat_map(|(style, points, texts)| style.markers(points, texts));
        let plots: Vec<Plot> = best.chain(lines).chain(markers).collect();
        let points = || series.iter().flat_map(|(_, points, _)| points);
        let (low, high) = logarithmic_ends(points().map(|&(_, y)| y));
        let layout = Layout::new(range(points().map(|&(x, _)| x)), (low, high)).with_width(WIDTH).with_clamp_axis();
        let layout = layout.with_box_axes().with_log_y().with_y_axis_min(low).with_y_axis_max(high);
        let layout = layout.with_y_tick_format(TickFormat::Custom(std::sync::Arc::new(short)));
        let layout = layout.with_title(&self.title).with_title_wrap(TITLE_LETTERS);
        let mut scene = render_multiple(plots, layout.with_x_label(&self.x_label).with_y_label(&self.y_label));
        // A marker on the edge of the axes is drawn whole.
        scene.elements.retain(|part| !matches!(part, Primitive::ClipStart { .. } | Primitive::ClipEnd));
        self.add_legend(&mut scene);
        scene
    }

    /// Adds the legend below the axes. Its lines and markers are those of a chart without axes, in which a unit is a
    /// pixel.
    fn add_legend(&self, scene: &mut Scene) {
        let best = (!self.best.is_empty()).then_some("best of all (Pareto line)");
        let names = self.series.iter().map(|series| &*series.name).chain(best);
        let names: Vec<Vec<String>> = names.map(|name| wrap_text(name, NAME_LETTERS)).collect();
        let height = LEGEND_LINE * names.iter().map(Vec::len).sum::<usize>() as f64;
        let (mut keys, mut texts, mut y) = (Vec::new(), Vec::new(), LEGEND_LINE / 2.0);
        for (index, lines) in names.iter().enumerate() {
            let up = height - y;
            match self.series.get(index).map(Style::of) {
                Some(style) => {
                    keys.push(style.line(&[(KEYS, up), (KEYS + 36.0, up)]));
                    keys.extend(style.markers(&[(KEYS + 18.0, up)], &[]));
                }
                // The ends of a line are round and reach further than its points.
                None => keys.push(best_line(&[(KEYS + BEST_WIDTH / 2.0, up), (KEYS + 36.0 - BEST_WIDTH / 2.0, up)])),
            }
            for line in lines {
                texts.push((y, line.clone()));
                y += LEGEND_LINE;
            }
        }
        let mut layout = Layout::new((0.0, WIDTH), (0.0, height)).with_width(WIDTH).with_height(height);
        layout = layout.with_force_margins(0.0, 0.0).with_force_margins_y(0.0, 0.0).with_show_grid(false);
        layout = layout.with_x_axis_min(0.0).with_x_axis_max(WIDTH).with_y_axis_min(0.0).with_y_axis_max(height);
        layout = layout.with_axis_line_width(0.0);
        (layout.suppress_x_ticks, layout.suppress_y_ticks) = (true, true);
        let top = scene.height;
        let transform = Some(format!("translate(0,{top})"));
        scene.elements.push(Primitive::GroupStart { transform, title: None, extra_attrs: None });
        let drawn = render_multiple(keys, layout).elements.into_iter();
        // The parts of the axes, which are invisible, lie outside of the clipped region.
        let inside = drawn.skip_while(|part| !matches!(part, Primitive::ClipStart { .. })).skip(1);
        scene.elements.extend(inside.take_while(|part| !matches!(part, Primitive::ClipEnd)));
        scene.elements.push(Primitive::GroupEnd);
        scene.elements.extend(texts.into_iter().map(|(y, content)| Primitive::Text {
            x: NAMES,
            y: top + y + f64::from(TEXT) * 0.36,
            content,
            size: TEXT,
            anchor: TextAnchor::Start,
            rotate: None,
            bold: false,
            color: None,
        }));
        scene.height += height + LEGEND_LINE;
    }
}

/// The least and the greatest value; the first is greater if there are no values.
fn bounds(values: impl Iterator<Item = f64>) -> (f64, f64) {
    values.fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), value| (low.min(value), high.max(value)))
}

/// The range of the values, wider than 0; if there are none, from 0 to 1.
fn range(values: impl Iterator<Item = f64>) -> (f64, f64) {
    match bounds(values) {
        (low, high) if low > high => (0.0, 1.0),
        (low, high) if low == high => (low - 0.05 * low.abs().max(1e-3), high + 0.05 * high.abs().max(1e-3)),
        range => range,
    }
}

/// The nearest of 1, 2 and 5 times powers of ten that enclose the values; of powers of ten alone if more than three of
/// them do, because the axis then has no other ticks.
fn logarithmic_ends(values: impl Iterator<Item = f64>) -> (f64, f64) {
    let (low, high) = bounds(values);
    if low > high {
        return (1.0, 10.0);
    }
    let many = high.log10().ceil() - low.log10().floor() > 3.0;
    let steps: &[f64] = if many { &[1.0, 10.0] } else { &[1.0, 2.0, 5.0, 10.0] };
    let ticks = |value: f64| steps.iter().map(move |step| step * 10f64.powi(value.log10().floor() as i32));
    // The first is not above the value, unless its logarithm was rounded up.
    let from = ticks(low).rfind(|&tick| tick <= low).unwrap_or(low);
    let to = ticks(high).find(|&tick| tick > from && tick >= high).unwrap_or(10.0 * high);
    (from, to)
}

/// A number in thousands, millions or billions.
fn short(value: f64) -> String {
    let units = [(1e9, "G"), (1e6, "M"), (1e3, "k"), (1.0, "")];
    let &(unit, name) = units.iter().find(|(unit, _)| value >= *unit * 0.9999).unwrap_or(&units[3]);
    format!("{}{name}", TickFormat::Auto.format(value / unit))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Marks at the places, named by their numbers.
    fn marks(places: impl IntoIterator<Item = (f64, f64)>) -> Vec<Mark> {
        places.into_iter().enumerate().map(|(at, place)| Mark { place, text: format!("point <{at}>") }).collect()
    }

    fn chart() -> Chart {
        let series = |name: &str, subject: usize, scale: f64| Series {
            name: name.into(),
            subject,
            variant: 0,
            marks: marks((0..12).map(|i| (1.0 - 0.5 / f64::from(1 + i * i), scale / f64::from(1 + i)))),
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
        let series =
            |index| Series { name: name(index), subject: index / 3, variant: index % 3, marks: marks(points(index)) };
        Chart {
            title: format!("Recall and speed on {device}, of the first 10000 queries"),
            series: (0..count).map(series).collect(),
            best: vec![points(count)],
            ..chart()
        }
    }

    /// All texts with their boxes: left, top, right and bottom.
    fn texts(scene: &Scene) -> Vec<(&str, [f64; 4])> {
        let mut all = Vec::new();
        for part in &scene.elements {
            let Primitive::Text { x, y, content, size, anchor, rotate, .. } = part else { continue };
            let (width, up) = (0.65 * f64::from(*size) * content.chars().count() as f64, 0.73 * f64::from(*size));
            let (start, below) = (width * f64::from(*anchor as u8) / 2.0, 0.24 * f64::from(*size));
            let place = match rotate {
                None => [x - start, y - up, x - start + width, y + below],
                Some(_) => [x - up, y - start, x + below, y - start + width],
            };
            all.push((content.as_str(), place));
        }
        all
    }

    #[test]
    fn no_text_is_clipped_or_covers_another() {
        for chart in [chart(), crowded(1), crowded(21)] {
            let scene = chart.scene();
            let texts = texts(&scene);
            for (at, (text, [left, top, right, bottom])) in texts.iter().enumerate() {
                assert!(*left >= 0.0 && *top >= 0.0, "{text}");
                assert!(*right <= scene.width && *bottom <= scene.height, "{text}");
                for (other, [l, t, r, b]) in &texts[..at] {
                    assert!(right <= l || r <= left || bottom <= t || b <= top, "{text} covers {other}");
                }
            }
            let all: Vec<&str> = texts.iter().map(|(text, _)| *text).collect();
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
    }

    #[test]
    fn axes_enclose_the_values_and_have_ticks_at_both_ends() {
        assert_eq!(logarithmic_ends([1500.0, 90_000.0].into_iter()), (1e3, 1e5));
        assert_eq!(logarithmic_ends([2500.0, 15_000.0].into_iter()), (2e3, 2e4));
        assert_eq!(logarithmic_ends([3.0, 4e7].into_iter()), (1.0, 1e8));
        for value in [1.0, 0.95, 1e-9, 123_456.0, 1000.0, 2.0] {
            let (low, high) = logarithmic_ends(std::iter::once(value));
            assert!(low <= value && value <= high && low < high, "{value}: {low} {high}");
            let (low, high) = range(std::iter::once(value));
            assert!(low < value && value < high, "{value}: {low} {high}");
        }
        let labels = |chart: Chart| {
            let scene = chart.scene();
            texts(&scene).into_iter().map(|(text, _)| text.to_owned()).collect::<Vec<_>>()
        };
        let narrow = Chart { series: vec![chart().series[0].clone()], ..chart() };
        for (chart, expected) in [(chart(), ["0.5", "1", "1k", "10M"]), (narrow, ["0.5", "100k", "200k", "2M"])] {
            let all = labels(chart);
            assert!(expected.iter().all(|label| all.iter().any(|text| text == label)), "{expected:?}: {all:?}");
        }
        // Without a point that can be drawn there are axes all the same.
        let marks = marks([(0.5, 0.0), (f64::NAN, 1.0), (0.5, f64::INFINITY)]);
        let empty = Chart { series: vec![Series { marks, ..chart().series[0].clone() }], ..chart() };
        assert!(labels(empty).contains(&"10".to_owned()));
        assert_eq!([short(1e3), short(5e6), short(200.0), short(1.0)], ["1k", "5M", "200", "1"]);
        assert_eq!([short(0.5), short(0.02), short(2e9)], ["0.5", "0.02", "2G"]);
    }

    #[test]
    fn svg_holds_every_line_and_escapes_names() {
        let text = chart().svg();
        assert!(text.starts_with("<svg") && text.trim_end().ends_with("</svg>"));
        assert!(
            text.contains("flat &lt;4096&gt; &amp; co") && text.contains("batch 10000") && text.contains("rotate(-90")
        );
        // A marker for every point and in the legend.
        let circles = text.matches(&format!("fill=\"{}\"", LOOKS[1].0)).count();
        assert_eq!(circles, 12 + 1, "{text}");
        assert!(!text.contains("clip-path"), "{text}");
        // Both shapes of a mark have its text, and the marks of the legend have none.
        for at in 0..12 {
            assert_eq!(text.matches(&format!("<title>point &lt;{at}&gt;</title>")).count(), 2 * 2, "{text}");
        }
        assert_eq!(text.matches("<title>").count(), 12 * 2 * 2, "{text}");
        let crowded = crowded(3).svg();
        assert!(crowded.contains("best of all") && crowded.matches(BEST).count() == 2, "{crowded}");
        assert!(crowded.matches("stroke-dasharray=\"9 7\"").count() == 2, "{crowded}");
    }

    #[test]
    fn png_shows_both_colours_and_ink_where_the_labels_are() {
        let scene = chart().scene();
        let bytes = PngBackend::new().render_scene(&scene).unwrap();
        let mut reader = png::Decoder::new(std::io::Cursor::new(&bytes)).read_info().unwrap();
        let mut pixels = vec![0; reader.output_buffer_size().unwrap()];
        let info = reader.next_frame(&mut pixels).unwrap();
        let (width, size) = (info.width as usize, info.color_type.samples());
        assert_eq!((info.width, info.height), (1600, (2.0 * scene.height).round() as u32));
        let count = |[red, green, blue]: [u8; 3]| {
            pixels.chunks_exact(size).filter(|pixel| pixel[..3] == [red, green, blue]).count()
        };
        assert!(count([0x00, 0x72, 0xb2]) > 1000 && count([0xd5, 0x5e, 0x00]) > 1000 && count([0x00, 0x9e, 0x73]) == 0);
        let dark = |[left, top, right, bottom]: [f64; 4]| {
            let (xs, ys) =
                ((2.0 * left) as usize..(2.0 * right) as usize, (2.0 * top) as usize..(2.0 * bottom) as usize);
            ys.flat_map(|y| xs.clone().map(move |x| size * (width * y + x))).filter(|&at| pixels[at] < 0x60).count()
        };
        let texts = texts(&scene);
        for wanted in [&chart().title, &chart().x_label, &chart().y_label, &chart().series[1].name] {
            let (_, place) = texts.iter().find(|(text, _)| text == wanted).unwrap();
            assert!(dark(*place) > 20 * wanted.len(), "{wanted}: {}", dark(*place));
        }
        // Text that reached the edge would be cut there.
        let edge = (0..width).chain((pixels.len() / size) - width..pixels.len() / size);
        assert!(edge.flat_map(|at| &pixels[size * at..size * at + 3]).all(|&value| value == 0xff));
    }
}
