//! The rows that the tables must hold, the slow and obvious way, as CSV lines.
#![allow(dead_code, reason = "each user takes a part of it")]

use std::{
    fs::File,
    hash::{DefaultHasher, Hash, Hasher},
    path::Path,
};

use datafusion::{
    arrow::csv::WriterBuilder, parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder,
};
use gguf::{GgmlType, Meaning};
use rundir::Run;
use store::schema::Table;
use trace::{
    device::Copy,
    expand::{for_each_access, for_each_route},
    read::{Definitions, Evaluation, Event, StreamReader, streams},
    region::Region,
    template::{CaptureKind, Direction, Operand, TensorKind},
};

/// Rows of a table's file, in its order.
pub fn table_rows(run: &Path, table: &Table) -> Vec<String> {
    let mut rows = Vec::new();
    for_each_table_row(run, table, |row| rows.push(row.to_owned()));
    rows
}

pub fn hash_of_table(run: &Path, table: &Table) -> (u64, u64) {
    let mut hash = (0, DefaultHasher::new());
    for_each_table_row(run, table, |row| add(&mut hash, row));
    (hash.0, hash.1.finish())
}

pub fn hash_of_expected(run: &Run) -> (u64, u64) {
    let mut hash = (0, DefaultHasher::new());
    for_each_expected(run, "accesses", &mut |row| add(&mut hash, row));
    (hash.0, hash.1.finish())
}

/// The rows of the log, in the order of the table.
pub fn expected_rows(run: &Run, table: &str) -> Vec<String> {
    let mut rows = Vec::new();
    for_each_expected(run, table, &mut |row| rows.push(row.to_owned()));
    rows
}

fn add(hash: &mut (u64, DefaultHasher), row: &str) {
    hash.0 += 1;
    row.hash(&mut hash.1);
}

fn for_each_table_row(run: &Path, table: &Table, mut f: impl FnMut(&str)) {
    let file = File::open(run.join("tables").join(format!("{}.parquet", table.name))).unwrap();
    let reader = ParquetRecordBatchReaderBuilder::try_new(file).unwrap();
    assert_eq!(
        reader.schema().fields(),
        store::arrow::schema(table).fields()
    );
    for batch in reader.with_batch_size(8192).build().unwrap() {
        let mut text = Vec::new();
        let mut writer = WriterBuilder::new().with_header(false).build(&mut text);
        writer.write(&batch.unwrap()).unwrap();
        drop(writer);
        String::from_utf8(text).unwrap().lines().for_each(&mut f);
    }
}

fn for_each_expected(run: &Run, table: &str, f: &mut dyn FnMut(&str)) {
    let mut first_token = 0;
    let mut copies = 0;
    for stream in streams(&run.log_directory()).unwrap() {
        let mut reader = StreamReader::open(&run.log_directory(), stream).unwrap();
        while let Some(event) = reader.next_event().unwrap() {
            if let (Event::Copy(copy), "copies") = (&event, table) {
                f(&copied(&reader.definitions, copies, copy));
            }
            copies += u64::from(matches!(event, Event::Copy(_)));
            if let Event::Evaluation(evaluation) = event {
                let definitions = &reader.definitions;
                let template = &definitions.templates[evaluation.template as usize];
                match table {
                    "evals" => f(&eval(definitions, &evaluation, stream)),
                    "tokens" => tokens(definitions, &evaluation, first_token, f),
                    "nodes" => nodes(definitions, &evaluation, f),
                    "kernels" => kernels(definitions, &evaluation, f),
                    "accesses" => accesses(definitions, &evaluation, first_token, f),
                    "routing" => for_each_route(template, &evaluation, |r| {
                        let weight = r.weight.map_or(String::new(), |w| format!("{w:?}"));
                        let token = first_token + u64::from(r.token);
                        let eval = evaluation.number;
                        f(&format!(
                            "{eval},{token},{},{},{},{weight}",
                            r.layer, r.rank, r.expert
                        ));
                    }),
                    _ => {}
                }
                first_token += evaluation.first_of(template, CaptureKind::Tokens).len() as u64;
            }
        }
        if table == "tensors" {
            tensors(&reader.definitions, f);
        }
        if table == "devices" {
            let definitions = &reader.definitions;
            for device in &definitions.devices {
                let (name, description) = (device.name, device.description);
                let [name, description] = [name, description].map(|text| definitions.text(text));
                f(&format!("{name},{description},{}", device.memory_bytes));
            }
        }
    }
}

