//! What to do, as HTML and as Markdown: a sentence each, and what to type.

use std::fmt::Write as _;

use analysis::actions::Action;

use super::findings::{capitalised, emphasised};
use crate::plot::text::escape;

pub(super) fn html(actions: &[Action]) -> String {
    if actions.is_empty() {
        return String::new();
    }
    let mut out =
        String::from("<section id=\"actions\">\n<h2>What to do</h2>\n<ul class=\"actions\">\n");
    for action in actions {
        let text = emphasised(&capitalised(&action.text));
        let _ = write!(out, "<li>\n<p>{text}.</p>\n");
        for (whose, command) in commands(action) {
            let command = escape(command);
            let _ = writeln!(out, "<p class=\"note\">{whose}: <code>{command}</code></p>");
        }
        out.push_str("</li>\n");
    }
    out.push_str("</ul>\n</section>\n");
    out
}

/// What to type, and for whom.
pub(super) fn commands(action: &Action) -> impl Iterator<Item = (&'static str, &str)> {
    let llama_cpp = action.llama_cpp.as_deref().map(|text| ("llama.cpp", text));
    let ours = action.tensorscope.as_deref();
    llama_cpp
        .into_iter()
        .chain(ours.map(|text| ("tensorscope", text)))
}
