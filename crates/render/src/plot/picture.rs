//! SVG to PNG.
//!
//! Text is set in Noto Sans, which comes with the program: a picture does not
//! depend on the fonts of the machine. What that font lacks (Chinese, emoji)
//! shows as the font's empty box; the SVG and the HTML report have it.

use std::{
    cmp::Ordering,
    sync::{Arc, LazyLock},
};

use resvg::{
    tiny_skia,
    usvg::{self, fontdb},
};

/// Why there is no PNG.
#[derive(Debug, thiserror::Error)]
pub enum PictureError {
    #[error("the picture is not an SVG: {0}")]
    Svg(#[from] usvg::Error),
    #[error("a picture of {width_px} × {height_px} pixels is too large; ask for a smaller scale")]
    TooLarge { width_px: f32, height_px: f32 },
    #[error("the PNG cannot be written: {0}")]
    Png(String),
}

/// Larger pictures are mistakes, and their memory would be gone.
const MAX_PIXELS: f32 = 100e6;

static FONTS: LazyLock<Arc<fontdb::Database>> = LazyLock::new(|| {
    let mut fonts = fontdb::Database::new();
    fonts.load_font_data(ttf_noto_sans::REGULAR.to_vec());
    fonts.load_font_data(ttf_noto_sans::BOLD.to_vec());
    fonts.set_sans_serif_family("Noto Sans");
    fonts.set_serif_family("Noto Sans");
    fonts.set_monospace_family("Noto Sans");
    Arc::new(fonts)
});

/// How SVG is read: with our fonts and nothing from outside.
pub(crate) fn options() -> usvg::Options<'static> {
    usvg::Options {
        font_family: "Noto Sans".to_owned(),
        fontdb: FONTS.clone(),
        resources_dir: None,
        ..usvg::Options::default()
    }
}

/// Draws an SVG with `scale` pixels for each of its own.
pub fn png(svg: &str, scale: f32) -> Result<Vec<u8>, PictureError> {
    let pixels = draw(svg, scale)?;
    pixels
        .encode_png()
        .map_err(|error| PictureError::Png(error.to_string()))
}

pub(crate) fn draw(svg: &str, scale: f32) -> Result<tiny_skia::Pixmap, PictureError> {
    let tree = usvg::Tree::from_str(svg, &options())?;
    let size = tree.size();
    let (width_px, height_px) = (size.width() * scale, size.height() * scale);
    let too_large = || PictureError::TooLarge {
        width_px,
        height_px,
    };
    // Not a number is too large as well.
    if (width_px * height_px).partial_cmp(&MAX_PIXELS) != Some(Ordering::Less) {
        return Err(too_large());
    }
    let mut pixels = tiny_skia::Pixmap::new(width_px.ceil() as u32, height_px.ceil() as u32)
        .ok_or_else(too_large)?;
    let transform = tiny_skia::Transform::from_scale(scale, scale);
    resvg::render(&tree, transform, &mut pixels.as_mut());
    Ok(pixels)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_drawn_without_installed_fonts() {
        let svg = |text: &str| {
            format!(
                "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"60\" height=\"20\"><text x=\"2\" y=\"15\">{text}</text></svg>"
            )
        };
        let ink = |text: &str| {
            let pixels = draw(&svg(text), 1.0).unwrap();
            pixels.pixels().iter().filter(|p| p.alpha() > 0).count()
        };
        assert_eq!(ink(""), 0);
        assert!(ink("MiB µs") > 60);
    }

    #[test]
    fn scale_is_pixels_per_pixel_and_has_a_limit() {
        let svg = "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"30\" height=\"20\"/>";
        let size = |scale| draw(svg, scale).map(|p| (p.width(), p.height()));
        assert_eq!(size(2.0).unwrap(), (60, 40));
        assert!(matches!(size(1e6), Err(PictureError::TooLarge { .. })));
        assert!(matches!(size(f32::NAN), Err(PictureError::TooLarge { .. })));
    }
}
