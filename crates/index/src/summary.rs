//! Totals, and sums by component, op, layer and tensor; the flame graph.

use std::collections::{BTreeMap, HashMap};

use trace::{format::Phase, origin::Source, template::Direction};

use crate::{
    RunIndex,
    answers::{ComponentSum, Flame, LayerSum, OpSum, SourceSum, Summary, SummaryTotals, TensorSum},
    filter::Filter,
    graph::Graph,
    query::FlameBy,
    select::{Masks, Selection, Selector},
};

/// Accesses and bytes; of nodes, how many and their time.
#[derive(Clone, Copy, Default)]
struct Sum {
    accesses: u64,
    bytes: u64,
    nodes: u64,
    nanos: u64,
}

impl Sum {
    fn add_accesses(&mut self, count: u64, bytes: u64) {
        // A hostile log may say sizes whose sum is no number.
        self.accesses = self.accesses.wrapping_add(count);
        self.bytes = self.bytes.wrapping_add(bytes);
    }

    fn add_nodes(&mut self, count: u64, nanos: u64) {
        self.nodes = self.nodes.wrapping_add(count);
        self.nanos = self.nanos.wrapping_add(nanos);
    }
}

struct Sums {
    total: Sum,
    read_bytes: u64,
    written_bytes: u64,
    parts: Vec<Sum>,
    ops: Vec<Sum>,
    layers: Vec<Sum>,
    tensors: Vec<Sum>,
}

impl Sums {
    fn add_access(&mut self, graph: &Graph, access: usize, count: u64, bytes: u64) {
        let about = &graph.accesses[access];
        let step = &graph.steps[about.step as usize];
        let direction_sum = match about.direction {
            Direction::Read => &mut self.read_bytes,
            Direction::Write => &mut self.written_bytes,
        };
        *direction_sum = direction_sum.wrapping_add(bytes);
        self.total.add_accesses(count, bytes);
        self.parts[about.part as usize].add_accesses(count, bytes);
        self.ops[step.op as usize].add_accesses(count, bytes);
        self.layers[step.layer as usize].add_accesses(count, bytes);
        self.tensors[about.tensor as usize].add_accesses(count, bytes);
    }

    fn add_node(&mut self, graph: &Graph, step: usize, count: u64, nanos: u64) {
        let step = &graph.steps[step];
        self.total.add_nodes(count, nanos);
        self.ops[step.op as usize].add_nodes(count, nanos);
        self.layers[step.layer as usize].add_nodes(count, nanos);
    }
}

impl RunIndex {
    pub fn summary(&self, filter: &Filter) -> Summary {
        let selector = Selector::new(self, filter);
        let selection = Selection::new(self, |eval| selector.keeps_eval(eval));
        let catalog = &self.catalog;
        let mut sums = Sums {
            total: Sum::default(),
            read_bytes: 0,
            written_bytes: 0,
            parts: vec![Sum::default(); catalog.parts.all.len()],
            ops: vec![Sum::default(); catalog.ops.all.len()],
            layers: vec![Sum::default(); catalog.layers.all.len()],
            tensors: vec![Sum::default(); catalog.tensors.len()],
        };
        self.add_up(
            &selector,
            &selection,
            &mut sums,
            |sums, graph, access, count, bytes| sums.add_access(graph, access, count, bytes),
            |sums, graph, step, count, nanos| sums.add_node(graph, step, count, nanos),
        );
        Summary {
            by_source: self.sources(&selector),
            ..self.answer(&selection, &sums)
        }
    }

