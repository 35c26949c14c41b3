//! The page of a chart: one HTML file with the chart and a table of all points, which a click on a column sorts.
//!
//! The page needs no other file and no network. It is well-formed XML, so programs can read the table: a cell has its
//! exact value in `data-value`.

use super::picture::{Curve, Picture};
use super::point::Point;

const STYLE: &str = include_str!("page/style.css");
const SCRIPT: &str = include_str!("page/sort.js");

pub fn page(picture: &Picture) -> String {
    let heads = ["index", "k", picture.efforts(), "batch", "recall", "queries/s", "p50 ms", "best of all"];
    let heads: String = heads.map(|head| format!("<th scope=\"col\"><button>{head}</button></th>")).concat();
    let curves = picture.curves.iter();
    let rows: String = curves.flat_map(|curve| curve.points.iter().map(|point| row(picture, curve, point))).collect();
    let (title, chart) = (escaped(&picture.chart.title), picture.chart.svg());
    format!(
        "<!DOCTYPE html>\n<html xmlns=\"http://www.w3.org/1999/xhtml\" lang=\"en\">\n<head>\n<meta charset=\"utf-8\"/>\n\
         <title>{title}</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n{chart}\n<table>\n\
         <thead><tr>{heads}</tr></thead>\n<tbody>\n{rows}</tbody>\n</table>\n<script>\n{SCRIPT}</script>\n</body>\n\
         </html>\n"
    )
}

fn row(picture: &Picture, curve: &Curve, point: &Point) -> String {
    let best = picture.is_best(curve, point);
    let Point { k, effort, batch, recall, queries_per_second, latency_p50_ms } = point;
    let effort = effort.count();
    let cells = [
        (escaped(&curve.name), escaped(&curve.name)),
        (k.to_string(), k.to_string()),
        (effort.to_string(), effort.to_string()),
        (batch.to_string(), batch.to_string()),
        (recall.to_string(), format!("{recall:.6}")),
        (queries_per_second.to_string(), format!("{queries_per_second:.0}")),
        (latency_p50_ms.to_string(), format!("{latency_p50_ms:.3}")),
        (u8::from(best).to_string(), if best { "yes" } else { "" }.to_owned()),
    ];
    let cells = cells.map(|(value, text)| format!("<td data-value=\"{value}\">{text}</td>")).concat();
    format!("<tr{}>{cells}</tr>\n", if best { " class=\"best\"" } else { "" })
}

/// A text as the content of an element or the value of an attribute.
fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}
