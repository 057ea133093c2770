//! What a tensor is, from its name.
//!
//! Names are those of llama.cpp's `llama-arch.cpp`. A name has the form
//! `[STACK.]blk.LAYER.BASE[.EXPERT].KIND`; the base decides component and role
//! through one table. An unknown base is not an error: new architectures appear
//! weekly, so it becomes [`Component::Other`] with the base as its role.

use std::borrow::Cow;

/// The part of a model that a tensor belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Component {
    Embedding,
    Attention,
    Norm,
    Router,
    Expert,
    SharedExpert,
    Ffn,
    Ssm,
    Output,
    Rope,
    /// Layers that predict further tokens; not run by ordinary decoding.
    NextN,
    /// Vision, audio and their projectors.
    Multimodal,
    Other,
}

impl Component {
    pub const ALL: [Component; 13] = [
        Component::Embedding,
        Component::Attention,
        Component::Norm,
        Component::Router,
        Component::Expert,
        Component::SharedExpert,
        Component::Ffn,
        Component::Ssm,
        Component::Output,
        Component::Rope,
        Component::NextN,
        Component::Multimodal,
        Component::Other,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Component::Embedding => "embedding",
            Component::Attention => "attention",
            Component::Norm => "norm",
            Component::Router => "router",
            Component::Expert => "expert",
            Component::SharedExpert => "shared_expert",
            Component::Ffn => "ffn",
            Component::Ssm => "ssm",
            Component::Output => "output",
            Component::Rope => "rope",
            Component::NextN => "nextn",
            Component::Multimodal => "multimodal",
            Component::Other => "other",
        }
    }
}

/// The last part of a tensor's name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Weight,
    Bias,
    /// Scale factors that belong to a quantised weight.
    Scale,
    /// A name without such a part (`ssm_a`, `attn_sinks`).
    Plain,
}

impl Kind {
    pub fn name(self) -> &'static str {
        match self {
            Kind::Weight => "weight",
            Kind::Bias => "bias",
            Kind::Scale => "scale",
            Kind::Plain => "plain",
        }
    }
}

/// Whether one tensor holds all experts of a layer, one, or none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Experts {
    None,
    /// All experts, stacked along the last dimension (`ffn_gate_exps`).
    Merged,
    /// One expert, from before experts were merged (`ffn_gate.3`).
    One(u32),
}

/// What a tensor's name says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Meaning {
    pub layer: Option<u32>,
    pub component: Component,
    /// `q`, `k`, `v`, `o`, `gate`, `up`, `down`, …; for norms, what they
    /// normalise; for unknown tensors their base name.
    pub role: Cow<'static, str>,
    pub kind: Kind,
    pub experts: Experts,
    /// True for an encoder's tensor, which generating a token does not touch.
    pub in_encoder: bool,
}

impl Meaning {
    pub fn of(name: &str) -> Meaning {
        let (stack, layer, rest) = split_layer(name);
        let (base, expert, kind) = split_kind(rest);
        let (component, role, merged) = match stack {
            Stack::Multimodal => (Component::Multimodal, Cow::Owned(base.to_owned()), false),
            Stack::Main | Stack::Encoder => component_of(base),
        };
        let (component, experts) = match (component, expert) {
            (Component::Ffn, Some(expert)) => (Component::Expert, Experts::One(expert)),
            (component, _) if merged => (component, Experts::Merged),
            (component, _) => (component, Experts::None),
        };
        Meaning {
            layer,
            component,
            role,
            kind,
            experts,
            in_encoder: stack == Stack::Encoder,
        }
    }