fn eval(definitions: &Definitions, e: &Evaluation, stream: u32) -> String {
    let template = &definitions.templates[e.template as usize];
    let (mut count, mut read, mut written, mut weight, mut kv) = (0, 0, 0, 0, 0);
    for step in (0..template.steps.len()).filter(|&s| e.was_executed(s)) {
        for_each_access(template, e, step, |access| {
            let bytes = access.region.bytes();
            count += 1;
            match access.def.direction {
                Direction::Read => read += bytes,
                Direction::Write => written += bytes,
            }
            match definitions.tensors[access.def.tensor as usize].kind.name() {
                "weight" => weight += bytes,
                "kv_cache" => kv += bytes,
                _ => {}
            }
        });
    }
    let tokens = e.first_of(template, CaptureKind::Tokens).len();
    let (phase, steps) = (e.phase.name(), template.steps.len());
    let head = format!(
        "{},{stream},{phase},{},{},{tokens},{steps}",
        e.number, e.begin_nanos, e.end_nanos
    );
    let (threads, context, flags) = (e.threads, e.context, e.flags);
    let (begin, end) = e.device.as_ref().and_then(|d| d.nanos).unzip();
    format!(
        "{head},{threads},{context},{},{flags},{count},{read},{written},{weight},{kv},{},{},{},{}",
        e.template,
        option(
            e.origins
                .as_ref()
                .map(|o| o.iter().map(|o| o.waited_nanos).sum::<u64>())
        ),
        device(definitions, e),
        option(begin),
        option(end),
    )
}

fn device(definitions: &Definitions, e: &Evaluation) -> String {
    let device = definitions.templates[e.template as usize].device;
    device.map_or("CPU".to_owned(), |device| {
        definitions.text(definitions.devices[device as usize].name)
    })
}

/// What each nanosecond belongs to: of the kernels that run then the one that began first.
fn exclusive(kernels: &[(u64, u64)]) -> Vec<u64> {
    let mut own = vec![0; kernels.len()];
    let first = kernels.iter().map(|k| k.0).min().unwrap_or(0);
    let last = kernels.iter().map(|k| k.1).max().unwrap_or(0);
    for nano in first..last {
        let running = kernels.iter().enumerate();
        let running = running.filter(|(_, (begin, end))| (begin..end).contains(&&nano));
        if let Some((at, _)) = running.min_by_key(|(at, (begin, _))| (*begin, *at)) {
            own[at] += 1;
        }
    }
    own
}

fn kernels(definitions: &Definitions, e: &Evaluation, f: &mut dyn FnMut(&str)) {
    let Some(on) = &e.device else { return };
    let Some(launches) = on.launches else { return };
    let own = exclusive(&on.kernel_nanos);
    let all = definitions.launches[launches as usize].kernels.iter();
    for (at, kernel) in all.enumerate() {
        let (begin, end) = on.kernel_nanos.get(at).copied().unzip();
        let size = |[x, y, z]: [u32; 3]| format!("{x}x{y}x{z}");
        f(&format!(
            "{},{},{at},{},{},{},{},{},{},{},{}",
            e.number,
            option(kernel.step),
            device(definitions, e),
            kernel.kind.name(),
            definitions.text(kernel.name),
            size(kernel.grid),
            size(kernel.block),
            option(begin),
            option(end),
            option(own.get(at)),
        ));
    }
}

