//! Whether tokens are guessed in a run, and by whom.

use anyhow::bail;
use engine::{
    draft::{
        Drafting, Source,
        governor::{Experts, Governor, Trials},
        model::DraftModel,
    },
    model::Model,
    one_by_one,
};

use super::args::{Args, Draft};
use crate::engine_args::{Prepared, Prompts};

/// Who guesses, and whether somebody has asked for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Guesser {
    /// By itself, where weights are waited for.
    TextUnasked,
    Text,
    SmallModel,
}

/// `pays`: where nobody has asked for guesses, they are made only then.
pub fn guesser(args: &Args, prompts: &Prompts, pays: bool) -> anyhow::Result<Option<Guesser>> {
    let wanted = match (&args.draft_model, args.draft) {
        (Some(_), _) => Guesser::SmallModel,
        (None, Draft::Ngram) => Guesser::Text,
        (None, Draft::Auto) => Guesser::TextUnasked,
        (None, Draft::Off) => return Ok(None),
    };
    if wanted == Guesser::TextUnasked {
        let is_same = one_by_one::IS_POSSIBLE && prompts.parallel == 1;
        let is_made = pays && is_same && args.routing.is_none();
        return Ok(is_made.then_some(wanted));
    }
    if args.routing.is_some() {
        bail!(
            "--routing draws experts anew for every pass, so that guessed tokens cannot be checked; use --draft off"
        );
    }
    if !args.quiet {
        if prompts.parallel > 1 {
            eprintln!(
                "tensorscope: several texts are computed in one pass with guessed tokens: llama.cpp's \
                 kernels round otherwise then, and a text may differ from the one without guesses"
            );
        } else if !one_by_one::IS_POSSIBLE {
            eprintln!(
                "tensorscope: on this processor llama.cpp's kernels for several tokens cannot be \
                 kept from rounding otherwise than those for one: the text may differ from the \
                 one without guesses"
            );
        }
    }
    Ok(Some(wanted))
}

/// With the models loaded.
pub fn drafting<'m>(
    args: &Args,
    guesser: Option<Guesser>,
    prepared: &Prepared,
    small: Option<&'m Model>,
) -> anyhow::Result<Option<Drafting<'m>>> {
    let Some(guesser) = guesser else {
        return Ok(None);
    };
    if !prepared.model.takes_back() {
        if guesser == Guesser::TextUnasked {
            return Ok(None);
        }
        return Err(engine::EngineError::CannotTakeBack.into());
    }
    let hyper = prepared.model.gguf.hyper();
    let used = hyper.expert_used_count_max();
    let experts = (used > 0).then(|| Experts {
        count: u32::try_from(hyper.expert_count).unwrap_or(u32::MAX),
        used: u32::try_from(used).unwrap_or(u32::MAX),
    });
    let trials = match guesser {
        Guesser::TextUnasked => Trials::NotMade,
        Guesser::Text | Guesser::SmallModel => Trials::Made,
    };
    let source = match small {
        Some(small) => {
            let model = DraftModel::new(small, &prepared.model, &prepared.context)?;
            Source::Model(Box::new(model))
        }
        None => Source::Lookup,
    };
    let governor = Governor::new(experts, trials);
    Ok(Some(Drafting::new(
        source,
        Some(governor),
        usize::from(args.draft_max),
    )))
}