    /// Shows the sums of all accesses and nodes that are kept, graph by graph.
    fn add_up<S>(
        &self,
        selector: &Selector,
        selection: &Selection,
        sums: &mut S,
        access: impl Fn(&mut S, &Graph, usize, u64, u64),
        node: impl Fn(&mut S, &Graph, usize, u64, u64),
    ) {
        let masks = Masks::new(self, selector);
        for (number, ranges) in selection.graphs() {
            let graph = &self.graphs[number];
            let mask = masks.of(number as u32);
            self.each_access_sum(selector, graph, mask, ranges, |at, count, bytes| {
                access(sums, graph, at, count, bytes);
            });
            self.each_node_sum(selector, graph, mask, ranges, |step, count, nanos| {
                node(sums, graph, step, count, nanos);
            });
        }
        for &at in &selection.ragged {
            let eval = &self.evals[at as usize];
            let graph = &self.graphs[eval.graph as usize];
            let mask = masks.of(eval.graph);
            self.each_hit(selector, mask, eval, |hit| {
                access(sums, graph, hit.access as usize, hit.count, hit.bytes);
            });
            self.each_node(selector, mask, eval, |step, begin, end| {
                node(sums, graph, step, 1, end.saturating_sub(begin));
            });
        }
    }

    fn answer(&self, selection: &Selection, sums: &Sums) -> Summary {
        let catalog = &self.catalog;
        let by_component = catalog.parts.all.iter().zip(&sums.parts);
        let by_op = catalog.ops.all.iter().zip(&sums.ops);
        let order = catalog.layer_order();
        let by_layer = order
            .iter()
            .map(|&n| (catalog.layers.all[n as usize], &sums.layers[n as usize]));
        let by_tensor = catalog.tensors.iter().zip(&sums.tensors);
        let mut by_component: Vec<ComponentSum> = by_component
            .filter(|(_, sum)| sum.accesses > 0)
            .map(|(&component, sum)| ComponentSum {
                component,
                accesses: sum.accesses,
                bytes: sum.bytes,
            })
            .collect();
        by_component.sort_by_key(|c| std::cmp::Reverse(c.bytes));
        let mut by_op: Vec<OpSum> = by_op
            .filter(|(_, sum)| sum.nodes > 0)
            .map(|(op, sum)| OpSum {
                op: op.clone(),
                nodes: sum.nodes,
                nanos: sum.nanos,
                accesses: sum.accesses,
                bytes: sum.bytes,
            })
            .collect();
        by_op.sort_by_key(|o| std::cmp::Reverse(o.nanos));
        let by_layer = by_layer
            .filter(|(_, sum)| sum.nodes > 0)
            .map(|(layer, sum)| LayerSum {
                layer,
                nodes: sum.nodes,
                nanos: sum.nanos,
                accesses: sum.accesses,
                bytes: sum.bytes,
            })
            .collect();
        let mut by_tensor: Vec<TensorSum> = by_tensor
            .filter(|(tensor, sum)| tensor.is_weight() && sum.accesses > 0)
            .map(|(tensor, sum)| TensorSum {
                tensor: tensor.number,
                name: tensor.name.clone(),
                component: catalog.parts.all[tensor.part as usize],
                layer: tensor.meaning.as_ref().and_then(|m| m.layer),
                size_bytes: tensor.size_bytes,
                accesses: sum.accesses,
                bytes: sum.bytes,
            })
            .collect();
        by_tensor.sort_by_key(|t| t.tensor);
        Summary {
            totals: SummaryTotals {
                evals: selection.evals,
                tokens: selection.tokens,
                nodes: sums.total.nodes,
                accesses: sums.total.accesses,
                bytes: sums.total.bytes,
                read_bytes: sums.read_bytes,
                written_bytes: sums.written_bytes,
                nanos: sums.total.nanos,
            },
            by_component,
            by_op,
            by_layer,
            by_tensor,
            by_source: Vec::new(),
        }
    }

    /// Where weights came from in the evaluations that are kept, the prompt first.
    fn sources(&self, selector: &Selector) -> Vec<SourceSum> {
        let mut sums: BTreeMap<(u8, Source), SourceSum> = BTreeMap::new();
        for (eval, of_eval) in &self.origins {
            let eval = &self.evals[*eval as usize];
            if !selector.keeps_eval(eval) {
                continue;
            }
            let place = match eval.phase {
                Phase::Prompt => 0,
                Phase::Generate => 1,
                Phase::Unknown => 2,
            };
            for (source, more) in of_eval {
                let sum = sums.entry((place, *source)).or_insert_with(|| SourceSum {
                    phase: eval.phase.name(),
                    source: source.name(),
                    accesses: 0,
                    bytes: 0,
                    waited_nanos: 0,
                });
                sum.accesses = sum.accesses.saturating_add(more.accesses);
                sum.bytes = sum.bytes.saturating_add(more.bytes);
                sum.waited_nanos = sum.waited_nanos.saturating_add(more.waited_nanos);
            }
        }
        sums.into_values().collect()
    }