fn copied(definitions: &Definitions, number: u64, copy: &Copy) -> String {
    let tensor = &definitions.tensors[copy.tensor as usize];
    let device = &definitions.devices[copy.device as usize];
    format!(
        "{number},{},{},{},{},{},{},{},{},{},{},{},{}",
        copy.evaluation,
        copy.context,
        definitions.text(device.name),
        copy.way.name(),
        copy.tensor,
        definitions.name(tensor.name),
        tensor.kind.name(),
        copy.tensor_offset,
        copy.bytes,
        u8::from(copy.is_async),
        copy.begin_nanos,
        copy.end_nanos
    )
}

fn tokens(definitions: &Definitions, e: &Evaluation, first: u64, f: &mut dyn FnMut(&str)) {
    let template = &definitions.templates[e.template as usize];
    let positions = e.first_of(template, CaptureKind::Positions);
    for (i, id) in e.first_of(template, CaptureKind::Tokens).iter().enumerate() {
        let text = definitions.tokens.get(&(*id as u32));
        let text = text.map_or(String::new(), |t| String::from_utf8_lossy(t).into_owned());
        let (token, sequence) = (first + i as u64, option(e.sequences.get(i)));
        let (phase, position) = (e.token_phases[i].name(), option(positions.get(i)));
        f(&format!(
            "{token},{},{phase},{id},{text},{position},{sequence}",
            e.number
        ));
    }
}

fn nodes(definitions: &Definitions, e: &Evaluation, f: &mut dyn FnMut(&str)) {
    let mut begin = e.begin_nanos;
    let on_device = device_steps(definitions, e);
    for (i, step) in definitions.templates[e.template as usize]
        .steps
        .iter()
        .enumerate()
    {
        let end = e.step_nanos[i];
        if end == 0 && e.device.is_none() {
            continue;
        }
        let (op, name) = (definitions.text(step.op), definitions.name(step.name));
        let duration = end.saturating_sub(begin);
        let times = match &e.device {
            None => format!("{begin},{end},{duration}"),
            Some(_) => on_device[i].map_or(",,".to_owned(), |[begin, end, own]| {
                format!("{begin},{end},{own}")
            }),
        };
        let (node, fused, layer) = (step.node, step.fused_nodes, option(step.layer));
        let device = device(definitions, e);
        f(&format!(
            "{},{i},{node},{fused},{op},{name},{layer},{device},{times}",
            e.number
        ));
        begin = end;
    }
}

/// Begin of the first kernel, end of the last, and what they had for themselves.
fn device_steps(definitions: &Definitions, e: &Evaluation) -> Vec<Option<[u64; 3]>> {
    let steps = definitions.templates[e.template as usize].steps.len();
    let mut of_steps = vec![None; steps];
    let Some(on) = &e.device else { return of_steps };
    let launches = on.launches.map(|at| &definitions.launches[at as usize]);
    let own = exclusive(&on.kernel_nanos);
    let kernels = launches.iter().flat_map(|launches| &launches.kernels);
    for ((kernel, &(begin, end)), own) in kernels.zip(&on.kernel_nanos).zip(own) {
        let Some(step) = kernel.step else { continue };
        let [first, last, sum] = of_steps[step as usize].unwrap_or([u64::MAX, 0, 0]);
        of_steps[step as usize] = Some([begin.min(first), end.max(last), own + sum]);
    }
    of_steps
}

