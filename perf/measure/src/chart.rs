//! A picture as a list of shapes, written as SVG or as PNG: the same lines and the same letters in both.

use core::fmt::Write as _;
use noto_sans_mono_bitmap::{FontWeight, RasterHeight, get_raster, get_raster_width};
use tiny_skia::{
    Color as Ink, FillRule, LineCap, LineJoin, Paint, PathBuilder, Pixmap, PremultipliedColorU8, Rect,
    Stroke, StrokeDash, Transform,
};

/// Pixels of a PNG for each unit of the picture.
const SCALE: f32 = 2.0;
/// Styles of lines: lengths of dashes and of the gaps after them; the first one is whole.
const DASHES: [&[f32]; STYLES] =
    [&[], &[6.0, 4.0], &[2.0, 3.0], &[12.0, 4.0], &[10.0, 3.0, 2.0, 3.0], &[10.0, 3.0, 2.0, 3.0, 2.0, 3.0]];
/// How many styles of lines there are.
pub const STYLES: usize = 6;
/// Sides of the largest PNG, in units.
const SIDE_MAX: f32 = 8_000.0;

/// Red, green, blue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Color(pub u8, pub u8, pub u8);

impl Color {
    fn hex(self) -> String {
        format!("#{:02x}{:02x}{:02x}", self.0, self.1, self.2)
    }

    fn paint(self) -> Paint<'static> {
        let mut paint = Paint { anti_alias: true, ..Paint::default() };
        paint.set_color(Ink::from_rgba8(self.0, self.1, self.2, 255));
        paint
    }
}

/// Width of a letter in the fonts that an SVG document asks for, in heights.
const SVG_LETTER_WIDTH: f32 = 0.602;

/// Two sizes of letters are enough.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Letters {
    /// 12 units.
    Normal,
    /// 16 units.
    Title,
}

impl Letters {
    const fn raster(self) -> RasterHeight {
        match self {
            Self::Normal => RasterHeight::Size24,
            Self::Title => RasterHeight::Size32,
        }
    }

    /// Height, in units.
    #[must_use]
    pub fn height(self) -> f32 {
        self.raster().val() as f32 / SCALE
    }

    /// Width of each letter, in units, in whichever of the two documents it is wider.
    #[must_use]
    pub fn width(self) -> f32 {
        self.raster_width().max(self.height() * SVG_LETTER_WIDTH)
    }

    fn raster_width(self) -> f32 {
        get_raster_width(FontWeight::Regular, self.raster()) as f32 / SCALE
    }
}

/// Which part of a text stands at its place.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs)]
pub enum Anchor {
    Start,
    Middle,
    End,
}

/// A part of a picture. `y` grows downwards; the `y` of a text is its middle.
#[derive(Clone, PartialEq, Debug)]
#[allow(missing_docs)]
pub enum Shape {
    Line { points: Vec<(f32, f32)>, color: Color, width: f32, style: usize },
    Text { x: f32, y: f32, text: String, letters: Letters, color: Color, anchor: Anchor },
}

/// A picture on white.
#[derive(Clone, PartialEq, Debug)]
pub struct Picture {
    /// In units.
    pub width: f32,
    /// In units.
    pub height: f32,
    /// Later ones lie on earlier ones.
    pub shapes: Vec<Shape>,
}

impl Picture {
    /// The picture as an SVG document.
    #[must_use]
    pub fn to_svg(&self) -> String {
        let (width, height) = (self.width, self.height);
        let mut svg = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" viewBox=\"0 0 {width} {height}\" font-family=\"Noto Sans Mono, DejaVu Sans Mono, monospace\">\n<rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n"
        );
        for shape in &self.shapes {
            match shape {
                // A line of a single point is not drawn.
                Shape::Line { points, color, width, .. } if points.len() == 1 => {
                    for (x, y) in points {
                        let fill = color.hex();
                        let _ = writeln!(
                            svg,
                            "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"{width}\" fill=\"{fill}\"/>"
                        );
                    }
                }
                Shape::Line { points, color, width, style } => {
                    let points: Vec<String> = points.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
                    let dashes: Vec<String> = DASHES[style % STYLES].iter().map(f32::to_string).collect();
                    let dash = match dashes.is_empty() {
                        true => String::new(),
                        false => format!(" stroke-dasharray=\"{}\"", dashes.join(",")),
                    };
                    let _ = writeln!(
                        svg,
                        "<polyline points=\"{}\" fill=\"none\" stroke=\"{}\" stroke-width=\"{width}\" stroke-linejoin=\"round\"{dash}/>",
                        points.join(" "),
                        color.hex()
                    );
                }
                Shape::Text { x, y, text, letters, color, anchor } => {
                    let anchor = match anchor {
                        Anchor::Start => "start",
                        Anchor::Middle => "middle",
                        Anchor::End => "end",
                    };
                    let size = letters.height();
                    let _ = writeln!(
                        svg,
                        "<text x=\"{x:.1}\" y=\"{:.1}\" font-size=\"{size}\" text-anchor=\"{anchor}\" fill=\"{}\">{}</text>",
                        y + size * 0.35,
                        color.hex(),
                        escape(text)
                    );
                }
            }
        }
        svg.push_str("</svg>\n");
        svg
    }

    /// The picture as a PNG file, two pixels for each unit.
    pub fn to_png(&self) -> Result<Vec<u8>, String> {
        let fits = |side: f32| (1.0..=SIDE_MAX).contains(&side);
        let pixels = |side: f32| (side * SCALE).round() as u32;
        let pixmap = (fits(self.width) && fits(self.height))
            .then(|| Pixmap::new(pixels(self.width), pixels(self.height)))
            .flatten();
        let mut pixmap = pixmap
            .ok_or_else(|| format!("a picture of {} × {} is out of bounds", self.width, self.height))?;
        pixmap.fill(Ink::WHITE);
        for shape in &self.shapes {
            match shape {
                Shape::Line { points, color, width, style } => {
                    draw_line(&mut pixmap, points, *color, *width, *style)
                }
                Shape::Text { x, y, text, letters, color, anchor } => {
                    draw_text(&mut pixmap, (*x, *y), text, *letters, *color, *anchor);
                }
            }
        }
        pixmap.encode_png().map_err(|error| error.to_string())
    }
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

