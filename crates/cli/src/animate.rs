//! `tensorscope export --to animation`: playback as a moving picture.

use std::{
    fs,
    io::{BufWriter, Write as _},
    path::Path,
    process::{Command, Stdio},
};

use anyhow::{Context as _, bail};
use index::RunIndex;
use render::animation::{self, Options, frames};
use rundir::Run;
use terminal::{create_new, progress};

/// What a user may set.
pub struct AnimateProps {
    pub frames_per_second: u32,
    pub width_px: u32,
    /// Both included; the whole run where absent.
    pub tokens: Option<(u64, u64)>,
}

/// Writes the playback in the format that the file's name asks for.
/// Says on stderr what the run lacks, and answers whether it lacks anything.
pub fn write(run: &Run, path: &Path, props: &AnimateProps) -> anyhow::Result<bool> {
    let extension = path.extension().unwrap_or_default().to_ascii_lowercase();
    let is_video = match extension.to_str().unwrap_or_default() {
        "gif" => false,
        "mp4" => true,
        _ => bail!("{}: name the file .gif or .mp4", path.display()),
    };
    // Made now: a bad path must not wait for a log to be read.
    let file = create_new(path)?;
    let written = write_into(run, path, file, is_video, props);
    if written.is_err() {
        let _ = fs::remove_file(path);
    }
    written
}

fn write_into(
    run: &Run,
    path: &Path,
    file: fs::File,
    is_video: bool,
    props: &AnimateProps,
) -> anyhow::Result<bool> {
    let bar = progress::bar(run.log_bytes(), "reading", "bytes");
    let index = RunIndex::open(run, &mut |bytes| bar.set_position(bytes));
    bar.finish_and_clear();
    let index = index?;
    let missing = index.info().missing;
    for sentence in &missing {
        eprintln!("tensorscope: {}: {sentence}", run.path().display());
    }
    let options = Options {
        frames_per_second: props.frames_per_second,
        width_px: props.width_px,
        tokens: props.tokens,
        ..Options::default()
    };
    if is_video {
        mp4(&index, path, &options)?;
        return Ok(!missing.is_empty());
    }
    let mut out = BufWriter::new(file);
    animation::write(&index, &options, &mut out)
        .map_err(|error| anyhow::anyhow!("{}: {error}", path.display()))?;
    out.flush()
        .with_context(|| format!("{}: cannot write", path.display()))?;
    Ok(!missing.is_empty())
}

/// Pixels through ffmpeg, which knows more codecs than anyone should.
fn mp4(index: &RunIndex, path: &Path, options: &Options) -> anyhow::Result<()> {
    let frames = frames(index, options)?;
    let bar = progress::bar(frames.len() as u64, "drawing", "frames");
    let size = format!("{}x{}", frames.width_px(), frames.height_px());
    let rate = options.frames_per_second.to_string();
    let mut ffmpeg = Command::new("ffmpeg");
    ffmpeg
        .args(["-v", "error", "-y", "-f", "rawvideo", "-pix_fmt", "rgba"])
        .args(["-s", &size, "-r", &rate, "-i", "-", "-f", "mp4"])
        // Players want 4:2:0, and that wants even sides.
        .args([
            "-vf",
            "pad=ceil(iw/2)*2:ceil(ih/2)*2",
            "-pix_fmt",
            "yuv420p",
        ])
        .arg(path)
        .stdin(Stdio::piped());
    let mut child = ffmpeg.spawn().context(
        "MP4 needs ffmpeg, which could not be started; install it, or name the file .gif",
    )?;
    let mut pipe = child.stdin.take().expect("a pipe was asked for");
    // ffmpeg says itself what it does not like.
    let mut piped = Ok(());
    for frame in frames {
        piped = pipe.write_all(&frame.rgba());
        if piped.is_err() {
            break;
        }
        bar.inc(1);
    }
    drop(pipe);
    bar.finish_and_clear();
    let status = child.wait().context("ffmpeg")?;
    if !status.success() || piped.is_err() {
        bail!("{}: ffmpeg could not write it ({status})", path.display());
    }
    Ok(())
}
