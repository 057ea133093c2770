//! The generated text and the progress bar, which may share a terminal.
//!
//! A bar clears its own line before it draws, and with it any text that stands
//! there. Where both go to one terminal, text is therefore written in whole lines
//! above the bar; the line that is not finished yet is drawn as a part of the bar.
//! Everywhere else text is written token by token, and flushed: who reads it may
//! rely on every token it sees being in the trace.

use std::io::{IsTerminal, Write};

use indicatif::ProgressBar;
use terminal::progress::{TextLine, counting_bar};

/// Characters of the unfinished line that are shown: of a long one, its end.
const SHOWN_CHARS: usize = 60;

pub struct Screen {
    bar: ProgressBar,
    sharing: Sharing,
    output: Output,
}

enum Sharing {
    /// Text and bar are on one terminal; the unfinished line.
    Shared(Vec<u8>),
    Apart,
}

/// Whether somebody still reads our output.
#[derive(PartialEq)]
enum Output {
    Open,
    Closed,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Bar {
    OnTerminals,
    Never,
}

impl Screen {
    pub fn new(tokens: u64, title: &str, bar: Bar) -> Screen {
        let shared = bar == Bar::OnTerminals
            && std::io::stdout().is_terminal()
            && std::io::stderr().is_terminal();
        let text_line = if shared {
            TextLine::Above
        } else {
            TextLine::None
        };
        Screen {
            bar: match bar {
                Bar::Never => ProgressBar::hidden(),
                Bar::OnTerminals => counting_bar(tokens, title, "tokens", text_line),
            },
            sharing: if shared {
                Sharing::Shared(Vec::new())
            } else {
                Sharing::Apart
            },
            output: Output::Open,
        }
    }

    /// A way to print a line on stderr, from any thread, that spares the bar.
    pub fn line_printer(&self) -> impl Fn(&str) + Send + 'static {
        let bar = self.bar.clone();
        move |line| bar.suspend(|| eprintln!("{line}"))
    }

    /// Shows the bar before there is anything to count.
    pub fn begin(&self) {
        self.bar.tick();
    }

    pub fn count_token(&self, message: String) {
        self.bar.set_message(message);
        self.bar.inc(1);
    }

    pub fn write(&mut self, text: &[u8]) {
        let Sharing::Shared(line) = &mut self.sharing else {
            return self.put(text);
        };
        line.extend_from_slice(text);
        let finished = line
            .iter()
            .rposition(|&b| b == b'\n')
            .map(|at| line.drain(..=at).collect::<Vec<u8>>());
        self.bar.set_prefix(end_of(line));
        if let Some(lines) = finished {
            let bar = self.bar.clone();
            bar.suspend(|| self.put(&lines));
        }
    }

    /// Clears the bar; what was not written yet is.
    pub fn end(&mut self) {
        self.bar.finish_and_clear();
        if let Sharing::Shared(line) = std::mem::replace(&mut self.sharing, Sharing::Apart) {
            self.put(&line);
        }
    }

    fn put(&mut self, text: &[u8]) {
        if self.output == Output::Open {
            let mut out = std::io::stdout().lock();
            if out.write_all(text).and_then(|()| out.flush()).is_err() {
                // `| head` has seen enough; recording goes on.
                self.output = Output::Closed;
            }
        }
    }
}

fn end_of(line: &[u8]) -> String {
    let text = String::from_utf8_lossy(line);
    let from = text
        .char_indices()
        .rev()
        .nth(SHOWN_CHARS - 1)
        .map_or(0, |(at, _)| at);
    text[from..]
        .chars()
        .map(|c| if c.is_control() { ' ' } else { c })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::end_of;

    #[test]
    fn unfinished_line_is_shown_from_its_end_and_on_one_line() {
        assert_eq!(end_of(b""), "");
        assert_eq!(end_of(b"to be\r\x1b[2J"), "to be  [2J");
        let long = "ä".repeat(100) + "z";
        assert_eq!(end_of(long.as_bytes()), "ä".repeat(59) + "z");
        assert_eq!(
            end_of(b"half a character: \xc3"),
            "half a character: \u{fffd}"
        );
    }
}
