//! What there is: the run, its tokens, its evaluations, who owns a byte.

use gguf::{Model, Owner, heads::HeadLayout, names::Experts as ExpertsInTensor};
use rundir::Run;
use trace::format::Phase;

use crate::{
    RunIndex,
    answers::{
        EvalBrief, EvalInfo, EvalStep, Info, Located, ModelInfo, PhaseTotals, RunTotals,
        TensorInfo, TokenInfo,
    },
    data::Eval,
    filter::Filter,
    graph::NO_EXPERT,
    query::{EvalsQuery, TokenWindow},
    select::{Mask, Selector},
};

/// At most this many tokens are listed.
const MAX_TOKENS: u64 = 4096;

impl RunIndex {
    /// Opens the model's files if they are still those of the run: they know
    /// tensors that the run never touched, and heads.
    pub(crate) fn open_model(&mut self, run: &Run) {
        let about = run.metadata().and_then(|m| m.model.as_ref());
        let Some(about) = about else {
            return;
        };
        let hyper = &about.hyperparameters;
        self.about_model = ModelInfo {
            name: about.name.clone(),
            architecture: Some(about.architecture.clone()).filter(|a| !a.is_empty()),
            size_bytes: about.size_bytes,
            layers: hyper.n_layer,
            experts: hyper.n_expert,
            experts_used: hyper.n_expert_used,
            files: Vec::new(),
        };
        if self.model.is_some() {
            return;
        }
        let first = about.files.first();
        let model = first.and_then(|f| Model::open(f.path.as_ref()).ok());
        let is_same = |model: &Model| {
            let sizes = model.files().iter().map(|f| f.len_bytes);
            sizes.eq(about.files.iter().map(|f| f.size_bytes))
        };
        self.model = model.filter(is_same);
    }

    pub fn info(&self) -> Info {
        let catalog = &self.catalog;
        let duration = self.latest.last().map_or(0, |last| last - self.origin);
        let phases = [Phase::Prompt, Phase::Generate, Phase::Unknown].map(|phase| {
            let of_phase = || self.evals.iter().filter(|e| e.phase == phase);
            PhaseTotals {
                phase: phase.name(),
                evals: of_phase().count() as u64,
                tokens: of_phase().map(|e| u64::from(e.tokens)).sum(),
                nanos: of_phase().map(|e| e.computed).fold(0, u64::wrapping_add),
            }
        });
        let order = catalog.layer_order();
        let experts = self.graphs.iter().flat_map(|g| &g.routers);
        let size_bytes = match self.about_model.size_bytes {
            0 => catalog.total_bytes,
            known => known,
        };
        Info {
            name: self.name.clone(),
            live: self.live,
            version: self.version,
            model: ModelInfo {
                files: catalog.files.clone(),
                size_bytes,
                ..self.about_model.clone()
            },
            totals: RunTotals {
                evals: self.totals.evals,
                tokens: self.totals.tokens,
                nodes: self.totals.nodes,
                accesses: self.totals.accesses,
                bytes: self.totals.bytes,
                duration_nanos: duration,
            },
            phases: phases.into_iter().filter(|p| p.evals > 0).collect(),
            layers: order
                .iter()
                .map(|&n| catalog.layers.all[n as usize])
                .collect(),
            components: catalog.parts.all.clone(),
            ops: catalog.ops.all.clone(),
            experts: experts.map(|r| r.experts).max().unwrap_or(0),
            devices: self.devices(),
            tensors: self.tensor_infos(),
            missing: self.missing.clone(),
            kernel: self.kernel_logs,
        }
    }

    /// In the order of their first graphs.
    pub(crate) fn devices(&self) -> Vec<String> {
        let mut devices: Vec<String> = Vec::new();
        for graph in &self.graphs {
            if !devices.iter().any(|known| known == graph.device_name()) {
                devices.push(graph.device_name().to_owned());
            }
        }
        devices
    }

