//! From stacks to bars: where each frame begins and how wide it is.

use std::collections::BTreeSet;

use crate::{folded::Folded, frames::Frames};

/// The root, and a row for each frame of a stack.
pub const DEPTHS: usize = Frames::DEPTH + 1;

/// A frame of the picture, in the unit of the sums.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bar {
    /// 0 for the root.
    pub depth: usize,
    pub start: u64,
    pub sum: u64,
    pub name: String,
    /// For bars of a component and below it.
    pub component: Option<&'static str>,
}

/// Bars from left to right, each before those below it, and the components that
/// occur.
pub fn bars(folded: &Folded) -> (Vec<Bar>, BTreeSet<&'static str>) {
    let mut bars = vec![Bar {
        depth: 0,
        start: 0,
        sum: folded.total(),
        name: "all".to_owned(),
        component: None,
    }];
    let mut components = BTreeSet::new();
    // Index of the open bar at each depth below the root. Stacks are sorted, so
    // those that share a prefix follow each other.
    let mut open: Vec<usize> = Vec::new();
    let mut start = 0;
    for (frames, &sum) in &folded.sums {
        components.insert(frames.component);
        let texts = frames.texts();
        let shared = open
            .iter()
            .zip(&texts)
            .take_while(|(bar, text)| bars[**bar].name == **text);
        open.truncate(shared.count());
        for &bar in &open {
            bars[bar].sum += sum;
        }
        for (level, name) in texts.into_iter().enumerate().skip(open.len()) {
            open.push(bars.len());
            bars.push(Bar {
                depth: level + 1,
                start,
                sum,
                name,
                component: (level >= 2).then_some(frames.component),
            });
        }
        start += sum;
    }
    (bars, components)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars_lie_within_the_bar_above() {
        let frames = |layer, component, op: &str, tensor: &str| Frames {
            phase: "generate",
            layer,
            component,
            op: op.to_owned(),
            tensor: tensor.to_owned(),
        };
        let sums = [
            (frames(None, "output", "MUL_MAT", "output.weight"), 5),
            (frames(Some(2), "ffn", "MUL_MAT", "a"), 3),
            (frames(Some(2), "ffn", "MUL_MAT", "b"), 4),
            (frames(Some(10), "ffn", "MUL_MAT", "a"), 8),
        ];
        let folded = Folded {
            sums: sums.into_iter().collect(),
        };
        let (bars, components) = bars(&folded);
        let shown: Vec<(usize, u64, u64, &str)> = bars
            .iter()
            .filter(|bar| bar.depth <= 2 || bar.depth == 5)
            .map(|bar| (bar.depth, bar.start, bar.sum, bar.name.as_str()))
            .collect();
        let expected = [
            (0, 0, 20, "all"),
            (1, 0, 20, "generate"),
            (2, 0, 5, "no layer"),
            (5, 0, 5, "output.weight"),
            (2, 5, 7, "layer 2"),
            (5, 5, 3, "a"),
            (5, 8, 4, "b"),
            (2, 12, 8, "layer 10"),
            (5, 12, 8, "a"),
        ];
        assert_eq!(shown, expected);
        assert_eq!(Vec::from_iter(components), ["ffn", "output"]);
    }
}
