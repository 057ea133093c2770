//! The tables of a trace as CSV or as JSON lines.
//!
//! Columns are a contract: scripts rely on names and order, and the Parquet tables
//! have the same ones. Only steps that were executed have rows in `nodes` and
//! `accesses`, so that their sums are those of `trace::summary`.

mod sink;

use std::io::Write;

use gguf::GgmlType;
use trace::{
    expand::{for_each_access, for_each_route},
    read::Definitions,
    region::Strided,
    template::{CaptureKind, Direction, Operand},
};

use crate::{
    error::RenderError,
    log::{Log, Names, Scene, Stats, Visitor},
};
use sink::{Cell, Sink};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Table {
    Tensors,
    Evals,
    Tokens,
    Nodes,
    Accesses,
    Routing,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// With a header line; what is not known is empty.
    Csv,
    /// One object a line; what is not known is `null`.
    Json,
}

impl Table {
    pub const ALL: [Table; 6] = [
        Table::Tensors,
        Table::Evals,
        Table::Tokens,
        Table::Nodes,
        Table::Accesses,
        Table::Routing,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Table::Tensors => "tensors",
            Table::Evals => "evals",
            Table::Tokens => "tokens",
            Table::Nodes => "nodes",
            Table::Accesses => "accesses",
            Table::Routing => "routing",
        }
    }

    #[rustfmt::skip]
    pub fn columns(self) -> &'static [&'static str] {
        match self {
            Table::Tensors => &[
                "tensor", "name", "kind", "component", "role", "layer", "type", "shape",
                "size_bytes", "file", "file_offset", "buffer_type", "address",
            ],
            Table::Evals => &[
                "eval", "phase", "begin_nanos", "end_nanos", "tokens", "steps", "threads",
                "context", "template", "flags",
            ],
            Table::Tokens => &[
                "token", "eval", "phase", "token_id", "text", "position", "sequence",
            ],
            Table::Nodes => &[
                "eval", "step", "node", "fused_nodes", "op", "name", "layer", "begin_nanos",
                "end_nanos", "duration_nanos",
            ],
            Table::Accesses => &[
                "eval", "step", "op", "layer", "tensor", "tensor_name", "kind", "component",
                "role", "phase", "direction", "operand", "expert", "token", "file",
                "file_offset", "tensor_offset", "bytes", "runs", "run_bytes", "strides",
                "buffer_type", "address", "begin_nanos", "end_nanos",
            ],
            Table::Routing => &["eval", "token", "layer", "rank", "expert", "weight"],
        }
    }
}

/// Writes all rows of one table.
pub fn write_rows(
    log: &Log,
    table: Table,
    format: Format,
    out: &mut dyn Write,
) -> Result<Stats, RenderError> {
    let mut rows = Rows {
        table,
        sink: Sink::new(format, table.columns(), out)?,
    };
    let mut stats = log.walk(&mut rows)?;
    stats.written = rows.sink.finish()?;
    Ok(stats)
}

struct Rows<'a> {
    table: Table,
    sink: Sink<'a>,
}

impl Visitor for Rows<'_> {
    fn evaluation(&mut self, scene: &Scene) -> Result<(), RenderError> {
        match self.table {
            Table::Tensors => Ok(()),
            Table::Evals => self.eval(scene),
            Table::Tokens => self.tokens(scene),
            Table::Nodes => self.nodes(scene),
            Table::Accesses => self.accesses(scene),
            Table::Routing => self.routing(scene),
        }
    }

    fn stream_ends(&mut self, all: &Definitions, names: &Names) -> Result<(), RenderError> {
        match self.table {
            Table::Tensors => self.tensors(all, names),
            _ => Ok(()),
        }
    }
}