    /// Weights with a place, and those of the model that the run does not know.
    fn tensor_infos(&self) -> Vec<TensorInfo> {
        let catalog = &self.catalog;
        let mut infos: Vec<TensorInfo> = catalog
            .tensors
            .iter()
            .filter_map(|tensor| {
                let meaning = tensor.meaning.as_ref()?;
                Some(TensorInfo {
                    tensor: Some(tensor.number),
                    name: tensor.name.clone(),
                    layer: meaning.layer,
                    component: meaning.component.name(),
                    role: meaning.role.to_string(),
                    ty: tensor.type_name(),
                    begin: tensor.begin?,
                    size_bytes: tensor.size_bytes,
                    experts: tensor.experts,
                })
            })
            .collect();
        let known: std::collections::HashSet<u64> = infos.iter().map(|t| t.begin).collect();
        for tensor in self.model.iter().flat_map(Model::tensors) {
            let file = catalog.files.get(tensor.file as usize);
            let begin = file.map_or(0, |f| f.begin) + tensor.file_offset;
            if known.contains(&begin) || tensor.size_bytes == 0 {
                continue;
            }
            let slices = tensor.expert_slices();
            infos.push(TensorInfo {
                tensor: None,
                name: tensor.name.to_string(),
                layer: tensor.meaning.layer,
                component: tensor.meaning.component.name(),
                role: tensor.meaning.role.to_string(),
                ty: tensor.ty.name(),
                begin,
                size_bytes: tensor.size_bytes,
                experts: slices.map_or(0, |s| s.count as u32),
            });
        }
        infos.sort_by_key(|t| (t.begin, t.tensor));
        infos
    }

    /// At most 4096; larger windows are thinned evenly.
    pub fn tokens(&self, window: TokenWindow) -> Vec<TokenInfo> {
        let end = window
            .to
            .map_or(self.tokens, |to| to.saturating_add(1).min(self.tokens));
        let from = window.from.unwrap_or(0).min(end);
        let count = end - from;
        let listed = count.min(MAX_TOKENS);
        let number =
            |i: u64| from + (u128::from(count) * u128::from(i) / u128::from(listed)) as u64;
        (0..listed).filter_map(|i| self.token(number(i))).collect()
    }

    fn token(&self, token: u64) -> Option<TokenInfo> {
        let eval = |at: &u32| &self.evals[*at as usize];
        let after = self
            .order
            .partition_point(|at| eval(at).first_token <= token);
        let eval = eval(self.order.get(after.checked_sub(1)?)?);
        eval.own_tokens()
            .contains(&token)
            .then(|| self.token_of(eval, token))
    }

    fn token_of(&self, eval: &Eval, token: u64) -> TokenInfo {
        let at = eval.at.tokens + (token - eval.first_token) as usize;
        let id = self.data.token_ids[at];
        let piece = u32::try_from(id).ok().and_then(|id| self.pieces.get(&id));
        TokenInfo {
            token,
            eval: eval.number,
            phase: eval.phase.name(),
            id,
            text: piece.map(|(_, bytes)| String::from_utf8_lossy(bytes).into_owned()),
            position: self.data.positions[at],
            sequence: self.data.sequences[at],
            begin: eval.begin - self.origin,
            end: eval.end - self.origin,
        }
    }

    pub fn evals(&self, query: &EvalsQuery) -> Vec<EvalBrief> {
        let (from, to) = (query.from.unwrap_or(0), query.to.unwrap_or(u64::MAX));
        let is_wanted = |at: &&u32| (from..=to).contains(&self.evals[**at as usize].number);
        let wanted: Vec<u32> = self.by_time.iter().filter(is_wanted).copied().collect();
        let listed = wanted.len().min(query.max.max(1) as usize);
        let brief = |i: usize| {
            let eval = &self.evals[wanted[wanted.len() * i / listed] as usize];
            EvalBrief {
                eval: eval.number,
                begin: eval.begin - self.origin,
                end: eval.end - self.origin,
                first_token: eval.batch_first,
                tokens: eval.batch.into(),
                phase: eval.phase.name(),
            }
        };
        (0..listed).map(brief).collect()
    }

