//! Frames as a GIF.
//!
//! A frame is stored as the rectangle that changed since the one before, and
//! within it unchanged pixels as transparent: long runs of one colour number,
//! which pack well.

use std::{borrow::Cow, io::Write};

use index::RunIndex;

use super::{
    AnimationError, Frame, Options, frames,
    ink::{Palette, UNCHANGED},
};

/// Writes a playback, and says of how many frames.
pub fn write(
    index: &RunIndex,
    options: &Options,
    out: &mut dyn Write,
) -> Result<u64, AnimationError> {
    let frames = frames(index, options)?;
    let count = frames.len() as u64;
    let size = (frames.width_px(), frames.height_px());
    gif(frames, size, options.frames_per_second, out)?;
    out.flush()?;
    Ok(count)
}

fn gif(
    frames: impl Iterator<Item = Frame>,
    (width, height): (u32, u32),
    frames_per_second: u32,
    out: &mut dyn Write,
) -> Result<(), AnimationError> {
    let palette = Palette::new().bytes();
    let mut encoder = gif::Encoder::new(out, width as u16, height as u16, &palette)?;
    encoder.set_repeat(gif::Repeat::Infinite)?;
    let mut before: Option<Frame> = None;
    // Delays are in hundredths; what rounding leaves over goes to the next frame.
    let (mut shown, mut due) = (0u32, 0u32);
    for frame in frames {
        due += 100;
        let delay = (due / frames_per_second).saturating_sub(shown);
        shown += delay;
        let patch = Patch::of(&frame, before.as_ref());
        encoder.write_frame(&gif::Frame {
            delay: delay as u16,
            dispose: gif::DisposalMethod::Keep,
            transparent: Some(UNCHANGED),
            left: patch.left as u16,
            top: patch.top as u16,
            width: patch.width as u16,
            height: patch.height as u16,
            buffer: Cow::Borrowed(&patch.indices),
            ..gif::Frame::default()
        })?;
        before = Some(frame);
    }
    Ok(())
}

/// What changed.
struct Patch {
    left: usize,
    top: usize,
    width: usize,
    height: usize,
    indices: Vec<u8>,
}

impl Patch {
    fn of(frame: &Frame, before: Option<&Frame>) -> Patch {
        let width = frame.width_px as usize;
        let Some(before) = before else {
            return Patch {
                left: 0,
                top: 0,
                width,
                height: frame.height_px as usize,
                indices: frame.indices.clone(),
            };
        };
        let changed = frame.indices.iter().zip(&before.indices).enumerate();
        let changed = changed
            .filter(|(_, (now, before))| now != before)
            .map(|(at, _)| at);
        let (mut left, mut right, mut top, mut bottom) = (usize::MAX, 0, usize::MAX, 0);
        for at in changed {
            let (x, y) = (at % width, at / width);
            (left, right) = (left.min(x), right.max(x + 1));
            (top, bottom) = (top.min(y), bottom.max(y + 1));
        }
        if left == usize::MAX {
            // A frame has at least one pixel.
            (left, right, top, bottom) = (0, 1, 0, 1);
        }
        let mut indices = Vec::with_capacity((right - left) * (bottom - top));
        for y in top..bottom {
            let row = y * width + left..y * width + right;
            let pairs = frame.indices[row.clone()].iter().zip(&before.indices[row]);
            indices.extend(pairs.map(|(now, before)| if now == before { UNCHANGED } else { *now }));
        }
        Patch {
            left,
            top,
            width: right - left,
            height: bottom - top,
            indices,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(indices: [u8; 12]) -> Frame {
        Frame {
            width_px: 4,
            height_px: 3,
            indices: indices.to_vec(),
        }
    }

    fn some_frames() -> Vec<Frame> {
        let mut indices = [0; 12];
        let mut frames = vec![frame(indices)];
        for (at, colour) in [(5, 3), (6, 9), (0, 1), (0, 1)] {
            indices[at] = colour;
            frames.push(frame(indices));
        }
        frames
    }

    #[test]
    fn a_patch_is_what_changed() {
        let frames = some_frames();
        let patch = Patch::of(&frames[2], Some(&frames[0]));
        assert_eq!(
            (patch.left, patch.top, patch.width, patch.height),
            (1, 1, 2, 1)
        );
        assert_eq!(patch.indices, [3, 9]);
        assert_eq!(Patch::of(&frames[4], Some(&frames[3])).indices, [UNCHANGED]);
    }

    #[test]
    fn a_gif_holds_every_frame_exactly() {
        let frames = some_frames();
        let mut out = Vec::new();
        gif(frames.clone().into_iter(), (4, 3), 30, &mut out).unwrap();
        let mut decoder = gif::DecodeOptions::new();
        decoder.set_color_output(gif::ColorOutput::Indexed);
        let mut decoder = decoder.read_info(out.as_slice()).unwrap();
        let mut screen = vec![0u8; 12];
        let mut seen = Vec::new();
        let mut hundredths = 0;
        while let Some(patch) = decoder.read_next_frame().unwrap() {
            hundredths += u32::from(patch.delay);
            for (at, index) in patch.buffer.iter().enumerate() {
                let (x, y) = (at % patch.width as usize, at / patch.width as usize);
                if *index != UNCHANGED {
                    screen[(y + patch.top as usize) * 4 + x + patch.left as usize] = *index;
                }
            }
            seen.push(screen.clone());
        }
        let expected: Vec<Vec<u8>> = frames.into_iter().map(|frame| frame.indices).collect();
        assert_eq!(seen, expected);
        // Five frames of a thirtieth of a second.
        assert_eq!(hundredths, 16);
    }
}
