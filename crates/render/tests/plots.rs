//! Plots show what the index and the analyses say, with units, in valid SVG.

mod run;

use std::io::Cursor;

use base64::{Engine as _, engine::general_purpose::STANDARD};
use index::{Filter, HeatmapMetric, HeatmapQuery, RowKind, TokenWindow};
use render::{
    plot::png,
    plots::{self, Plot},
};
use resvg::usvg::roxmltree::Document;
use run::{EXPERTS, LAYERS, Model, Report, USED};

const TOKENS: u64 = 40;

fn plot<'a>(plots: &'a [Plot], id: &str) -> &'a Plot {
    let ids: Vec<&str> = plots.iter().map(|plot| plot.id.as_str()).collect();
    plots
        .iter()
        .find(|plot| plot.id == id)
        .unwrap_or_else(|| panic!("no {id} in {ids:?}"))
}

/// Size and palette numbers of the largest raster in a plot.
fn raster(plot: &Plot) -> (u32, u32, Vec<u8>) {
    let svg = plot.svg.standalone();
    let document = Document::parse(&svg).unwrap();
    let images = document
        .descendants()
        .filter(|node| node.has_tag_name("image"));
    let decoded = images.map(|image| {
        let data = image.attribute("href").unwrap();
        let data = data.strip_prefix("data:image/png;base64,").unwrap();
        let bytes = STANDARD.decode(data).unwrap();
        let mut reader = png::Decoder::new(Cursor::new(bytes)).read_info().unwrap();
        let mut indices = vec![0; reader.output_buffer_size().unwrap()];
        let info = reader.next_frame(&mut indices).unwrap();
        (info.width, info.height, indices)
    });
    decoded
        .max_by_key(|(width, height, _)| (*width > 1, width * height))
        .unwrap()
}

fn texts(svg: &str) -> Vec<String> {
    let document = Document::parse(svg).unwrap();
    document
        .descendants()
        .filter(|node| node.has_tag_name("text"))
        .map(|node| node.text().unwrap_or("").to_owned())
        .collect()
}

#[test]
fn a_heatmap_has_a_column_per_token_with_its_value() {
    let report = Report::new(Model::Experts, TOKENS);
    let plots = plots::all(&report.input());
    let query = HeatmapQuery {
        rows: RowKind::Layer,
        metric: HeatmapMetric::Bytes,
        window: TokenWindow::default(),
        columns: 640,
    };
    let expected = report.index.heatmap(&query, &Filter::default()).unwrap();
    let (columns, rows, indices) = raster(plot(&plots, "token-layer-bytes"));
    assert_eq!((u64::from(columns), rows), (TOKENS, LAYERS + 1));
    let max = expected.values.iter().copied().fold(0.0, f32::max);
    for (found, value) in indices.iter().zip(&expected.values) {
        let wanted = match *value {
            0.0 => 0,
            value => 1 + (value / max * 254.0).round() as u8,
        };
        assert!(found.abs_diff(wanted) <= 1, "{found} for {value} of {max}");
    }
}

#[test]
fn every_choice_of_an_expert_is_a_filled_cell() {
    let report = Report::new(Model::Experts, TOKENS);
    let plots = plots::all(&report.input());
    let (columns, rows, indices) = raster(plot(&plots, "token-expert"));
    assert_eq!(
        (u64::from(columns), u64::from(rows)),
        (TOKENS, u64::from(LAYERS) * EXPERTS)
    );
    let filled = indices.iter().filter(|index| **index > 0).count() as u64;
    assert_eq!(filled, TOKENS * USED * u64::from(LAYERS));
    // Temperatures are counted against the mean.
    let (columns, rows, _) = raster(plot(&plots, "expert-temperature"));
    assert_eq!((u64::from(columns), rows), (EXPERTS, LAYERS));
}

#[test]
fn offsets_are_coloured_by_the_token_they_were_read_for() {
    let report = Report::new(Model::Dense, TOKENS);
    let plots = plots::all(&report.input());
    let (columns, _, indices) = raster(plot(&plots, "offset-time"));
    // An evaluation is a millisecond; in each column all cells have one colour,
    // which never goes back.
    let mut last = 0;
    for column in 0..columns as usize {
        let cells = indices.iter().skip(column).step_by(columns as usize);
        let colours: std::collections::BTreeSet<u8> =
            cells.copied().filter(|index| *index > 0).collect();
        assert!(colours.len() <= 1, "{colours:?} in column {column}");
        if let Some(&colour) = colours.first() {
            assert!(colour >= last);
            last = colour;
        }
    }
    assert_eq!(last, 255, "the last token has the last colour");
}

