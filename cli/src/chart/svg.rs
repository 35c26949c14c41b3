//! SVG: one element for each drawing operation.

use std::fmt::Write;

use super::{Anchor, Canvas, Colour};

pub struct Svg {
    text: String,
}

impl Svg {
    pub fn new((width, height): (f64, f64)) -> Self {
        let text = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" width=\"{width}\" \
             height=\"{height}\" font-family=\"sans-serif\" fill=\"#222222\">\n"
        );
        Self { text }
    }

    pub fn finish(self) -> String {
        self.text + "</svg>\n"
    }

    fn put(&mut self, element: std::fmt::Arguments<'_>) {
        // Writing to a string cannot fail.
        let _ = writeln!(self.text, "{element}");
    }
}

impl Canvas for Svg {
    fn line(&mut self, points: &[(f64, f64)], width: f64, colour: Colour) {
        let points: Vec<String> = points.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
        let (points, colour) = (points.join(" "), hex(colour));
        self.put(format_args!(
            "<polyline points=\"{points}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"{width}\"/>"
        ));
    }

    fn rect(&mut self, (x, y): (f64, f64), (width, height): (f64, f64), colour: Colour) {
        let colour = hex(colour);
        self.put(format_args!(
            "<rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"{width}\" height=\"{height}\" fill=\"{colour}\"/>"
        ));
    }

    fn polygon(&mut self, corners: &[(f64, f64)], colour: Colour) {
        let corners: Vec<String> = corners.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
        let (corners, colour) = (corners.join(" "), hex(colour));
        self.put(format_args!("<polygon points=\"{corners}\" fill=\"{colour}\"/>"));
    }

    fn text(&mut self, (x, y): (f64, f64), anchor: Anchor, height: f64, text: &str) {
        let (place, turn) = match anchor {
            Anchor::Start => ("start", String::new()),
            Anchor::Middle => ("middle", String::new()),
            Anchor::End => ("end", String::new()),
            Anchor::Upwards => ("middle", format!(" transform=\"rotate(-90 {x:.1} {y:.1})\"")),
        };
        let text = text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
        // Capitals are 0.72 of the font size in common fonts.
        let size = height / 0.72;
        self.put(format_args!(
            "<text x=\"{x:.1}\" y=\"{y:.1}\" font-size=\"{size:.1}\" text-anchor=\"{place}\"{turn}>{text}</text>"
        ));
    }
}

fn hex([red, green, blue]: Colour) -> String {
    format!("#{red:02x}{green:02x}{blue:02x}")
}
