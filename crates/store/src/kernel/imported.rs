//! Rows of what other tools have recorded: `imported`.

use reader::kernel::Underneath;

use super::{Cells, process, send_if_full};
use crate::{
    StoreError,
    row_group::{Cell, RowGroup, Texts},
    rows::int,
    schema::IMPORTED,
};

pub fn write(
    underneath: &Underneath,
    cells: &Cells,
    texts: &mut Texts,
    send: &mut impl FnMut(RowGroup) -> Result<(), StoreError>,
) -> Result<(), StoreError> {
    let mut group = RowGroup::new(&IMPORTED);
    for (event, at) in underneath.imported()? {
        let node = cells.node(at);
        let mut text = |text: &str| Cell::Int(texts.number(text));
        let row = [
            int(Some(event.begin_nanos)),
            int(Some(event.duration_nanos)),
            process(event.pid),
            process(event.tid),
            text(&event.tool),
            text(&event.category),
            text(&event.name),
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
    send(group.take(texts))
}
