//! `tensor_names.txt`: one line for each tensor, `index,name`, in file order.
//!
//! A name may hold anything, a line may not: a backslash is written `\\`, a line
//! feed `\n`, a carriage return `\r`, a tab `\t`, any other control character or
//! line separator `\u{hex}`. Everything after the first comma is the name.

use std::io::{self, Write};

/// Writes the table.
pub fn write<'a>(names: impl Iterator<Item = &'a str>, mut out: impl Write) -> io::Result<()> {
    for (index, name) in names.enumerate() {
        writeln!(out, "{index},{}", escape(name))?;
    }
    out.flush()
}

/// Reads the table back; the number of the line that is no entry of it otherwise.
pub fn parse(text: &str) -> Result<Vec<String>, usize> {
    text.lines()
        .enumerate()
        .map(|(index, line)| {
            let (number, name) = line.split_once(',').ok_or(index + 1)?;
            if number.parse() != Ok(index) {
                return Err(index + 1);
            }
            unescape(name).ok_or(index + 1)
        })
        .collect()
}

/// `name` on one line.
pub fn escape(name: &str) -> String {
    let mut line = String::with_capacity(name.len());
    for c in name.chars() {
        match c {
            '\\' => line.push_str("\\\\"),
            '\n' => line.push_str("\\n"),
            '\r' => line.push_str("\\r"),
            '\t' => line.push_str("\\t"),
            // Many readers end a line at these two as well.
            '\u{2028}' | '\u{2029}' => line.extend(c.escape_unicode()),
            c if c.is_control() => line.extend(c.escape_unicode()),
            c => line.push(c),
        }
    }
    line
}

/// Undoes [`escape`]; `None` for what it never writes.
pub fn unescape(line: &str) -> Option<String> {
    let mut name = String::with_capacity(line.len());
    let mut rest = line.chars();
    while let Some(c) = rest.next() {
        name.push(match c {
            '\\' => match rest.next()? {
                '\\' => '\\',
                'n' => '\n',
                'r' => '\r',
                't' => '\t',
                'u' => {
                    let (hex, after) = rest.as_str().strip_prefix('{')?.split_once('}')?;
                    rest = after.chars();
                    char::from_u32(u32::from_str_radix(hex, 16).ok()?)?
                }
                _ => return None,
            },
            c => c,
        });
    }
    Some(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_stay_on_their_line() {
        let check = |name: &str, expect: &str| {
            assert_eq!(escape(name), expect);
            assert_eq!(unescape(expect).as_deref(), Some(name));
        };
        check("blk.0.attn_q.weight", "blk.0.attn_q.weight");
        check("", "");
        check("a,b", "a,b");
        check("a\nb\r\tc", "a\\nb\\r\\tc");
        check("a\\nb", "a\\\\nb");
        check(
            "\u{0}\u{1b}[31m\u{85}\u{2028}",
            "\\u{0}\\u{1b}[31m\\u{85}\\u{2028}",
        );
        check("größe.🦙", "größe.🦙");
    }

    #[test]
    fn table_reads_back_as_written() {
        let names = ["token_embd.weight", "a,b", "x\ny", "\\", " "];
        let mut bytes = Vec::new();
        write(names.into_iter(), &mut bytes).unwrap();
        let text = String::from_utf8(bytes).unwrap();
        assert_eq!(text, "0,token_embd.weight\n1,a,b\n2,x\\ny\n3,\\\\\n4, \n");
        assert_eq!(parse(&text).unwrap(), names);
    }

    #[test]
    fn a_damaged_table_says_which_line() {
        let check = |text: &str, line| assert_eq!(parse(text), Err(line), "{text:?}");
        check("0,a\n2,b\n", 2);
        check("a\n", 1);
        check("0,a\\q\n", 1);
        check("0,a\\u{110000}\n", 1);
        check("0,a\\", 1);
    }
}