    /// Phase → layer → component → op → tensor.
    pub fn flame(&self, by: FlameBy, filter: &Filter) -> Flame {
        let selector = Selector::new(self, filter);
        let mut root = Flame {
            name: "run".to_owned(),
            ..Flame::default()
        };
        for phase in [Phase::Prompt, Phase::Generate, Phase::Unknown] {
            let keeps = |eval: &crate::data::Eval| eval.phase == phase && selector.keeps_eval(eval);
            let selection = Selection::new(self, keeps);
            let mut leaves: HashMap<[u32; 4], u64> = HashMap::new();
            let mut add = |graph: &Graph, step: usize, part: u32, tensor: u32, value: u64| {
                let step = &graph.steps[step];
                let tensor = self.catalog.tensors.get(tensor as usize);
                let tensor = tensor.map_or(u32::MAX, |t| t.namesake);
                let leaf = leaves.entry([step.layer, part, step.op, tensor]);
                let leaf = leaf.or_default();
                *leaf = leaf.wrapping_add(value);
            };
            self.add_up(
                &selector,
                &selection,
                &mut add,
                |add, graph, access, _, bytes| {
                    let about = &graph.accesses[access];
                    if by == FlameBy::Bytes {
                        add(graph, about.step as usize, about.part, about.tensor, bytes);
                    }
                },
                |add, graph, step, _, nanos| {
                    let about = &graph.steps[step];
                    let tensor = about.primary.unwrap_or(u32::MAX);
                    if by == FlameBy::Nanos {
                        add(graph, step, about.part, tensor, nanos);
                    }
                },
            );
            let child = self.tree(phase.name(), leaves);
            if child.value > 0 {
                root.value = root.value.wrapping_add(child.value);
                root.children.push(child);
            }
        }
        root
    }

    fn tree(&self, phase: &str, leaves: HashMap<[u32; 4], u64>) -> Flame {
        let catalog = &self.catalog;
        let mut place = vec![0; catalog.layers.all.len()];
        for (at, &layer) in catalog.layer_order().iter().enumerate() {
            place[layer as usize] = at;
        }
        let mut leaves: Vec<([u32; 4], u64)> = leaves.into_iter().filter(|l| l.1 > 0).collect();
        leaves.sort_unstable_by_key(|&([layer, part, op, tensor], _)| {
            (place[layer as usize], part, op, tensor)
        });
        let name = |key: [u32; 4], depth: usize| match depth {
            0 => match catalog.layers.all[key[0] as usize] {
                Some(layer) => format!("layer {layer}"),
                None => "no layer".to_owned(),
            },
            1 => catalog.parts.all[key[1] as usize].to_owned(),
            2 => catalog.ops.all[key[2] as usize].clone(),
            _ => catalog
                .tensors
                .get(key[3] as usize)
                .map_or_else(|| "no tensor".to_owned(), |t| t.name.clone()),
        };
        let mut root = Flame {
            name: phase.to_owned(),
            ..Flame::default()
        };
        let mut before: Option<[u32; 4]> = None;
        for (key, value) in leaves {
            let same = before.map_or(0, |b| (0..4).take_while(|&i| b[i] == key[i]).count());
            root.value = root.value.wrapping_add(value);
            let mut parent = &mut root;
            for depth in 0..4 {
                if depth >= same {
                    parent.children.push(Flame {
                        name: name(key, depth),
                        ..Flame::default()
                    });
                }
                parent = parent
                    .children
                    .last_mut()
                    .expect("just pushed, or the same");
                parent.value = parent.value.wrapping_add(value);
            }
            before = Some(key);
        }
        root
    }
}
