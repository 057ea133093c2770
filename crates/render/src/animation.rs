//! Playback of a run as a moving picture.
//!
//! Each evaluation is a few frames of equal time, in which the wave of reads moves
//! over the file map, the layers and the experts; what was read glows and fades.
//! Above it runs the text. Long runs skip evaluations, evenly, so that the number
//! of frames and with it the size of the file is bounded.
//!
//! Frames are drawn in 256 fixed colours. A GIF therefore holds them exactly,
//! without dithering, and stores only what changed; [`Frame::rgba`] is for
//! programs that want pixels, such as ffmpeg.

mod encode;
mod ink;
mod pixels;
mod scene;

use index::{EvalBrief, EvalsQuery, RunIndex};

pub use encode::write;
use ink::Palette;
use scene::Scene;

/// What a user may set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    pub frames_per_second: u32,
    pub width_px: u32,
    /// Token numbers, both included; the whole run where absent.
    pub tokens: Option<(u64, u64)>,
    /// Longer playbacks skip evaluations.
    pub most_frames: u32,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            frames_per_second: 20,
            width_px: 800,
            tokens: None,
            most_frames: 600,
        }
    }
}

/// Why there is no playback.
#[derive(Debug, thiserror::Error)]
pub enum AnimationError {
    #[error("{what} {value} is not in {least} to {most}")]
    OutOfRange {
        what: &'static str,
        value: u64,
        least: u64,
        most: u64,
    },
    #[error("the run has no evaluation in the tokens asked for; it has {tokens} tokens")]
    NothingToShow { tokens: u64 },
    #[error(transparent)]
    Write(#[from] std::io::Error),
    #[error("the GIF cannot be written: {0}")]
    Gif(#[from] gif::EncodingError),
}

/// One picture, as numbers of colours.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    pub width_px: u32,
    pub height_px: u32,
    /// Row by row from the top.
    pub indices: Vec<u8>,
}

impl Frame {
    /// Four bytes a pixel.
    pub fn rgba(&self) -> Vec<u8> {
        let palette = Palette::new();
        let pixel = |index: &u8| {
            let [red, green, blue] = palette.colour(*index);
            [red, green, blue, 255]
        };
        self.indices.iter().flat_map(pixel).collect()
    }
}

/// Most frames that an evaluation is divided into.
const MAX_OF_EVAL: u32 = 10;
/// The last picture stays for a while before the loop begins again.
const STILL_FRAMES: u32 = 12;

/// The frames of a playback, drawn one by one.
pub struct Frames<'a> {
    index: &'a RunIndex,
    scene: Scene,
    evals: Vec<EvalBrief>,
    of_eval: u32,
    next: u32,
    still: u32,
    last: Option<Frame>,
}

/// Prepares a playback.
pub fn frames<'a>(index: &'a RunIndex, options: &Options) -> Result<Frames<'a>, AnimationError> {
    let check = |what, value: u32, least: u32, most: u32| match (least..=most).contains(&value) {
        true => Ok(()),
        false => Err(AnimationError::OutOfRange {
            what,
            value: value.into(),
            least: least.into(),
            most: most.into(),
        }),
    };
    check("width", options.width_px, 320, 1920)?;
    check("frames per second", options.frames_per_second, 1, 50)?;
    check("number of frames", options.most_frames, 1, 10_000)?;
    let info = index.info();
    let mut evals = index.evals(&EvalsQuery {
        from: None,
        to: None,
        max: 1 << 16,
    });
    if let Some((first, last)) = options.tokens {
        evals.retain(|eval| eval.first_token <= last && eval.first_token + eval.tokens > first);
    }
    if evals.is_empty() {
        return Err(AnimationError::NothingToShow {
            tokens: info.totals.tokens,
        });
    }
    let budget = options.most_frames.saturating_sub(STILL_FRAMES).max(1);
    let every = evals.len().div_ceil(budget as usize);
    let evals: Vec<EvalBrief> = evals.into_iter().step_by(every).collect();
    let of_eval = (budget / evals.len() as u32).clamp(1, MAX_OF_EVAL);
    Ok(Frames {
        index,
        scene: Scene::new(index, &info, options.width_px),
        evals,
        of_eval,
        next: 0,
        still: STILL_FRAMES.min(options.most_frames - 1),
        last: None,
    })
}

impl Frames<'_> {
    pub fn width_px(&self) -> u32 {
        self.scene.width_px()
    }

    pub fn height_px(&self) -> u32 {
        self.scene.height_px()
    }

    fn moving(&self) -> u32 {
        self.evals.len() as u32 * self.of_eval
    }
}

impl Iterator for Frames<'_> {
    type Item = Frame;

    fn next(&mut self) -> Option<Frame> {
        let moving = self.moving();
        let number = self.next;
        if number >= moving + self.still {
            return None;
        }
        self.next += 1;
        if number >= moving {
            return self.last.clone();
        }
        let (at, part) = ((number / self.of_eval) as usize, number % self.of_eval);
        if part == 0 {
            self.scene.begin(self.index, &self.evals[at]);
        }
        let progress = f64::from(number + 1) / f64::from(moving);
        let frame = self.scene.frame(part, self.of_eval, progress);
        self.last = Some(frame.clone());
        Some(frame)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let left = (self.moving() + self.still - self.next) as usize;
        (left, Some(left))
    }
}

impl ExactSizeIterator for Frames<'_> {}
