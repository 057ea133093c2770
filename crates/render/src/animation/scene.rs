//! What a frame shows, and how it changes.
//!
//! From top to bottom: the text with the token at hand, the file map with the
//! layers below it, the experts, and how far the run has come. Heat is 1 where
//! something was read in the frame and fades with every frame after.

use index::{EvalBrief, EvalInfo, Info, RunIndex, TokenWindow};

use super::{
    Frame,
    ink::{Ink, Letters, PANEL},
    pixels::{Area, Pixels},
};
use crate::{
    palette::Category,
    plot::{
        Unit,
        text::{token_label, width_px},
        units::grouped,
    },
};

/// What is left of the heat one frame later.
const FADE: f32 = 0.74;
/// Experts and layers stay visible longer: few of them change.
const SLOW_FADE: f32 = 0.88;
const MAP_COLUMNS: usize = 96;
const MAP_ROWS: usize = 26;
/// Tokens before the one at hand that are worth showing.
const TEXT_TOKENS: u64 = 40;

pub struct Scene {
    width: usize,
    height: usize,
    places: Places,
    model: String,
    total_bytes: u64,
    /// Category of each cell of the map.
    cells: Vec<Option<Category>>,
    cell_heat: Vec<f32>,
    layers: Vec<Option<u32>>,
    layer_heat: Vec<f32>,
    /// Experts by row (layer) and column.
    expert_rows: Vec<u32>,
    experts: usize,
    expert_heat: Vec<f32>,
    tokens: u64,
    letters: Letters,
    eval: Option<EvalInfo>,
    words: Words,
}

/// Texts of the evaluation at hand.
#[derive(Default)]
struct Words {
    before: String,
    now: String,
    status: String,
}

/// Where things stand, in pixels.
struct Places {
    edge: usize,
    text: usize,
    small_px: f32,
    text_px: f32,
    map: Area,
    layers: Area,
    experts: Option<Area>,
    bar: Area,
}

impl Scene {
    pub fn new(index: &RunIndex, info: &Info, width_px: u32) -> Scene {
        let total_bytes = info
            .model
            .files
            .iter()
            .map(|file| file.begin + file.size_bytes)
            .max();
        let total_bytes = total_bytes.unwrap_or(0).max(1);
        let mut cells = vec![None; MAP_COLUMNS * MAP_ROWS];
        for tensor in &info.tensors {
            let range = cell_range(tensor.begin, tensor.size_bytes, total_bytes);
            cells[range].fill(Some(Category::of(tensor.component)));
        }
        let all = index.experts(&index::Filter::default());
        let experts = all.layers.iter().map(|layer| {
            layer
                .experts
                .iter()
                .map(|e| e.expert as usize + 1)
                .max()
                .unwrap_or(0)
        });
        let experts = experts.max().unwrap_or(0).max(if all.layers.is_empty() {
            0
        } else {
            info.experts as usize
        });
        let expert_rows: Vec<u32> = all.layers.iter().map(|layer| layer.layer).collect();
        let (places, height) = Places::of(width_px as usize, expert_rows.len());
        Scene {
            width: width_px as usize,
            height,
            places,
            model: info.model.name.clone().unwrap_or_else(|| info.name.clone()),
            total_bytes,
            cell_heat: vec![0.0; cells.len()],
            cells,
            layer_heat: vec![0.0; info.layers.len()],
            layers: info.layers.clone(),
            expert_heat: vec![0.0; expert_rows.len() * experts],
            expert_rows,
            experts,
            tokens: info.totals.tokens,
            letters: Letters::default(),
            eval: None,
            words: Words::default(),
        }
    }

    pub fn width_px(&self) -> u32 {
        self.width as u32
    }

    pub fn height_px(&self) -> u32 {
        self.height as u32
    }

    /// Turns to an evaluation.
    pub fn begin(&mut self, index: &RunIndex, eval: &EvalBrief) {
        self.eval = index.eval(eval.eval);
        let text = |token: &index::TokenInfo| match token.text.as_deref() {
            Some(text) => token_label(text),
            None => format!("#{} ", token.id),
        };
        let window = |from: u64, to: u64| {
            index.tokens(TokenWindow {
                from: Some(from),
                to: Some(to),
            })
        };
        let first = eval.first_token;
        let before = match first {
            0 => Vec::new(),
            first => window(first.saturating_sub(TEXT_TOKENS), first - 1),
        };
        let now = match eval.tokens {
            0 => Vec::new(),
            tokens => window(
                first.max((first + tokens).saturating_sub(TEXT_TOKENS)),
                first + tokens - 1,
            ),
        };
        let bytes = self
            .eval
            .iter()
            .flat_map(|eval| &eval.steps)
            .flat_map(|step| &step.ranges);
        let bytes: u64 = bytes.map(|range| range.1).sum();
        let which = match eval.tokens {
            1 => format!("token {}", grouped(first + 1)),
            _ => format!(
                "tokens {} to {}",
                grouped(first + 1),
                grouped(first + eval.tokens)
            ),
        };
        self.words = Words {
            before: before.iter().map(text).collect(),
            now: now.iter().map(text).collect(),
            status: format!(
                "{}, {which} of {}: {} of weights in {}",
                eval.phase,
                grouped(self.tokens),
                Unit::Bytes.amount(bytes as f64),
                Unit::Nanos.amount(eval.end.saturating_sub(eval.begin) as f64)
            ),
        };
    }

