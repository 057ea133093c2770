//! Rows of what threads did on the processors: `samples`, `off_cpu`, `counted`, `machine`.

use reader::kernel::{Cpu, CpuSample};

use super::{Cells, NodeCells, process, send_if_full};
use crate::{
    StoreError,
    row_group::{Cell, RowGroup, Texts},
    rows::int,
    schema::{COUNTED, MACHINE, OFF_CPU, SAMPLES},
};

pub fn write(
    cpu: &Cpu,
    cells: &Cells,
    texts: &mut Texts,
    send: &mut impl FnMut(RowGroup) -> Result<(), StoreError>,
) -> Result<(), StoreError> {
    let stacks: Vec<StackCells> = (0..=cpu.stacks.len() as u32)
        .map(|stack| StackCells::of(cpu, stack, texts))
        .collect();
    let mut group = RowGroup::new(&SAMPLES);
    for sample in &cpu.samples {
        let stack = stacks.get(sample.stack as usize).unwrap_or(&NO_STACK);
        push_sample(&mut group, texts, cpu, sample, stack, cells.node(sample.at));
        send_if_full(&mut group, texts, send)?;
    }
    send(group.take(texts))?;
    let mut group = RowGroup::new(&OFF_CPU);
    for off in &cpu.off {
        let node = cells.node(off.at);
        let nanos = off.end_nanos.map(|end| end.saturating_sub(off.begin_nanos));
        let row = [
            int(Some(off.begin_nanos)),
            int(off.end_nanos),
            int(nanos),
            process(off.pid),
            process(off.tid),
            int(Some(u32::from(off.cpu))),
            int(off.next_cpu.map(u32::from)),
            Cell::Text(match off.is_preempted {
                true => "preempted",
                false => "waiting",
            }),
            node.eval,
            node.step,
            node.op,
            node.name,
            node.layer,
            node.phase,
        ];
        group.push(texts, row);
        send_if_full(&mut group, texts, send)?;
    }
    send(group.take(texts))?;
    let mut group = RowGroup::new(&COUNTED);
    for counted in &cpu.counted {
        let node = cells.node(counted.at);
        let row = [
            int(Some(counted.nanos)),
            process(counted.pid),
            process(counted.tid),
            int(Some(u32::from(counted.cpu))),
            Cell::Text(counted.counter.name()),
            int(Some(counted.events)),
            node.eval,
            node.step,
            node.op,
            node.name,
            node.layer,
            node.phase,
        ];
        group.push(texts, row);
        send_if_full(&mut group, texts, send)?;
    }
    send(group.take(texts))?;
    let mut group = RowGroup::new(&MACHINE);
    for seen in &cpu.machine {
        let row = [
            int(Some(seen.nanos)),
            int(seen.busy_nanos),
            int(seen.stolen_nanos),
            int(seen.own_nanos),
            int(seen.queued_nanos),
            int(seen.throttled_nanos),
            int(seen.swapped_in_bytes),
            int(seen.hertz),
            int(seen.processors),
            int(seen.threads),
        ];
        group.push(texts, row);
        send_if_full(&mut group, texts, send)?;
    }
    send(group.take(texts))
}

/// What rows say about a stack, worked out once for each.
struct StackCells {
    function: Cell<'static>,
    module: Cell<'static>,
    stack: Cell<'static>,
}

const NO_STACK: StackCells = StackCells {
    function: Cell::Null,
    module: Cell::Null,
    stack: Cell::Null,
};

impl StackCells {
    fn of(cpu: &Cpu, stack: u32, texts: &mut Texts) -> StackCells {
        let calls = cpu.calls(stack);
        let Some(innermost) = calls.last() else {
            return NO_STACK;
        };
        let names: Vec<&str> = calls.iter().map(|call| call.name.as_str()).collect();
        let mut cell = |text: &str| Cell::Int(texts.number(text));
        StackCells {
            function: cell(&innermost.name),
            module: cell(&innermost.module),
            stack: cell(&names.join(";")),
        }
    }
}

fn push_sample(
    group: &mut RowGroup,
    texts: &mut Texts,
    cpu: &Cpu,
    sample: &CpuSample,
    stack: &StackCells,
    node: NodeCells,
) {
    let row = [
        int(Some(sample.nanos)),
        process(sample.pid),
        process(sample.tid),
        int(Some(u32::from(sample.cpu))),
        int(Some(sample.sampled_nanos)),
        Cell::Text(cpu.activity(sample).name()),
        stack.function,
        stack.module,
        stack.stack,
        node.eval,
        node.step,
        node.op,
        node.name,
        node.layer,
        node.phase,
    ];
    group.push(texts, row);
}