#[test]
fn every_plot_is_valid_svg_and_becomes_a_png() {
    for model in [Model::Dense, Model::Experts] {
        let report = Report::new(model, TOKENS);
        let mut ids = Vec::new();
        for plot in plots::all(&report.input()) {
            let svg = plot.svg.standalone();
            for text in [&svg, &plot.svg.inline()] {
                let parsed = Document::parse(text);
                assert!(parsed.is_ok(), "{}: {:?}", plot.id, parsed.err());
            }
            let png = png(&svg, 2.0).unwrap();
            let reader = png::Decoder::new(Cursor::new(png)).read_info().unwrap();
            assert_eq!(reader.info().width, 1440, "{}", plot.id);
            assert!(
                plot.id.bytes().all(|b| b.is_ascii_lowercase() || b == b'-'),
                "{}",
                plot.id
            );
            assert!(
                !plot.title.is_empty() && plot.caption.len() > 40,
                "{}",
                plot.id
            );
            ids.push(plot.id);
        }
        let count = ids.len();
        ids.sort();
        ids.dedup();
        assert_eq!(ids.len(), count, "ids are file names");
    }
}

#[test]
fn axes_say_what_they_show_and_in_which_unit() {
    let report = Report::new(Model::Experts, TOKENS);
    let plots = plots::all(&report.input());
    let check = |id: &str, labels: &[&str]| {
        let texts = texts(&plot(&plots, id).svg.standalone());
        for label in labels {
            assert!(
                texts.iter().any(|text| text == label),
                "{id}: no “{label}” in {texts:?}"
            );
        }
    };
    check(
        "token-layer-bytes",
        &["layer", "token, in the order of the run", "bytes (KiB)"],
    );
    check("token-layer-time", &["layer", "time"]);
    check("token-tensor", &["tensors by layer", "bytes per token"]);
    check(
        "offset-time",
        &[
            "time since the first evaluation (ms)",
            "offset in the model’s files (KiB)",
            "token number",
        ],
    );
    check("components", &["bytes read and written (KiB)"]);
    check("hottest-tensors", &["bytes read (KiB)"]);
    check("layers-bytes", &["layer", "bytes read and written (KiB)"]);
    check("layers-time", &["layer", "time in nodes (ms)"]);
    check("ops", &["time in nodes (ms)"]);
    check("qkvo", &["bytes (KiB)"]);
    check(
        "kv-growth",
        &["context (tokens)", "KV cache per evaluation (B)"],
    );
    check("token-expert", &["experts by layer"]);
    check(
        "expert-temperature",
        &["expert number", "layer", "temperature (×)"],
    );
    check("co-activation", &["expert number", "tokens sent to both"]);
    check(
        "expert-cache",
        &["memory for experts (KiB)", "hits of all uses (%)"],
    );
    check(
        "working-set",
        &["tokens so far", "distinct bytes touched (KiB)"],
    );
    check(
        "miss-ratio",
        &[
            "memory for weights (KiB)",
            "bytes missed of all bytes read (%)",
        ],
    );
    check(
        "disk-bytes",
        &["memory for weights (KiB)", "from the disk per token (KiB)"],
    );
    check("flame-bytes", &["attention", "expert"]);
    check("flame-time", &["attention", "expert"]);
}

#[test]
fn a_dense_model_has_no_plots_of_experts() {
    let report = Report::new(Model::Dense, TOKENS);
    let plots = plots::all(&report.input());
    assert!(
        plots
            .iter()
            .all(|plot| plot.section != plots::Section::Experts)
    );
    plot(&plots, "token-tensor");
}

#[test]
fn tokens_stand_along_the_axis_while_they_are_few() {
    let few = Report::new(Model::Dense, TOKENS);
    let texts_of = |report: &Report| {
        texts(
            &plot(&plots::all(&report.input()), "token-layer-bytes")
                .svg
                .standalone(),
        )
    };
    assert!(
        texts_of(&few).contains(&"<img·src=x·one…".to_owned()),
        "{:?}",
        texts_of(&few)
    );
    let many = Report::new(Model::Dense, 300);
    assert!(texts_of(&many).contains(&"token number".to_owned()));
}

#[test]
fn the_same_run_gives_the_same_pictures() {
    let svgs = || -> Vec<String> {
        let report = Report::new(Model::Experts, TOKENS);
        plots::all(&report.input())
            .iter()
            .map(|plot| plot.svg.standalone())
            .collect()
    };
    assert_eq!(svgs(), svgs());
}