    /// The next frame: part `part` of `parts` of the evaluation.
    pub fn frame(&mut self, part: u32, parts: u32, progress: f64) -> Frame {
        self.fade();
        self.heat(part, parts);
        let mut canvas = Pixels::new(self.width, self.height);
        self.draw_text(&mut canvas);
        self.draw_map(&mut canvas);
        self.draw_layers(&mut canvas);
        self.draw_experts(&mut canvas);
        let bar = self.places.bar;
        canvas.fill(bar, PANEL);
        let done = (bar.width as f64 * progress).round() as usize;
        canvas.fill(Area { width: done, ..bar }, Ink::Muted.shade(0.8));
        Frame {
            width_px: self.width as u32,
            height_px: self.height as u32,
            indices: canvas.indices,
        }
    }

    fn fade(&mut self) {
        self.cell_heat.iter_mut().for_each(|heat| *heat *= FADE);
        self.layer_heat.iter_mut().for_each(|heat| *heat *= FADE);
        self.expert_heat
            .iter_mut()
            .for_each(|heat| *heat *= SLOW_FADE);
    }

    /// Everything that the evaluation reads in this part of its time.
    fn heat(&mut self, part: u32, parts: u32) {
        let Some(eval) = &self.eval else { return };
        let span = eval.end.saturating_sub(eval.begin).max(1) as f64;
        let at = |part: u32| eval.begin as f64 + span * f64::from(part) / f64::from(parts);
        let (from, to) = (at(part), at(part + 1));
        for step in &eval.steps {
            // A step belongs to the part in which it ends, the last to the last.
            let end = step.end as f64;
            let is_now = (end > from || part == 0) && (end <= to || part + 1 == parts);
            if !is_now {
                continue;
            }
            for &(offset, bytes, _) in &step.ranges {
                self.cell_heat[cell_range(offset, bytes, self.total_bytes)].fill(1.0);
            }
            if let Some(row) = self.layers.iter().position(|layer| *layer == step.layer) {
                self.layer_heat[row] = 1.0;
            }
            let row = step
                .layer
                .and_then(|layer| self.expert_rows.binary_search(&layer).ok());
            if let Some(row) = row {
                for expert in step
                    .experts
                    .iter()
                    .map(|expert| *expert as usize)
                    .filter(|e| *e < self.experts)
                {
                    self.expert_heat[row * self.experts + expert] = 1.0;
                }
            }
        }
    }

    fn draw_text(&mut self, canvas: &mut Pixels) {
        let places = &self.places;
        let (left, top, size) = (places.edge, places.text, places.text_px);
        let right = self.width - places.edge;
        canvas.text(
            self.letters.mask(&self.model, places.small_px),
            left,
            places.edge / 2,
            right,
            Ink::Muted,
        );
        // The token at hand ends at two thirds, so that the eye can stay.
        let now_px = width_px(&self.words.now, f64::from(size)) as usize;
        let anchor = left + (right - left) * 2 / 3;
        let start = anchor.saturating_sub(now_px).max(left);
        let mut before = self.words.before.as_str();
        while width_px(before, f64::from(size)) as usize > (start - left).saturating_sub(8) {
            let mut rest = before.chars();
            rest.next();
            before = rest.as_str();
        }
        let mask = self.letters.mask(before, size).clone();
        let x = start.saturating_sub(mask.ink_width() + 6).max(left);
        canvas.text(&mask, x, top, right, Ink::Muted);
        let now = self.letters.mask(&self.words.now, size).clone();
        let box_area = Area {
            left: start.saturating_sub(3),
            top: top + 1,
            width: (now.ink_width() + 8).min(right - start),
            height: now.height_px,
        };
        canvas.fill(box_area, PANEL);
        canvas.text_over(&now, start + 1, top, right, Ink::Text, PANEL);
        let mask = self.letters.mask(&self.words.status, places.small_px);
        canvas.text(mask, left, top + (size * 1.6) as usize, right, Ink::Muted);
    }

