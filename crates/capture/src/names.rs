//! What names of tensors tell: the number in them, the layer, the place in the
//! model's files.

use std::collections::HashMap;

use trace::template::FilePlace;

/// Where the model's tensors lie in its files, by name.
pub type Places = HashMap<Vec<u8>, FilePlace>;

/// Splits a name at its last decimal number: `ffn_norm-12` is `ffn_norm-`, 12 and
/// nothing. Numbers that would not print back the same (leading zeros, too
/// large) stay in the text.
pub fn split_number(name: &[u8]) -> (Vec<u8>, Option<u32>) {
    let Some(last) = name.iter().rposition(u8::is_ascii_digit) else {
        return (name.to_vec(), None);
    };
    let first = name[..last]
        .iter()
        .rposition(|b| !b.is_ascii_digit())
        .map_or(0, |i| i + 1);
    let digits = &name[first..=last];
    let number = std::str::from_utf8(digits)
        .ok()
        .and_then(|d| d.parse::<u32>().ok());
    match number {
        Some(number) if digits.len() == 1 || digits[0] != b'0' => {
            let mut pattern = name[..first].to_vec();
            pattern.push(0);
            pattern.extend_from_slice(&name[last + 1..]);
            (pattern, Some(number))
        }
        _ => (name.to_vec(), None),
    }
}

/// What the name of a node or tensor says about its layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LayerHint {
    Layer(u32),
    /// The name belongs to no layer (`result_norm`, `inp_embd`).
    Outside,
    /// The name says nothing (`node_17`).
    Unnamed,
}

/// Understands `blk.N.…`, `cache_k_lN`, `name-N`, each also with the remarks in
/// parentheses that ggml appends to views.
pub fn layer_hint(name: &[u8]) -> LayerHint {
    let end = name
        .windows(2)
        .position(|w| w == b" (")
        .unwrap_or(name.len());
    let name = &name[..end];
    let number = |digits: &[u8]| {
        std::str::from_utf8(digits)
            .ok()
            .and_then(|d| d.parse::<u32>().ok())
    };
    if let Some(rest) = name.strip_prefix(b"blk.") {
        let digits = rest.split(|&b| b == b'.').next().unwrap_or(&[]);
        return number(digits).map_or(LayerHint::Outside, LayerHint::Layer);
    }
    if name.starts_with(b"cache_") {
        let digits = name
            .iter()
            .rposition(|&b| b == b'l')
            .map_or(&[][..], |i| &name[i + 1..]);
        return number(digits).map_or(LayerHint::Outside, LayerHint::Layer);
    }
    if let Some(dash) = name.iter().rposition(|&b| b == b'-')
        && let Some(layer) = number(&name[dash + 1..])
    {
        return LayerHint::Layer(layer);
    }
    if name.is_empty() || name.starts_with(b"node_") || name.starts_with(b"leaf_") {
        return LayerHint::Unnamed;
    }
    LayerHint::Outside
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_number_is_taken_out_if_it_prints_back() {
        let check = |name: &str, pattern: &str, number: Option<u32>| {
            assert_eq!(
                split_number(name.as_bytes()),
                (pattern.as_bytes().to_vec(), number),
                "{name}"
            );
        };
        check("ffn_norm-12", "ffn_norm-\0", Some(12));
        check("blk.3.attn_q.weight", "blk.\0.attn_q.weight", Some(3));
        check("cache_k_l0 (view)", "cache_k_l\0 (view)", Some(0));
        check("node_007", "node_007", None);
        check("x99999999999", "x99999999999", None);
        check("result_norm", "result_norm", None);
        check("7", "\0", Some(7));
        check("", "", None);
    }

    #[test]
    fn layers_are_read_from_every_kind_of_name() {
        let check = |name: &str, hint| assert_eq!(layer_hint(name.as_bytes()), hint, "{name}");
        check("blk.11.ffn_up.weight", LayerHint::Layer(11));
        check("cache_v_l7", LayerHint::Layer(7));
        check("cache_k_l31 (view) (permuted)", LayerHint::Layer(31));
        check("ffn_moe_topk-5 (view)", LayerHint::Layer(5));
        check("Qcur-0 (reshaped)", LayerHint::Layer(0));
        check("node_12", LayerHint::Unnamed);
        check("result_output", LayerHint::Outside);
        check("token_embd.weight", LayerHint::Outside);
        check("blk.x", LayerHint::Outside);
    }
}
