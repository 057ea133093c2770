//! Playback: every frame is there, and shows what was read.

mod run;

use render::animation::{self, AnimationError, Frame, Options};
use run::{Model, PROMPT, Report};

const TOKENS: u64 = 20;

fn options() -> Options {
    Options {
        width_px: 400,
        most_frames: 100,
        ..Options::default()
    }
}

fn frames_of(report: &Report, options: &Options) -> Vec<Frame> {
    animation::frames(&report.index, options).unwrap().collect()
}

#[test]
fn a_gif_shows_the_frames_pixel_for_pixel() {
    let report = Report::new(Model::Experts, TOKENS);
    let options = options();
    let frames = frames_of(&report, &options);
    let mut bytes = Vec::new();
    let written = animation::write(&report.index, &options, &mut bytes).unwrap();
    assert_eq!(written as usize, frames.len());
    let mut decoder = gif::DecodeOptions::new();
    decoder.set_color_output(gif::ColorOutput::RGBA);
    let mut decoder = decoder.read_info(bytes.as_slice()).unwrap();
    let width = usize::from(decoder.width());
    let mut screen = vec![0; width * usize::from(decoder.height()) * 4];
    let mut count = 0;
    while let Some(patch) = decoder.read_next_frame().unwrap() {
        for (at, pixel) in patch.buffer.chunks(4).enumerate() {
            let (x, y) = (at % usize::from(patch.width), at / usize::from(patch.width));
            let place = (y + usize::from(patch.top)) * width + x + usize::from(patch.left);
            if pixel[3] == 255 {
                screen[place * 4..place * 4 + 4].copy_from_slice(pixel);
            }
        }
        assert!(screen == frames[count].rgba(), "frame {count}");
        count += 1;
    }
    assert_eq!(count, frames.len());
}

#[test]
fn frames_are_counted_before_they_are_drawn_and_bounded() {
    let report = Report::new(Model::Experts, 500);
    for most_frames in [1, 10, 100, 1000] {
        let options = Options {
            most_frames,
            ..options()
        };
        let frames = animation::frames(&report.index, &options).unwrap();
        let (announced, height_px) = (frames.len(), frames.height_px());
        assert!(
            announced <= most_frames as usize,
            "{announced} of {most_frames}"
        );
        assert_eq!(height_px % 2, 0, "video codecs want even sizes");
        if most_frames <= 10 {
            let drawn: Vec<Frame> = frames.collect();
            assert_eq!(drawn.len(), announced);
            let pixels = 400 * height_px as usize;
            assert!(drawn.iter().all(|frame| frame.rgba().len() == pixels * 4));
        }
    }
}

#[test]
fn the_wave_moves() {
    let report = Report::new(Model::Dense, TOKENS);
    let frames = frames_of(&report, &options());
    let moving = frames.len() - 12;
    for pair in frames[..moving].windows(2) {
        assert_ne!(pair[0], pair[1]);
    }
    assert_eq!(
        frames[moving - 1],
        frames[frames.len() - 1],
        "then it stands still"
    );
}

#[test]
fn a_range_of_tokens_shows_only_their_evaluations() {
    let report = Report::new(Model::Experts, TOKENS);
    let of = |tokens| {
        let options = Options {
            tokens: Some(tokens),
            ..options()
        };
        animation::frames(&report.index, &options).map(|frames| frames.len())
    };
    // The prompt is one evaluation, whichever of its tokens is asked for.
    assert_eq!(of((0, 0)).unwrap(), of((0, PROMPT - 1)).unwrap());
    assert!(of((0, PROMPT)).unwrap() > of((0, 0)).unwrap());
    let nothing = of((1000, 2000));
    assert!(matches!(
        nothing,
        Err(AnimationError::NothingToShow { tokens: TOKENS })
    ));
}

#[test]
fn sizes_out_of_range_are_refused_with_the_range() {
    let report = Report::new(Model::Dense, TOKENS);
    let check = |options: Options, expect: &str| {
        let error = animation::frames(&report.index, &options)
            .map(|_| ())
            .unwrap_err();
        assert_eq!(error.to_string(), expect);
    };
    let with_width = |width_px| Options {
        width_px,
        ..Options::default()
    };
    check(with_width(10), "width 10 is not in 320 to 1920");
    check(with_width(5000), "width 5000 is not in 320 to 1920");
    let still = Options {
        frames_per_second: 0,
        ..Options::default()
    };
    check(still, "frames per second 0 is not in 1 to 50");
}