fn accesses(definitions: &Definitions, e: &Evaluation, first_token: u64, f: &mut dyn FnMut(&str)) {
    let template = &definitions.templates[e.template as usize];
    let tokens = e.first_of(template, CaptureKind::Tokens).len() as u64;
    // What was waited for a whole weight counts once.
    let mut waited = std::collections::HashSet::new();
    for (i, step) in template
        .steps
        .iter()
        .enumerate()
        .filter(|&(i, _)| e.was_executed(i))
    {
        let op = definitions.text(step.op);
        for_each_access(template, e, i, |access| {
            let tensor = &definitions.tensors[access.def.tensor as usize];
            let name = definitions.name(tensor.name);
            let meaning = (tensor.kind == TensorKind::Weight).then(|| Meaning::of(&name));
            let token = access.element.filter(|_| match &access.def.region {
                // Small rows that follow each other are one access for several tokens.
                Region::Indexed(indexed) => {
                    indexed.count.iter().product::<u64>() == tokens
                        && access.region.bytes() == indexed.unit.bytes()
                }
                Region::Fixed(_) => false,
            });
            let direction = match access.def.direction {
                Direction::Read => "read",
                Direction::Write => "write",
            };
            let operand = match access.def.operand {
                Operand::Source(n) => format!("src{n}"),
                Operand::Destination => "dst".into(),
            };
            let is_weight_read = tensor.kind == TensorKind::Weight && direction == "read";
            let origins = e.origins.as_ref().filter(|_| is_weight_read);
            let origin = origins.map(|origins| {
                let found = origins.iter().find(|o| {
                    o.step as usize == i
                        && operand == format!("src{}", o.operand)
                        && (o.expert.is_none() || o.expert.map(u32::from) == access.expert)
                });
                match found {
                    None => ("page_cache", 0),
                    Some(o) if o.expert.is_none() && !waited.insert((i, o.operand)) => {
                        (o.source.name(), 0)
                    }
                    Some(o) => (o.source.name(), o.waited_nanos),
                }
            });
            let dims = &access.region.dims;
            let strides: Vec<String> = dims.iter().map(|(n, s)| format!("{n}x{s}")).collect();
            let row = [
                e.number.to_string(),
                i.to_string(),
                op.clone(),
                option(step.layer),
                access.def.tensor.to_string(),
                name.clone(),
                tensor.kind.name().into(),
                option(meaning.as_ref().map(|m| match (&*m.role, &*op) {
                    ("token", "MUL_MAT") => "output",
                    _ => m.component.name(),
                })),
                option(meaning.as_ref().map(|m| &m.role)),
                e.phase.name().into(),
                direction.into(),
                operand,
                option(access.expert),
                option(token.map(|t| first_token + t)),
                option(tensor.place.map(|p| p.file)),
                option(tensor.place.map(|p| p.file_offset + access.region.offset)),
                access.region.offset.to_string(),
                access.region.bytes().to_string(),
                dims.iter().map(|&(n, _)| n).product::<u64>().to_string(),
                access.region.run_bytes.to_string(),
                strides.join(" "),
                option(origin.map(|o| o.0)),
                option(origin.map(|o| o.1)),
                // No graph of these tests reads a cache on a device.
                String::new(),
            ];
            f(&row.join(","));
        });
    }
}

fn tensors(definitions: &Definitions, f: &mut dyn FnMut(&str)) {
    for (i, tensor) in definitions.tensors.iter().enumerate() {
        let name = definitions.name(tensor.name);
        let meaning = (tensor.kind == TensorKind::Weight).then(|| Meaning::of(&name));
        let ty = GgmlType::from_u32(tensor.ggml_type).map_or("unknown", GgmlType::name);
        let row = [
            i.to_string(),
            name.clone(),
            tensor.kind.name().into(),
            option(meaning.as_ref().map(|m| m.component.name())),
            option(meaning.as_ref().map(|m| &m.role)),
            option(meaning.as_ref().and_then(|m| m.layer)),
            ty.into(),
            gguf::structure::shape_text(&tensor.ne),
            tensor.size_bytes.to_string(),
            option(tensor.place.map(|p| p.file)),
            option(tensor.place.map(|p| p.file_offset)),
            definitions.text(tensor.buffer_type),
            tensor.address.to_string(),
            // The graphs of these tests lie in the host's memory.
            "CPU".into(),
        ];
        f(&row.join(","));
    }
}

fn option(value: Option<impl ToString>) -> String {
    value.map_or(String::new(), |v| v.to_string())
}