    /// What the tensor is for in an operation. A token embedding that is multiplied is the
    /// output head: models without an `output.weight` use one tensor as both (tied).
    pub fn component_in(&self, op: &str) -> Component {
        let is_multiplied = op.split('+').any(|op| op == "MUL_MAT");
        match self.component {
            Component::Embedding if self.role == "token" && is_multiplied => Component::Output,
            component => component,
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Stack {
    Main,
    Encoder,
    Multimodal,
}

use Component::*;

/// Base names whose meaning does not follow from their ending.
#[rustfmt::skip]
const TABLE: &[(&str, Component, &str)] = &[
    ("token_embd", Embedding, "token"),
    ("token_types", Embedding, "token_type"),
    ("position_embd", Embedding, "position"),
    ("per_layer_token_embd", Embedding, "per_layer_token"),
    ("output", Output, "output"),
    ("cls", Output, "classifier"),
    ("cls.output", Output, "classifier_output"),
    ("rope_freqs", Rope, "freqs"),
    ("rope_factors_long", Rope, "factors_long"),
    ("rope_factors_short", Rope, "factors_short"),
    ("attn_rot_embd", Rope, "rot_embd"),
    ("attn_q", Attention, "q"),
    ("attn_k", Attention, "k"),
    ("attn_v", Attention, "v"),
    ("attn_qkv", Attention, "qkv"),
    ("attn_kv", Attention, "kv"),
    ("attn_output", Attention, "o"),
    ("attn_o", Attention, "o"),
    ("attn_q_a", Attention, "q_a"),
    ("attn_q_b", Attention, "q_b"),
    ("attn_kv_a_mqa", Attention, "kv_a"),
    ("attn_kv_b", Attention, "kv_b"),
    ("attn_k_b", Attention, "k_b"),
    ("attn_v_b", Attention, "v_b"),
    ("attn_output_a", Attention, "o_a"),
    ("attn_output_b", Attention, "o_b"),
    ("attn_gate", Attention, "gate"),
    ("attn_sinks", Attention, "sinks"),
    ("attn_rel_b", Attention, "rel_bias"),
    ("cross_attn_q", Attention, "cross_q"),
    ("cross_attn_k", Attention, "cross_k"),
    ("cross_attn_v", Attention, "cross_v"),
    ("cross_attn_o", Attention, "cross_o"),
    ("cross_attn_rel_b", Attention, "cross_rel_bias"),
    ("ffn_gate_inp", Router, "gate_inp"),
    ("ffn_gate_tid2eid", Router, "token_to_expert"),
    ("exp_probs_b", Router, "exp_probs"),
    ("exp_probs_b_vl", Router, "exp_probs_vl"),
    ("ffn_gate_inp_shexp", SharedExpert, "gate_inp"),
    ("ffn_gate", Ffn, "gate"),
    ("ffn_up", Ffn, "up"),
    ("ffn_down", Ffn, "down"),
    ("ffn_gate_up", Ffn, "gate_up"),
    ("ffn.act", Ffn, "act"),
    ("ffn_act", Ffn, "act"),
    ("ssm_in", Ssm, "in"),
    ("ssm_out", Ssm, "out"),
    ("ssm_conv1d", Ssm, "conv1d"),
];

/// Component, role, and whether the tensor stacks all experts.
fn component_of(base: &str) -> (Component, Cow<'static, str>, bool) {
    if let Some(&(_, component, role)) = TABLE.iter().find(|row| row.0 == base) {
        return (component, Cow::Borrowed(role), false);
    }
    let owned = |role: &str| Cow::Owned(role.to_owned());
    if let Some(role) = base.strip_prefix("nextn.") {
        return (NextN, owned(role), false);
    }
    if let Some(norm) = norm_role(base) {
        return (Norm, owned(norm), false);
    }
    for (suffix, component, merged) in [
        ("_exps", Expert, true),
        ("_chexps", Expert, true),
        ("_shexp", SharedExpert, false),
    ] {
        let role = base
            .strip_suffix(suffix)
            .and_then(|b| b.strip_prefix("ffn_"));
        if let Some(role) = role {
            return (component, projection(role), merged);
        }
    }
    for (prefix, component) in [
        ("ssm_", Ssm),
        ("time_mix_", Ssm),
        ("channel_mix_", Ssm),
        ("shortconv.", Ssm),
        ("attn_", Attention),
        ("indexer", Attention),
        ("ffn_", Ffn),
        ("vis_", Multimodal),
        ("output_", Output),
        ("cls", Output),
    ] {
        if let Some(role) = base.strip_prefix(prefix) {
            return (component, owned(role.trim_start_matches(['.', '_'])), false);
        }
    }
    (Other, owned(base), false)
}

fn projection(role: &str) -> Cow<'static, str> {
    match role {
        "gate" => Cow::Borrowed("gate"),
        "up" => Cow::Borrowed("up"),
        "down" => Cow::Borrowed("down"),
        "gate_up" => Cow::Borrowed("gate_up"),
        other => Cow::Owned(other.to_owned()),
    }
}

/// What a norm normalises: `attn_q_norm` → `attn_q`, `attn_norm_2` → `attn_2`.
fn norm_role(base: &str) -> Option<&str> {
    if base == "norm" {
        return Some("norm");
    }
    for suffix in ["_norm", ".norm"] {
        if let Some(role) = base.strip_suffix(suffix) {
            return Some(role);
        }
    }
    // `attn_norm_2`, `post_ffw_norm_1`, `ffn_norm_exps`, `cross_attn_norm_kv`.
    base.contains("_norm_").then_some(base)
}

/// Splits off the stack and the layer number.
fn split_layer(name: &str) -> (Stack, Option<u32>, &str) {
    let (stack, rest) = if let Some(rest) = name.strip_prefix("enc.") {
        (Stack::Encoder, rest)
    } else if let Some(rest) = name.strip_prefix("dec.") {
        (Stack::Main, rest)
    } else if let Some(rest) = ["v.", "a.", "mm."]
        .iter()
        .find_map(|p| name.strip_prefix(p))
    {
        (Stack::Multimodal, rest)
    } else {
        (Stack::Main, name)
    };
    let numbered = ["blk.", "posnet.", "convnext."]
        .iter()
        .find_map(|prefix| rest.strip_prefix(prefix))
        .and_then(|rest| rest.split_once('.'))
        .and_then(|(number, base)| Some((number_of(number)?, base)));
    match numbered {
        Some((layer, base)) => (stack, Some(layer), base),
        None => (stack, None, rest),
    }
}

/// Splits off the kind and the number of an expert from before merging.
fn split_kind(rest: &str) -> (&str, Option<u32>, Kind) {
    let (base, kind) = match rest.rsplit_once('.') {
        Some((base, "weight")) => (base, Kind::Weight),
        Some((base, "bias")) => (base, Kind::Bias),
        Some((base, "scale" | "weight_scale" | "input_scale")) => (base, Kind::Scale),
        _ => (rest, Kind::Plain),
    };
    match base.rsplit_once('.') {
        Some((shorter, number)) if number_of(number).is_some() => {
            (shorter, number_of(number), kind)
        }
        _ => (base, None, kind),
    }
}

/// Digits only: no sign, as `str::parse` would allow.
fn number_of(text: &str) -> Option<u32> {
    let digits = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    digits.then(|| text.parse().ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_embedding_that_is_multiplied_is_the_output_head() {
        let check = |name: &str, op: &str, expect: Component| {
            assert_eq!(Meaning::of(name).component_in(op), expect, "{name} in {op}");
        };
        check("token_embd.weight", "MUL_MAT", Component::Output);
        check("token_embd.weight", "MUL_MAT+ADD", Component::Output);
        check("token_embd.weight", "GET_ROWS", Component::Embedding);
        check("token_embd.weight", "MUL", Component::Embedding);
        check("token_embd.weight", "MUL_MAT_ID", Component::Embedding);
        check(
            "per_layer_token_embd.weight",
            "MUL_MAT",
            Component::Embedding,
        );
        check("output.weight", "MUL_MAT", Component::Output);
        check("blk.0.attn_q.weight", "MUL_MAT", Component::Attention);
    }

    #[test]
    fn names_of_llama_cpp_have_their_meaning() {
        let check = |name: &str, expect: &str| {
            let m = Meaning::of(name);
            let layer = m.layer.map_or("-".to_owned(), |l| l.to_string());
            let experts = match m.experts {
                Experts::None => "-".to_owned(),
                Experts::Merged => "merged".to_owned(),
                Experts::One(e) => e.to_string(),
            };
            let got = format!(
                "{layer} {} {} {} {experts}",
                m.component.name(),
                m.role,
                m.kind.name()
            );
            assert_eq!(got, expect, "{name}");
        };
        check("token_embd.weight", "- embedding token weight -");
        check("output.weight", "- output output weight -");
        check("output_norm.weight", "- norm output weight -");
        check("rope_freqs.weight", "- rope freqs weight -");
        check("blk.0.attn_q.weight", "0 attention q weight -");
        check("blk.31.attn_k.bias", "31 attention k bias -");
        check("blk.1.attn_qkv.weight", "1 attention qkv weight -");
        check("blk.1.attn_output.weight", "1 attention o weight -");
        check("blk.1.attn_q_a.weight", "1 attention q_a weight -");
        check("blk.1.attn_kv_a_mqa.weight", "1 attention kv_a weight -");
        check("blk.1.attn_kv_b.weight", "1 attention kv_b weight -");
        check("blk.1.attn_kv_a_norm.weight", "1 norm attn_kv_a weight -");
        check("blk.1.attn_norm.weight", "1 norm attn weight -");
        check("blk.1.attn_norm_2.weight", "1 norm attn_norm_2 weight -");
        check("blk.1.post_ffw_norm.weight", "1 norm post_ffw weight -");
        check("blk.1.attn_sinks.weight", "1 attention sinks weight -");
        check("blk.1.attn_sinks", "1 attention sinks plain -");
        check("blk.7.ffn_gate_inp.weight", "7 router gate_inp weight -");
        check("blk.7.exp_probs_b.bias", "7 router exp_probs bias -");
        check("blk.7.ffn_gate_exps.weight", "7 expert gate weight merged");
        check(
            "blk.7.ffn_gate_up_exps.weight",
            "7 expert gate_up weight merged",
        );
        check("blk.7.ffn_down_exps.bias", "7 expert down bias merged");
        check("blk.7.ffn_down_exps.scale", "7 expert down scale merged");
        check(
            "blk.7.ffn_norm_exps.weight",
            "7 norm ffn_norm_exps weight -",
        );
        check("blk.7.ffn_up_shexp.weight", "7 shared_expert up weight -");
        check(
            "blk.7.ffn_gate_inp_shexp.weight",
            "7 shared_expert gate_inp weight -",
        );
        check("blk.7.ffn_gate.3.weight", "7 expert gate weight 3");
        check("blk.7.ffn_down.weight", "7 ffn down weight -");
        check("blk.7.ssm_conv1d.weight", "7 ssm conv1d weight -");
        check("blk.7.ssm_a", "7 ssm a plain -");
        check("blk.7.ssm_norm.weight", "7 norm ssm weight -");
        check("blk.7.time_mix_key.weight", "7 ssm key weight -");
        check("blk.61.nextn.eh_proj.weight", "61 nextn eh_proj weight -");
        check("blk.2.indexer.proj.weight", "2 attention proj weight -");
        check("enc.blk.2.attn_o.weight", "2 attention o weight -");
        check(
            "dec.blk.2.cross_attn_q.weight",
            "2 attention cross_q weight -",
        );
        check("v.blk.2.attn_q.weight", "2 multimodal attn_q weight -");
        check("blk.+1.attn_q.weight", "- other blk.+1.attn_q weight -");
        check(
            "blk.99999999999.attn_q.weight",
            "- other blk.99999999999.attn_q weight -",
        );
        check("something_new", "- other something_new plain -");
    }
}