    fn draw_map(&self, canvas: &mut Pixels) {
        let area = self.places.map;
        for (number, (category, heat)) in self.cells.iter().zip(&self.cell_heat).enumerate() {
            let cell = area.cell(
                (number % MAP_COLUMNS, MAP_COLUMNS),
                (number / MAP_COLUMNS, MAP_ROWS),
            );
            let colour = category.map_or(PANEL, |category| Ink::Of(category).shade(*heat));
            canvas.fill(cell, colour);
        }
    }

    fn draw_layers(&mut self, canvas: &mut Pixels) {
        let area = self.places.layers;
        let count = self.layers.len();
        let size_px = self.places.small_px * 0.85;
        let names: Vec<String> = self
            .layers
            .iter()
            .map(|layer| crate::plots::layer_name(*layer))
            .collect();
        let widest = names
            .iter()
            .map(|name| self.letters.mask(name, size_px).ink_width())
            .max();
        // Every n-th name, so that they do not touch.
        let every = (widest.unwrap_or(0) + 6).div_ceil((area.width / count.max(1)).max(1));
        for (row, heat) in self.layer_heat.iter().enumerate() {
            let cell = area.cell((row, count), (0, 1));
            canvas.fill(cell, Ink::Of(Category::of("attention")).shade(*heat));
            if row.is_multiple_of(every) {
                let mask = self.letters.mask(&names[row], size_px);
                let left = (cell.left + cell.width / 2).saturating_sub(mask.ink_width() / 2);
                canvas.text(
                    mask,
                    left,
                    cell.top + cell.height + 1,
                    self.width,
                    Ink::Muted,
                );
            }
        }
        let label = self.letters.mask("layers", self.places.small_px);
        canvas.text(label, self.places.edge, area.top, area.left, Ink::Muted);
    }

    fn draw_experts(&mut self, canvas: &mut Pixels) {
        let Some(area) = self.places.experts else {
            return;
        };
        let columns = self.layers.len();
        for (number, heat) in self.expert_heat.iter().enumerate() {
            // Layers from left to right, as above; experts from top to bottom.
            let (row, expert) = (number / self.experts, number % self.experts);
            let layer = Some(self.expert_rows[row]);
            let Some(column) = self.layers.iter().position(|known| *known == layer) else {
                continue;
            };
            let cell = area.cell((column, columns), (expert, self.experts));
            canvas.fill(cell, Ink::Of(Category::of("expert")).shade(*heat));
        }
        let label = self.letters.mask("experts", self.places.small_px);
        canvas.text(label, self.places.edge, area.top, area.left, Ink::Muted);
    }
}

/// Cells of the map that a range of bytes touches.
fn cell_range(offset: u64, bytes: u64, total_bytes: u64) -> std::ops::Range<usize> {
    let cells = MAP_COLUMNS * MAP_ROWS;
    let cell =
        |offset: u64| (u128::from(offset) * cells as u128 / u128::from(total_bytes)) as usize;
    let first = cell(offset).min(cells);
    let end = match bytes {
        0 => first,
        bytes => cell(offset.saturating_add(bytes - 1)) + 1,
    };
    first..end.clamp(first, cells)
}

impl Places {
    fn of(width: usize, expert_rows: usize) -> (Places, usize) {
        let scale = width as f32 / 800.0;
        let px = |value: f32| (value * scale).round() as usize;
        let edge = px(20.0);
        let label = px(62.0);
        let area = |top: usize, height: usize, left: usize| Area {
            left,
            top,
            width: width - left - edge,
            height,
        };
        let map = area(px(96.0), px(208.0), edge);
        let layers = area(map.top + map.height + px(12.0), px(14.0), edge + label);
        // Below it stand the names.
        let mut bottom = layers.top + layers.height + px(16.0);
        let experts = (expert_rows > 0).then(|| area(bottom + px(6.0), px(72.0), edge + label));
        if let Some(experts) = experts {
            bottom = experts.top + experts.height;
        }
        let bar = area(bottom + px(14.0), px(4.0).max(2), edge);
        // Even, because video codecs ask for it.
        let height = (bar.top + bar.height + px(14.0)).next_multiple_of(2);
        let places = Places {
            edge,
            text: px(34.0),
            small_px: 12.0 * scale.max(0.75),
            text_px: 19.0 * scale.max(0.7),
            map,
            layers,
            experts,
            bar,
        };
        (places, height)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_has_a_cell() {
        let cells = MAP_COLUMNS * MAP_ROWS;
        assert_eq!(cell_range(0, 1, 1 << 40), 0..1);
        assert_eq!(cell_range((1 << 40) - 1, 1, 1 << 40), cells - 1..cells);
        assert_eq!(cell_range(0, 1 << 40, 1 << 40), 0..cells);
        // A damaged log may name bytes beyond the file.
        assert_eq!(cell_range(u64::MAX, u64::MAX, 10), cells..cells);
        assert!(cell_range(5, 0, 10).is_empty());
    }
}
