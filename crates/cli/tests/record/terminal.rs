//! Pipes and terminals: stdout is data, stderr is talk, bars only on a terminal.

use std::{
    fs::File,
    io::Read,
    os::fd::{FromRawFd, OwnedFd},
    process::Stdio,
};

use crate::fixture::*;

#[test]
fn a_reader_that_goes_away_does_not_end_the_recording() {
    let folder = tempfile::tempdir().unwrap();
    let args = ["-p", "To be", "-n", "60", "--ignore-eos", "-o", "RUN"];
    let mut child = start(&mut record_command(folder.path(), &dense(), &args));
    read_text(&mut child, 10);
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert_eq!(stderr(&output).lines().count(), 1, "{}", stderr(&output));
    let trace = Trace::open(&folder.path().join("RUN"));
    assert!(trace.is_closed());
    assert_eq!(trace.evaluations.len(), 60);
}

#[test]
fn quiet_prints_the_text_and_nothing_else() {
    let folder = tempfile::tempdir().unwrap();
    let (loud, _) = recorded(folder.path(), &dense(), &["-p", "To be", "-n", "5"]);
    let (quiet, _) = recorded(
        folder.path(),
        &dense(),
        &["-p", "To be", "-n", "5", "--quiet"],
    );
    assert_eq!(
        (stdout(&quiet), stderr(&quiet)),
        (stdout(&loud), String::new())
    );
}

#[test]
fn a_terminal_shows_a_bar_and_keeps_the_text() {
    let folder = tempfile::tempdir().unwrap();
    let args = ["-p", "To be", "-n", "40", "--ignore-eos"];
    let (plain, _) = recorded(folder.path(), &dense(), &args);
    // Text and bar on one terminal.
    let bytes = on_terminal(
        folder.path(),
        &[&args[..], &["-o", "both"]].concat(),
        Screen::Both,
    );
    let shown = visible(&bytes);
    assert!(shown.contains("recording ["), "{shown}");
    for word in ["/40 tokens", " tokens/s", " accesses, ", " KiB log"] {
        assert!(shown.contains(word), "{word:?} is not in {shown:?}");
    }
    // What stands on the screen in the end: the text, then the closing line.
    let screen = final_screen(&bytes);
    let lines: Vec<&str> = screen.lines().collect();
    let (closing, text) = lines.split_last().unwrap();
    assert_eq!(
        text.join("\n"),
        stdout(&plain)
            .lines()
            .map(str::trim_end)
            .collect::<Vec<_>>()
            .join("\n")
    );
    assert!(
        closing.starts_with("tensorscope: ") && closing.ends_with("in both"),
        "{closing}"
    );
    // The bar alone; the text goes elsewhere.
    let shown = visible(&on_terminal(
        folder.path(),
        &[&args[..], &["-o", "bar"]].concat(),
        Screen::BarOnly,
    ));
    assert!(
        shown.contains("recording [") && !shown.contains(stdout(&plain).lines().next().unwrap()),
        "{shown}"
    );
    // And none when it is not wanted.
    let bytes = on_terminal(
        folder.path(),
        &[&args[..], &["-q", "-o", "none"]].concat(),
        Screen::Both,
    );
    assert_eq!(
        String::from_utf8(bytes).unwrap().replace("\r\n", "\n"),
        stdout(&plain)
    );
}

enum Screen {
    Both,
    BarOnly,
}

/// What the program sends to a terminal of 80 columns.
fn on_terminal(folder: &std::path::Path, args: &[&str], screen: Screen) -> Vec<u8> {
    let (mut controller, mut terminal) = (0, 0);
    let size = libc::winsize {
        ws_row: 24,
        ws_col: 80,
        ws_xpixel: 0,
        ws_ypixel: 0,
    };
    // SAFETY: two places for descriptors, no name, no settings, a size.
    let opened = unsafe {
        libc::openpty(
            &mut controller,
            &mut terminal,
            std::ptr::null_mut(),
            std::ptr::null_mut(),
            &size,
        )
    };
    assert_eq!(opened, 0);
    for descriptor in [controller, terminal] {
        // SAFETY: a descriptor of ours; programs that other tests start must not hold it.
        unsafe { libc::fcntl(descriptor, libc::F_SETFD, libc::FD_CLOEXEC) };
    }
    // SAFETY: fresh descriptors that nobody else owns.
    let (mut controller, terminal) = unsafe {
        (
            File::from_raw_fd(controller),
            OwnedFd::from_raw_fd(terminal),
        )
    };
    let mut command = record_command(folder, &dense(), args);
    command
        .env("TERM", "xterm")
        .env_remove("NO_COLOR")
        .stderr(terminal.try_clone().unwrap());
    match screen {
        Screen::Both => command.stdout(terminal.try_clone().unwrap()),
        Screen::BarOnly => command.stdout(Stdio::null()),
    };
    let mut child = command.spawn().unwrap();
    // Our copies of the terminal must go, or its end is never seen.
    drop((command, terminal));
    let mut bytes = Vec::new();
    let mut buffer = [0; 4096];
    // EIO: the last one to hold the terminal is gone.
    while let Ok(count @ 1..) = controller.read(&mut buffer) {
        bytes.extend_from_slice(&buffer[..count]);
    }
    assert!(child.wait().unwrap().success(), "{}", visible(&bytes));
    bytes
}

fn visible(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// A terminal that knows what indicatif uses: text that wraps at 80 columns, CR, LF,
/// cursor up and down, and erasing a line.
fn final_screen(bytes: &[u8]) -> String {
    const COLUMNS: usize = 80;
    let mut rows: Vec<Vec<char>> = vec![Vec::new()];
    let (mut row, mut column) = (0usize, 0usize);
    let text = String::from_utf8_lossy(bytes);
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        match c {
            '\r' => column = 0,
            '\n' => row += 1,
            '\x1b' => {
                assert_eq!(chars.next(), Some('['));
                let mut number = String::new();
                let command = loop {
                    match chars.next().unwrap() {
                        digit @ ('0'..='9' | ';' | '?') => number.push(digit),
                        command => break command,
                    }
                };
                let count = number.parse().unwrap_or(1);
                match command {
                    'A' => row = row.saturating_sub(count),
                    'B' => row += count,
                    'K' => rows[row].clear(),
                    'm' | 'h' | 'l' => {}
                    other => panic!("a terminal that does not know {other:?}"),
                }
            }
            c => {
                // As terminals do: the line wraps when the next character comes.
                if column == COLUMNS {
                    (row, column) = (row + 1, 0);
                }
                while rows.len() <= row {
                    rows.push(Vec::new());
                }
                let line = &mut rows[row];
                line.resize(line.len().max(column + 1), ' ');
                line[column] = c;
                column += 1;
            }
        }
        while rows.len() <= row {
            rows.push(Vec::new());
        }
    }
    let lines: Vec<String> = rows
        .iter()
        .map(|row| row.iter().collect::<String>().trim_end().to_owned())
        .collect();
    // The closing line may be longer than the screen is wide.
    let text = lines.join("\n");
    let closing = text.rfind("tensorscope: ").unwrap();
    text[..closing].to_owned() + text[closing..].replace('\n', "").as_str()
}