    /// By its number in the tables.
    pub fn eval(&self, number: u64) -> Option<EvalInfo> {
        // Numbers ascend in this order, but for a damaged log.
        let eval = self
            .order
            .iter()
            .map(|&at| &self.evals[at as usize])
            .find(|eval| eval.number == number)?;
        let graph = &self.graphs[eval.graph as usize];
        let selector = Selector::new(self, &Filter::default());
        let mask = Mask::new(graph, &selector);
        let mut steps = Vec::new();
        self.each_step(eval, |number, begin, end| {
            let step = &graph.steps[number];
            let (mut ranges, mut experts) = (Vec::new(), Vec::new());
            self.each_hit_of_steps(&selector, &mask, eval, number..number + 1, |hit| {
                let access = &graph.accesses[hit.access as usize];
                let expert = (hit.expert != NO_EXPERT).then_some(hit.expert);
                experts.extend(expert.map(u32::from));
                let tensor = &self.catalog.tensors[access.tensor as usize];
                let begin = tensor.begin.filter(|_| access.is_weight_read);
                if let Some(begin) = begin.filter(|_| hit.count == 1) {
                    let expert = expert.map_or(-1, i64::from);
                    ranges.push((begin.saturating_add(hit.offset), hit.span, expert));
                }
            });
            experts.sort_unstable();
            experts.dedup();
            steps.push(EvalStep {
                step: number as u32,
                op: self.catalog.ops.all[step.op as usize].clone(),
                name: self.catalog.names.all[step.name as usize].clone(),
                layer: self.catalog.layers.all[step.layer as usize],
                begin: begin.saturating_sub(self.origin),
                end: end.saturating_sub(self.origin),
                ranges,
                experts,
            });
        });
        Some(EvalInfo {
            eval: eval.number,
            phase: eval.phase.name(),
            begin: eval.begin - self.origin,
            end: eval.end - self.origin,
            tokens: eval
                .token_range()
                .take(MAX_TOKENS as usize)
                .filter_map(|token| self.token(token))
                .collect(),
            steps,
        })
    }

    /// `None` behind the end of the map space.
    pub fn locate(&self, offset: u64) -> Option<Located> {
        if offset >= self.catalog.total_bytes {
            return None;
        }
        let after = self.catalog.files.partition_point(|f| f.begin <= offset);
        let number = after.checked_sub(1)?;
        let file = &self.catalog.files[number];
        let mut located = Located {
            offset,
            file: Some(file.name.clone()),
            ..Located::default()
        };
        let tensors = &self.catalog.tensors;
        let holds = |begin: u64, size: u64| begin <= offset && offset - begin < size;
        let known = tensors
            .iter()
            .find(|t| t.begin.is_some_and(|begin| holds(begin, t.size_bytes)));
        if let Some(tensor) = known {
            let begin = tensor.begin.unwrap_or(0);
            let meaning = tensor.meaning.as_ref();
            let in_tensor = offset - begin;
            let slice = tensor.size_bytes / u64::from(tensor.experts.max(1));
            let single = meaning.and_then(|m| match m.experts {
                ExpertsInTensor::One(expert) => Some(expert),
                _ => None,
            });
            let sliced = (tensor.experts > 0 && slice > 0).then(|| (in_tensor / slice) as u32);
            located = Located {
                tensor: Some(tensor.number),
                name: Some(tensor.name.clone()),
                layer: meaning.and_then(|m| m.layer),
                component: meaning.map(|m| m.component.name()),
                role: meaning.map(|m| m.role.to_string()),
                expert: sliced.or(single),
                begin: Some(begin),
                size_bytes: Some(tensor.size_bytes),
                offset_in_tensor: Some(in_tensor),
                ty: Some(tensor.type_name()),
                ..located
            };
        }
        let model = self.model.as_ref();
        let owner = model.and_then(|m| m.lookup(number, offset - file.begin));
        if let (Some(model), Some(Owner::Tensor(byte))) = (model, owner) {
            let tensor = byte.tensor;
            let layout = HeadLayout::of(tensor, model.hyper());
            let heads = layout.and_then(|l| l.heads_at(tensor, byte.offset_in_tensor));
            located = Located {
                name: Some(tensor.name.to_string()),
                layer: tensor.meaning.layer,
                component: Some(tensor.meaning.component.name()),
                role: Some(tensor.meaning.role.to_string()),
                expert: byte.expert.and_then(|e| u32::try_from(e).ok()),
                head: heads.map(|(of, first, last)| match first == last {
                    true => format!("{of}{first}"),
                    false => format!("{of}{first}-{last}"),
                }),
                begin: Some(file.begin + tensor.file_offset),
                size_bytes: Some(tensor.size_bytes),
                offset_in_tensor: Some(byte.offset_in_tensor),
                ty: Some(tensor.ty.name()),
                ..located
            };
        }
        Some(located)
    }
}