fn draw_line(pixmap: &mut Pixmap, points: &[(f32, f32)], color: Color, width: f32, style: usize) {
    let mut path = PathBuilder::new();
    for (index, (x, y)) in points.iter().enumerate() {
        if index == 0 { path.move_to(*x, *y) } else { path.line_to(*x, *y) }
    }
    let stroke = Stroke {
        width,
        line_join: LineJoin::Round,
        line_cap: LineCap::Butt,
        // None of no lengths.
        dash: StrokeDash::new(DASHES[style % STYLES].to_vec(), 0.0),
        ..Stroke::default()
    };
    match path.finish() {
        Some(path) => {
            pixmap.stroke_path(&path, &color.paint(), &stroke, Transform::from_scale(SCALE, SCALE), None);
        }
        // A single point has no path: a dot.
        None => {
            let dot = points
                .first()
                .and_then(|(x, y)| Rect::from_xywh(x - width, y - width, width * 2.0, width * 2.0));
            if let Some(dot) = dot {
                let path = PathBuilder::from_rect(dot);
                let scale = Transform::from_scale(SCALE, SCALE);
                pixmap.fill_path(&path, &color.paint(), FillRule::Winding, scale, None);
            }
        }
    }
}

/// Letters outside of what the font has become `?`.
fn draw_text(
    pixmap: &mut Pixmap,
    (x, y): (f32, f32),
    text: &str,
    letters: Letters,
    color: Color,
    anchor: Anchor,
) {
    let width = text.chars().count() as f32 * letters.raster_width();
    let left = match anchor {
        Anchor::Start => x,
        Anchor::Middle => x - width / 2.0,
        Anchor::End => x - width,
    };
    let mut at = (left * SCALE).round() as i64;
    let top = ((y - letters.height() / 2.0) * SCALE).round() as i64;
    for letter in text.chars() {
        let raster = get_raster(letter, FontWeight::Regular, letters.raster())
            .or_else(|| get_raster('?', FontWeight::Regular, letters.raster()));
        let Some(raster) = raster else { continue };
        for (row, line) in raster.rows().enumerate() {
            for (column, shade) in line.iter().enumerate() {
                blend(pixmap, at + column as i64, top + row as i64, color, *shade);
            }
        }
        at += raster.width() as i64;
    }
}

fn blend(pixmap: &mut Pixmap, x: i64, y: i64, color: Color, shade: u8) {
    let inside = (0..i64::from(pixmap.width())).contains(&x) && (0..i64::from(pixmap.height())).contains(&y);
    if shade == 0 || !inside {
        return;
    }
    let at = (y * i64::from(pixmap.width()) + x) as usize;
    let under = pixmap.pixels()[at];
    let mix = |over: u8, under: u8| {
        let shade = u32::from(shade);
        ((u32::from(over) * shade + u32::from(under) * (255 - shade)) / 255) as u8
    };
    let mixed = PremultipliedColorU8::from_rgba(
        mix(color.0, under.red()),
        mix(color.1, under.green()),
        mix(color.2, under.blue()),
        255,
    );
    if let Some(mixed) = mixed {
        pixmap.pixels_mut()[at] = mixed;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn picture() -> Picture {
        let color = Color(0, 0x72, 0xb2);
        let line = |style| Shape::Line { points: vec![(5.0, 10.0), (95.0, 10.0)], color, width: 2.0, style };
        let text = Shape::Text {
            x: 50.0,
            y: 30.0,
            text: "p99 < 1 & ü".into(),
            letters: Letters::Normal,
            color: Color(0, 0, 0),
            anchor: Anchor::Middle,
        };
        Picture { width: 100.0, height: 50.0, shapes: vec![line(0), line(1), text] }
    }

    #[test]
    fn an_svg_has_all_shapes_and_escapes_texts() {
        let svg = picture().to_svg();
        assert_eq!(svg.matches("<polyline").count(), 2);
        assert_eq!(svg.matches("stroke-dasharray").count(), 1);
        assert!(svg.contains("p99 &lt; 1 &amp; ü</text>") && svg.contains("#0072b2"), "{svg}");
    }

    #[test]
    fn a_png_has_ink_where_the_shapes_are() {
        let png = picture().to_png().unwrap();
        let pixmap = Pixmap::decode_png(&png).unwrap();
        assert_eq!((pixmap.width(), pixmap.height()), (200, 100));
        let at = |x: u32, y: u32| pixmap.pixel(x, y).map(|p| (p.red(), p.green(), p.blue())).unwrap();
        assert_eq!(at(100, 20), (0, 0x72, 0xb2));
        assert_eq!(at(100, 95), (255, 255, 255));
        let dark =
            (0..200).flat_map(|x| (48..72).map(move |y| (x, y))).filter(|(x, y)| at(*x, *y).0 < 100).count();
        assert!(dark > 100, "letters are drawn: {dark}");
        assert!(Picture { width: 1e9, ..picture() }.to_png().is_err());
    }
}