impl Rows<'_> {
    fn eval(&mut self, scene: &Scene) -> Result<(), RenderError> {
        let e = scene.evaluation;
        self.sink.row([
            Cell::from(e.number),
            Cell::Text(e.phase.name()),
            Cell::from(e.begin_nanos),
            Cell::from(e.end_nanos),
            Cell::from(scene.tokens),
            Cell::from(scene.steps().count() as u64),
            Cell::from(e.threads),
            Cell::from(e.context),
            Cell::from(e.template),
            Cell::from(e.flags),
        ])
    }

    fn tokens(&mut self, scene: &Scene) -> Result<(), RenderError> {
        let e = scene.evaluation;
        let positions = e.first_of(scene.template, CaptureKind::Positions);
        let ids = e.first_of(scene.template, CaptureKind::Tokens);
        for (i, &id) in ids.iter().enumerate() {
            let piece = u32::try_from(id).ok();
            let piece = piece.and_then(|id| scene.definitions.tokens.get(&id));
            let text = piece.map(|piece| String::from_utf8_lossy(piece));
            self.sink.row([
                Cell::from(scene.first_token + i as u64),
                Cell::from(e.number),
                Cell::Text(e.phase.name()),
                Cell::Number(id),
                Cell::from(text.as_deref()),
                positions.get(i).map_or(Cell::Null, |&p| Cell::Number(p)),
                Cell::from(e.sequences.get(i).copied()),
            ])?;
        }
        Ok(())
    }

    fn nodes(&mut self, scene: &Scene) -> Result<(), RenderError> {
        for executed in scene.steps() {
            let step = executed.step;
            self.sink.row([
                Cell::from(scene.evaluation.number),
                Cell::from(executed.number as u64),
                Cell::from(step.node),
                Cell::from(u32::from(step.fused_nodes)),
                Cell::Text(&scene.definitions.text(step.op)),
                Cell::Text(&scene.definitions.name(step.name)),
                Cell::from(step.layer),
                Cell::from(executed.begin_nanos),
                Cell::from(executed.end_nanos),
                Cell::from(executed.nanos()),
            ])?;
        }
        Ok(())
    }

    fn accesses(&mut self, scene: &Scene) -> Result<(), RenderError> {
        let e = scene.evaluation;
        let mut result = Ok(());
        for executed in scene.steps() {
            let op = scene.definitions.text(executed.step.op);
            for_each_access(scene.template, e, executed.number, |access| {
                if result.is_err() {
                    return;
                }
                let tensor = &scene.definitions.tensors[access.def.tensor as usize];
                let text = scene.names.tensor(access.def.tensor);
                let meaning = text.meaning.as_ref();
                let source;
                let operand = match access.def.operand {
                    Operand::Source(n) => {
                        source = format!("src{n}");
                        source.as_str()
                    }
                    Operand::Destination => "dst",
                };
                result = self.sink.row([
                    Cell::from(e.number),
                    Cell::from(executed.number as u64),
                    Cell::Text(&op),
                    Cell::from(executed.step.layer),
                    Cell::from(access.def.tensor),
                    Cell::Text(&text.name),
                    Cell::Text(tensor.kind.name()),
                    Cell::from(meaning.map(|m| m.component.name())),
                    Cell::from(meaning.map(|m| &*m.role)),
                    Cell::Text(e.phase.name()),
                    Cell::Text(match access.def.direction {
                        Direction::Read => "read",
                        Direction::Write => "write",
                    }),
                    Cell::Text(operand),
                    Cell::from(access.expert),
                    Cell::from(scene.token_of(&access)),
                    Cell::from(tensor.place.map(|p| p.file)),
                    Cell::from(tensor.place.map(|p| p.file_offset + access.region.offset)),
                    Cell::from(access.region.offset),
                    Cell::from(access.region.bytes()),
                    Cell::from(access.region.dims.iter().map(|&(n, _)| n).product::<u64>()),
                    Cell::from(access.region.run_bytes),
                    Cell::Text(&strides(&access.region)),
                    Cell::Text(&scene.definitions.text(tensor.buffer_type)),
                    Cell::from(tensor.address + access.region.offset),
                    Cell::from(executed.begin_nanos),
                    Cell::from(executed.end_nanos),
                ]);
            });
        }
        result
    }

    fn routing(&mut self, scene: &Scene) -> Result<(), RenderError> {
        let mut result = Ok(());
        for_each_route(scene.template, scene.evaluation, |route| {
            if result.is_ok() {
                result = self.sink.row([
                    Cell::from(scene.evaluation.number),
                    Cell::from(scene.first_token + u64::from(route.token)),
                    Cell::from(route.layer),
                    Cell::from(route.rank),
                    Cell::from(route.expert),
                    route.weight.map_or(Cell::Null, Cell::Float),
                ]);
            }
        });
        result
    }

    fn tensors(&mut self, all: &Definitions, names: &Names) -> Result<(), RenderError> {
        for (number, tensor) in (0..).zip(&all.tensors) {
            let text = names.tensor(number);
            let meaning = text.meaning.as_ref();
            let ty = GgmlType::from_u32(tensor.ggml_type).map_or("unknown", GgmlType::name);
            self.sink.row([
                Cell::from(number),
                Cell::Text(&text.name),
                Cell::Text(tensor.kind.name()),
                Cell::from(meaning.map(|m| m.component.name())),
                Cell::from(meaning.map(|m| &*m.role)),
                Cell::from(meaning.and_then(|m| m.layer)),
                Cell::Text(ty),
                Cell::Text(&gguf::structure::shape_text(&tensor.ne)),
                Cell::from(tensor.size_bytes),
                Cell::from(tensor.place.map(|p| p.file)),
                Cell::from(tensor.place.map(|p| p.file_offset)),
                Cell::Text(&all.text(tensor.buffer_type)),
                Cell::from(tensor.address),
            ])?;
        }
        Ok(())
    }
}

/// `count x bytes` of each dimension, innermost first.
fn strides(region: &Strided) -> String {
    let parts = region.dims.iter();
    let parts: Vec<String> = parts.map(|(n, stride)| format!("{n}x{stride}")).collect();
    parts.join(" ")
}
