//! A small plotting kit that writes SVG.
//!
//! - [`svg`]: a picture as it grows, and finished: for a page or as a file;
//! - [`axes`]: frames, scales, ticks, labels with units;
//! - [`marks`]: bars, lines, legends;
//! - [`raster`]: heatmaps and scatter, as a PNG inside the SVG;
//! - [`theme`]: what everything looks like, in the colours of [`crate::palette`];
//! - [`units`] and [`text`]: numbers and words;
//! - [`picture`]: SVG to PNG.
//!
//! Colours are classes, never attributes. Inside a page they follow its light or
//! dark scheme; a file of its own carries a style sheet with the light ones,
//! because it will be printed or pasted onto white. Rasters cannot follow a style
//! sheet, so that a page gets both versions and shows one.
//!
//! Everything is deterministic: the same numbers give the same bytes.

pub mod axes;
pub mod marks;
pub mod picture;
pub mod raster;
pub mod svg;
pub mod text;
pub mod theme;
pub mod units;

pub use axes::{Axis, Frame, Ticks};
pub use picture::png;
pub use svg::{Canvas, Svg};
pub use units::Unit;
